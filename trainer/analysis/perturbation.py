"""Perturbation: replace one token of a response and measure how far what follows moves [the measure is ours].

Three kinds of tokens are replaced: anchors (the highest FAI), preplan tokens (the highest Delta), and random ones; all
have H tokens of the response after them. The replacement is the model's most likely other token at that place that is
no special token. Then two distances:

- *divergence*: the rest of the text stays as it was; mean over the H places that follow of the Kullback-Leibler
  divergence of the next-token distributions, KL(before || after), in nats a token;
- *edits*: both beginnings are continued greedily for H tokens; the edit distance (insertions, deletions, replacements
  of tokens) of the two continuations over H: 0 for the same, 1 for nothing in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollcage.trainer.analysis.measure import Rhythm
from rollcage.trainer.analysis.resampling import mean_ci95

KINDS = ("anchor", "preplan", "random")


@dataclass(frozen=True, slots=True)
class Effect:
    """What replacing one kind of token does: means over texts, with bootstrap intervals over them.

    Attributes:
        kind: one of `KINDS`.
        divergence: nats a token.
        divergence_ci95: its interval; None for a single text.
        divergence_over_random: difference to random tokens of the same texts, and its interval.
        edits: share of the H tokens.
        edits_ci95: likewise.
        edits_over_random: likewise.
        surprise: log-probability of the token that stood there minus that of its replacement, in nats: how much less
            likely the text has become by the replacement itself.
        place: where in the response it stood, from 0 to 1.
        num_texts: texts behind the means.
        num_tokens: replaced tokens.
    """

    kind: str
    divergence: float
    divergence_ci95: tuple[float, float] | None
    divergence_over_random: tuple[float, tuple[float, float] | None]
    edits: float
    edits_ci95: tuple[float, float] | None
    edits_over_random: tuple[float, tuple[float, float] | None]
    surprise: float
    place: float
    num_texts: int
    num_tokens: int


def perturb(
    model: Any,
    tokenizer: Any,
    rhythms: Sequence[Rhythm],
    *,
    num_tokens: int = 1,
    horizon: int = 20,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> list[Effect]:
    """Replace ``num_tokens`` tokens of each kind in every text, one at a time; returns one `Effect` a kind.

    Texts with fewer than ``num_tokens`` places that have ``horizon`` tokens of one response after them are left out;
    without any other, the result is empty.

    Args:
        model: a transformers causal language model.
        tokenizer: its tokenizer.
        rhythms: the texts.
        num_tokens: tokens of each kind in each text.
        horizon: H.
        seed: of the random tokens and the bootstrap.
        watch: gets the number of texts that are done.
    """
    rng = np.random.default_rng(seed)
    banned = torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long, device=model.device)
    rows = []
    for done, rhythm in enumerate(rhythms, 1):
        places = choose_places(rhythm, num_tokens, horizon, rng)
        if places:
            rows.append(_measure(model, rhythm, places, horizon, banned))
        watch(done)
    if not rows:
        return []
    # [texts, kinds, (divergence, edits, surprise, place)]
    table = np.array(rows).reshape(len(rows), len(KINDS), num_tokens, 4).mean(2)
    over_random = table - table[:, [KINDS.index("random")]]
    return [
        Effect(
            kind,
            divergence=float(table[:, index, 0].mean()),
            divergence_ci95=mean_ci95(table[:, index, 0], rng),
            divergence_over_random=(
                float(over_random[:, index, 0].mean()),
                mean_ci95(over_random[:, index, 0], rng),
            ),
            edits=float(table[:, index, 1].mean()),
            edits_ci95=mean_ci95(table[:, index, 1], rng),
            edits_over_random=(float(over_random[:, index, 1].mean()), mean_ci95(over_random[:, index, 1], rng)),
            surprise=float(table[:, index, 2].mean()),
            place=float(table[:, index, 3].mean()),
            num_texts=len(rows),
            num_tokens=len(rows) * num_tokens,
        )
        for index, kind in enumerate(KINDS)
    ]


def choose_places(rhythm: Rhythm, num_tokens: int, horizon: int, rng: np.random.Generator) -> list[int]:
    """Return the numbers (within the response) of the tokens to replace: ``num_tokens`` of each kind, in their order.

    Only tokens whose next ``horizon`` tokens are all of the response; none where there are fewer than ``num_tokens``.
    """
    positions = rhythm.curves.positions
    count = len(positions) - horizon
    if count < num_tokens:
        return []
    possible = np.flatnonzero(positions[horizon:] - positions[:count] == horizon)
    if len(possible) < num_tokens:
        return []
    chosen: list[int] = []
    for scores in (rhythm.curves.fai, rhythm.deltas):
        chosen += possible[np.argsort(-scores[possible], kind="stable")[:num_tokens]].tolist()
    return chosen + sorted(rng.choice(possible, num_tokens, replace=False).tolist())


def edit_distance(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the fewest insertions, deletions and replacements that make one sequence of the other (Levenshtein)."""
    before = list(range(len(second) + 1))
    for row, left in enumerate(first, 1):
        now = [row]
        for column, right in enumerate(second, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (left != right)))
        before = now
    return before[-1]


@torch.no_grad()
def _measure(
    model: Any, rhythm: Rhythm, places: list[int], horizon: int, banned: Tensor
) -> list[tuple[float, float, float, float]]:
    """Return divergence, edits, surprise and place of each replaced token."""
    positions = [int(rhythm.curves.positions[place]) for place in places]
    token_ids = torch.tensor(rhythm.text.token_ids[: max(positions) + horizon + 1], device=model.device)
    logprobs = model(input_ids=token_ids[None], use_cache=False).logits[0].float().log_softmax(-1)
    results = []
    for place, position in zip(places, positions, strict=True):
        there = int(token_ids[position])
        likely = logprobs[position - 1].clone()
        likely[banned] = -torch.inf
        likely[there] = -torch.inf
        replacement = int(likely.argmax())
        changed = token_ids[: position + horizon + 1].clone()
        changed[position] = replacement
        after = model(input_ids=changed[None], use_cache=False).logits[0, position + 1 :].float().log_softmax(-1)
        before = logprobs[position + 1 : position + horizon + 1]
        divergence = (before.exp() * (before - after)).sum(-1).clamp(min=0).mean()
        ends = torch.stack([token_ids[: position + 1], changed[: position + 1]])
        one, other = continue_greedily(model, ends, horizon).tolist()
        results.append(
            (
                float(divergence),
                edit_distance(one, other) / horizon,
                float(logprobs[position - 1, there] - logprobs[position - 1, replacement]),
                place / max(1, len(rhythm.curves.positions) - 1),
            )
        )
    return results


@torch.no_grad()
def continue_greedily(model: Any, prefixes: Tensor, num_tokens: int) -> Tensor:
    """Return the greedy continuation of equally long prefixes, [B, num_tokens] for [B, T], ends of text included."""
    cache, ids, made = None, prefixes, []
    for _ in range(num_tokens):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        made.append(ids)
    return torch.cat(made, 1)
