"""From attention curves to credit: how much more each token's advantage counts. Pure functions of [B, T] tensors.

Rows are responses (unpacked; see `attention.unpack`); R, the response mask, are a row's trainable tokens. In an episode
of several turns one row holds several stretches of them, with observations between. Then [ours, the paper has one
response a row]: windows (W, H_lo, H_hi, k) count positions of the row, since attention does; shares and quantiles are
over the row's R; and a change of WAAD is taken only between two neighbours that are both of R, so that the last token
of every turn has Delta 0 and is not eligible, as the last token of a single response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rollcage.trainer.learner.rhythm.maps import fai_window


def delta(waad: Tensor, response_mask: Tensor) -> Tensor:
    """Return ``|WAAD_t - WAAD_{t+1}|``, [B, T]; 0 where t or t + 1 is no response token."""
    change = torch.zeros_like(waad)
    change[:, :-1] = (waad[:, :-1] - waad[:, 1:]).abs()
    return torch.where(has_next(response_mask), change, 0.0)


def has_next(response_mask: Tensor) -> Tensor:
    """Return which response tokens are followed by another one, bool [B, T]."""
    followed = response_mask.clone()
    followed[:, :-1] &= response_mask[:, 1:]
    followed[:, -1:] = False
    return followed


def top_share(scores: Tensor, eligible: Tensor, response_mask: Tensor, q: float = 0.4) -> Tensor:
    """Return the ``floor(q |R|)`` eligible tokens with the highest scores in each row, bool [B, T].

    Of equal scores the earlier one counts as the higher. Where fewer are eligible, all of them.

    Args:
        scores: [B, T].
        eligible: bool [B, T].
        response_mask: bool [B, T]; R.
        q: share, in [0, 1].
    """
    order = scores.masked_fill(~eligible, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(scores.shape[1], device=order.device).expand_as(order)
    )
    wanted = (q * response_mask.sum(1, keepdim=True).double() + 1e-9).floor()
    return (rank < wanted) & eligible


def preplan_tokens(waad: Tensor, response_mask: Tensor, q: float = 0.4) -> Tensor:
    """Return the preplan tokens, bool [B, T]: the top share by `delta`."""
    return top_share(delta(waad, response_mask), has_next(response_mask), response_mask, q)


def anchor_tokens(fai: Tensor, response_mask: Tensor, q: float = 0.4, h_lo: int = 10, h_hi: int = 100) -> Tensor:
    """Return the anchors, bool [B, T]: the top share by FAI of those whose window is not empty."""
    return top_share(fai, response_mask & (fai_window(response_mask, h_lo, h_hi) > 0), response_mask, q)


def introductions(deltas: Tensor, response_mask: Tensor, k: int = 3) -> tuple[Tensor, Tensor]:
    """Return the highest Delta among the k positions before each token, [B, T], and where it is, int64 [B, T].

    Only tokens that have a Delta count; -inf and the token itself where there is none. Of equals the earliest.
    """
    length = deltas.shape[1]
    known = deltas.masked_fill(~has_next(response_mask), -torch.inf)
    padded = torch.nn.functional.pad(known, (k, 0), value=-torch.inf)
    highest, index = padded.unfold(1, k, 1)[:, :length].max(2)
    places = torch.arange(length, device=deltas.device).expand_as(index)
    return highest, torch.where(highest.isneginf(), places, places - k + index)


def dominated(
    waad: Tensor, anchors: Tensor, response_mask: Tensor, k: int = 3, tau_waad: float = 0.4, tau_delta: float = 0.6
) -> tuple[Tensor, Tensor]:
    """Return which anchors are locally dominated, D, and the tokens that introduce one of D; bool [B, T] each.

    An anchor t is in D where WAAD_t is at most the ``tau_waad`` quantile of WAAD, and the highest Delta of t-k..t-1 is
    at least the ``tau_delta`` quantile of Delta, both over the row's R (quantiles: linear between neighbours).
    """
    deltas = delta(waad, response_mask)
    highest, introduces = introductions(deltas, response_mask, k)
    in_d = (
        anchors
        & (waad <= _quantile(waad, response_mask, tau_waad))
        & (highest >= _quantile(deltas, response_mask, tau_delta))
    )
    rows, places = in_d.nonzero(as_tuple=True)
    intros = torch.zeros_like(in_d)
    intros[rows, introduces[rows, places]] = True
    return in_d, intros


def _quantile(values: Tensor, response_mask: Tensor, share: float) -> Tensor:
    """Return each row's quantile over R, [B, 1]; NaN where R is empty."""
    return values.masked_fill(~response_mask, torch.nan).nanquantile(share, dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Signals:
    """What credit is taken from; a credit says which it needs (`NEEDS`).

    Attributes:
        response_mask: bool [B, T]; R.
        waad: [B, T], of the local heads.
        fai: [B, T], of the global heads.
        entropies: [B, T], of the policy's next-token distribution.
        noise: [B, T], random numbers.
    """

    response_mask: Tensor
    waad: Tensor | None = None
    fai: Tensor | None = None
    entropies: Tensor | None = None
    noise: Tensor | None = None


def credit(
    kind: str,
    signals: Signals,
    *,
    q: float = 0.4,
    gain: float = 1.5,
    backshift: float = 0.4,
    k: int = 3,
    tau_waad: float = 0.4,
    tau_delta: float = 0.6,
    h_lo: int = 10,
    h_hi: int = 100,
) -> Tensor:
    """Return gamma, [B, T]: what each token's advantage is to be multiplied by; 1 where nothing is to change.

    - local: ``gain`` on the preplan tokens. global: on the anchors.
    - coupled: ``1 + (g-1) 1[anchor, not in D] + (1-b)(g-1) 1[in D] + b (g-1) 1[intro of one in D]``, see `dominated`.
    - random, entropy: on the top share by noise, by entropy.
    - bottom_waad, bottom_fai, bottom_entropy: on the *lowest* share of the tokens that local (by Delta), global and
      entropy choose from.

    Args:
        kind: one of `CREDITS`.
        signals: those that ``NEEDS[kind]`` names, and the response mask.
        q: share of the row's R.
        gain: g, gamma_amp of the paper.
        backshift: b, share of an anchor's gain that goes to its introduction. [Ours; the paper gives none.]
        k: how many positions before an anchor its introduction may stand.
        tau_waad: quantile, see `dominated`. [Ours.]
        tau_delta: quantile, see `dominated`. [Ours.]
        h_lo: begin of FAI's window.
        h_hi: end of FAI's window.

    Raises:
        KeyError: no such credit.
        ValueError: a signal is missing.
    """
    missing = [name for name in NEEDS[kind] if getattr(signals, name) is None]
    if missing:
        raise ValueError(f"credit {kind!r} needs {', '.join(missing)}")
    mask = signals.response_mask
    scores, eligible = _SCORES[kind](signals, h_lo, h_hi)
    chosen = top_share(-scores if kind.startswith("bottom_") else scores, eligible, mask, q)
    gamma = torch.ones(mask.shape, device=mask.device)
    if kind != "coupled" or signals.waad is None:
        return torch.where(chosen, gain, gamma)
    in_d, intros = dominated(signals.waad, chosen, mask, k, tau_waad, tau_delta)
    gamma += (gain - 1) * (chosen & ~in_d) + (1 - backshift) * (gain - 1) * in_d
    return gamma + backshift * (gain - 1) * intros


def amplify(advantages: Tensor, gamma: Tensor, sign: str = "both") -> Tensor:
    """Return ``gamma A``, [B, T]; with sign "positive" (v1 of the paper) only where A is above 0.

    Raises:
        ValueError: another sign.
    """
    if sign not in ("both", "positive"):
        raise ValueError(f"sign is both or positive, not {sign!r}")
    amplified = advantages * gamma
    return amplified if sign == "both" else torch.where(advantages > 0, amplified, advantages)


Scores = Callable[[Signals, int, int], tuple[Tensor, Tensor]]


def _by_delta(signals: Signals, _lo: int, _hi: int) -> tuple[Tensor, Tensor]:
    assert signals.waad is not None  # `credit` has checked
    return delta(signals.waad, signals.response_mask), has_next(signals.response_mask)


def _by_fai(signals: Signals, h_lo: int, h_hi: int) -> tuple[Tensor, Tensor]:
    assert signals.fai is not None
    return signals.fai, signals.response_mask & (fai_window(signals.response_mask, h_lo, h_hi) > 0)


def _by_entropy(signals: Signals, _lo: int, _hi: int) -> tuple[Tensor, Tensor]:
    assert signals.entropies is not None
    return signals.entropies, signals.response_mask


def _by_noise(signals: Signals, _lo: int, _hi: int) -> tuple[Tensor, Tensor]:
    assert signals.noise is not None
    return signals.noise, signals.response_mask


_SCORES: dict[str, Scores] = {
    "local": _by_delta,
    "global": _by_fai,
    "coupled": _by_fai,
    "random": _by_noise,
    "entropy": _by_entropy,
    "bottom_waad": _by_delta,
    "bottom_fai": _by_fai,
    "bottom_entropy": _by_entropy,
}

NEEDS: dict[str, tuple[str, ...]] = {
    "local": ("waad",),
    "global": ("fai",),
    "coupled": ("waad", "fai"),
    "random": ("noise",),
    "entropy": ("entropies",),
    "bottom_waad": ("waad",),
    "bottom_fai": ("fai",),
    "bottom_entropy": ("entropies",),
}
"""The fields of `Signals` that each credit needs."""

CREDITS = tuple(NEEDS)
"""All credits but none."""
