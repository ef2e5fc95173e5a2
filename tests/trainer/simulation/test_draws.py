"""Distributions: their means are what their draws average to, and a seed always draws the same."""

import random
from statistics import fmean, median

import pytest

from rollcage.trainer.simulation.draws import Constant, Draws, Empirical, Gaussian, Lognormal, draw

RANDOM = random.Random(0)
SEEDS = [RANDOM.getrandbits(63) for _ in range(20_000)]


@pytest.mark.parametrize(
    "draws",
    [
        Constant(3),
        Lognormal(100),
        Lognormal(100, longest=400),
        Lognormal(100, sigma=0, longest=70),
        Lognormal.of_mean(50, 1.2),
        Gaussian(10, 10),
        Gaussian(10, 0),
        Gaussian(-5, 10),
        Empirical([1, 1, 2, 8]),
    ],
    ids=repr,
)
def test_the_mean_is_that_of_the_draws(draws: Draws):
    values = [draw(draws, seed) for seed in SEEDS]
    assert fmean(values) == pytest.approx(draws.mean, rel=0.05)
    assert min(values) >= 0
    assert values == [draw(draws, seed) for seed in SEEDS]


def test_the_longest_of_1024_lognormal_draws_is_about_20_medians():
    lengths = [draw(Lognormal(1), seed) for seed in SEEDS[:19_456]]
    assert median(lengths) == pytest.approx(1, rel=0.05)
    assert median(max(lengths[i : i + 1024]) for i in range(0, 19_456, 1024)) == pytest.approx(20, rel=0.25)
