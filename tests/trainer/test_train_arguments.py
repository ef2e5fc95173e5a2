"""The arguments of `rollcage train`: help that names every choice, options as words and numbers, plain refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcage.errors import UserError
from rollcage.trainer.config import TrainConfig, read_config, write_config
from rollcage.trainer.learner.advantages import ADVANTAGES, NEED_VALUES
from rollcage.trainer.learner.losses import LOSSES
from rollcage.trainer.train_arguments import parse_train


def parse(*arguments: str) -> TrainConfig:
    config = parse_train(["countdown-small", *arguments]).config
    assert config is not None
    return config


def test_help_names_every_loss_and_estimator_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_train(["--help"])
    text = capsys.readouterr().out
    for name in [*LOSSES, *(name for name in ADVANTAGES if name not in NEED_VALUES)]:
        assert name in text
    for source in ("1707.06347", "2507.18071", "2505.24298", "1802.01561", "2506.13585", "2503.14286", "2501.12599"):
        assert source in text
    for source in ("2402.03300", "2503.20783", "2402.14740", "2501.03262", "2310.10505", "2505.10978"):
        assert source in text


def test_options_are_numbers_and_words_and_survive_a_resume(tmp_path: Path) -> None:
    config = parse("--learner.loss", "weighted_topr", "--learner.loss-options", "level", "token", "w_pos", "0.5")
    assert config.learner.loss_options == {"level": "token", "w_pos": 0.5}
    path = tmp_path / "config.json"
    write_config(path, config, "command")
    assert read_config(path) == (config, "command")
    config = parse("--learner.advantage", "gigpo", "--learner.advantage-options", "gamma", "0.9")
    assert config.learner.advantage_options == {"gamma": 0.9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learner.loss", "cisp"], "unknown loss 'cisp' .* Did you mean 'cispo'"),
        (["--learner.loss", "cispo", "--learner.loss-options", "cap", "2"], "unknown option of loss 'cispo': 'cap'"),
        (["--learner.advantage", "remax"], "remax rollout.greedy_baseline must be on"),
        (["--rollout.greedy-baseline"], "dr_grpo rollout.greedy_baseline must be off"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse(*arguments)
    assert "\n" not in str(error.value)


def test_remax_with_its_greedy_rollouts_is_accepted() -> None:
    config = parse("--learner.advantage", "remax", "--rollout.greedy-baseline")
    assert config.rollout.num_members == config.rollout.group_size + 1
