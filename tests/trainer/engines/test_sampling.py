"""Drawing tokens by the inverse of the cumulative distribution."""

import math

import pytest
import torch

from rollcage.trainer.engines.sampling import request_uniforms, sample


def grid(num: int) -> torch.Tensor:
    """``num`` evenly spaced shares of the unit interval: drawing with all of them shows the distribution itself."""
    return (torch.arange(num, dtype=torch.float64) + 0.5) / num


@pytest.mark.parametrize("vocab_size", [5, 4096, 4097, 50_001])
def test_frequencies_are_the_probabilities_in_small_and_large_vocabularies(vocab_size):
    torch.manual_seed(0)
    logits = torch.randn(vocab_size) * 4
    num = 2000
    tokens, logprobs = sample(logits.expand(num, -1), grid(num))
    probs = logits.double().softmax(0)
    counts = torch.bincount(tokens, minlength=vocab_size)
    assert ((counts / num - probs).abs() <= 1.001 / num).all()
    assert logprobs.double().sub(probs.log()[tokens]).abs().max() < 1e-5
    assert tokens.tolist() == sorted(tokens.tolist())  # the inverse of a cumulative distribution is monotonous


def test_hand_computed_draws():
    logits = torch.tensor([[0.2, 0.3, 0.5]]).log().expand(5, -1)
    tokens, logprobs = sample(logits, torch.tensor([0.0, 0.19, 0.21, 0.49, 0.999], dtype=torch.float64))
    assert tokens.tolist() == [0, 0, 1, 1, 2]
    assert logprobs.tolist() == pytest.approx([math.log(p) for p in (0.2, 0.2, 0.3, 0.3, 0.5)], abs=1e-6)


@pytest.mark.parametrize("vocab_size", [7, 5000])
def test_a_token_of_probability_zero_is_never_drawn_even_at_the_edges(vocab_size):
    logits = torch.full((2, vocab_size), -math.inf)
    logits[:, 3] = 1.0
    logits[:, 5] = 0.0
    tokens, _ = sample(logits, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert tokens.tolist() == [3, 5]


def test_filters_renormalise_and_leave_logprobs_alone():
    probs = torch.tensor([0.1, 0.4, 0.3, 0.2])
    num = 1000
    cases = {(1.0, 2): {1: 4 / 7, 2: 3 / 7}, (0.5, 0): {1: 4 / 7, 2: 3 / 7}, (0.4, 0): {1: 1.0}, (0.95, 3): {1: 4 / 9}}
    for (top_p, top_k), expected in cases.items():
        filters = torch.full((num,), top_p), torch.full((num,), top_k)
        tokens, logprobs = sample(probs.log().expand(num, -1), grid(num), None, *filters)
        counts = torch.bincount(tokens, minlength=4) / num
        for token, share in expected.items():
            assert counts[token].item() == pytest.approx(share, abs=2e-3)
        assert logprobs.exp().sub(probs[tokens]).abs().max() < 1e-6


def test_rows_are_independent_of_each_other():
    torch.manual_seed(0)
    logits, uniforms = torch.randn(6, 50), torch.rand(6, dtype=torch.float64)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0, 1.0, 1.0])
    top_p, top_k = torch.tensor([1.0, 1.0, 0.3, 1.0, 1.0, 0.9]), torch.tensor([0, 2, 0, 0, 0, 7])
    together = sample(logits, uniforms, temperature, top_p, top_k)
    for row in range(6):
        one = slice(row, row + 1)
        alone = sample(logits[one], uniforms[one], temperature[one], top_p[one], top_k[one])
        assert alone[0].item() == together[0][row].item()
        assert alone[1].item() == pytest.approx(together[1][row].item(), abs=1e-6)
    assert together[0][0] == logits[0].argmax()
    assert together[1][0].item() == pytest.approx(logits[0].log_softmax(0).max().item(), abs=1e-6)


@pytest.mark.parametrize("vocab_size", [9, 5000])
def test_nan_logits_give_nan_and_not_an_index_out_of_range(vocab_size):
    tokens, logprobs = sample(torch.full((1, vocab_size), math.nan), torch.tensor([0.5], dtype=torch.float64))
    assert 0 <= tokens.item() < vocab_size
    assert math.isnan(logprobs.item())


def test_uniforms_follow_from_the_seed_alone_and_a_longer_request_begins_alike():
    assert request_uniforms(3, 5) == request_uniforms(3, 9)[:5]
    assert request_uniforms(3, 5) != request_uniforms(4, 5)
    assert all(0 <= number < 1 for seed in (0, -1, 2**200) for number in request_uniforms(seed, 100))
