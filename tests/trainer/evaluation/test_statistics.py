"""Intervals and estimators, against numbers from tables and from first principles."""

from __future__ import annotations

import itertools
import random

import pytest

from rollcage.trainer.evaluation.statistics import clustered_ci95, pass_at_k, wilson_ci95


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.27753), (1, 10, 0.01788, 0.40415), (5, 10, 0.23659, 0.76341), (10, 10, 0.72247, 1.0)],
)
def test_wilson_gives_the_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_ci95(successes, trials) == pytest.approx((low, high), abs=1e-5)


def test_the_rate_lies_in_its_own_interval() -> None:
    for trials in range(1, 60):
        for successes in range(trials + 1):
            low, high = wilson_ci95(successes, trials)
            assert 0 <= low <= successes / trials <= high <= 1


def test_one_attempt_a_task_is_plain_wilson() -> None:
    assert clustered_ci95([1.0] * 8 + [0.0] * 2, 10) == pytest.approx(wilson_ci95(8, 10))


def test_attempts_that_are_all_alike_count_as_one() -> None:
    assert clustered_ci95([1.0] * 8 + [0.0] * 2, 160) == pytest.approx(wilson_ci95(8, 10))


def test_attempts_that_do_not_depend_on_the_task_count_in_full() -> None:
    rng = random.Random(0)
    means = [sum(rng.random() < 0.5 for _ in range(64)) / 64 for _ in range(500)]
    rate = sum(means) / len(means)
    assert clustered_ci95(means, 64 * 500) == pytest.approx(wilson_ci95(rate * 32000, 32000), abs=2e-3)


def test_clustered_intervals_cover_the_truth_19_times_out_of_20() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(400):
        rates = [rng.choice((0.1, 0.5, 0.9)) for _ in range(60)]  # true mean 0.5
        means = [sum(rng.random() < rate for _ in range(8)) / 8 for rate in rates]
        low, high = clustered_ci95(means, 480)
        hits += low <= 0.5 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_nothing_solved_in_every_attempt_is_no_certainty() -> None:
    assert clustered_ci95([0.0] * 5, 5000) == pytest.approx(wilson_ci95(0, 5))


def test_pass_at_k_is_the_share_of_subsets_with_a_success() -> None:
    for attempts in range(1, 7):
        for successes in range(attempts + 1):
            outcomes = [1] * successes + [0] * (attempts - successes)
            for k in range(1, attempts + 1):
                subsets = list(itertools.combinations(outcomes, k))
                assert pass_at_k(attempts, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_needs_k_attempts() -> None:
    with pytest.raises(ValueError, match="pass@4"):
        pass_at_k(3, 1, 4)
