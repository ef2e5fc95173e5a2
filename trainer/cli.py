"""The commands ``eval``, ``replay`` and ``train``: arguments in, one call, one line of JSON or a few for people out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage.command import CommandParser, natural, natural_float, positive
from rollcage.envs.cli import add_env_arguments, env_kwargs
from rollcage.envs.placements.restoring import RESTARTS
from rollcage.errors import require
from rollcage.trainer.types import Sampling

if TYPE_CHECKING:
    from rollcage.trainer.agents.policies import Policy

PLACEMENTS = "{inline,process,sandbox,ray}"
POLICY_HELP = (
    "expert, random, gold or empty (where the environment offers them), openai:MODEL@URL (key from $OPENAI_API_KEY), "
    "small, small-frozenlake or smollm2 (models that come along), "
    "or the path of a model folder, a GGUF file, a checkpoint, or a run (its newest checkpoint)"
)


def run_eval(argv: Sequence[str]) -> int:
    """``rollcage eval``: let a policy play a sample of tasks."""
    parser = CommandParser(
        "rollcage eval",
        "Let a policy play a sample of an environment's tasks; shows success with its 95 % interval.",
        "rollcage eval rollcage/Countdown-v0 --policy expert --num-tasks 100 --json\n"
        "rollcage eval rollcage/FrozenLake-v0 --policy random --split test --seed 1\n"
        "rollcage eval rollcage/Math-v0 --env-arg dataset=gsm8k --policy openai:my-model@http://localhost:8000/v1\n"
        "rollcage eval rollcage/Countdown-v0 --policy runs/my-run --num-tasks 2048 --output runs/my-eval",
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="environment; your own: module:namespace/Name-v0")
    parser.add_argument("--split", help="split of the tasks (default: test, where there is one)")
    parser.add_argument("--num-tasks", type=positive, default=100, help="tasks to play (default: 100)")
    parser.add_argument("--seed", type=natural, default=0, help="of the sample and of every episode (default: 0)")
    parser.add_argument("--attempts", type=positive, default=1, help="episodes of each task (default: 1)")
    add_env_arguments(parser)
    add_policy_arguments(parser)
    parser.add_argument("--output", type=Path, help="folder of the episodes; call again to go on after a kill")
    parser.add_argument(
        "--metrics-port", type=natural, default=0, help="of /metrics, on loopback (default: any free one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line on stdout")
    arguments = parser.parse_args(argv)
    from rollcage.monitor.live import measuring
    from rollcage.sandbox.opening import measured_by
    from rollcage.trainer.evaluation.evaluate import plan
    from rollcage.trainer.evaluation.session import run_evaluations

    evaluation = plan(
        arguments.env_id,
        env_kwargs(arguments),
        split=arguments.split,
        num_tasks=arguments.num_tasks,
        seed=arguments.seed,
        attempts=arguments.attempts,
        solver=arguments.policy,
    )
    policy = policy_from(arguments, evaluation.tools)
    with measuring(arguments.metrics_port, arguments.output) as (recorder, metrics), measured_by(recorder):
        [result] = run_evaluations(
            policy,
            [(evaluation, arguments.output)],
            placement=arguments.placement,
            restart=arguments.restart,
            concurrency=arguments.concurrency,
            recorder=recorder,
            announce=metrics and f"metrics: {metrics}",
        )
    summary = result.summary()
    sys.stdout.write(json.dumps(summary) + "\n" if arguments.json else format_summary(summary))
    return 0


def run_replay(argv: Sequence[str]) -> int:
    """``rollcage replay``: play recorded actions again and show the first difference."""
    parser = CommandParser(
        "rollcage replay",
        "Play recorded episodes again, action by action, and show the first difference. Exit code 1 where one differs.",
        "rollcage replay runs/my-eval\nrollcage replay runs/my-run/trajectories.jsonl --trajectory 12.3",
    )
    parser.add_argument("source", type=Path, metavar="FILE_OR_RUN", help="recorded episodes, or a folder of them")
    parser.add_argument("--trajectory", metavar="ID", help="only the episodes with this id or task id")
    parser.add_argument("--placement", metavar=PLACEMENTS, default="inline", help="where the environment runs")
    arguments = parser.parse_args(argv)
    from rollcage.trainer.replay import replay_all

    num_same = num_different = 0
    for name, difference in asyncio.run(replay_all(arguments.source, arguments.trajectory, arguments.placement)):
        num_same, num_different = num_same + (difference is None), num_different + (difference is not None)
        if difference is not None:
            sys.stdout.write(f"{name}: {difference}\n")
    sys.stdout.write(f"{num_same} identical, {num_different} different\n")
    return 1 if num_different else 0


def run_train(argv: Sequence[str]) -> int:
    """``rollcage train``: train a language model from a preset, or go on with a run."""
    require("torch", "train")
    require("tyro", "train")
    from rollcage.trainer.run import Run, run_to_end
    from rollcage.trainer.train_arguments import parse_train

    request = parse_train(argv)
    if request.config is None:
        run = Run.open(request.folder)
    else:
        run = Run.create(request.folder, request.config, request.command)
    sys.stderr.write(f"run folder: {run.folder}   (stopped or killed? rollcage train --resume {run.folder})\n")
    with contextlib.ExitStack() as beside:
        if request.monitor:
            from rollcage.monitor.beside import dashboard

            address = beside.enter_context(dashboard(run.folder.parent))
            sys.stderr.write(f"dashboard: {address}\n")
        report = run_to_end(run)
    sys.stdout.write((report / "README.md").read_text(encoding="utf-8"))
    sys.stdout.write(f"report: {report}\n")
    return 0


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says who plays, and how fast."""
    parser.add_argument("--policy", required=True, help=POLICY_HELP)
    parser.add_argument(
        "--temperature",
        type=natural_float,
        help="of a language model (default: what its generation_config.json says, else 0, or 1 with several attempts)",
    )
    parser.add_argument("--system", default="", help="system message for a language model (default: none)")
    parser.add_argument("--max-new-tokens", type=positive, help="of one message (default: likewise, else 1024)")
    parser.add_argument("--concurrency", type=positive, help="episodes at once (default: the policy's choice)")
    parser.add_argument("--timeout", type=natural_float, default=600.0, help="seconds for one endpoint call (600)")
    parser.add_argument("--placement", metavar=PLACEMENTS, help="where environments run (default: as they ask)")
    parser.add_argument(
        "--restart",
        choices=RESTARTS,
        default="fail",
        help="where the worker or container of an episode is lost: it fails, or goes on from its last turn",
    )


def policy_from(arguments: argparse.Namespace, tools: Sequence[Mapping[str, Any]] = ()) -> Policy:
    """Return the policy that the arguments of `add_policy_arguments` and ``attempts`` name."""
    from rollcage.trainer.agents.policies import generation_config, make_policy

    own = generation_config(arguments.policy)
    temperature = arguments.temperature
    if temperature is None:
        temperature = own.get("temperature", 1.0) if own.get("do_sample") else float(arguments.attempts > 1)
    max_new_tokens = arguments.max_new_tokens or own.get("max_new_tokens") or 1024
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    return make_policy(arguments.policy, sampling, system=arguments.system, tools=tools, timeout_s=arguments.timeout)


def format_summary(summary: dict[str, Any]) -> str:
    """Return the result of an evaluation for people."""
    low, high = summary["success_ci95"]
    success = "nothing was scored"
    if summary["success_rate"] is not None:
        success = f"{summary['success_rate']:.1%}  (95 % interval {low:.1%} to {high:.1%})"
    failures = ", ".join(f"{reason}: {count}" for reason, count in summary["failure_reasons"].items()) or "none"
    rows = {
        "environment": f"{summary['env_id']}, split {summary['split']}",
        "policy": summary["policy"],
        "success": success,
        "mean reward": "-" if summary["mean_reward"] is None else f"{summary['mean_reward']:.4g}",
        "scored": f"{summary['num_scored']} episodes of {summary['num_tasks']} tasks x {summary['attempts']}",
        "failures": failures,
        "quarantined": ", ".join(summary["quarantined"]) or "none",
        "seconds": f"{summary['seconds']:.1f}",
    }
    return "".join(f"{name:12} {value}\n" for name, value in rows.items())
