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
from rollcage.errors import UserError, require
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.calibrate import Calibration, calibrate
from rollcage.trainer.simulation.draws import Constant, Gaussian, Lognormal
from rollcage.trainer.simulation.model import Cluster, Prediction, Workload, simulate
from rollcage.trainer.simulation.plan import NO_LIMIT_S, Choice, Recommendation, Resources, Search

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
    config = _config(arguments, calibration.config if calibration else None)
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
        num_updates=arguments.updates,
        seed=arguments.seed,
        watch=lambda choice: _tell(choice, len(search.tried)),
    )
    result: dict[str, Any] = {"calibration": _calibration(calibration)} if calibration else {}
    recommendation = None
    if calibration and not arguments.recommend:
        warmup = calibration.warmup if arguments.async_ratio is None else None
        prediction = simulate(
            workload, search.cluster(None), config, num_updates=arguments.updates, warmup=warmup, seed=arguments.seed
        )
        chosen = Choice(None, config, prediction)
    elif arguments.async_ratio is not None and not arguments.recommend:
        given = arguments.train_gpus
        train_gpus = given if given is not None else max(1, arguments.gpus // 4)
        chosen = search.try_out(train_gpus, arguments.async_ratio, arguments.extra_groups or 0)
    else:
        recommendation = search.recommend()
        chosen = recommendation.best
    result |= _choice(chosen)
    if calibration and not _changed(arguments):
        ratio = chosen.samples_per_s / calibration.samples_per_s
        result["predicted_over_measured"] = round(ratio, 4)
    if recommendation:
        result["baseline"] = _choice(recommendation.baseline)
        result["speedup"] = round(chosen.samples_per_s / recommendation.baseline.samples_per_s, 3)
        result["reasons"] = recommendation.reasons
        result["tried"] = [_choice(choice) for choice in recommendation.tried]
    if arguments.plot:
        _plot(arguments.plot, chosen, recommendation)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else _page(result, chosen, recommendation))
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
    cluster.add_argument("--train-gpu-s", type=natural_float, help="GPU-seconds of training a sample (1)")
    cluster.add_argument("--publish-s", type=natural_float, help="seconds until new weights are there (0)")
    cluster.add_argument("--hold-s", type=natural_float, help="seconds that taking them holds all requests up (0)")
    work = parser.add_argument_group("workload")
    work.add_argument("--length", type=natural_float, help="mean tokens of a message, lognormal (1000)")
    work.add_argument("--sigma", type=natural_float, default=0.94, help="of the logarithm of lengths (0.94)")
    work.add_argument("--max-new-tokens", type=positive, help="most tokens of a message (no limit)")
    work.add_argument("--task-share", type=natural_float, help="share of the variance of lengths between tasks (0)")
    work.add_argument("--turns", type=positive, help="turns of an episode (1)")
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
    parser.add_argument("--updates", type=positive, default=4, help="updates to simulate after the warm-up (4)")
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
    given = _given({"max_new_tokens": arguments.max_new_tokens, "task_share": arguments.task_share})
    if not given.get("task_share", 0) <= 1:
        raise UserError(f"--task-share must be between 0 and 1, not {arguments.task_share:g}.")
    return replace(base, env=env, **given)


def _resources(arguments: argparse.Namespace, fitted: Cluster | None) -> Resources | Cluster:
    speed = fitted.speed if fitted else Speed(0.025)
    seconds = {
        "token_s": None if arguments.token_ms is None else max(arguments.token_ms / 1000, 1e-9),
        "load_token_s": None if arguments.load_ms is None else arguments.load_ms / 1000,
        "first_token_s": arguments.first_token_s,
        "publish_s": arguments.hold_s,
    }
    speed = replace(speed, **_given(seconds))
    if fitted is not None:
        given = {
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
    given = {"num_slots": arguments.slots, "train_gpu_s": arguments.train_gpu_s, "publish_s": arguments.publish_s}
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


def _choice(choice: Choice) -> dict[str, Any]:
    prediction: Prediction = choice.prediction
    return {
        "train_gpus": choice.train_gpus,
        "async_ratio": choice.config.async_ratio,
        "extra_groups": choice.config.extra_groups,
        "extra_members": choice.config.extra_members,
        "mode": choice.config.mode,
        "num_slots": choice.config.num_slots,
        "samples_per_s": round(prediction.samples_per_s, 6),
        "tokens_per_s": round(prediction.tokens_per_s, 3),
        "update_s": round(prediction.update_s, 4),
        "episode_s": round(prediction.episode_s, 4),
        "rollout_busy": round(prediction.rollout_busy, 4),
        "learner_busy": round(prediction.learner_busy, 4),
        "staleness": round(prediction.staleness, 4),
        "staleness_max": prediction.staleness_max,
        "wasted": round(prediction.wasted, 4),
    }


def _calibration(calibration: Calibration) -> dict[str, Any]:
    speed, cluster = calibration.cluster.speed, calibration.cluster
    return {
        "measured_samples_per_s": round(calibration.samples_per_s, 4),
        "num_updates": calibration.num_updates,
        "num_messages": calibration.num_messages,
        "mean_length": round(calibration.workload.lengths.mean, 2),
        "task_share": round(calibration.workload.task_share, 3),
        "mean_turns": round(calibration.workload.env.turns.mean, 3),
        "env_turn_s": round(calibration.workload.env.turn_s.mean, 5),
        "token_s": round(speed.token_s, 6),
        "load_token_s": round(speed.load_token_s, 7),
        "first_token_s": round(speed.first_token_s, 4),
        "contention": round(speed.contention, 3),
        "speed_r2": round(calibration.speed_r2, 3),
        "train_sample_s": round(cluster.sample_s, 5),
        "publish_s": round(cluster.publish_s, 4),
    }


def _page(result: dict[str, Any], chosen: Choice, recommendation: Recommendation | None) -> str:
    lines = []
    if "calibration" in result:
        fitted = result["calibration"]
        lines.append(
            f"calibrated on {fitted['num_messages']} messages (mean {fitted['mean_length']:g} tokens) and "
            f"{fitted['num_updates']} updates; measured {fitted['measured_samples_per_s']:g} samples a second"
        )
    prediction, config = chosen.prediction, chosen.config
    where = {None: "the cluster as it is", 0: "all GPUs sample and train in turns"}.get(
        chosen.train_gpus, f"{chosen.train_gpus} GPUs train, the others sample"
    )
    rows = {
        "choice": f"async_ratio {config.async_ratio:g}, extra_groups {config.extra_groups}, extra_members "
        f"{config.extra_members}, num_slots {config.num_slots}; {where}",
        "throughput": f"{prediction.samples_per_s:.4g} samples/s, {prediction.tokens_per_s:.4g} tokens/s",
        "update": f"every {prediction.update_s:.4g} s; an episode takes {prediction.episode_s:.4g} s",
        "utilisation": f"slots {prediction.rollout_busy:.0%}, learner {prediction.learner_busy:.0%}",
        "staleness": f"{prediction.staleness:.2f} versions, at most {prediction.staleness_max:g}",
        "wasted": f"{prediction.wasted:.1%} of the samples",
    }
    if "predicted_over_measured" in result:
        rows["check"] = f"predicted over measured throughput: {result['predicted_over_measured']:.3f}"
    lines += [f"{name:12} {text}" for name, text in rows.items()]
    if recommendation:
        lines += ["", *recommendation.reasons]
    return "\n".join(lines) + "\n"


def _plot(path: Path, chosen: Choice, recommendation: Recommendation | None) -> None:
    require("matplotlib", "train").use("Agg")
    from matplotlib import pyplot as plt

    choices = [recommendation.baseline, *recommendation.tried] if recommendation else [chosen]
    names = [
        "synchronous"
        if choice.config.mode == "sync"
        else f"ratio {choice.config.async_ratio:g}, +{choice.config.extra_groups} groups"
        + ("" if choice.train_gpus is None else f", {choice.train_gpus or 'all'} train")
        for choice in choices
    ]
    figure, axes = plt.subplots(1, 3, figsize=(12, 1.5 + 0.3 * len(choices)), sharey=True, constrained_layout=True)
    panels = {
        "samples a second": [choice.samples_per_s for choice in choices],
        "busy: slots, learner": [choice.prediction.rollout_busy for choice in choices],
        "staleness (versions)": [choice.prediction.staleness for choice in choices],
    }
    rows = range(len(choices))
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        colours = ["tab:orange" if choice is chosen else "tab:blue" for choice in choices]
        axis.barh(rows, values, color=colours)
        axis.set_title(title)
    axes[1].plot([choice.prediction.learner_busy for choice in choices], rows, "k|", markersize=12)
    axes[0].set_yticks(rows, names)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)
