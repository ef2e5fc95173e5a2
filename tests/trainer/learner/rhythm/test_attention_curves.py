"""WAAD, FAI and head spans of whole models, against plain loops over output_attentions=True."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
)

from rollcage.errors import UserError
from rollcage.trainer.learner.rhythm import spy
from rollcage.trainer.learner.rhythm.attention import Curves, attention_curves, mean_curves, unpack

SMALL: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=4),
    "llama, grouped queries": LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2),
    "qwen3, grouped queries": Qwen3Config(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=8),
    "gpt-neox": GPTNeoXConfig(**SMALL, num_attention_heads=4),
    "mistral": MistralConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, sliding_window=8),
    # Softcapped scores and layers that see 8 tokens back: the model's own attention must be the one that is read.
    "gemma2": Gemma2Config(
        **SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=8, query_pre_attn_scalar=8
    ),
    # Weights of its own in each head's attention (sinks): rows of its maps do not sum to 1.
    "gpt-oss": GptOssConfig(
        **SMALL,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=8,
        num_local_experts=2,
        num_experts_per_tok=1,
    ),
}
LENGTHS, T = (40, 23, 9), 40


def make_model(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=implementation(name)).eval()
    for weight in model.parameters():  # fresh models attend everywhere alike
        weight.data *= 1 if weight.ndim == 1 else 12
    return model


def implementation(name: str) -> str:
    return "eager" if name in ("gemma2", "gpt-oss") else "sdpa"  # PyTorch's attention has no softcapping, no sinks


def make_rows() -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and response mask of three rows padded on the right."""
    torch.manual_seed(1)
    real = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    response = real & (torch.arange(T) >= 4)
    response[0, 20:23] = False  # an observation between two turns
    return torch.randint(1, 97, (3, T)) * real, real, response


@cache
def expected_rows(name: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return what `loops` finds in layers 1 and 2 of each of the rows, without its padding."""
    model, (token_ids, _, response) = make_model(name), make_rows()
    return [loops(model, token_ids[row, :n], response[row, :n], [1, 2]) for row, n in enumerate(LENGTHS)]


def loops(model: Any, token_ids: Tensor, response: Tensor, layers: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum of spans [L, H], WAAD and FAI [L, H, T] of one sequence without padding, by the definitions."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(token_ids[None], output_attentions=True).attentions
    model.set_attn_implementation(before)
    length, num_heads, responds = len(token_ids), maps[0].shape[1], response.tolist()
    spans = torch.zeros(len(layers), num_heads)
    waad, fai = torch.zeros(len(layers), num_heads, length), torch.zeros(len(layers), num_heads, length)
    for i, layer in enumerate(layers):
        for head in range(num_heads):
            a = maps[layer][0, head].tolist()
            for t in range(length):
                waad[i, head, t] = sum(a[t][s] * min(t - s, 5) for s in range(t + 1))
                if responds[t]:
                    spans[i, head] += sum(a[t][s] * (t - s) for s in range(t + 1))
                window = [a[u][t] for u in range(t + 3, min(length - 1, t + 12) + 1) if responds[u]]
                fai[i, head, t] = sum(window) / len(window) if window else 0.0
    return spans, waad, fai


def curves_of(model: Any, token_ids: Tensor, real: Tensor | None, response: Tensor, **options: Any) -> Curves:
    return attention_curves(model, token_ids, real, response, window=5, h_lo=3, h_hi=12, **options)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("pieces", [1 << 20, 1])
def test_curves_are_those_of_plain_loops_over_the_maps(name: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spy.MAP_ELEMENTS, "cpu", pieces)
    model, (token_ids, real, response) = make_model(name), make_rows()
    curves = curves_of(model, token_ids, real, response)
    assert curves.layers == (1, 2)
    assert curves.num_tokens == response.sum()
    spans = torch.zeros(2, 4)
    for row, (length, (span, waad, fai)) in enumerate(zip(LENGTHS, expected_rows(name), strict=True)):
        spans += span
        torch.testing.assert_close(curves.waad[:, :, row, :length], waad, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(curves.fai[:, :, row, :length], fai, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(curves.spans, spans, atol=1e-3, rtol=1e-4)
    assert model.config._attn_implementation == implementation(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_pass_leaves_the_mean_curves_of_the_given_heads_and_is_what_it_was(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spy.MAP_ELEMENTS, "cpu", 1)
    model, (token_ids, _, response) = make_model(name).train(), make_rows()
    local, global_ = torch.zeros(2, 2, 4, dtype=torch.bool)
    local[1, [0, 3]] = True  # none in the first layer
    global_[0, 2] = global_[1, 1] = True

    def trains() -> list[Tensor]:
        logits = model(input_ids=token_ids, use_cache=False).logits
        model.zero_grad()
        logits[response].square().sum().backward()
        return [logits.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]

    expected = trains()
    with mean_curves(model, response, [1, 2], local, global_, window=5, h_lo=3, h_hi=12) as curves:
        found = trains()
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert model.config._attn_implementation == implementation(name)
    assert curves.seconds > 0
    assert curves.waad is not None
    assert curves.fai is not None
    for row, (length, (_, waad, fai)) in enumerate(zip(LENGTHS, expected_rows(name), strict=True)):
        mask = response[row, :length]
        torch.testing.assert_close(curves.waad[row, :length][mask], waad[local].mean(0)[mask], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(curves.fai[row, :length], fai[global_].mean(0), atol=1e-5, rtol=1e-4)
    with mean_curves(model, response, [1, 2], None, global_, window=5, h_lo=3, h_hi=12) as alone:
        trains()
    assert alone.waad is None
    assert alone.fai is not None
    torch.testing.assert_close(alone.fai, curves.fai)


def test_causal_attention_without_a_mask_is_that_with_one() -> None:
    """Flash attention gets no mask, and PyTorch's none where it can do without."""
    query, t = torch.zeros(1, 4, 12, 8), torch.arange(12)
    back = t[:, None] - t
    for window in (None, 5):
        allowed = ((back >= 0) & (back < (window or 99)))[None, None]
        for first, end in ((0, 12), (3, 7)):
            made = spy._additive(None, first, end, query, window)
            assert torch.equal(made, spy._additive(allowed, first, end, query, window))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gpt-oss"])  # it cannot tell packed rows apart
def test_left_padded_and_packed_rows_give_what_right_padded_ones_do(name: str) -> None:
    model, (token_ids, real, response) = make_model(name), make_rows()
    expected = curves_of(model, token_ids, None, response)

    def to_left(rows: Tensor) -> Tensor:
        return torch.stack([row.roll(T - length) for row, length in zip(rows, LENGTHS, strict=True)])

    left = curves_of(model, to_left(token_ids), to_left(real), to_left(response))
    packed = [
        torch.cat([row[:n] for row, n in zip(rows, LENGTHS, strict=True)])[None] for rows in (token_ids, response)
    ]
    position_ids = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    one_row = curves_of(model, packed[0], None, packed[1], position_ids=position_ids)
    torch.testing.assert_close(left.spans, expected.spans, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(one_row.spans, expected.spans, atol=1e-3, rtol=1e-4)
    for curve in ("waad", "fai"):
        want, of_left, of_packed = (getattr(c, curve).flatten(0, 1) for c in (expected, left, one_row))
        for head in range(len(want)):
            unpacked = unpack(of_packed[head], position_ids)
            for row, n in enumerate(LENGTHS):
                torch.testing.assert_close(of_left[head][row, T - n :], want[head][row, :n], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(unpacked[row, :n], want[head][row, :n], atol=1e-4, rtol=1e-4)


def test_whole_maps_are_handed_out_one_at_a_time() -> None:
    model, (token_ids, real, response) = make_model("llama"), make_rows()
    seen: list[tuple[int, int]] = []
    alive: list[weakref.ref[Tensor]] = []

    def on_map(layer: int, whole: Tensor) -> None:
        assert not any(other() is not None for other in alive)
        alive.append(weakref.ref(whole))
        seen.append((layer, whole.shape[2]))
        torch.testing.assert_close(whole.sum(-1), torch.ones(3, 4, T))

    with_maps = curves_of(model, token_ids, real, response, layers=[3, 0, 2], on_map=on_map)
    assert seen == [(0, T), (2, T), (3, T)]
    without = curves_of(model, token_ids, real, response, layers=[3, 0, 2])
    assert with_maps.layers == without.layers == (3, 0, 2)
    torch.testing.assert_close(with_maps.fai, without.fai)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many elements the largest tensor of a pass has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_no_map_is_ever_whole_unless_asked_for() -> None:
    model = make_model("llama")
    token_ids = torch.randint(1, 97, (1, 1024))
    with LargestTensor() as pass_:  # type: ignore[no-untyped-call]
        attention_curves(model, token_ids, None, token_ids > 0)
    # As much as the mask. One head's map of the four would be as much, and there are two layers to look at.
    assert pass_.elements <= 1 << 20


def test_a_model_without_attention_maps_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=3))
    token_ids = torch.ones(1, 8, dtype=torch.int64)
    with pytest.raises(UserError, match="Mamba"):
        attention_curves(model, token_ids, None, token_ids > 0)
