"""A simulation fitted to a recorded run: lengths, turns, latencies and speeds, and the throughput that was measured."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from statistics import NormalDist, fmean, pvariance
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.errors import UserError
from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.draws import Constant, Draws, Empirical
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Calibration:
    """What a run was, as a simulation.

    Attributes:
        workload, cluster, config: fitted, and as configured.
        warmup: updates at the start that are left out of all figures.
        num_updates: updates that remain.
        samples_per_s: trained samples per second that were measured over them.
        num_messages: messages that lengths and speeds were fitted on.
        speed_r2: share of the variance of the messages' tokens that the fitted rates explain.
    """

    workload: Workload
    cluster: Cluster
    config: RolloutConfig
    warmup: int
    num_updates: int
    samples_per_s: float
    num_messages: int
    speed_r2: float


def _sample_id(row: Mapping[str, Any]) -> tuple[int, int]:
    group, _, member = row["id"].partition(".")
    return int(group), int(member)


@dataclass(frozen=True)
class _Message:
    start_s: float
    end_s: float
    num_tokens: int


def calibrate(run: Path) -> Calibration:
    """Fit a simulation to the run in folder ``run``.

    Raises:
        UserError: it is no run folder, or holds too little: two updates, and episodes with their times.
    """
    metrics = read_metrics(run)
    if len(metrics) < 2:
        raise UserError(f"{run}: {len(metrics)} updates are too few to calibrate from: two at least.")
    given = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
    known = {field.name for field in fields(RolloutConfig)}
    config = RolloutConfig(**{name: value for name, value in given["rollout"].items() if name in known})
    num_replicas, num_slots = int(given["num_engines"]), int(given["engine"]["max_batch_size"])
    # in the order in which they were begun, which is that of the queue among those that were begun in one moment
    episodes = sorted((row for row in read_rows(run, "trajectories") if row["turns"]), key=_sample_id)
    if not any(turn.get("act_s") for row in episodes for turn in row["turns"]):
        raise UserError(f"{run}: its episodes do not say how long their turns took: record it with this version.")

    warmup = min(ceil(config.async_ratio) + 1, len(metrics) - 1)
    measured = metrics[warmup:]
    seconds = measured[-1]["time/elapsed_s"] - metrics[warmup - 1]["time/elapsed_s"]
    num_trained = measured[-1]["account/trained"] - metrics[warmup - 1]["account/trained"]
    timeline = read_rows(run, "timeline")
    training = [(row["start_s"], row["end_s"]) for row in timeline if row.get("span") == "train"]
    begin_s = max(row["end_s"] for row in timeline if row.get("span") == "train" and row["policy_version"] <= warmup)
    messages = [message for row in episodes for message in _messages(row)]
    speed, r2 = _fit_speed(messages, training, num_replicas=num_replicas, num_slots=num_slots, from_s=begin_s)
    unbiased = _all_members_ended(episodes, config.group_size)
    return Calibration(
        Workload(
            lengths=Empirical(sorted(turn["end"] - turn["start"] for row in unbiased for turn in row["turns"])),
            env=_fit_env(unbiased, read_rows(run, "events")),
            task_share=_task_share(unbiased),
            max_new_tokens=int(given["sampling"]["max_new_tokens"]),
        ),
        Cluster(
            num_replicas=num_replicas,
            num_slots=num_slots,
            speed=speed,
            sample_s=fmean(row["time/train_s"] / row["rollout/num_samples"] for row in measured),
            publish_s=fmean(row["time/publish_s"] for row in measured),
        ),
        config,
        warmup=warmup,
        num_updates=len(measured),
        samples_per_s=num_trained / seconds,
        num_messages=len(messages),
        speed_r2=r2,
    )


def _messages(row: Mapping[str, Any]) -> Iterable[_Message]:
    """Yield when each message of an episode was asked for and there: its turns follow each other up to its end."""
    at_s = row["end_s"] - sum(turn["act_s"] + turn["env_s"] for turn in row["turns"])
    for turn in row["turns"]:
        yield _Message(at_s, at_s + turn["act_s"], turn["end"] - turn["start"])
        at_s += turn["act_s"] + turn["env_s"]


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


def _fit_env(episodes: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> EnvModel:
    turns = [row["turns"] for row in episodes]
    lost = sum(row.get("event") == "sample_failed" and str(row.get("reason")).startswith("env_") for row in events)
    resets_s = [
        row["end_s"] - row["start_s"] - sum(turn["act_s"] + turn["env_s"] for turn in row["turns"]) for row in episodes
    ]
    return EnvModel(
        turns=_draws([float(len(each)) for each in turns]),
        reset_s=_draws([max(value, 0.0) for value in resets_s]),
        turn_s=_draws([turn["env_s"] for each in turns for turn in each]),
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


def _fit_speed(
    messages: Sequence[_Message], training: Spans, *, num_replicas: int, num_slots: int, from_s: float
) -> tuple[Speed, float]:
    """Fit how fast a replica decodes, by its load and by whether the learner trains; return R^2 too.

    With n requests beside each other a token takes token_s (1 + slope (n - 1)), and ``contention`` times as long while
    the learner trains. Slope and contention are those of a grid that explain the messages' tokens best by the time
    that they spent at every load; token_s is such that all messages together have as many tokens as they had. What the
    first token costs is in there too. Messages from before ``from_s`` only count as load.
    """
    ends = np.array([m.end_s for m in messages])
    starts = _slot_starts(np.array([m.start_s for m in messages]), ends, num_replicas * num_slots)
    tokens = np.array([float(m.num_tokens) for m in messages])
    late = starts >= from_s if (starts >= from_s).sum() >= _ENOUGH else np.ones_like(starts, dtype=bool)
    times, load, trains = _moments(starts, ends, training)
    others = np.maximum(load / num_replicas, 1) - 1

    def explain(slope: float, contention: float) -> tuple[float, float]:
        per_s = 1 / ((1 + slope * others) * np.where(trains, contention, 1.0))
        progress = np.concatenate([[0.0], np.cumsum(per_s * np.diff(times))])
        worked_s = (np.interp(ends, times, progress) - np.interp(starts, times, progress))[late]
        token_s = float(worked_s.sum() / tokens[late].sum())
        return float(np.mean((tokens[late] - worked_s / token_s) ** 2)), token_s

    overlap = float(np.sum(np.diff(times) * load * trains) / np.sum(np.diff(times) * load))
    contentions = _CONTENTIONS if 0.01 < overlap < 0.99 else (1.0,)  # else there is nothing to compare with
    (error, token_s), slope, contention = min(
        (explain(slope, contention), slope, contention) for slope in _SLOPES for contention in contentions
    )
    speed = Speed(max(token_s, 1e-9), token_s * slope, contention=contention)
    return speed, 1 - error / max(float(np.var(tokens[late])), 1e-12)


_ENOUGH = 64
"""Messages that a fit needs."""
_SLOPES = (0.0, *(10.0 ** (exponent / 8) for exponent in range(-32, 1)))
_CONTENTIONS = tuple(1 + step / 10 for step in range(31))


def _slot_starts(asked: Floats, ends: Floats, num_slots: int) -> Floats:
    """Return when each message got a slot: first come, first served, all replicas taken together."""
    starts = asked.copy()
    waiting: deque[int] = deque()
    running: set[int] = set()
    # records are rounded: what happens in one millisecond is taken to be simultaneous, and in the order of its samples
    events = [(round(at_s, 3), 1, message) for message, at_s in enumerate(asked.tolist())]
    events += [(round(at_s, 3), 0, message) for message, at_s in enumerate(ends.tolist())]
    for at_s, is_ask, message in sorted(events):
        if is_ask:
            waiting.append(message)
        elif message in running:
            running.remove(message)
        else:  # it ran on a replica that was free while others were not, or took no time at all
            waiting = deque(other for other in waiting if other != message)
        while waiting and len(running) < num_slots:
            first = waiting.popleft()
            if ends[first] > at_s:
                starts[first] = at_s
                running.add(first)
    return starts


def _moments(starts: Floats, ends: Floats, training: Spans) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return the times [n + 1] at which anything changes; messages under way [n] and whether the learner trains [n]."""
    edges = np.array(training).reshape(-1, 2)
    times = np.unique(np.concatenate([starts, ends, edges[:, 0], edges[:, 1]]))

    def under_way(begins: Floats, finishes: Floats) -> Floats:
        begun = np.searchsorted(np.sort(begins), times[:-1], side="right")
        return np.asarray(begun - np.searchsorted(np.sort(finishes), times[:-1], side="right"), float)

    return times, under_way(starts, ends), (under_way(edges[:, 0], edges[:, 1]) > 0).astype(np.int64)
