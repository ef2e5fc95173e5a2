"""``rollcage bench envs``: how fast the environments are, and what gets reward, side by side with public packages."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from rollcage import __version__
from rollcage.benchmarks.envs import attacks, contenders
from rollcage.benchmarks.envs.measure import Contender, interleave, summarize
from rollcage.benchmarks.envs.problems import Problem, find_rows, load_problems, write_rows
from rollcage.benchmarks.envs.slow import ENV_ID as SLOW
from rollcage.benchmarks.machine import cpu_name
from rollcage.command import CommandParser
from rollcage.errors import UserError

SECTIONS = {
    "scoring": "Answers scored per second",
    "episodes": "Episodes (reset and one step) per second",
    "vector": f"Episodes per second in {contenders.NUM_ENVS} environments that step together",
    "lake": f"Turns per second in {contenders.NUM_ENVS} FrozenLakes that step together",
    "sokoban": f"Turns per second in {contenders.NUM_ENVS} Sokobans that step together",
    "slow": f"Turns per second in {contenders.NUM_ENVS} environments whose turns take 5 ms",
    "generation": "Solvable problems generated per second",
}
MOVES = ["left", "right", "down", "up"] * (contenders.NUM_ENVS // 4)
_RATES = ("median_per_s", "min_per_s", "max_per_s")


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object."""
    arguments = _arguments(argv)
    if arguments.problems < 2:
        raise UserError(f"--problems must be at least 2, not {arguments.problems}.")
    rows = arguments.rows or find_rows()
    problems = load_problems(rows, arguments.problems)
    rivals = {} if arguments.alone else contenders.installed()
    if missing := [] if arguments.alone else [name for name in contenders.RIVALS if name not in rivals]:
        sys.stderr.write(f"not installed, so left out: {', '.join(missing)} (see benchmarks/envs/requirements.txt)\n")
    packages = ["rollcage", *rivals]
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        write_rows(problems, file)
        makers: dict[str, Callable[[], list[Contender]]] = {
            "scoring": lambda: contenders.scoring(problems, packages),
            "episodes": lambda: contenders.episodes(problems, file, packages),
            "vector": lambda: contenders.vectors(problems, file, packages),
            "lake": lambda: contenders.turns("rollcage/FrozenLake-v0", MOVES, 50),
            "sokoban": lambda: contenders.turns("rollcage/Sokoban-v0", MOVES, 50),
            "slow": lambda: contenders.turns(SLOW, [""] * contenders.NUM_ENVS, 10, placement="process"),
            "generation": lambda: contenders.generation(packages),
        }
        rates = {}
        for section, make in makers.items():
            sys.stderr.write(f"{SECTIONS[section].lower()} ...\n")
            rates[section] = summarize(interleave(make(), arguments.repetitions, arguments.seconds))
    sys.stderr.write("answers that should get nothing ...\n")
    scorers = contenders.scorers(packages)
    result = {
        "how": {
            "command": f"rollcage bench envs {' '.join(argv)}".strip(),
            "rows": "procedural test split" if rows is None else rows.name,
            "num_problems": len(problems),
            "repetitions": arguments.repetitions,
            "seconds": arguments.seconds,
            "python": platform.python_version(),
            "cpu": f"{cpu_name()}, {os.cpu_count()} cores",
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
            "versions": {"rollcage": __version__, "gymnasium": gymnasium.__version__, **rivals},
        },
        "rates": rates,
        "wrong_rewards": {name: _wrong(score, problems) for name, score in scorers.items()},
        "attacks": {
            answer: {
                name: attacks.behaviour(name, answer, numbers, arguments.limit) for name in scorers if name in packages
            }
            for answer, numbers in attacks.CASES.items()
        },
    }
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "envs.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.output / "envs.md").write_text(report(result), encoding="utf-8")
        sys.stderr.write(f"written: {arguments.output / 'envs.md'} and envs.json\n")
    else:
        sys.stderr.write(report(result))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    how = result["how"]
    versions = ", ".join(f"{name} {number}" for name, number in how["versions"].items())
    wrong = ", ".join(f"{name} {number}" for name, number in result["wrong_rewards"].items())
    lines = [
        "# Environments: speed and behaviour",
        "",
        f"How: `{how['command']}` with {how['num_problems']} rows ({how['rows']}), half of the answers right. Everyone "
        f"takes turns: {how['repetitions']} repetitions of about {how['seconds']:g} s each, in random order; the "
        "median, the least and the most. The last column is the median, over the repetitions, of the first line's rate "
        f"over this one's. {how['cpu']}; Python {how['python']}; {versions}; load {how['load_before']:.2f} "
        f"before and {how['load_after']:.2f} after (this command's own part is 1).",
    ]
    for section, rows in result["rates"].items():
        cells = [[row["name"], *(f"{row[key]:,.0f}" for key in _RATES), f"{row['ratio']:,.2f}"] for row in rows]
        lines += ["", f"## {SECTIONS[section]}", "", *_table(["", "median", "least", "most", "rollcage / it"], cells)]
    cells = [[f"`{answer}`", *found.values()] for answer, found in result["attacks"].items()]
    lines += ["", "## What gets reward", "", *_table(["answer", *next(iter(result["attacks"].values()))], cells)]
    lines += [
        "",
        "The given numbers are those in the answer (2, 5 and 10 for the third), the target is 25; only the first "
        "answer is right. After the time limit the process is ended. Of the first 500 answers timed above, so many "
        f"were rewarded although wrong, or not rewarded although right: {wrong}.",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] + ["--:"] * (len(head) - 1), *rows)]


def _wrong(score: contenders.Score, problems: Sequence[Problem]) -> int:
    return sum((score(problem) == 1.0) != problem.right for problem in problems[:500])


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "rollcage bench envs",
        "Measure Countdown and the vector environment, side by side with the packages of "
        "benchmarks/envs/requirements.txt where they are installed. The last line on stdout is one JSON object.",
        "rollcage bench envs\nrollcage bench envs --output benchmarks/results\n"
        "rollcage bench envs --alone --repetitions 3 --seconds 0.05",
    )
    parser.add_argument("--rows", type=Path, help="file of Countdown rows (default: countdown_3to4_test where found)")
    parser.add_argument("--problems", type=int, default=2000, help="how many rows (default: 2000)")
    parser.add_argument("--repetitions", type=int, default=15, help="turns of each (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn (default: 0.3)")
    parser.add_argument("--limit", type=float, default=attacks.LIMIT_S, help="seconds for one bad answer (default: 15)")
    parser.add_argument("--alone", action="store_true", help="leave the other packages out")
    parser.add_argument("--output", type=Path, help="folder for envs.md and envs.json")
    return parser.parse_args(argv)
