"""The command ``bench``: suites of tasks, and measurements of speed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

from rollcage.command import CommandParser, natural, positive
from rollcage.errors import UserError, did_you_mean, require

BENCHMARKS: dict[str, tuple[str, str, str]] = {
    "suite": ("rollcage.benchmarks.cli", "run_suite", "a named benchmark: pass@1 and avg@k with intervals"),
    "envs": ("rollcage.benchmarks.envs.speed", "main", "environment speed, side by side with public packages"),
    "alfworld": ("rollcage.benchmarks.envs.alfworld", "main", "ALFWorld's speed, side by side with alfworld's own"),
    "swe": ("rollcage.benchmarks.envs.swe", "main", "SWEMini's episodes beyond their tests' own time"),
    "learning": ("rollcage.benchmarks.learning.gain", "main", "a preset trained for several seeds: gain and spread"),
    "study": ("rollcage.benchmarks.learning.paired", "main", "runs of the same seeds that differ in one thing"),
    "rhythm-overhead": (
        "rollcage.benchmarks.learning.rhythm_overhead",
        "main",
        "what attention rhythm credit adds to an update, by length",
    ),
    "sandbox": ("rollcage.benchmarks.sandbox.speed", "main", "sandbox speed, side by side with public packages"),
    "endurance": (
        "rollcage.benchmarks.sandbox.endurance",
        "main",
        "sandboxes at full size: leases, snapshots, 500 MiB",
    ),
    "soak": (
        "rollcage.benchmarks.soak.soak",
        "main",
        "training under attack for hours, and the account of its promises",
    ),
    "throughput": ("rollcage.benchmarks.throughput.cli", "main", "asynchronous against synchronous, in virtual time"),
    "calibration": (
        "rollcage.benchmarks.throughput.calibration",
        "main",
        "the simulation fitted to recorded runs, beside other runs than those",
    ),
    "asynchrony": (
        "rollcage.benchmarks.throughput.wall",
        "main",
        "the real trainer with slow environments: asynchronous against synchronous",
    ),
    "engines": ("rollcage.benchmarks.engines.speed", "main", "generation speed of the engines"),
    "trl": ("rollcage.benchmarks.trl_comparison", "main", "training beside TRL's GRPOTrainer: trajectories a second"),
    "cluster": (
        "rollcage.benchmarks.cluster.cli",
        "main",
        "a Ray cluster of several raylets here: what it costs, and how it scales",
    ),
    "monitor": (
        "rollcage.benchmarks.monitor.load",
        "main",
        "the dashboard with many viewers of runs that write at once",
    ),
    "store": ("rollcage.benchmarks.monitor.opening", "main", "how long a large run takes to open and to look into"),
}
"""Benchmark -> module, function (arguments -> exit code), and what it does."""

_NEEDS = {
    "engines": ("torch", "train"),
    "trl": ("torch", "train"),
    "rhythm-overhead": ("torch", "train"),
    "soak": ("torch", "train"),
    "asynchrony": ("torch", "train"),
    "cluster": ("ray", "ray"),
    "sandbox": ("aiodocker", "sandbox"),
    "endurance": ("aiodocker", "sandbox"),
    "swe": ("aiodocker", "sandbox"),
    "monitor": ("fastapi", "monitor"),
}
"""Benchmark -> module that it cannot be imported without, and the extra that brings it."""


def run_bench(argv: Sequence[str]) -> int:
    """``rollcage bench``: run one benchmark; imports only that one."""
    listed = "\n".join(f"  {name:17}{text}" for name, (_, _, text) in BENCHMARKS.items())
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(
            f"usage: rollcage bench BENCHMARK [arguments]\n\n{listed}\n\nexamples:\n"
            "  rollcage bench suite countdown --policy expert\n"
            "  rollcage bench suite aime24 --policy openai:my-model@http://localhost:8000/v1 --attempts 16\n"
            "  rollcage bench envs\n  rollcage bench BENCHMARK --help\n"
        )
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise UserError(f"no benchmark {name!r} (there are: {known}).{did_you_mean(name, BENCHMARKS)}")
    if name in _NEEDS:
        require(*_NEEDS[name])
    module, function, _ = BENCHMARKS[name]
    main: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return main(rest)


def run_suite(argv: Sequence[str]) -> int:
    """``rollcage bench suite``: one JSON line at the end of stdout; goes on where a killed call of the same stopped."""
    from rollcage.benchmarks.suites import SUITES, plan_suite, summarize
    from rollcage.monitor.live import measuring
    from rollcage.sandbox.opening import measured_by
    from rollcage.trainer.cli import add_policy_arguments, policy_from
    from rollcage.trainer.evaluation.session import run_evaluations

    parser = CommandParser(
        "rollcage bench suite",
        "Run a named benchmark. The last line on stdout is one JSON object. Call again with the same arguments to\n"
        "go on after a kill; remove the output folder to start anew. Data sets are looked for in $ROLLCAGE_DATA,\n"
        "./data and ../shared/data.",
        "rollcage bench suite countdown --policy expert\n"
        "rollcage bench suite gsm8k --policy runs/my-run --num-tasks 200\n"
        "rollcage bench suite aime24 --policy openai:my-model@http://localhost:8000/v1 --attempts 16",
    )
    parser.add_argument("suite", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--num-tasks", type=positive, help="at most so many tasks of each part (default: all)")
    parser.add_argument("--seed", type=natural, default=0, help="of the sample and of every episode (default: 0)")
    parser.add_argument("--attempts", type=positive, default=1, help="episodes of each task, k of avg@k (default: 1)")
    add_policy_arguments(parser)
    parser.add_argument("--output", type=Path, help="folder of the episodes (default: runs/suite-..., by arguments)")
    parser.add_argument(
        "--metrics-port", type=natural, default=0, help="of /metrics, on loopback (default: any free one)"
    )
    arguments = parser.parse_args(argv)

    evaluations, left_out = plan_suite(
        arguments.suite,
        num_tasks=arguments.num_tasks,
        seed=arguments.seed,
        attempts=arguments.attempts,
        solver=arguments.policy,
    )
    policy = policy_from(arguments)
    output = arguments.output
    if output is None:
        key = repr((policy.identity, arguments.num_tasks, arguments.seed, arguments.attempts))
        short = re.sub(r"[^A-Za-z0-9]+", "-", policy.name).strip("-")[-40:]
        output = Path("runs", f"suite-{arguments.suite}-{short}-{blake2b(key.encode(), digest_size=4).hexdigest()}")
    for name, reason in left_out.items():
        sys.stderr.write(f"left out: {name}: {reason}\n")
    sys.stderr.write(f"{arguments.suite}: episodes go to {output}\n")
    with measuring(arguments.metrics_port) as (recorder, metrics), measured_by(recorder):
        results = run_evaluations(
            policy,
            [(evaluation, output / name) for name, evaluation in evaluations.items()],
            placement=arguments.placement,
            restart=arguments.restart,
            concurrency=arguments.concurrency,
            recorder=recorder,
            announce=metrics and f"metrics: {metrics}",
        )
    by_part = dict(zip(evaluations, results, strict=True))
    summary = summarize(arguments.suite, by_part, left_out, expert=arguments.policy == "expert")
    sys.stdout.write(json.dumps(summary | {"output": str(output)}) + "\n")
    return 0
