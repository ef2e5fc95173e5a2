"""Training statistics against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rollcage.trainer.learner.statistics import Totals, summarize

MASK = torch.tensor([[True, True], [True, False]])


def totals(rows: slice) -> Totals:
    """Return the totals of some rows of one example, in which the masked token holds NaN."""
    part = Totals()
    part.add(
        logprobs=torch.tensor([[-1.0, -2.0], [-1.5, math.nan]])[rows],
        old_logprobs=torch.tensor([[-1.0, -2.5], [-1.0, math.nan]])[rows],
        rollout_logprobs=torch.tensor([[-1.25, -2.5], [-1.5, math.nan]])[rows],
        entropy=torch.tensor([[0.5, 1.0], [1.5, math.nan]])[rows],
        loss_mask=MASK[rows],
        loss_statistics={"clip_frac_low": torch.tensor([[0.0, 0.0], [1.0, 0.0]])[rows]},
    )
    return part


@pytest.mark.parametrize("parts", [[slice(0, 2)], [slice(0, 1), slice(1, 2)]])
def test_every_statistic_by_hand_also_in_parts(parts: list[slice]) -> None:
    statistics = summarize(totals(part) for part in parts)
    ratios = [1.0, math.exp(0.5), math.exp(-0.5)]
    weights = [math.exp(0.25), math.exp(0.5), 1.0]
    assert statistics == pytest.approx(
        {
            "importance_ratio_mean": sum(ratios) / 3,
            "importance_ratio_max": math.exp(0.5),
            "approx_kl_k3": ((math.exp(0.5) - 1.5) + (math.exp(-0.5) - 0.5)) / 3,
            "entropy": 1.0,
            "logprob_gap_mean": 0.75 / 3,
            "logprob_gap_max": 0.5,
            "clip_frac_low": 1 / 3,
            "ess": sum(weights) ** 2 / (3 * sum(weight**2 for weight in weights)),
        },
        rel=1e-6,
    )


def test_without_a_token_there_are_no_statistics() -> None:
    assert summarize([Totals()]) == {}
