"""The child process of `rollcage.envs.math.symbolic`: compares one pair of answers after another with math-verify.

It runs as a script and imports nothing of Rollcage, so that it starts fast and small. Model text is hostile, so the
process bounds itself: memory by its address space, time by timers whose signal kills it (a Python handler would not run
while C code multiplies huge numbers), files and child processes by limits of zero. It ends when its input ends, so it
never outlives its parent; the timers see to it even in the middle of a comparison.

Input, one JSON object a line: {"gold", "answer": LaTeX without dollar signs, "cpu_s", "wall_s"}; output, one a line:
{"equal": bool}, or {"error": str} where the comparison failed. A comparison past its time has no output: the process is
gone.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY_BYTES = 1 << 30
RECURSION_LIMIT = 2_000


def limit_resources() -> None:
    """Bound what this process can take from the machine."""
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))
    sys.setrecursionlimit(RECURSION_LIMIT)
    for timer_signal in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer_signal, signal.SIG_DFL)


def set_timers(cpu_s: float, wall_s: float) -> None:
    """Let the process be killed after so much of its own time, or of the clock's; 0 and 0 to stand down."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def make_compare() -> Any:
    """Import math-verify and return ``compare(gold, answer) -> bool``; raises whatever math-verify raises."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # Units are dropped by the caller: math-verify's own list of them takes the t of 5t for one.
    normalization = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    config = [LatexExtractionConfig(normalization_config=normalization, boxed_match_priority=-1)]

    def read(latex: str) -> list[Any]:
        # Its timeouts need the main thread and a Python signal handler: they are off, see this module.
        return list(
            parse(
                f"${latex}$",
                config,
                fallback_mode="no_fallback",
                extraction_mode="first_match",
                parsing_timeout=None,
                raise_on_error=True,
            )
        )

    read_gold = lru_cache(maxsize=1024)(read)

    def compare(gold: str, answer: str) -> bool:
        return bool(
            verify(
                read_gold(gold),
                read(answer),
                allow_set_relation_comp=True,  # x > 2 is (2, oo)
                timeout_seconds=None,
                raise_on_error=True,
            )
        )

    compare("x + 1", "1 + x")  # warm up: the grammar's tables are built at the first use
    return compare


def main() -> None:
    """Answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    limit_resources()
    logging.disable(logging.CRITICAL)
    compare = make_compare()
    replies.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        request = json.loads(line)
        set_timers(request["cpu_s"], request["wall_s"])
        try:
            reply = {"equal": compare(request["gold"], request["answer"])}
        except (Exception, MemoryError) as error:  # noqa: BLE001  (a boundary: any failure of the algebra is an answer)
            reply = {"error": type(error).__name__}
        set_timers(0, 0)
        replies.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main()
