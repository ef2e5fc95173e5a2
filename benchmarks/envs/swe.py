"""``rollcage bench swe``: what an episode of rollcage/SWEMini-v0 takes beyond its tests' own time."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage.benchmarks.envs.footprint import MEMORY
from rollcage.benchmarks.machine import describe
from rollcage.command import CommandParser, positive
from rollcage.envs import make
from rollcage.envs.swe.base import SWEEnv
from rollcage.envs.swe.grading import Harness
from rollcage.errors import UserError
from rollcage.sandbox.sync import SyncSandbox

ENV_ID = "rollcage/SWEMini-v0"


class Timed:
    """A harness that says how long it took; see `Harness`."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.prepare_s: list[float] = []
        self.tests_s: list[float] = []

    def prepare(self, box: SyncSandbox, row: Mapping[str, Any]) -> str:
        """See `Harness.prepare`."""
        start = time.perf_counter()
        commit = self._harness.prepare(box, row)
        self.prepare_s.append(time.perf_counter() - start)
        return commit

    def protected(self, row: Mapping[str, Any]) -> Sequence[str]:
        """See `Harness.protected`."""
        return self._harness.protected(row)

    def run_tests(self, box: SyncSandbox, row: Mapping[str, Any], *, timeout_s: float) -> tuple[dict[str, str], str]:
        """See `Harness.run_tests`."""
        start = time.perf_counter()
        found = self._harness.run_tests(box, row, timeout_s=timeout_s)
        self.tests_s.append(time.perf_counter() - start)
        return found


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object."""
    parser = CommandParser(
        "rollcage bench swe",
        "Play the official patch of every task of rollcage/SWEMini-v0, one episode after the other, and tell the\n"
        "tests' own time from the rest: two sandboxes (the agent's and the judge's), the repository in each, the\n"
        "patch. It needs Docker.",
        "rollcage bench swe\nrollcage bench swe --repetitions 3 --output benchmarks/results",
    )
    parser.add_argument("--tasks", type=positive, default=10, help="how many (default: all 10)")
    parser.add_argument("--endpoint", action="append", default=[], help="Docker daemon; default as in the environment")
    parser.add_argument("--repetitions", type=positive, default=1, help="of all tasks (default: 1)")
    parser.add_argument("--output", type=Path, help="folder for swe.md and swe.json")
    arguments = parser.parse_args(argv)
    machine = describe()
    episodes = measure(arguments.tasks, arguments.repetitions, arguments.endpoint)
    result = {
        "how": {"command": f"rollcage bench swe {' '.join(argv)}".strip(), "machine": machine},
        "load_after": os.getloadavg()[0],
        "episodes": episodes,
    }
    text = report(result)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "swe.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.output / "swe.md").write_text(text, encoding="utf-8")
    sys.stderr.write(text)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def measure(num_tasks: int, repetitions: int, endpoints: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each episode: its task, seconds, and the bytes of the agent's container.

    Args:
        num_tasks: the first so many.
        repetitions: episodes of each.
        endpoints: Docker daemons.

    Raises:
        UserError: an official patch does not resolve its task.
    """
    env = make(ENV_ID, endpoints=list(endpoints)).unwrapped
    assert isinstance(env, SWEEnv)
    env._harness = timed = Timed(env._harness)
    rows = []
    try:
        env.reset(seed=0)  # imports, and a first sandbox
        env.step(env.empty())
        task_ids = [
            env.tasks.task(split, index).id for split, size in env.tasks.splits.items() for index in range(size)
        ][:num_tasks]
        for number, task_id in enumerate(task_ids * repetitions, start=1):
            timed.prepare_s.clear()
            timed.tests_s.clear()
            start = time.perf_counter()
            env.reset(options={"task": task_id})
            reset_s = time.perf_counter() - start
            work, separator, submit = env.gold().partition("</tool_call>")
            env.step(work + separator)
            working_s = time.perf_counter() - start - reset_s
            assert env._box is not None
            held_bytes = int(env._box.exec(MEMORY).stdout)
            start_submit = time.perf_counter()
            _, _, _, _, info = env.step(submit)
            judging_s = time.perf_counter() - start_submit
            if not info["success"]:
                raise UserError(f"{task_id}: its official patch is {info['status']} ({info['failure_reason']}).")
            row = {
                "task": task_id,
                "reset_s": reset_s,
                "working_s": working_s,
                "judging_s": judging_s,
                "prepare_s": sum(timed.prepare_s),
                "tests_s": sum(timed.tests_s),
                "agent_bytes": held_bytes,
            }
            rows.append(row)
            sys.stderr.write(f"{number} of {len(task_ids) * repetitions}\n")
    finally:
        env.close()
    return rows


def report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    how, rows = result["how"], result["episodes"]
    for row in rows:
        row["episode_s"] = row["reset_s"] + row["working_s"] + row["judging_s"]
        row["overhead_s"] = row["episode_s"] - row["tests_s"]
    names = {
        "episode_s": "episode: reset, the official patch, hand in",
        "tests_s": "the tests, as seen from outside the container",
        "overhead_s": "beyond the tests",
        "working_s": "of which: the agent's sandbox, its repository, one command",
        "prepare_s": "of which: the repository, in both sandboxes",
    }
    lines = [
        "# SWEMini: what an episode takes beyond its tests",
        "",
        f"How: `{how['command']}`: {len(rows)} episodes, one after the other. {how['machine']} before and "
        f"{result['load_after']:.2f} after (this command's own part is below 1).",
        "",
        "| | median, s | least | most |",
        "| --- | --: | --: | --: |",
    ]
    for key, name in names.items():
        values = [row[key] for row in rows]
        lines.append(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")
    held = statistics.median(row["agent_bytes"] for row in rows)
    lines += ["", f"Memory of an agent's container after its command: {held / 2**20:.3g} MiB (median).", ""]
    return "\n".join(lines)
