"""``rollcage envs``: the list, and the page of one environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import pytest

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import checker_zoo  # noqa: F401  (registers zoo/Sum-v0)

from rollcage.__main__ import main


def test_the_list_holds_every_environment_with_its_splits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    listed = capsys.readouterr().out
    for env_id in gymnasium.registry:
        if env_id.startswith("rollcage/"):
            assert env_id in listed
    assert "Adds two numbers." in listed
    assert "train 72, test 72" in listed
    assert main(["envs", "--json"]) == 0
    rows = {row["env_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["zoo/Sum-v0"]["splits"] == {"train": 72, "test": 72}


def test_the_page_of_one_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "checker_zoo:zoo/Sum-v0"]) == 0
    page = capsys.readouterr().out
    for words in ("## Description", "UnicodeText(max_length=None)", "train 72, test 72", "max_turns=3", "calculator"):
        assert words in page
    assert main(["envs", "rollcage/Countdown-v0", "--json", "--env-arg", "split=test"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["arguments"]["split"] == "'train'"
    assert document["missing"] is None


def test_an_environment_that_cannot_be_built_here_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gymnasium.register("zoo/Gone-v0", "no_such_module:Env", vector_entry_point="rollcage.envs.vector:zoo/Gone-v0")
    try:
        assert main(["envs"]) == 0
        assert "not here: cannot load no_such_module:Env" in capsys.readouterr().out
    finally:
        del gymnasium.registry["zoo/Gone-v0"]


def test_bad_input_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["rollcage/Countdwn-v0"], "Did you mean"),
        (["--env-arg", "split=test"], "needs the id"),
        (["zoo/Sum-v0", "--env-arg", "split=tset"], "Did you mean 'test'"),
    ):
        assert main(["envs", *arguments]) == 2
        assert words in capsys.readouterr().err
