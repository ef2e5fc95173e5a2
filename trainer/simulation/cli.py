"""The command ``simulate``: what a cluster would do, and what to choose for it, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcage.command import CommandParser, natural, natural_float, positive
from rollcage.errors import UserError
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.calibrate import calibrate
from rollcage.trainer.simulation.draws import Constant, Gaussian, Lognormal
from rollcage.trainer.simulation.model import Cluster, Workload, simulate
from rollcage.trainer.simulation.plan import NO_LIMIT_S, Choice, Resources, Search
from rollcage.trainer.simulation.report import calibration_to_json, choice_to_json, format_page, plot

_MOST_UPDATES = 32
"""Updates of a long recorded run that are simulated again."""

_DESCRIPTION = """Predict throughput, utilisation and staleness of a training run in virtual time, and recommend the
asynchronous ratio, the redundancy and the split of GPUs between rollout and training. The trainer's own scheduler,
buffer, router and loop run; engines, environments and learner are models of the time that they take.

Describe a cluster, or calibrate on a recorded run (--from) and change what shall be different."""

_EXAMPLES = """rollcage simulate --gpus 16 --slots 64 --token-ms 25 --length 2000 --train-gpu-s 4
rollcage simulate --gpus 16 --length 500 --turns 8 --env-s 10 10 --fail-slow 0.05 --train-gpu-s 8 --json
rollcage simulate --gpus 16 --train-gpus 4 --async-ratio 2 --extra-groups 4
rollcage simulate --from runs/demo
rollcage simulate --from runs/demo --async-ratio 0 --replicas 2 --plot prediction.png"""


def run_simulate(argv: Sequence[str]) -> int:
    """``rollcage simulate``: one prediction where the choice is given, a search where it is not."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    calibration = calibrate(arguments.source) if arguments.source else None
    workload = _workload(arguments, calibration.workload if calibration else None)
    resources = _resources(arguments, calibration.cluster if calibration else None)
    config = _config(arguments, calibration.recorded.config if calibration else None)
    num_updates = arguments.updates or (min(calibration.recorded.num_updates, _MOST_UPDATES) if calibration else 4)
    search = Search(
        workload,
        resources,
        num_groups=config.num_groups,
        group_size=config.group_size,
        change=lambda chosen: replace(
            chosen,
            env_deadline_s=config.env_deadline_s,
            turn_deadline_s=config.turn_deadline_s,
            episode_deadline_s=config.episode_deadline_s,
            extra_members=config.extra_members if chosen.mode == "async" else 0,
        ),
        num_updates=num_updates,
        seed=arguments.seed,
        watch=lambda choice: _tell(choice, len(search.tried)),
    )
    result: dict[str, Any] = {"calibration": calibration_to_json(calibration)} if calibration else {}
    recommendation = None
    if calibration and not arguments.recommend:
        warmup = calibration.recorded.warmup if arguments.async_ratio is None else None
        prediction = simulate(
            workload, search.cluster(None), config, num_updates=num_updates, warmup=warmup, seed=arguments.seed
        )
        chosen = Choice(None, config, prediction)
    elif arguments.async_ratio is not None and not arguments.recommend:
        given = arguments.train_gpus
        train_gpus = given if given is not None else max(1, arguments.gpus // 4)
        if train_gpus == 0 and arguments.async_ratio > 0:
            raise UserError("--train-gpus 0 has all GPUs sample and train in turns: --async-ratio must be 0 then.")
        chosen = search.try_out(train_gpus, arguments.async_ratio, arguments.extra_groups or 0)
    else:
        recommendation = search.recommend()
        chosen = recommendation.best
    result |= choice_to_json(chosen)
    if calibration and not _changed(arguments):
        ratio = chosen.samples_per_s / calibration.recorded.samples_per_s
        result["predicted_over_measured"] = round(ratio, 4)
    if recommendation:
        result["baseline"] = choice_to_json(recommendation.baseline)
        result["speedup"] = round(chosen.samples_per_s / recommendation.baseline.samples_per_s, 3)
        result["reasons"] = recommendation.reasons
        result["tried"] = [choice_to_json(choice) for choice in recommendation.tried]
    if arguments.plot:
        plot(arguments.plot, chosen, recommendation)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else format_page(result, chosen, recommendation))
    return 0


def _tell(choice: Choice, number: int) -> None:
    where = "" if choice.train_gpus is None else f", {choice.train_gpus or 'all'} GPUs train"
    sys.stderr.write(
        f"{number}: async_ratio {choice.config.async_ratio:g}, extra_groups {choice.config.extra_groups}{where}: "
        f"{choice.samples_per_s:.4g} samples/s\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser("rollcage simulate", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("--from", dest="source", type=Path, metavar="RUN", help="calibrate on this run folder")
    cluster = parser.add_argument_group("cluster (defaults in brackets; with --from, those of the run)")
    cluster.add_argument("--gpus", type=positive, default=16, help="GPUs to split (16)")
    cluster.add_argument("--train-gpus", type=natural, help="GPUs that train (searched for)")
    cluster.add_argument("--gpus-per-replica", type=positive, default=1, help="GPUs of one engine replica (1)")
    cluster.add_argument("--replicas", type=positive, help="with --from: engine replicas")
    cluster.add_argument("--slots", type=positive, help="requests that a replica runs at once (64)")
    cluster.add_argument("--token-ms", type=natural_float, help="ms between two tokens of a lone request (25)")
    cluster.add_argument("--load-ms", type=natural_float, help="ms more for every further request beside it (0)")
    cluster.add_argument("--first-token-s", type=natural_float, help="seconds before the first token (0)")
    cluster.add_argument("--prompt-ms", type=natural_float, help="ms that a token of a prompt holds a replica up (0)")
    cluster.add_argument(
        "--context-us", type=natural_float, help="µs more for every request and token of the longest context (0)"
    )
    cluster.add_argument(
        "--contention", type=natural_float, help="times as long for a token while the learner trains beside (1)"
    )
    cluster.add_argument("--train-gpu-s", type=natural_float, help="GPU-seconds of training a sample (1)")
    cluster.add_argument("--publish-s", type=natural_float, help="seconds until new weights are there (0)")
    cluster.add_argument("--hold-s", type=natural_float, help="seconds that taking them holds all requests up (0)")
    cluster.add_argument("--slow-replicas", type=natural_float, help="share of the replicas that are slow (0)")
    cluster.add_argument("--slow-factor", type=natural_float, help="how many times as slow (3)")
    work = parser.add_argument_group("workload")
    work.add_argument("--length", type=natural_float, help="mean tokens of a message, lognormal (1000)")
    work.add_argument("--sigma", type=natural_float, default=0.94, help="of the logarithm of lengths (0.94)")
    work.add_argument("--max-new-tokens", type=positive, help="most tokens of a message (no limit)")
    work.add_argument("--task-share", type=natural_float, help="share of the variance of lengths between tasks (0)")
    work.add_argument("--turns", type=positive, help="turns of an episode (1)")
    work.add_argument("--observation-tokens", type=positive, help="tokens of an environment's message (1)")
    work.add_argument("--env-s", type=natural_float, nargs=2, metavar=("MEAN", "STD"), help="seconds of a turn (0 0)")
    work.add_argument("--fail-slow", type=natural_float, help="share of episodes with a slow environment (0)")
    work.add_argument("--fail-slow-factor", type=natural_float, help="how many times as slow (5)")
    work.add_argument("--fail-stop", type=natural_float, help="share of episodes whose environment hangs (0)")
    choice = parser.add_argument_group("choice (searched for where not given)")
    choice.add_argument("--groups", type=positive, help="groups of a batch (32)")
    choice.add_argument("--group-size", type=positive, help="rollouts of a group (8)")
    choice.add_argument("--async-ratio", type=natural_float, help="batches that rollout may run ahead")
    choice.add_argument("--extra-groups", type=natural, help="redundant groups")
    choice.add_argument("--extra-members", type=natural, help="redundant rollouts of a group (0)")
    choice.add_argument("--deadline-s", type=natural_float, help="of one reset or step of an environment (none)")
    choice.add_argument("--recommend", action="store_true", help="search even though a choice is given")
    parser.add_argument("--updates", type=positive, help="updates to simulate after the warm-up (4; of a run, its own)")
    parser.add_argument("--seed", type=natural, default=0, help="of all draws (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw what was simulated (.png, .svg)")
    return parser


def _workload(arguments: argparse.Namespace, fitted: Workload | None) -> Workload:
    base = fitted or Workload(Lognormal.of_mean(1000.0, arguments.sigma))
    if arguments.length is not None:
        if arguments.length <= 0:
            raise UserError("--length must be above 0.")
        base = replace(base, lengths=Lognormal.of_mean(arguments.length, arguments.sigma))
    env = base.env
    if arguments.env_s is not None:
        env = replace(env, turn_s=Gaussian(*arguments.env_s))
    if arguments.turns is not None:
        env = replace(env, turns=Constant(arguments.turns))
    rates = {
        "fail_slow_rate": arguments.fail_slow,
        "fail_slow_factor": arguments.fail_slow_factor,
        "fail_stop_rate": arguments.fail_stop,
    }
    env = replace(env, **_given(rates))
    for name, rate in (("--fail-slow", env.fail_slow_rate), ("--fail-stop", env.fail_stop_rate)):
        if not rate <= 1:
            raise UserError(f"{name} is a share: it must be between 0 and 1, not {rate:g}.")
    given = _given(
        {
            "max_new_tokens": arguments.max_new_tokens,
            "task_share": arguments.task_share,
            "observation_tokens": arguments.observation_tokens,
        }
    )
    if not given.get("task_share", 0) <= 1:
        raise UserError(f"--task-share must be between 0 and 1, not {arguments.task_share:g}.")
    return replace(base, env=env, **given)


def _resources(arguments: argparse.Namespace, fitted: Cluster | None) -> Resources | Cluster:
    speed = fitted.speed if fitted else Speed(0.025)
    seconds = {
        "token_s": None if arguments.token_ms is None else max(arguments.token_ms / 1000, 1e-9),
        "load_token_s": None if arguments.load_ms is None else arguments.load_ms / 1000,
        "first_token_s": arguments.first_token_s,
        "prompt_token_s": None if arguments.prompt_ms is None else arguments.prompt_ms / 1000,
        "context_token_s": None if arguments.context_us is None else arguments.context_us / 1e6,
        "contention": arguments.contention,
        "publish_s": arguments.hold_s,
    }
    if arguments.contention is not None and arguments.contention < 1:
        raise UserError(f"--contention is a factor: it must be 1 at least, not {arguments.contention:g}.")
    speed = replace(speed, **_given(seconds))
    slow = _given({"slow_replicas": arguments.slow_replicas, "slow_factor": arguments.slow_factor})
    if not slow.get("slow_replicas", 0) <= 1:
        raise UserError(f"--slow-replicas is a share: it must be between 0 and 1, not {arguments.slow_replicas:g}.")
    if fitted is not None:
        given = slow | {
            "num_replicas": arguments.replicas,
            "num_slots": arguments.slots,
            "sample_s": arguments.train_gpu_s,
            "publish_s": arguments.publish_s,
        }
        return replace(fitted, speed=speed, **_given(given))
    if arguments.replicas is not None:
        raise UserError("--replicas goes with --from; without it the replicas follow from --gpus and --train-gpus.")
    if arguments.gpus <= arguments.gpus_per_replica:
        raise UserError(
            f"--gpus {arguments.gpus} leaves none to train beside a replica of {arguments.gpus_per_replica}."
        )
    given = slow | {
        "num_slots": arguments.slots,
        "train_gpu_s": arguments.train_gpu_s,
        "publish_s": arguments.publish_s,
    }
    resources = replace(Resources(arguments.gpus, arguments.gpus_per_replica, speed=speed), **_given(given))
    if arguments.train_gpus and arguments.train_gpus not in resources.splits:
        raise UserError(f"--train-gpus must be between 0 and {resources.splits[-1]}, not {arguments.train_gpus}.")
    return resources


def _config(arguments: argparse.Namespace, recorded: RolloutConfig | None) -> RolloutConfig:
    base = recorded or RolloutConfig(
        env_deadline_s=NO_LIMIT_S, turn_deadline_s=NO_LIMIT_S, episode_deadline_s=NO_LIMIT_S
    )
    given = {
        "num_groups": arguments.groups,
        "group_size": arguments.group_size,
        "async_ratio": arguments.async_ratio,
        "extra_groups": arguments.extra_groups,
        "extra_members": arguments.extra_members,
        "env_deadline_s": arguments.deadline_s,
    }
    config = replace(base, **_given(given))
    faults = list(config.faults())
    if faults:
        raise UserError("simulate: " + "; ".join(faults) + ".")
    return config


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


_UNCHANGING = {"source", "json", "plot", "updates", "seed", "recommend"}


def _changed(arguments: argparse.Namespace) -> bool:
    """Whether the simulated run is to differ from the recorded one."""
    defaults = vars(_parser().parse_args([]))
    return any(value != defaults[name] for name, value in vars(arguments).items() if name not in _UNCHANGING)
