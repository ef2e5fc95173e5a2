"""What each package does with answers that should get nothing: each in a process of its own, with a time limit."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcage.benchmarks.envs.contenders import scorers
from rollcage.benchmarks.envs.problems import Problem

MARKER = "FILE"
CASES = {
    "2*10+5": [2, 5, 10],
    "2.5*10": [2, 5, 10],
    f"__import__('os').system('touch {MARKER}')": [2, 5, 10],
    "9**99**98": [9, 99, 98],
}
"""Answer -> the numbers that it should use; the target is 25, and only the first answer is right."""

LIMIT_S = 15.0
_START_S = 120.0
_MEMORY_BYTES = 8 << 30


def behaviour(package: str, answer: str, numbers: Sequence[int], limit_s: float = LIMIT_S) -> str:
    """Return in words what ``package`` does with ``answer``, for which it has ``limit_s`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder, "marker")
        command = [sys.executable, "-W", "ignore", "-m", __name__, package, answer.replace(MARKER, str(marker))]
        command += [str(limit_s), *map(str, numbers)]
        limits: dict[str, Any] = {"timeout": limit_s + _START_S, "check": False}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **limits)
        if done.returncode == -signal.SIGALRM:
            result = f"no result in {limit_s:g} s"
        else:
            result = done.stdout.strip() or f"ended with exit code {done.returncode}"
        return f"executed; {result}" if marker.exists() else result


def main(argv: Sequence[str]) -> int:
    """Score one answer in this process: ``PACKAGE ANSWER LIMIT_S NUMBER...``."""
    package, answer, limit_s, *numbers = argv
    score = scorers([package])[package]
    score(Problem([2, 5, 10], 25, "2+5+10", False))  # whatever is imported late is imported before the clock starts
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.setitimer(signal.ITIMER_REAL, float(limit_s))  # no handler: ends the process, even within one operation
    reward = score(Problem([*map(int, numbers)], 25, answer, False))
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(f"reward {reward:g}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
