"""The command ``bench cluster``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcage.benchmarks.cluster.figures import FIGURES, Sizes, Table
from rollcage.benchmarks.machine import describe
from rollcage.command import CommandParser, natural_float, positive
from rollcage.errors import UserError, did_you_mean

NOTES = "\n## Notes\n"
"""Where a page's part begins that people write; what follows is kept when the page is made anew."""


def main(argv: Sequence[str]) -> int:
    """``rollcage bench cluster``: every figure that is asked for."""
    parser = CommandParser(
        "rollcage bench cluster",
        "A run on a Ray cluster, with several raylets on this machine: what the orchestration of an episode costs\n"
        "beside one machine's, how long publishing takes, and how throughput grows with raylets whose environments\n"
        f"take their time. Figures: {', '.join(FIGURES)}.",
        "rollcage bench cluster\n"
        "rollcage bench cluster scaling --latency 1 --envs-per-raylet 8\n"
        "rollcage bench cluster overhead publishing --output benchmarks/results",
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"default: all: {', '.join(FIGURES)}")
    parser.add_argument("--updates", type=positive, default=6, help="measured, of each round (default: 6)")
    parser.add_argument("--slots", type=positive, default=16, help="episodes at once, of overhead (default: 16)")
    parser.add_argument("--repetitions", type=positive, default=5, help="publications of each kind (default: 5)")
    parser.add_argument("--raylets", type=positive, default=4, help="with environments, at most (default: 4)")
    parser.add_argument("--envs-per-raylet", type=positive, default=4, help="environments on each (default: 4)")
    parser.add_argument("--latency", type=natural_float, default=0.5, help="mean seconds of a step (default: 0.5)")
    parser.add_argument("--mib", type=positive, nargs="+", default=[4, 32, 128], help="sizes of published models")
    parser.add_argument("--replicas", type=positive, nargs="+", default=[1, 2, 4], help="to publish to")
    parser.add_argument("--output", type=Path, help="folder for cluster.md, whose Notes are kept")
    arguments = parser.parse_args(argv)
    for name in arguments.figures:
        if name not in FIGURES:
            raise UserError(f"no figure {name!r} (there are: {', '.join(FIGURES)}).{did_you_mean(name, FIGURES)}")
    sizes = Sizes(
        num_slots=arguments.slots,
        num_updates=arguments.updates,
        repetitions=arguments.repetitions,
        model_mib=tuple(arguments.mib),
        replicas=tuple(arguments.replicas),
        num_raylets=arguments.raylets,
        envs_per_raylet=arguments.envs_per_raylet,
        latency_s=arguments.latency,
    )
    sections = []
    for name in arguments.figures or FIGURES:
        load = os.getloadavg()[0]
        sections.append(_section(FIGURES[name](sizes), load))
        sys.stderr.write(f"{name}: done\n")
    command = " ".join(["rollcage bench cluster", *argv])
    report = f"# A run on a Ray cluster\n\n`{command}` on {describe()}.\n\n" + "\n".join(sections)
    sys.stdout.write(report)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        page = arguments.output / "cluster.md"
        page.write_text(report + notes_of(page), encoding="utf-8")
    return 0


def notes_of(page: Path) -> str:
    """Return the notes that people have written below a page's figures; "" where there are none."""
    _, heading, notes = page.read_text(encoding="utf-8").partition(NOTES) if page.is_file() else ("", "", "")
    return heading + notes


def _section(table: Table, load: float) -> str:
    text = f"{table.text} Load of the machine's {os.cpu_count()} cores at the start: {load:.1f}, at the end: "
    lines = [
        f"## {table.title}",
        "",
        f"{text}{os.getloadavg()[0]:.1f}.",
        "",
        f"| {' | '.join(table.head)} |",
        f"| --- |{' ---: |' * (len(table.head) - 1)}",
        *(f"| {' | '.join(row)} |" for row in table.rows),
        "",
    ]
    return "\n".join(lines)
