"""Intervals and estimators of success rates. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


def wilson_ci95(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % score interval of a success rate.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", J. Am. Stat. Assoc.
    22 (1927). Unlike the rate plus or minus two standard errors it holds for few trials and never leaves [0, 1].

    >>> [round(bound, 4) for bound in wilson_ci95(8, 10)]
    [0.4902, 0.9433]
    """
    rate, z2 = successes / trials, Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # rounding must not leave the rate outside its own interval
    return max(0.0, min(centre - half, rate)), min(1.0, max(centre + half, rate))


def clustered_ci95(means: Sequence[float], num_trials: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean over tasks, where each task's value is the mean of several attempts.

    Attempts at one task resemble each other, so they count for less than as many tasks would. The variance of the mean
    is taken between tasks; the Wilson interval is then that of the number of independent trials with this variance,
    never fewer than the tasks (attempts that are all alike) nor more than the trials (independent attempts). With
    one attempt a task this is the Wilson interval. Source (Wilson with the effective sample size): N. Dean and
    M. Pagano, "Evaluating confidence interval methods for binomial proportions in clustered surveys", J. Surv. Stat.
    Methodol. 3 (2015).

    Args:
        means: one value in [0, 1] a task, at least one task.
        num_trials: number of attempts behind them.
    """
    num_tasks = len(means)
    rate = sum(means) / num_tasks
    between = sum((mean - rate) ** 2 for mean in means)
    effective = float(num_tasks)
    if between > 0 and num_tasks > 1:
        effective = rate * (1 - rate) * num_tasks * (num_tasks - 1) / between
    effective = min(max(effective, num_tasks), max(num_trials, num_tasks))
    return wilson_ci95(rate * effective, effective)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of ``k`` attempts succeeds.

    1 - C(n - c, k) / C(n, k). Source: M. Chen et al., "Evaluating large language models trained on code" (2021), eq. 1.

    Raises:
        ValueError: fewer attempts than k.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if k > attempts:
        raise ValueError(f"pass@{k} cannot be told from {attempts} attempts")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)
