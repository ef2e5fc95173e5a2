"""Credit from hand-made attention maps and curves, and from random ones against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner.rhythm.credit import (
    CREDITS,
    NEEDS,
    Signals,
    amplify,
    anchor_tokens,
    credit,
    delta,
    dominated,
    preplan_tokens,
    top_share,
)
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads, sample_layers
from rollcage.trainer.learner.rhythm.maps import fai, fai_window, head_span, waad


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def mask(*texts: str) -> Tensor:
    """Return a response mask: "x" is a trainable token."""
    return torch.tensor([[letter == "x" for letter in text] for text in texts])


def test_waad_counts_the_distance_looked_back_up_to_the_window() -> None:
    attention = torch.zeros(1, 1, 6, 6)
    attention[0, 0, 0, 0] = 1  # itself: 0
    attention[0, 0, 1, 0] = 1  # one back: 1
    attention[0, 0, 2, 2], attention[0, 0, 2, 0] = 0.5, 0.5  # half of it two back: 1
    attention[0, 0, 3, 0] = 1  # three back: the window, 3
    attention[0, 0, 4, 0] = 1  # four back: no more than the window
    attention[0, 0, 5, 4], attention[0, 0, 5, 0] = 0.25, 0.75
    torch.testing.assert_close(waad(attention, window=3)[0, 0], torch.tensor([0, 1, 1, 3, 3, 0.25 + 2.25]))
    span = head_span(attention, mask("...xxx"))
    torch.testing.assert_close(span, torch.tensor([(3 + 4 + 0.25 + 0.75 * 5) / 3]))


def test_fai_is_the_mean_attention_of_the_response_tokens_in_the_window() -> None:
    attention = torch.zeros(1, 1, 6, 6)
    attention[0, 0, 2:, 1] = torch.tensor([0.9, 0.1, 0.3, 0.8])
    response = mask("..x.xx")
    assert fai_window(response, 2, 3).tolist() == [[1, 1, 2, 1, 0, 0]]
    # Of token 1: t = 3 is an observation, t = 4 counts, t = 2 is too near and t = 5 too far.
    torch.testing.assert_close(fai(attention, response, 2, 3)[0, 0], torch.tensor([0, 0.3, 0, 0, 0, 0]))
    torch.testing.assert_close(fai(attention, response, 2, 9)[0, 0, 1], torch.tensor(0.55))
    # Two sequences in one row: the window ends with the sequence.
    assert fai_window(mask("xxxxxx"), 1, 2, torch.tensor([[0, 0, 0, 1, 1, 1]])).tolist() == [[2, 1, 0, 2, 1, 0]]


def test_five_layers_of_the_middle_third() -> None:
    assert [sample_layers(n) for n in (1, 2, 3, 4, 6, 12)] == [[0], [0, 1], [1, 2], [1, 2], [2, 3, 4], [4, 5, 6, 7, 8]]
    assert sample_layers(36) == [12, 15, 18, 21, 24]
    with pytest.raises(ValueError, match="at least one"):
        sample_layers(0)


def test_the_heads_of_all_layers_are_ranked_together() -> None:
    spans = rows([5.0, 1.0, 9.0], [2.0, 7.0, 3.0])
    local, global_ = pick_heads(spans, 0.34)
    assert local.tolist() == [[False, True, False], [True, False, False]]
    assert global_.tolist() == [[False, False, True], [False, True, False]]
    assert [int(heads.sum()) for heads in pick_heads(torch.ones(2, 2), 0.1)] == [1, 1]
    assert int(pick_heads(torch.rand(5, 2), 0.3)[0].sum()) == 3  # 0.3 * 10 is 3 also in binary
    torch.testing.assert_close(mean_over(torch.arange(6.0).view(2, 3, 1, 1), local), torch.tensor([[2.0]]))
    with pytest.raises(ValueError, match="share"):
        pick_heads(spans, 0.6)


def test_a_change_is_taken_within_a_turn_only() -> None:
    curve = rows([9, 4, 6, 6, 1, 2, 9])
    response = mask(".xxx.xx")
    assert delta(curve, response).tolist() == [[0, 2, 0, 0, 0, 7, 0]]  # the last token of either turn has none
    assert preplan_tokens(curve, response, q=0.4).tolist() == mask(".x...x.").tolist()
    assert preplan_tokens(curve, response, q=1.0).tolist() == mask(".xx..x.").tolist()


def test_exactly_the_floor_of_the_share_is_chosen_and_the_earlier_of_equals() -> None:
    for length in range(1, 40):
        response = torch.ones(1, length, dtype=torch.bool)
        chosen = top_share(torch.zeros(1, length), response, response, 0.4)
        assert chosen.sum() == math.floor(2 * length / 5)
        assert chosen[0, : math.floor(2 * length / 5)].all()


def test_tokens_that_nobody_comes_after_are_no_anchors() -> None:
    response = mask("xxxxx")
    assert anchor_tokens(rows([0, 0, 0, 9, 9]), response, q=1.0, h_lo=2, h_hi=4).tolist() == mask("xxx..").tolist()
    assert not anchor_tokens(rows([1, 1, 1, 1, 1]), response, q=1.0, h_lo=10).any()


HAND_MADE_WAAD = rows([0, 5, 1, 1, 4, 4, 4, 9, 9, 3])
"""Delta: 5 4 0 3 0 0 5 0 6 -. The 40 % quantile of WAAD is 3.6, the 60 % quantile of Delta is 3.4."""


def test_dominated_anchors_and_their_introductions() -> None:
    response = mask("xxxxxxxxxx")
    anchors = mask("..xx....xx")
    in_d, intros = dominated(HAND_MADE_WAAD, anchors, response, k=2)
    # Token 2: WAAD 1, introduced by token 0 (Delta 5). Token 3: WAAD 1, introduced by token 1 (Delta 4).
    # Token 8: WAAD 9 is too high. Token 9: WAAD 3, introduced by token 8 (Delta 6).
    assert in_d.tolist() == mask("..xx.....x").tolist()
    assert intros.tolist() == mask("xx......x.").tolist()
    # With k = 3 the introduction of both 2 and 3 is token 0, which counts once.
    assert dominated(HAND_MADE_WAAD, anchors, response, k=3)[1].tolist() == mask("x.......x.").tolist()


def test_coupled_credit_is_shared_between_an_anchor_and_its_introduction() -> None:
    fai_curve = rows([0, 0, 9, 8, 0, 0, 0, 0, 7, 6])
    signals = Signals(mask("xxxxxxxxxx"), waad=HAND_MADE_WAAD, fai=fai_curve)
    gamma = credit("coupled", signals, k=3, h_lo=0, h_hi=5)
    expected = rows([1.2, 1, 1.3, 1.3, 1, 1, 1, 1, 1.5 + 0.2, 1.3])  # 8 is an anchor, and introduces 9
    torch.testing.assert_close(gamma, expected)
    torch.testing.assert_close(credit("global", signals, h_lo=0, h_hi=5), 1 + mask("..xx....xx") * 0.5)


def test_bottom_credit_goes_to_the_lowest_of_those_that_can_be_chosen() -> None:
    response = mask("xxxxx")
    signals = Signals(response, waad=rows([0, 5, 1, 1, 4]), fai=rows([3, 1, 2, 0, 0]), entropies=rows([5, 4, 3, 2, 1]))
    assert (credit("bottom_waad", signals) > 1).tolist() == mask("..xx.").tolist()  # Delta 5 4 0 3 -
    assert (credit("bottom_fai", signals, h_lo=2) > 1).tolist() == mask(".xx..").tolist()
    assert (credit("bottom_entropy", signals) > 1).tolist() == mask("...xx").tolist()
    assert (credit("entropy", signals) > 1).tolist() == mask("xx...").tolist()
    assert (credit("random", Signals(response, noise=rows([1, 2, 3, 9, 8]))) > 1).tolist() == mask("...xx").tolist()


def loop_credit(kind: str, waad: Any, fai: Any, response: Any, q: float, lo: int, hi: int) -> list[float]:
    """Return gamma of one row by FORMULAS.md section 5, token by token."""
    where = [t for t in range(len(response)) if response[t]]
    deltas = {t: abs(waad[t] - waad[t + 1]) if t + 1 in where else 0.0 for t in where}
    size = math.floor(q * len(where) + 1e-9)
    if kind in ("local", "bottom_waad"):
        able, score = [t for t in where if t + 1 in where], deltas
    else:
        able = [s for s in where if any(s + lo <= t <= s + hi for t in where)]
        score = {t: fai[t] for t in where}
    sign = 1 if kind.startswith("bottom") else -1
    chosen = sorted(able, key=lambda t: (sign * score[t], t))[:size]
    gamma = [1.0] * len(response)
    if kind != "coupled" or not where:
        for t in chosen:
            gamma[t] = 1.5
        return gamma
    low, high = np.quantile([waad[t] for t in where], 0.4), np.quantile([deltas[t] for t in where], 0.6)
    intros = set()
    for t in chosen:
        before = [u for u in range(t - 3, t) if u in where and u + 1 in where]
        if before and waad[t] <= low and max(deltas[u] for u in before) >= high:
            gamma[t] += 0.6 * 0.5
            intros.add(max(before, key=lambda u: (deltas[u], -u)))
        else:
            gamma[t] += 0.5
    for u in intros:
        gamma[u] += 0.4 * 0.5
    return gamma


@pytest.mark.parametrize("kind", ["local", "global", "coupled", "bottom_waad", "bottom_fai"])
def test_credit_is_that_of_plain_loops_and_padding_changes_nothing(kind: str) -> None:
    rng = np.random.default_rng(0)
    width = 60
    response = rng.random((20, width)) < rng.choice([0.5, 0.9, 1.0], (20, 1))
    response[:, 55:] = False
    response[0] = False
    curves = rng.random((2, 20, width))
    options = {"q": 0.4, "h_lo": 4, "h_hi": 20}
    signals = Signals(torch.tensor(response), waad=torch.tensor(curves[0]), fai=torch.tensor(curves[1]))
    gamma = credit(kind, signals, **options)  # type: ignore[arg-type]
    for row in range(20):
        expected = loop_credit(kind, curves[0][row], curves[1][row], response[row], 0.4, 4, 20)
        torch.testing.assert_close(gamma[row], torch.tensor(expected))
        alone = Signals(signals.response_mask[row, None, :55], waad=signals.waad[row, None, :55])  # type: ignore[index]
        alone = Signals(alone.response_mask, alone.waad, signals.fai[row, None, :55])  # type: ignore[index]
        assert torch.equal(credit(kind, alone, **options)[0], gamma[row, :55])  # type: ignore[arg-type]


def test_every_credit_says_what_it_needs() -> None:
    assert set(CREDITS) == set(NEEDS)
    with pytest.raises(ValueError, match="waad, fai"):
        credit("coupled", Signals(mask("xx")))


def test_the_sign_says_which_advantages_are_multiplied() -> None:
    advantages, gamma = rows([2, -2, 0, 1]), rows([1.5, 1.5, 1.5, 1])
    assert amplify(advantages, gamma).tolist() == [[3, -3, 0, 1]]
    assert amplify(advantages, gamma, "positive").tolist() == [[3, -2, 0, 1]]
    with pytest.raises(ValueError, match="negative"):
        amplify(advantages, gamma, "negative")
