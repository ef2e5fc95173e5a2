"""How commands show what takes long."""

from __future__ import annotations

import time

import pytest

from rollcage.sandbox.commands import opened
from rollcage.sandbox.commands.opened import Progress, patience


def test_on_a_terminal_there_is_a_bar_below_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(0, 1000, 30))
    progress = Progress(4, is_terminal=True, clock=lambda: float(next(now)))
    progress.tell("begun", is_step=False)
    progress.tell("one", is_step=True)
    progress.tell("of one\x1b[2J", is_step=False)
    for line in ("two", "three", "four"):
        progress.tell(line, is_step=True)
    progress.end()
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert shown[1:4] == [
        "begun\n[..............................] 0/4",
        "one\n[#######.......................] 1/4, about 1:30 left",
        "of one\\x1b[2J\n[#######.......................] 1/4, about 3:00 left",
    ]
    assert shown[-2] == "four\n[##############################] 4/4"
    assert shown[-1] == "", "the bar is gone at the end"


def test_in_a_file_each_step_has_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(2, is_terminal=False)
    for line, is_step in (("one", True), ("of one", False), ("two", True)):
        progress.tell(line, is_step=is_step)
    progress.end()
    assert capsys.readouterr().err == "[1/2] one\nof one\n[2/2] two\n"


def test_what_takes_long_is_told_and_what_does_not_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "PATIENCE_S", 0.1)
    with patience("quick"):
        pass
    with patience("slow"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "slow (0 s)\n"
