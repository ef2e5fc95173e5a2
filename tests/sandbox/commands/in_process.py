"""Commands called in this process, which is quicker, on a service of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.sandbox.service.service_process import ServiceProcess

from rollcage.__main__ import main


@dataclass
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.err.count("\n") == 1, self.err
        return self.err


@dataclass
class Commands:
    """Runs ``rollcage sandbox ...`` on a state folder."""

    folder: Path
    capfd: pytest.CaptureFixture[str] | None = None

    def __call__(self, command: str, *arguments: str, code: int | None = 0) -> Said:
        """Run a command, which must end with ``code``; None: with any that tells of a failure."""
        assert self.capfd is not None
        self.capfd.readouterr()
        ended = main(["sandbox", command, "--folder", str(self.folder), *arguments])
        said = Said(ended, *self.capfd.readouterr())
        assert (ended != 0) if code is None else (ended == code), said
        return said


@contextlib.contextmanager
def service_on(endpoint: str, folder: Path) -> Iterator[Commands]:
    """Lend commands on a service of their own; its sandboxes are deleted at the end."""
    service = ServiceProcess(folder, endpoint=endpoint)
    try:
        yield Commands(folder)
    finally:
        main(["sandbox", "rm", "--folder", str(folder), "--all"])
        service.stop()
    assert service.errors == ""
