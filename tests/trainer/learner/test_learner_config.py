"""The learner's configuration refuses what it cannot do, all faults in one line."""

from __future__ import annotations

import inspect

import pytest

from rollcage.errors import UserError
from rollcage.trainer.learner.advantages import ADVANTAGES
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.losses import LOSSES
from rollcage.trainer.learner.options import options_of


def test_all_faults_are_reported_at_once_each_with_what_to_do() -> None:
    with pytest.raises(UserError) as error:
        LearnerConfig(loss="gpro", aggregation="token_mean", lr=0.0, num_ranks=0, betas=(0.9, 1.0))
    message = str(error.value)
    assert "\n" not in message
    for part in (
        "unknown loss 'gpro' (known: ppo, grpo, gspo, decoupled_ppo, tis, cispo, topr, weighted_topr, kimi15",
        "Did you mean 'g",
        "Did you mean 'token-mean'?",
        "lr must be above 0",
        "num_ranks must be at least 1",
        "betas must lie in [0, 1)",
    ):
        assert part in message


def test_critics_are_for_gae_alone() -> None:
    assert LearnerConfig(advantage="gae").needs_critics
    assert not LearnerConfig().needs_critics
    with pytest.raises(UserError, match=r"critic is of no use to advantage 'grpo' \(it is to gae\)"):
        LearnerConfig(critic=CriticConfig(num_critics=1))


def test_faults_of_the_critics_are_reported_with_the_others() -> None:
    critic = CriticConfig(num_critics=0, advantage_mask_share=1.2, lr=0, aggregation="mean", histogram_edges=(0.2, 0.1))
    with pytest.raises(UserError) as error:
        LearnerConfig(advantage="gae", epochs=0, critic=critic)
    for part in (
        "critic.num_critics must be at least 1, not 0",
        "critic.advantage_mask_share must lie in [0, 1], not 1.2",
        "critic.lr must be above 0, not 0",
        "critic.aggregation 'mean' is unknown (known: token-mean, ",
        "critic.histogram_edges must rise",
        "; epochs must be at least 1",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("ppo", {"e_high": 0.3}, r"unknown option of loss 'ppo': 'e_high' \(known: e_lo, e_hi, dual_clip\).*'e_hi'"),
        ("gspo", {"dual_clip": 3.0}, "unknown option of loss 'gspo': 'dual_clip'"),
        ("tis", {"e_hi": 0.2}, r"unknown option of loss 'tis': 'e_hi' \(known: cap\)"),
        ("reinforce", {"tau": 0.1}, r"unknown option of loss 'reinforce': 'tau' \(known: it has none\)"),
        ("ppo", {"dual_clip": 0.5}, "dual_clip of loss 'ppo' must be above 1"),
        ("decoupled_ppo", {"w_max": 0.0}, "w_max of loss 'decoupled_ppo' must be above 0"),
        ("ppo", {"e_lo": -0.1}, "e_lo of loss 'ppo' must be a number of at least 0"),
        ("ppo", {"e_lo": float("nan")}, "e_lo of loss 'ppo' must be a number of at least 0"),
        ("cispo", {"e_hi": "big"}, "e_hi of loss 'cispo' must be a number of at least 0, not 'big'"),
        ("topr", {"level": "tokn"}, "level of loss 'topr' must be one of trajectory, token, not 'tokn' .*'token'"),
        ("topr", {"w_pos": 2.0}, "unknown option of loss 'topr': 'w_pos'"),
    ],
)
def test_options_of_the_loss_are_checked(loss: str, options: dict[str, float | str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LearnerConfig(loss=loss, loss_options=options)


@pytest.mark.parametrize(
    ("advantage", "options", "message"),
    [
        ("grpo", {"gamma": 0.9}, r"unknown option of advantage 'grpo': 'gamma' \(known: it has none\)"),
        ("turn_return", {"gama": 0.9}, "unknown option of advantage 'turn_return': 'gama' .*Did you mean 'gamma'"),
        ("gigpo", {"gamma": 1.1}, "gamma of advantage 'gigpo' must be at most 1"),
        ("reinforce_pp", {"kl": 1.0}, "unknown option of advantage 'reinforce_pp': 'kl'"),
        ("reinforce_pp", {"kl_coef": "much"}, "kl_coef of advantage 'reinforce_pp' must be a number"),
    ],
)
def test_options_of_the_advantage_are_checked(advantage: str, options: dict[str, float | str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LearnerConfig(advantage=advantage, advantage_options=options)


def test_every_loss_and_estimator_takes_its_own_options_with_the_documented_defaults() -> None:
    assert {name: list(options_of(loss)) for name, loss in LOSSES.items()} == {
        "ppo": ["e_lo", "e_hi", "dual_clip"],
        "grpo": ["e_lo", "e_hi", "dual_clip"],
        "gspo": ["e_lo", "e_hi"],
        "decoupled_ppo": ["e_lo", "e_hi", "dual_clip", "w_max"],
        "tis": ["cap"],
        "cispo": ["e_lo", "e_hi"],
        "topr": ["level"],
        "weighted_topr": ["level", "w_pos", "w_neg"],
        "kimi15": ["tau"],
        "reinforce": [],
    }
    assert {name: list(options_of(estimator)) for name, estimator in ADVANTAGES.items()} == {
        "grpo": [],
        "dr_grpo": [],
        "rloo": [],
        "reinforce_pp": ["kl_coef"],
        "remax": [],
        "gigpo": ["gamma", "w_episode", "w_step"],
        "turn_return": ["gamma"],
        "gae": ["gamma", "lam", "bootstrap_truncated"],
    }
    defaults = {
        (name, option): inspect.signature(function).parameters[option].default
        for name, function in {**LOSSES, **ADVANTAGES}.items()
        for option in options_of(function)
    }
    expected = {
        ("ppo", "e_lo"): 0.2,
        ("ppo", "e_hi"): 0.2,
        ("ppo", "dual_clip"): None,
        ("gspo", "e_lo"): 3e-4,
        ("gspo", "e_hi"): 4e-4,
        ("decoupled_ppo", "w_max"): 2.0,
        ("tis", "cap"): 1.0,
        ("cispo", "e_lo"): 1.0,
        ("cispo", "e_hi"): 0.2,
        ("topr", "level"): "trajectory",
        ("weighted_topr", "w_pos"): 1.0,
        ("weighted_topr", "w_neg"): 1.0,
        ("kimi15", "tau"): 0.1,
        ("gigpo", "gamma"): 0.95,
        ("turn_return", "gamma"): 0.95,
        ("gae", "gamma"): 1.0,
        ("gae", "lam"): 1.0,
        ("gae", "bootstrap_truncated"): False,
    }
    assert {key: defaults[key] for key in expected} == expected


def test_a_reference_model_is_needed_only_for_a_kl() -> None:
    assert not LearnerConfig().needs_reference
    assert LearnerConfig(kl_coef=0.01, ref_model="other").needs_reference
    assert LearnerConfig(advantage="reinforce_pp", advantage_options={"kl_coef": 0.01}).needs_reference
    with pytest.raises(UserError, match="ref_model is of no use without kl_coef"):
        LearnerConfig(ref_model="other")


@pytest.mark.parametrize(
    "name", ["lr", "kl_coef", "entropy_coef", "temperature", "max_grad_norm", "weight_decay", "call_timeout_s"]
)
def test_nan_is_no_setting(name: str) -> None:
    with pytest.raises(UserError, match=name):
        LearnerConfig(**{name: float("nan")})
