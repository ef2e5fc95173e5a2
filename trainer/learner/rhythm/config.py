"""Which tokens attention rhythm gives more credit, and how much: every number, with its source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollcage.errors import did_you_mean


@dataclass(frozen=True)
class RhythmConfig:
    """Credit by attention rhythm (arXiv 2510.13554); "v1" and "later" are that paper's versions."""

    credit: str = "none"
    """Which tokens' advantages count more: none; local (preplan tokens, where the look back changes), global (anchors,
    which later tokens look at), coupled (anchors, and what introduces them); to compare with: random, entropy,
    bottom_waad, bottom_fai and bottom_entropy (the tokens that local, global and entropy rank last)."""

    q: float = 0.4
    """Share of each response's trainable tokens that are chosen."""

    gain: float = 1.5
    """What a chosen token's advantage is multiplied by (gamma_amp)."""

    sign: Literal["both", "positive"] = "both"
    """Multiply all advantages (later), or only those above 0 (v1)."""

    window: int = 10
    """W: how many tokens WAAD looks back at most."""

    h_lo: int = 10
    """FAI looks at the tokens from so many later on (10 in both versions). The last h_lo tokens of a response can be no
    anchors, and one of up to h_lo tokens has none: where responses are short (a quarter of 40 tokens), set less."""

    h_hi: int = 100
    """FAI looks at the tokens up to so many later on (later: 100, v1: 50)."""

    placement: Literal["learner", "own"] = "learner"
    """Where the attention model is. learner: with the policy (see device). own: a copy in a process of its own, on a
    cluster an actor (see ray.attention_gpus), which takes the weights whenever they are published, and reads a batch
    beside the passes of reference model and critics."""

    device: str = ""
    """cpu, cuda or cuda:N: the attention model is a copy there. In the learner's processes it takes the weights at the
    begin of every update, and its pass goes on in a thread beside those of reference model and critics. Empty: there
    it is the policy itself, read in passes that are made anyway; in a process of its own a GPU where it sees one."""

    head_share: float = 0.3
    """Share of the heads with the shortest span that are local; as many with the longest are global. At most 0.5."""

    heads_every: int = 50
    """Pick the heads anew in every so many-th update, from its batch; in between they stay (in checkpoints, too). 1: in
    every update; 0: once, in the first. Picking takes a pass of its own, a quarter to half of an update; with the heads
    known, credit is read in passes that are made anyway. [50 is our choice: the paper does not say.]"""

    backshift: float = 0.4
    """coupled: the share of a locally dominated anchor's gain that goes to its introduction. [Ours.]"""

    k: int = 3
    """coupled: so many tokens before an anchor its introduction may stand."""

    tau_waad: float = 0.4
    """coupled: an anchor is locally dominated where its WAAD is at most this quantile of its response's, ... [ours]"""

    tau_delta: float = 0.6
    """coupled: ... and the greatest change of WAAD in the k tokens before it is at least this quantile. [Ours.]"""

    @property
    def reads_attention(self) -> bool:
        """Whether the credit looks at attention."""
        from rollcage.trainer.learner.rhythm.credit import NEEDS

        return not {"waad", "fai"}.isdisjoint(NEEDS.get(self.credit, ()))

    def picks_heads(self, policy_version: int) -> bool:
        """Return whether heads that are known already are picked anew in this update."""
        return self.heads_every > 0 and policy_version % self.heads_every == 0

    def faults(self) -> Iterable[str]:
        """Yield what is wrong, each without the name of this part."""
        from rollcage.trainer.learner.rhythm.credit import CREDITS

        known = ("none", *CREDITS)
        if self.credit not in known:
            hint = did_you_mean(self.credit, known).rstrip(".")
            yield f"credit {self.credit!r} is unknown (known: {', '.join(known)}){hint}"
        if not re.fullmatch(r"|cpu|cuda(:\d+)?", self.device):
            yield f"device must be empty, cpu, cuda or cuda:N, not {self.device!r}"
        elif not self.reads_attention:
            if self.device:
                yield f"device is of no use to credit {self.credit!r}, which looks at no attention"
            if self.placement != "learner":
                yield f"placement is of no use to credit {self.credit!r}, which looks at no attention"
        for name in ("q", "backshift", "tau_waad", "tau_delta"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"{name} must lie in [0, 1], not {getattr(self, name)}"
        if not 0 <= self.gain < math.inf:
            yield f"gain must be at least 0, not {self.gain}"
        for name in ("window", "h_lo", "k"):
            if not getattr(self, name) >= 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        if self.h_hi < self.h_lo:
            yield f"h_hi must be at least h_lo, not {self.h_hi}"
        if self.heads_every < 0:
            yield f"heads_every must be at least 0, not {self.heads_every}"
        if not 0 < self.head_share <= 0.5:
            yield f"head_share must lie in (0, 0.5], not {self.head_share}"
