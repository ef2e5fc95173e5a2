"""Runs a model over texts and measures its attention rhythm: curves of every head first, then the sets of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollcage.errors import UserError
from rollcage.trainer.analysis.couplings import MIN_TOKENS, ResponseCurves
from rollcage.trainer.analysis.resampling import Floats
from rollcage.trainer.analysis.texts import Text
from rollcage.trainer.learner.rhythm.attention import attention_curves
from rollcage.trainer.learner.rhythm.credit import anchor_tokens, delta, preplan_tokens
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads, sample_layers
from rollcage.trainer.learner.rhythm.maps import fai_window

RECEIVERS = 0.1
"""Share of all heads that are receiver heads: those whose received attention has the highest kurtosis."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        window: W of WAAD, in tokens.
        h_lo: begin of FAI's window, in tokens.
        h_hi: end of FAI's window, in tokens.
        q: share of a response's tokens that are anchors, and that are preplan tokens, where they are marked.
    """

    window: int = 10
    h_lo: int = 10
    h_hi: int = 100
    q: float = 0.4


@dataclass(frozen=True, slots=True)
class Heads:
    """The sets of heads, the same for all texts.

    Attributes:
        layers: the L sampled layers.
        local: bool [L, H].
        global_: bool [L, H].
        receivers: bool [all layers, H].
        num_shared: global heads that are receiver heads too.
    """

    layers: tuple[int, ...]
    local: Tensor
    global_: Tensor
    receivers: Tensor
    num_shared: int


@dataclass(frozen=True, slots=True)
class Rhythm:
    """One text's rhythm.

    Attributes:
        text: the text.
        curves: of its response tokens.
        deltas: [R] change of WAAD to the next token; 0 where none follows.
        preplan: bool [R].
        anchors: bool [R].
    """

    text: Text
    curves: ResponseCurves
    deltas: Floats
    preplan: np.ndarray[Any, np.dtype[np.bool_]]
    anchors: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass over a text leaves: float32 [L, H, 1, T] WAAD of the sampled layers, FAI of all, [T] entropies."""

    text: Text
    waad: Tensor
    fai: Tensor
    entropies: Tensor


def analyse(
    model: Any, texts: Sequence[Text], settings: Settings, watch: Callable[[int], None] = lambda done: None
) -> tuple[Heads, list[Rhythm], int]:
    """Return the sets of heads, the rhythm of every text, and how many texts were left out as too short.

    The sets are picked once for all texts: local and global heads by span as `rhythm.pick_heads`, over all response
    tokens; receiver heads by the kurtosis of FAI over a response's tokens, averaged over the texts, among all layers.

    Args:
        model: a transformers causal language model.
        texts: what to run it on, one after the other.
        settings: see `Settings`.
        watch: gets the number of texts that are done.

    Raises:
        UserError: every text is too short, a token is none of the model's, or its attention cannot be read.
    """
    num_layers = model.config.get_text_config().num_hidden_layers
    sampled = sample_layers(num_layers)
    passes: list[_Pass] = []
    spans: Tensor | None = None
    kurtoses: Tensor | None = None
    for done, text in enumerate(texts, 1):
        response = torch.tensor([text.response])
        eligible = response & (fai_window(response, settings.h_lo, settings.h_hi) > 0)
        if int(eligible.sum()) >= MIN_TOKENS:
            one, span = _run(model, text, response, sampled, num_layers, settings)
            kurtosis = _kurtosis(one.fai[:, :, 0, eligible[0]])
            spans = span if spans is None else spans + span
            kurtoses = kurtosis if kurtoses is None else kurtoses + kurtosis
            passes.append(one)
        watch(done)
    if spans is None or kurtoses is None:
        least = MIN_TOKENS + settings.h_lo
        raise UserError(f"every text is too short: a response needs {least} tokens or more; give longer ones.")
    local, global_ = pick_heads(spans)
    receivers = _highest(kurtoses, RECEIVERS)
    heads = Heads(tuple(sampled), local, global_, receivers, int((receivers[sampled] & global_).sum()))
    return heads, [_rhythm(one, heads, settings) for one in passes], len(texts) - len(passes)


def mean_maps(model: Any, text: Text, heads: Heads) -> tuple[Floats, Floats]:
    """Return the mean attention map of the local and of the global heads, [T, T] each: row t attends to column s."""
    length = len(text.token_ids)
    sums = torch.zeros(2, length, length)
    number_of = {layer: number for number, layer in enumerate(heads.layers)}

    def add(layer: int, attention: Tensor) -> None:
        for index, chosen in enumerate((heads.local, heads.global_)):
            sums[index] += attention[0, chosen[number_of[layer]].to(attention.device)].sum(0).float().cpu()

    attention_curves(
        model,
        torch.tensor([text.token_ids], device=model.device),
        None,
        torch.tensor([text.response], device=model.device),
        heads.layers,
        on_map=add,
    )
    local, global_ = sums[0] / heads.local.sum(), sums[1] / heads.global_.sum()
    return local.double().numpy(), global_.double().numpy()


def _run(
    model: Any, text: Text, response: Tensor, sampled: list[int], num_layers: int, settings: Settings
) -> tuple[_Pass, Tensor]:
    """Run the model over one text; returns what is kept, and the sums of the sampled heads' spans, [L, H]."""
    if max(text.token_ids) >= model.get_input_embeddings().num_embeddings:
        raise UserError(f"{text.name}: holds tokens that this model does not have; it was written by another model.")
    token_ids = torch.tensor([text.token_ids], device=model.device)
    logits: list[Tensor] = []
    curves = attention_curves(
        model,
        token_ids,
        None,
        response.to(model.device),
        range(num_layers),
        window=settings.window,
        h_lo=settings.h_lo,
        h_hi=settings.h_hi,
        forward=lambda: logits.append(model(input_ids=token_ids, use_cache=False).logits[0]),
    )
    kept = _Pass(text, curves.waad[sampled].cpu(), curves.fai.cpu(), token_entropies(logits[0]).cpu())
    return kept, curves.spans[sampled].cpu()


def token_entropies(logits: Tensor) -> Tensor:
    """Return the entropy of the distribution that each token was drawn from, [T] nats; NaN for the first.

    Args:
        logits: [T, V].
    """
    entropies = [torch.full((1,), torch.nan, device=logits.device)]
    last = len(logits) - 1
    for first in range(0, last, 128):  # whole log-probabilities of a long text would be as large as its logits
        logprobs = logits[first : min(first + 128, last)].float().log_softmax(-1)
        entropies.append(-(logprobs.exp() * logprobs).sum(-1))
    return torch.cat(entropies)


def _kurtosis(values: Tensor) -> Tensor:
    """Return the excess kurtosis along the last dimension; 0 where all values are the same."""
    centred = values.double() - values.double().mean(-1, keepdim=True)
    variance = centred.square().mean(-1)
    return torch.where(variance > 0, centred.pow(4).mean(-1) / variance.square().clamp(min=1e-300) - 3, 0.0)


def _highest(scores: Tensor, share: float) -> Tensor:
    """Return which ``floor(share n)`` of all scores are highest, at least one; bool, of their shape."""
    size = max(1, int(share * scores.numel() + 1e-9))
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[scores.flatten().argsort(descending=True, stable=True)[:size]] = True
    return chosen.view(scores.shape)


def _rhythm(one: _Pass, heads: Heads, settings: Settings) -> Rhythm:
    response = torch.tensor([one.text.response])
    waad = mean_over(one.waad, heads.local)
    fai = mean_over(one.fai[list(heads.layers)], heads.global_)
    windows = settings.h_lo, settings.h_hi

    def of_response(values: Tensor) -> Any:
        values = values[response]
        return values.numpy() if values.dtype == torch.bool else values.double().numpy()

    curves = ResponseCurves(
        positions=response[0].nonzero()[:, 0].numpy(),
        entropies=of_response(one.entropies[None]),
        waad=of_response(waad),
        fai=of_response(fai),
        received=of_response(mean_over(one.fai, heads.receivers)),
        eligible=of_response(fai_window(response, *windows) > 0),
    )
    return Rhythm(
        text=one.text,
        curves=curves,
        deltas=of_response(delta(waad, response)),
        preplan=of_response(preplan_tokens(waad, response, settings.q)),
        anchors=of_response(anchor_tokens(fai, response, settings.q, *windows)),
    )
