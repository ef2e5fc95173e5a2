"""The learning rate over optimiser steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rollcage.errors import UserError
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import schedule


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 2, "decay_steps": 4}, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"decay_steps": 4, "min_lr_share": 0.2}, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]),
        ({"decay_steps": 4, "decay": "cosine"}, [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0, 0.0]),
        ({"decay_steps": 2, "decay": "cosine", "min_lr_share": 0.5}, [1.0, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_the_rate_rises_falls_and_stays(chosen: dict[str, Any], expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates, scheduler = [], schedule(LearnerConfig(**chosen))(optimizer)
    for _ in expected:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"min_lr_share": 1.5}, "min_lr_share must lie in"),
        ({"lora_rank": -1}, "lora_rank must be at least 0"),
        ({"lora_rank": 4, "lora_alpha": 0.0}, "lora_alpha must be above 0"),
        ({"offload": "optimizer"}, "needs zero_stage 1"),
        ({"offload": "all", "zero_stage": 2}, "needs zero_stage 3"),
    ],
)
def test_what_makes_no_sense_is_refused(chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        LearnerConfig(**chosen)
