"""What holds for every loss: row order, padding and micro-batches change nothing, and gradients are the formulas'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner.aggregate import AGGREGATIONS, aggregate, token_weights
from rollcage.trainer.learner.losses import LOSSES, SEQUENCE_LEVEL, LossInputs, OtherRows
from rollcage.trainer.learner.statistics import Totals, summarize

EPISODES = torch.tensor([0, 1, 1, 2, 3, 3, 3, 4])
"""Eight rows of five episodes, two of which fill several rows."""


@dataclass
class Example:
    """Rows of random numbers, with each row's episode; masked positions hold NaN."""

    inputs: LossInputs
    episodes: Tensor
    entropy: Tensor

    def rows(self, rows: Tensor, extra: int = 0) -> Example:
        """Return some rows, in this order, with ``extra`` more columns of padding."""

        def cut(values: Tensor, fill: float | bool = torch.nan) -> Tensor:
            if values.ndim == 1:
                return values[rows]
            return torch.nn.functional.pad(values.detach()[rows], (0, extra), value=fill)

        names = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages", "outcomes")
        changes = {name: cut(getattr(self.inputs, name)) for name in names}
        others = self.inputs.other_rows
        assert others is not None
        cut_others = OtherRows(others.num_tokens[rows], others.log_ratio[rows], others.rollout_log_ratio[rows])
        inputs = replace(self.inputs, loss_mask=cut(self.inputs.loss_mask, False), other_rows=cut_others, **changes)
        inputs.logprobs.requires_grad_()
        return Example(inputs, self.episodes[rows], cut(self.entropy))


def example(seed: int, dtype: torch.dtype = torch.float64) -> Example:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    mask = torch.rand(8, 6, generator=generator) < 0.6
    mask[:, 2] = True
    old = -1.5 + 0.4 * draw(8, 6)
    values = [old + 0.3 * draw(8, 6), old, old + 0.3 * draw(8, 6), draw(8, 6)]
    dirty = [torch.where(mask, value, torch.nan) for value in values]
    return Example(
        LossInputs(*dirty, mask, draw(5)[EPISODES], other_rows=other_rows(dirty[0], dirty[1], dirty[2], mask)),
        EPISODES,
        torch.where(mask, draw(8, 6).abs(), torch.nan),
    )


def other_rows(logprobs: Tensor, old: Tensor, rollout: Tensor, mask: Tensor) -> OtherRows:
    """Return the sums over the other rows of each row's episode, written down directly."""

    def elsewhere(values: Tensor) -> Tensor:
        return torch.stack(
            [
                sum(
                    (values[other][mask[other]].sum() for other in range(8) if other != row and same(other, row)),
                    start=torch.zeros((), dtype=values.dtype),
                )
                for row in range(8)
            ]
        )

    def same(one: int, other: int) -> bool:
        return bool(EPISODES[one] == EPISODES[other])

    return OtherRows(elsewhere(torch.ones_like(logprobs)), elsewhere(logprobs - old), elsewhere(logprobs - rollout))


def total(parts: list[Example], whole: Example, name: str, mode: str) -> tuple[float, list[Tensor], dict[str, float]]:
    """Return loss, gradients and statistics of a batch that goes through the loss in parts."""
    mask = torch.cat([part.inputs.loss_mask for part in parts])
    weights = token_weights(mask, mode, sequence_ids=torch.cat([part.episodes for part in parts]), max_length=9).split(
        [len(part.episodes) for part in parts]
    )
    totals, loss = [Totals() for _ in parts], 0.0
    for part, part_weights, part_totals in zip(parts, weights, totals, strict=True):
        token_loss, statistics = LOSSES[name](part.inputs)
        part_loss = aggregate(token_loss, part_weights)
        part_loss.backward()
        loss += part_loss.item()
        part_totals.add(
            logprobs=part.inputs.logprobs.detach(),
            old_logprobs=part.inputs.old_logprobs,
            rollout_logprobs=part.inputs.rollout_logprobs,
            entropy=part.entropy,
            loss_mask=part.inputs.loss_mask,
            loss_statistics=statistics,
        )
    gradients = [part.inputs.logprobs.grad for part in parts]
    assert all(gradient is not None for gradient in gradients)
    return loss, [gradient for gradient in gradients if gradient is not None], summarize(totals)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_row_order_padding_and_micro_batches_change_nothing(name: str, mode: str, seed: int) -> None:
    made = example(seed)
    everything = torch.arange(8)
    whole = made.rows(everything)
    loss, [gradient], statistics = total([whole], made, name, mode)
    assert torch.isfinite(gradient).all()
    assert not gradient[~made.inputs.loss_mask].any()
    shuffled = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    ways: dict[str, list[Example]] = {
        "another order": [made.rows(shuffled)],
        "more padding": [made.rows(everything, extra=3)],
        "one row each": [made.rows(row) for row in everything.split(1)],
        "parts that tear episodes apart": [made.rows(rows) for rows in (shuffled[:3], shuffled[3:])],
    }
    for way, parts in ways.items():
        other_loss, gradients, other_statistics = total(parts, made, name, mode)
        assert other_loss == pytest.approx(loss, rel=1e-5), way
        assert other_statistics == pytest.approx(statistics, rel=1e-9), way
        order = everything if way in ("more padding", "one row each") else shuffled
        joined = torch.cat([g[:, : gradient.shape[1]] for g in gradients])
        torch.testing.assert_close(joined, gradient[order], msg=way)


@pytest.mark.parametrize("name", sorted(SEQUENCE_LEVEL))
def test_what_the_other_rows_hold_matters_to_sequence_level_losses(name: str) -> None:
    made = example(0)
    alone = replace(made.inputs, other_rows=None)
    assert not torch.equal(LOSSES[name](made.inputs)[0].nan_to_num(), LOSSES[name](alone)[0].nan_to_num())


STATISTICS = {
    "importance_ratio_mean",
    "importance_ratio_max",
    "clip_frac_low",
    "clip_frac_high",
    "approx_kl_k3",
    "ess",
    "entropy",
    "logprob_gap_mean",
    "logprob_gap_max",
}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_reports_all_statistics(name: str) -> None:
    made = example(3)
    _, _, statistics = total([made.rows(torch.arange(8))], made, name, "token-mean")
    assert statistics.keys() >= STATISTICS
    assert 0 <= statistics["ess"] <= 1
    assert statistics["approx_kl_k3"] >= 0
    assert 0 <= statistics["clip_frac_low"] <= 1
    assert 0 <= statistics["clip_frac_high"] <= 1


def policy_gradient(weight: Callable[[LossInputs], Tensor]) -> Callable[[LossInputs], Tensor]:
    return lambda i: -weight(i) * i.advantages


def trajectory_ratio(i: LossInputs) -> Tensor:
    log_ratio = torch.where(i.loss_mask, i.logprobs - i.rollout_logprobs, 0).sum(1, keepdim=True)
    return log_ratio.clamp(max=0).exp().expand_as(i.logprobs)


CLOSED_FORMS: dict[str, Callable[[LossInputs], Tensor]] = {
    "tis": policy_gradient(lambda i: (i.logprobs - i.rollout_logprobs).exp().clamp(max=1.0)),
    "cispo": policy_gradient(lambda i: (i.logprobs - i.rollout_logprobs).exp().clamp(max=1.2)),
    "topr": policy_gradient(lambda i: torch.where(i.outcomes[:, None] > 0, 1.0, trajectory_ratio(i))),
    "kimi15": lambda i: -i.advantages + 0.1 * (i.logprobs - i.old_logprobs),
    "reinforce": lambda i: -i.advantages,
}
"""d loss / d logprobs of the losses whose weights are held constant, written down from the papers."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(CLOSED_FORMS))
def test_the_gradient_is_the_closed_form(name: str, seed: int) -> None:
    inputs = replace(example(seed).inputs, other_rows=None)
    inputs.logprobs.requires_grad_()
    LOSSES[name](inputs)[0].sum().backward()
    expected = CLOSED_FORMS[name](replace(inputs, logprobs=inputs.logprobs.detach()))
    assert inputs.logprobs.grad is not None
    torch.testing.assert_close(inputs.logprobs.grad, torch.where(inputs.loss_mask, expected, 0.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "options"), [("ppo", {"dual_clip": 1.5}), ("decoupled_ppo", {"e_hi": 0.28}), ("kimi15", {"tau": 0.7})]
)
def test_the_gradient_is_that_of_finite_differences(name: str, options: dict[str, float], seed: int) -> None:
    inputs = replace(example(seed).inputs, other_rows=None)

    def loss(logprobs: Tensor) -> Tensor:
        return LOSSES[name](replace(inputs, logprobs=logprobs), **options)[0]

    assert torch.autograd.gradcheck(loss, torch.where(inputs.loss_mask, inputs.logprobs, -1.0).requires_grad_())


@pytest.mark.parametrize("seed", range(3))
def test_gspo_with_one_advantage_a_sequence_is_the_sequence_form(seed: int) -> None:
    inputs = replace(example(seed).inputs, other_rows=None)
    mask = inputs.loss_mask
    inputs = replace(inputs, advantages=inputs.outcomes[:, None].expand(mask.shape))
    inputs.logprobs.requires_grad_()
    aggregate(LOSSES["gspo"](inputs, e_lo=0.05, e_hi=0.05)[0], token_weights(mask)).backward()
    in_token_form = inputs.logprobs.grad
    logprobs = inputs.logprobs.detach().clone().requires_grad_()
    log_ratio = torch.where(mask, logprobs - inputs.old_logprobs, 0).sum(1) / mask.sum(1)
    ratio, advantage = log_ratio.exp(), inputs.outcomes
    (-torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.05) * advantage)).mean().backward()
    assert in_token_form is not None
    assert logprobs.grad is not None
    torch.testing.assert_close(in_token_form, logprobs.grad.nan_to_num(), rtol=1e-5, atol=1e-9)
