"""The progress line, on a terminal, in a log, and where nobody reads it."""

from __future__ import annotations

import io

from rollcage.trainer.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_log_gets_a_line_now_and_then_and_the_last_one() -> None:
    log = io.StringIO()
    with ProgressLine(100, "episodes", stream=log) as line:
        for done in range(1, 101):
            line.update(done, success=0.123456, note="fine")
    assert log.getvalue() == "100/100 episodes  success 0.1235  note fine  0.0 s\n"


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    terminal = Terminal()
    with ProgressLine(3, "updates", stream=terminal, every_s=0.0) as line:
        for done in (1, 2, 3):
            line.update(done)
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r") == 3
    assert "1/3 updates" in text
    assert text.rstrip().endswith("3/3 updates  0.0 s")


def test_the_time_left_is_told_from_what_was_done_now() -> None:
    log = io.StringIO()
    line = ProgressLine(100, "episodes", done=50, stream=log, every_s=0.0)
    line._begin_s -= 3600.0  # as if an hour had passed
    line.update(60)
    assert "1:00:00  4:00:00 left" in log.getvalue()


def test_a_reader_who_has_gone_stops_nothing() -> None:
    with ProgressLine(2, "episodes", stream=Closed(), every_s=0.0) as line:
        line.update(1)


def test_nothing_done_shows_nothing() -> None:
    log = io.StringIO()
    ProgressLine(2, "episodes", stream=log).close()
    assert log.getvalue() == ""
