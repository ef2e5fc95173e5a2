"""A model's rhythm, and what replacing a token does, beside the same in plain steps."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rollcage.errors import UserError
from rollcage.trainer.analysis.measure import Settings, analyse, mean_maps, token_entropies
from rollcage.trainer.analysis.perturbation import KINDS, choose_places, continue_greedily, edit_distance, perturb
from rollcage.trainer.analysis.texts import Text
from rollcage.trainer.learner.rhythm.maps import fai, head_span, waad

SETTINGS = Settings(window=5, h_lo=3, h_hi=20)
NO_TOKENIZER: Any = type("Tokenizer", (), {"all_special_ids": [0]})()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,  # else all attention is flat
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).eval()


def text(length: int, seed: int, prompt: int = 6) -> Text:
    token_ids = np.random.default_rng(seed).integers(1, 50, length).tolist()
    return Text(f"text {seed}", token_ids, [place >= prompt for place in range(length)])


def test_curves_and_maps_are_those_of_the_mean_map_of_each_set_of_heads(model: Any) -> None:
    texts = [text(48, 1), text(31, 2)]
    heads, rhythms, left_out = analyse(model, texts, SETTINGS)
    assert heads.layers == (1, 2)
    assert left_out == 0
    spans = torch.zeros(2, 4)
    for one in texts:
        maps = model(torch.tensor([one.token_ids]), output_attentions=True).attentions
        response = torch.tensor([one.response])
        spans += torch.stack([head_span(maps[layer], response) for layer in heads.layers]) * response.sum()
    order = spans.flatten().argsort()
    assert set(heads.local.flatten().nonzero()[:, 0].tolist()) == set(order[:2].tolist())
    assert set(heads.global_.flatten().nonzero()[:, 0].tolist()) == set(order[-2:].tolist())
    for one, rhythm in zip(texts, rhythms, strict=True):
        response = torch.tensor([one.response])
        with torch.no_grad():
            output = model(torch.tensor([one.token_ids]), output_attentions=True)
        stacked = torch.stack([output.attentions[layer][0] for layer in heads.layers])  # [L, H, T, T]
        local, global_ = (stacked[chosen].mean(0) for chosen in (heads.local, heads.global_))
        for found, expected in zip(mean_maps(model, one, heads), (local, global_), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
        mine = waad(local[None, None], 5)[0, 0][response[0]]
        np.testing.assert_allclose(rhythm.curves.waad, mine, atol=1e-5)
        np.testing.assert_allclose(
            rhythm.curves.fai, fai(global_[None, None], response, 3, 20)[0, 0][response[0]], atol=1e-6
        )
        logprobs = output.logits[0].log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)[:-1][response[0, 1:]]
        np.testing.assert_allclose(rhythm.curves.entropies, entropies, atol=1e-5)
        np.testing.assert_allclose(rhythm.deltas[:-1], np.abs(np.diff(rhythm.curves.waad)), atol=1e-5)
        assert rhythm.deltas[-1] == 0
        assert rhythm.curves.eligible.tolist() == [True] * (len(mine) - 3) + [False] * 3
        assert rhythm.anchors.sum() == rhythm.preplan.sum() == int(0.4 * len(mine))


def test_the_model_is_left_as_it_was(model: Any) -> None:
    before = model.config._attn_implementation, model.training
    analyse(model, [text(30, 3)], SETTINGS)
    assert (model.config._attn_implementation, model.training) == before


def test_receiver_heads_are_those_whose_received_attention_stands_out(model: Any) -> None:
    one = text(60, 4)
    heads, _, _ = analyse(model, [one], SETTINGS)
    assert heads.receivers.shape == (4, 4)
    assert heads.receivers.sum() == 1
    maps = torch.stack(model(torch.tensor([one.token_ids]), output_attentions=True).attentions)[:, 0]
    received = fai(maps, torch.tensor([one.response]).expand(4, -1), 3, 20)[:, :, 6:-3].detach().double().numpy()
    centred = received - received.mean(-1, keepdims=True)
    kurtosis = (centred**4).mean(-1) / (centred**2).mean(-1) ** 2
    assert heads.receivers.flatten().int().argmax() == kurtosis.argmax()


def test_short_texts_are_left_out_and_all_of_them_is_an_error(model: Any) -> None:
    _, rhythms, left_out = analyse(model, [text(30, 1), text(12, 2)], SETTINGS)
    assert (len(rhythms), left_out) == (1, 1)
    with pytest.raises(UserError, match="needs 13 tokens or more"):
        analyse(model, [text(12, 2)], SETTINGS)
    with pytest.raises(UserError, match="another model"):
        analyse(model, [Text("x", [50] * 30, [False] + [True] * 29)], SETTINGS)


def test_entropies_are_those_of_the_distribution_that_a_token_was_drawn_from() -> None:
    logits = torch.zeros(300, 8)
    logits[4, 3] = 1e4
    entropies = token_entropies(logits)
    assert entropies[0].isnan()
    assert entropies[5] == 0
    assert entropies[6] == pytest.approx(np.log(8))


def test_edit_distance() -> None:
    assert edit_distance([1, 2, 3], [1, 2, 3]) == 0
    assert edit_distance([1, 2, 3], [2, 3, 4]) == 2
    assert edit_distance([1, 2, 3], [4, 5, 6]) == 3
    assert edit_distance([], [4, 5]) == 2


def test_greedy_continuation_takes_the_most_likely_token_each_time(model: Any) -> None:
    prefixes = torch.tensor([text(20, 5).token_ids, text(20, 6).token_ids])
    whole = prefixes
    for _ in range(9):
        with torch.no_grad():
            whole = torch.cat([whole, model(whole, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert continue_greedily(model, prefixes, 9).equal(whole[:, 20:])


def test_replaced_tokens_have_the_whole_horizon_behind_them(model: Any) -> None:
    (rhythm,) = analyse(model, [text(40, 7)], SETTINGS)[1]
    rng = np.random.default_rng(0)
    places = choose_places(rhythm, 4, 10, rng)
    assert len(places) == 4 * len(KINDS)
    assert max(places) <= 34 - 10 - 1
    assert places[0] == rhythm.curves.fai[:24].argmax()
    assert places[4] == rhythm.deltas[:24].argmax()
    assert choose_places(rhythm, 4, 31, rng) == []
    assert choose_places(rhythm, 4, 99, rng) == []


def test_divergence_is_the_mean_kl_of_what_follows(model: Any) -> None:
    (rhythm,) = analyse(model, [text(40, 8)], SETTINGS)[1]
    effects = perturb(model, NO_TOKENIZER, [rhythm], horizon=10, seed=3)
    assert [effect.kind for effect in effects] == list(KINDS)
    position = 6 + choose_places(rhythm, 1, 10, np.random.default_rng(3))[0]
    ids = torch.tensor([rhythm.text.token_ids])
    with torch.no_grad():
        before = model(ids).logits.log_softmax(-1)[0]
        ranked = before[position - 1].argsort(descending=True).tolist()
        changed = ids.clone()
        changed[0, position] = next(token for token in ranked if token not in (0, int(ids[0, position])))
        after = model(changed).logits.log_softmax(-1)[0]
    following = slice(position + 1, position + 11)
    expected = torch.nn.functional.kl_div(after[following], before[following], log_target=True, reduction="none").sum(
        -1
    )
    assert effects[0].divergence == pytest.approx(float(expected.mean()), rel=1e-4)
    assert effects[0].divergence > 0
    assert effects[2].divergence_over_random[0] == 0
    assert effects[0].num_tokens == 1
    assert perturb(model, NO_TOKENIZER, [rhythm], horizon=99) == []
