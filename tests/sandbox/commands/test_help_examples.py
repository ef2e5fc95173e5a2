"""Every example in every --help runs as it is printed: in a shell, one after the other, on real Docker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcage.sandbox.cli import COMMANDS

ENDLESS = re.compile(r"(?m)^rollcage sandbox (serve|events --follow)")
"""Goes on until Ctrl-C."""


class Terminal:
    """A shell with ``rollcage`` and ``sudo`` on its path, in a folder with what the examples name."""

    def __init__(self, folder: Path) -> None:
        programs, self.home, self.here = folder / "bin", folder / "home", folder / "here"
        for made in (programs, self.home, self.here / "data"):
            made.mkdir(parents=True)
        (self.here / "data" / "file").write_text("data")
        for name, text in (("rollcage", f'exec "{sys.executable}" -m rollcage "$@"'), ("sudo", 'exec "$@"')):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name not in ("ROLLCAGE_SANDBOX", "XDG_STATE_HOME")}
        self.environment = {**kept, "HOME": str(self.home), "PATH": f"{programs}:{os.environ['PATH']}"}

    def __call__(self, line: str, *, is_endless: bool = False) -> tuple[int, str]:
        """Type a line; returns its exit code and all that it showed. With ``is_endless``, Ctrl-C ends it."""
        process = subprocess.Popen(
            ["bash", "-c", line if "|" in line else f"exec {line}"],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            if is_endless:
                assert process.stdout is not None
                shown = process.stdout.readline()  # it has begun
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
                process.send_signal(signal.SIGINT)
                shown += process.stdout.read()
                process.wait(timeout=100)
            else:
                shown, _ = process.communicate(timeout=100)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        return process.returncode, shown


def examples(help_text: str) -> list[str]:
    """Return the examples of a help text."""
    found = help_text.partition("examples:\n")[2].splitlines()
    assert found, help_text
    return [line.strip() for line in found if "COMMAND" not in line]


@pytest.fixture(scope="module")
def terminal(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path_factory.mktemp("examples"))
    yield terminal
    assert terminal("rollcage sandbox rm --all")[0] == 0


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_the_examples_run_as_printed(command: str, terminal: Terminal) -> None:
    code, text = terminal(f"rollcage sandbox {command} --help")
    assert code == 0
    for key in ("mine", "other") if command not in ("run", "chaos", "serve", "doctor", "images", "") else ():
        terminal(f"rollcage sandbox run --keep --key {key} rollcage-base 'echo 1 > result.json'")
    for line in examples(text):
        if ENDLESS.match(line):
            code, shown = terminal(line, is_endless=True)
            assert code in (0, 130), (line, shown)
        elif "example.com" in line:  # where there is no way to it, that is said at once
            code, shown = terminal(line)
            assert code == 0 or (code == 2 and "example.com" in shown), (line, shown)
        else:
            code, shown = terminal(line)
            assert code == 0 or "doctor" in line, (line, shown)
        assert "Traceback" not in shown, (line, shown)
        assert "rollcage sandbox: " not in shown or code != 0, (line, shown)
