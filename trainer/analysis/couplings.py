"""The three couplings of attention rhythm, each beside chance (arXiv 2510.13554; the exact definitions are ours).

1. *entropy at WAAD peaks*: mean token entropy at the WAAD peaks of a response, over that at random positions of it.
2. *receiver heads agree*: how many of the anchors by FAI of the global heads are anchors by FAI of the receiver heads
   too, over how many of as many random tokens are.
3. *WAAD peaks lead*: share of the FAI peaks with a WAAD peak at the same token or one of the three before, over that
   share of random positions.

Peaks are the top 10 %, anchors here the top 20 % of the response's tokens, at least one. FAI knows nothing of the last
tokens, whose window is empty: they are neither peaks nor anchors, and chance does not draw them for those either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollcage.trainer.analysis.resampling import NUM_SHUFFLES, Floats, Lift, lift

Bools = npt.NDArray[np.bool_]

PEAKS = 0.1
ANCHORS = 0.2
LEAD = 3
"""How many tokens before an FAI peak a WAAD peak may stand."""
MIN_TOKENS = 10
"""A response with fewer tokens that FAI knows of is left out: it would have less than one peak."""

NAMES = {
    "entropy_at_waad_peaks": "token entropy at WAAD peaks",
    "receiver_heads_agree": "anchors that receiver heads share",
    "waad_peaks_lead": "FAI peaks led by a WAAD peak",
}
"""The couplings, and what they are called for people."""

PAPER = (0.4247, 1.7149)
"""Smallest and largest lift that the paper reports, for definitions of its own."""


@dataclass(frozen=True, slots=True)
class ResponseCurves:
    """The R response tokens of one text.

    Attributes:
        positions: [R] their places in the text, rising.
        entropies: [R] entropy of the distribution that each was drawn from, in nats.
        waad: [R], of the local heads.
        fai: [R], of the global heads.
        received: [R] FAI of the receiver heads.
        eligible: bool [R]; False where the FAI window is empty.
    """

    positions: npt.NDArray[np.int64]
    entropies: Floats
    waad: Floats
    fai: Floats
    received: Floats
    eligible: Bools


def top(values: Floats, share: float, eligible: Bools | None = None) -> Bools:
    """Return the eligible tokens with the highest values, bool [R]: ``floor(share R)``, at least one, ties by place."""
    order = np.argsort(-(values if eligible is None else np.where(eligible, values, -np.inf)), kind="stable")
    most = len(values) if eligible is None else int(eligible.sum())
    chosen = np.zeros(len(values), bool)
    chosen[order[: min(most, max(1, int(share * len(values) + 1e-9)))]] = True
    return chosen


def couplings(texts: Sequence[ResponseCurves], seed: int = 0) -> dict[str, Lift]:
    """Return the three couplings over all texts, by the keys of `NAMES`.

    Args:
        texts: at least one; each with at least one eligible token.
        seed: of the shuffles and the bootstrap.
    """
    rng = np.random.default_rng(seed)
    observed = {name: np.empty(len(texts)) for name in NAMES}
    shuffled = {name: np.empty((len(texts), NUM_SHUFFLES)) for name in NAMES}
    for number, text in enumerate(texts):
        waad_peaks = top(text.waad, PEAKS)
        ahead = text.positions[:, None] - text.positions[waad_peaks]
        led = ((ahead >= 0) & (ahead <= LEAD)).any(1)
        pairs = {
            "entropy_at_waad_peaks": (text.entropies, waad_peaks, None),
            "receiver_heads_agree": (
                top(text.received, ANCHORS, text.eligible).astype(float),
                top(text.fai, ANCHORS, text.eligible),
                text.eligible,
            ),
            "waad_peaks_lead": (led.astype(float), top(text.fai, PEAKS, text.eligible), text.eligible),
        }
        for name, (values, chosen, eligible) in pairs.items():
            observed[name][number] = values[chosen].mean()
            drawn_from = values if eligible is None else values[eligible]
            shuffled[name][number] = _shuffles(drawn_from, int(chosen.sum()), rng)
    return {name: lift(observed[name], shuffled[name], rng) for name in NAMES}


def _shuffles(values: Floats, num_chosen: int, rng: np.random.Generator) -> Floats:
    """Return the mean of ``num_chosen`` values at random places without repetition, once a shuffle."""
    drawn = rng.permuted(np.tile(values, (NUM_SHUFFLES, 1)), axis=1)
    means: Floats = drawn[:, :num_chosen].mean(1)
    return means
