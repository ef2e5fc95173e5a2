"""Chance and intervals by resampling: how far a statistic of many texts lies above chance, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_SHUFFLES = 1_000
"""Shuffles of each text that tell what chance gives."""

NUM_RESAMPLES = 10_000
"""Bootstrap samples of the texts behind an interval."""


@dataclass(frozen=True, slots=True)
class Lift:
    """A statistic beside what chance gives.

    Attributes:
        observed: its mean over the texts.
        chance: the same mean over the shuffles of the texts.
        lift: observed / chance - 1; NaN where chance is 0.
        ci95: bootstrap interval of ``lift`` over texts; None for a single text.
        p_value: share of the shuffles (the observation counted as one more) that reach what was observed; one-sided.
        num_texts: number of texts.
    """

    observed: float
    chance: float
    lift: float
    ci95: tuple[float, float] | None
    p_value: float
    num_texts: int


def lift(observed: Floats, shuffled: Floats, rng: np.random.Generator) -> Lift:
    """Return how far the mean over texts lies above chance.

    A ratio of means, not a mean of ratios: a text in which chance gives next to nothing does not decide everything.

    Args:
        observed: [N] the statistic of each text.
        shuffled: [N, S] the same after each of S shuffles.
        rng: draws the bootstrap samples.
    """
    chance = shuffled.mean(1)

    def ratio(chosen: npt.NDArray[np.int64]) -> Floats:
        expected = chance[chosen].mean(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios: Floats = np.where(expected > 0, observed[chosen].mean(-1) / expected - 1, np.nan)
        return ratios

    null = shuffled.mean(0)
    return Lift(
        observed=float(observed.mean()),
        chance=float(chance.mean()),
        lift=float(ratio(np.arange(len(observed)))),
        ci95=bootstrap_ci95(ratio, len(observed), rng),
        # rounding of sums in another order must not make equal shuffles miss
        p_value=float((1 + (null >= observed.mean() - 1e-12).sum()) / (1 + len(null))),
        num_texts=len(observed),
    )


def mean_ci95(values: Floats, rng: np.random.Generator) -> tuple[float, float] | None:
    """Return the bootstrap interval of the mean of ``values``, [N]; None for fewer than two."""
    return bootstrap_ci95(lambda chosen: values[chosen].mean(-1), len(values), rng)


def bootstrap_ci95(
    statistic: Callable[[npt.NDArray[np.int64]], Floats], num_texts: int, rng: np.random.Generator
) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of a statistic over texts drawn anew; None for fewer than two texts.

    Source: B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.

    Args:
        statistic: gets numbers of texts, [..., num_texts], and returns the statistic of each sample, [...].
        num_texts: number of texts.
        rng: draws the samples.
    """
    if num_texts < 2:
        return None
    values = statistic(rng.integers(num_texts, size=(NUM_RESAMPLES, num_texts)))
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
