"""Progress on standard error: one line that is redrawn on a terminal, one line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO


class ProgressLine:
    """Shows how far a job is, what it measures, and when it will be done. A closed stream never stops the job.

    Args:
        total: number of units of work.
        label: what they are, such as "episodes".
        done: units that were done before (a resumed job); the time left is told from the others.
        stream: where to; standard error by default.
        every_s: seconds between two lines; default 0.1 on a terminal, else 10.

    >>> with ProgressLine(100, "episodes") as progress:
    ...     for n in range(1, 101):
    ...         progress.update(n, success=0.5)
    """

    def __init__(
        self, total: int, label: str, *, done: int = 0, stream: TextIO | None = None, every_s: float | None = None
    ) -> None:
        self._total, self._label, self._start = total, label, done
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._every_s = every_s if every_s is not None else (0.1 if self._terminal else 10.0)
        self._begin_s = self._shown_s = time.monotonic()
        self._line, self._width = "", 0

    def update(self, done: int, **values: float | str) -> None:
        """Tell that ``done`` units are done, with values to show beside them."""
        now_s = time.monotonic()
        self._line = self._format(done, now_s - self._begin_s, values)
        if now_s - self._shown_s >= self._every_s:
            self._shown_s = now_s
            self._show()

    def close(self) -> None:
        """Show the last state; idempotent."""
        self._show()
        if self._terminal and self._width:
            self._write("\n")
        self._width = 0

    def __enter__(self) -> ProgressLine:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Show the last state."""
        self.close()

    def _format(self, done: int, elapsed_s: float, values: dict[str, float | str]) -> str:
        parts = [f"{done}/{self._total} {self._label}"]
        parts += [f"{key} {value if isinstance(value, str) else f'{value:.4g}'}" for key, value in values.items()]
        parts.append(_duration(elapsed_s))
        if self._start < done < self._total:
            parts.append(f"{_duration(elapsed_s / (done - self._start) * (self._total - done))} left")
        return "  ".join(parts)

    def _show(self) -> None:
        line, self._line = self._line, ""
        if not line:
            return
        if self._terminal:
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody looks any more


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"
