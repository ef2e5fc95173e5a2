"""A simulation fitted to a recorded run: lengths, turns, latencies and speeds, and the throughput that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean, pvariance
from typing import Any

import numpy as np

from rollcage.errors import UserError
from rollcage.monitor.run_folder import read_rows
from rollcage.trainer.simulation.decoding import Message, fit_speed
from rollcage.trainer.simulation.draws import Constant, Draws, Empirical
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.latencies import first_asked_s, read_latencies
from rollcage.trainer.simulation.model import Cluster, Workload, simulate
from rollcage.trainer.simulation.recorded import Recorded, read_recorded

_MOST_UPDATES = 24
"""Updates of a long run that are simulated."""


@dataclass(frozen=True)
class Calibration:
    """What a run was, as a simulation.

    Attributes:
        recorded: the run, with what it was asked for.
        workload, cluster: fitted.
        num_messages: messages that lengths and speeds were fitted on.
        speed_r2: share of the variance of the messages' seconds that the fitted rates explain.
    """

    recorded: Recorded
    workload: Workload
    cluster: Cluster
    num_messages: int
    speed_r2: float

    def predict(self, other: Recorded, *, turn_s: Draws | None = None, num_seeds: int = 1) -> float:
        """Return the trained samples per second of a run like this one but as ``other`` was asked to be.

        Args:
            other: scheduling, batch, replicas, slots and updates are its own; how fast it was is not looked at.
            turn_s: seconds of a turn and of a reset of its environment; None, those of this run.
            num_seeds: simulations, each with other draws; the mean is taken over the time that they need.
        """
        env = self.workload.env if turn_s is None else replace(self.workload.env, turn_s=turn_s, reset_s=turn_s)
        workload = replace(self.workload, env=env, max_new_tokens=other.max_new_tokens)
        cluster = replace(self.cluster, num_replicas=other.num_replicas, num_slots=other.num_slots)
        num_updates = min(other.num_updates, _MOST_UPDATES)
        runs = [
            simulate(workload, cluster, other.config, num_updates=num_updates, warmup=other.warmup, seed=seed)
            for seed in range(num_seeds)
        ]
        return 1 / fmean(1 / run.samples_per_s for run in runs)


def calibrate(run: Path) -> Calibration:
    """Fit a simulation to the run in folder ``run``.

    Raises:
        UserError: it is no run folder, or holds too little: two updates, and episodes with their times.
    """
    recorded = read_recorded(run)
    config, measured = recorded.config, recorded.measured
    # in the order in which they were begun, which is that of the queue among those that were begun in one moment
    episodes = sorted((row for row in read_rows(run, "trajectories") if row["turns"]), key=_sample_id)
    if not any(turn.get("act_s") for row in episodes for turn in row["turns"]):
        raise UserError(f"{run}: its episodes do not say how long their turns took: record it with this version.")

    timeline = [row for row in read_rows(run, "timeline") if row.get("span") == "train"]
    training = [(row["start_s"], row["end_s"]) for row in timeline]
    begin_s = max(row["end_s"] for row in timeline if row["policy_version"] <= recorded.warmup)
    messages = [message for row in episodes for message in _messages(row)]
    speed, r2 = fit_speed(
        messages, training, num_replicas=recorded.num_replicas, num_slots=recorded.num_slots, from_s=begin_s
    )
    unbiased = _all_members_ended(episodes, config.group_size)
    return Calibration(
        recorded,
        Workload(
            lengths=Empirical(sorted(turn["end"] - turn["start"] for row in unbiased for turn in row["turns"])),
            env=_fit_env(unbiased, read_rows(run, "events"), lockstep=config.mode == "sync"),
            task_share=_task_share(unbiased),
            max_new_tokens=recorded.max_new_tokens,
            observation_tokens=fmean(_observation_tokens(unbiased)),
        ),
        Cluster(
            num_replicas=recorded.num_replicas,
            num_slots=recorded.num_slots,
            speed=speed,
            sample_s=fmean(row["time/train_s"] / row["rollout/num_samples"] for row in measured),
            publish_s=fmean(row["time/publish_s"] for row in measured),
        ),
        num_messages=len(messages),
        speed_r2=r2,
    )


def _sample_id(row: Mapping[str, Any]) -> tuple[int, int]:
    group, _, member = row["id"].partition(".")
    return int(group), int(member)


def _messages(row: Mapping[str, Any]) -> Iterable[Message]:
    """Yield when each message of an episode was asked for and there."""
    at_s = first_asked_s(row)
    for turn in row["turns"]:
        yield Message(at_s, at_s + turn["act_s"], turn["end"] - turn["start"], turn["start"])
        at_s += turn["act_s"] + turn["env_s"]


def _observation_tokens(episodes: Iterable[Mapping[str, Any]]) -> Iterable[int]:
    """Yield the tokens of each message of an environment, the turn's marks included."""
    for row in episodes:
        segment, end = 0, 0
        for turn in row["turns"]:
            yield turn["start"] - (end if turn["segment"] == segment else 0)
            segment, end = turn["segment"], turn["end"]


def _all_members_ended(episodes: Sequence[Mapping[str, Any]], group_size: int) -> Sequence[Mapping[str, Any]]:
    """Return the episodes of the groups before the first that was cut off by the run's end: no long one is missing."""
    members: dict[int, int] = {}
    for row in episodes:
        group = _sample_id(row)[0]
        members[group] = members.get(group, 0) + 1
    complete = 0
    while members.get(complete, 0) >= group_size:
        complete += 1
    whole = [row for row in episodes if _sample_id(row)[0] < complete]
    return whole if complete >= 8 else episodes


def _fit_env(episodes: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], *, lockstep: bool) -> EnvModel:
    lost = sum(row.get("event") == "sample_failed" and str(row.get("reason")).startswith("env_") for row in events)
    resets_s, turns_s = read_latencies(episodes, lockstep=lockstep)
    return EnvModel(
        turns=_draws([float(len(row["turns"])) for row in episodes]),
        reset_s=_draws(resets_s),
        turn_s=_draws(turns_s),
        fail_stop_rate=lost / (lost + len(episodes)),
        success=fmean(float(row["success"]) for row in episodes),
    )


def _draws(values: list[float]) -> Draws:
    return Constant(values[0]) if min(values) == max(values) else Empirical(sorted(values))


def _task_share(episodes: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of the variance of lengths' normal ranks that lies between groups (first turns)."""
    lengths = [row["turns"][0]["end"] - row["turns"][0]["start"] for row in episodes]
    normal = NormalDist()
    # equal lengths, such as those cut at the limit, are in the order of their episodes, which tells nothing: shuffle
    jitter = np.random.default_rng(0).random(len(lengths))
    ranks = np.argsort(np.argsort(np.asarray(lengths) + jitter))
    groups: dict[str, list[float]] = {}
    for row, rank in zip(episodes, ranks, strict=True):
        groups.setdefault(row["id"].partition(".")[0], []).append(normal.inv_cdf((float(rank) + 0.5) / len(lengths)))
    several = [values for values in groups.values() if len(values) > 1]
    if not several:
        return 0.0
    inside = fmean(pvariance(values) * len(values) / (len(values) - 1) for values in several)
    whole = pvariance([value for values in several for value in values])
    return float(min(max(1 - inside / whole, 0.0), 0.99))
