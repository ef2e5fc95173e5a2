"""The learner's configuration refuses what it cannot do, all faults in one line."""

from __future__ import annotations

import pytest

from rollcage.errors import UserError
from rollcage.trainer.learner.config import LearnerConfig


def test_all_faults_are_reported_at_once_each_with_what_to_do() -> None:
    with pytest.raises(UserError) as error:
        LearnerConfig(loss="gpro", aggregation="token_mean", lr=0.0, num_ranks=0, betas=(0.9, 1.0))
    message = str(error.value)
    assert "\n" not in message
    for part in (
        "unknown loss 'gpro' (known: ppo, grpo, decoupled_ppo, tis) Did you mean 'grpo'?",
        "Did you mean 'token-mean'?",
        "lr must be above 0",
        "num_ranks must be at least 1",
        "betas must lie in [0, 1)",
    ):
        assert part in message


def test_gae_is_refused_in_training_since_there_is_no_critic() -> None:
    with pytest.raises(UserError, match=r"'gae' needs a critic.*\(use grpo, rloo, dr_grpo\)"):
        LearnerConfig(advantage="gae")


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("ppo", {"e_high": 0.3}, r"unknown option of loss 'ppo': 'e_high' .*Did you mean 'e_hi'"),
        ("grpo", {"dual_clip": 3.0}, "unknown option of loss 'grpo': 'dual_clip'"),
        ("ppo", {"dual_clip": 0.5}, "dual_clip must be above 1"),
        ("ppo", {"e_lo": -0.1}, "e_lo must be a number of at least 0"),
        ("ppo", {"e_lo": float("nan")}, "e_lo must be a number of at least 0"),
    ],
)
def test_options_of_the_loss_are_checked(loss: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LearnerConfig(loss=loss, loss_options=options)


@pytest.mark.parametrize("name", ["lr", "temperature", "max_grad_norm", "weight_decay", "call_timeout_s"])
def test_nan_is_no_setting(name: str) -> None:
    with pytest.raises(UserError, match=name):
        LearnerConfig(**{name: float("nan")})
