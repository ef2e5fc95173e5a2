"""Who is sampled and not trained on: slow, long or hard tasks that starve stand out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

Buckets = dict[str, Counter[str]]
"""Upper bound of a bucket, ascending -> samples by outcome."""


def sample_shares(counters: Mapping[str, Series]) -> dict[str, Buckets]:
    """Return what became of the samples, from the counters ``samples_by_<dimension>``.

    Args:
        counters: ``samples_by_...{outcome=...,upper=...}`` -> (policy versions [N], values [N]), in order. Where a run
            was resumed, all of them begin anew; what each had reached before is added up.

    Returns:
        dimension ("duration_s", "length_tokens", "difficulty") -> its buckets.
    """
    fallen = [versions[1:][np.diff(values) < 0] for versions, values in counters.values()]
    restarts = np.unique(np.concatenate(fallen)) if fallen else np.empty(0)
    totals = {}
    for key, (versions, values) in counters.items():
        life = np.searchsorted(restarts, versions, side="right")
        ends = np.flatnonzero(np.diff(life, append=len(restarts) + 1))  # the last point of each life
        totals[key] = int(values[ends].sum())
    shares: dict[str, Buckets] = {}
    for key, count in totals.items():
        if found := re.fullmatch(r"samples_by_(\w+)\{outcome=(\w+),upper=([\w.]+)\}", key):
            dimension, outcome, upper = found.groups()
            shares.setdefault(dimension, {}).setdefault(upper, Counter())[outcome] += count
    return {name: in_order(buckets) for name, buckets in shares.items()}


def in_order(buckets: Buckets) -> Buckets:
    """Return the buckets by their bounds; "inf" and "unknown" last."""
    return dict(sorted(buckets.items(), key=lambda item: float("inf" if item[0] == "unknown" else item[0])))


def uncut(buckets: Buckets) -> dict[str, float]:
    """Return how many samples each bucket would have, had none been cut off for being late.

    A late sample shows how long it had become, not how long it would have been. It is spread evenly over the samples
    that became longer than its bucket (Efron's redistribution to the right); where none did, it stands in the last
    bucket, "longer". What is known then of the share that was trained on is trained / this number.

    >>> uncut({"4": Counter(trained=6, late=2), "8": Counter(trained=2), "16": Counter(trained=2)})
    {'4': 6.0, '8': 3.0, '16': 3.0}
    >>> uncut({"4": Counter(trained=6, late=2)})
    {'4': 6.0, 'longer': 2.0}
    """
    numbers: dict[str, float] = {}
    weight = 1.0
    num_beyond = sum(outcomes.total() for outcomes in buckets.values())
    for upper, outcomes in buckets.items():
        num_beyond -= outcomes.total()
        numbers[upper] = weight * (outcomes.total() - outcomes["late"])
        if num_beyond:
            weight *= 1 + outcomes["late"] / num_beyond
        elif outcomes["late"]:
            numbers["longer"] = weight * outcomes["late"]
    return numbers


def shares_table(shares: Mapping[str, Buckets]) -> list[str]:
    """Return the lines of a table of `sample_shares`, none where nothing was counted."""
    if not shares:
        return []
    lines = [
        "What became of the samples, by what might starve them. Late ones were cancelled because others were faster; "
        "how long they would have become is estimated from those that became longer.",
        "",
        "| | up to | samples | trained on | filtered | failed | stale | late by then |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dimension, buckets in shares.items():
        for upper, number in numbers(dimension, buckets).items():
            outcomes = buckets.get(upper, Counter())
            share = f"{outcomes['trained'] / number:.0%}" if number else ""
            rest = " | ".join(str(outcomes[name]) for name in ("filtered", "failed", "stale", "late"))
            lines.append(f"| {dimension.replace('_', ', ')} | {upper} | {number:.0f} | {share} | {rest} |")
    return [*lines, ""]


def numbers(dimension: str, buckets: Buckets) -> dict[str, float]:
    """Return how many samples each bucket of a dimension has: those of duration and length as in `uncut`."""
    if dimension == "difficulty":
        return {upper: float(outcomes.total()) for upper, outcomes in buckets.items()}
    return uncut(buckets)
