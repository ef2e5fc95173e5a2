"""How fast a replica decodes, by its load and by whether the learner trains: fitted to the messages of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from rollcage.trainer.engines.simulated import Speed

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Message:
    """A message that was sampled.

    Attributes:
        start_s, end_s: when it was asked for and when it was there.
        num_tokens: sampled tokens.
        num_prompt_tokens: tokens before them.
    """

    start_s: float
    end_s: float
    num_tokens: int
    num_prompt_tokens: int


def fit_speed(
    messages: Sequence[Message], training: Spans, *, num_replicas: int, num_slots: int, from_s: float
) -> tuple[Speed, float]:
    """Fit how fast a replica decodes, by its load, by the prompts that it reads and by whether the learner trains.

    With n requests beside each other a token takes token_s (1 + slope (n - 1)). A request that comes in holds all of
    its replica up for ``prompt_token_s`` per token of its prompt. Both take ``contention`` times as long while the
    learner trains. These are the values of grids that explain the messages' tokens best by the time that they spent at
    every load; token_s is such that all messages together have as many tokens as they had. Messages from before
    ``from_s`` only count as load. R^2 is returned too.
    """
    ends = np.array([m.end_s for m in messages])
    starts = _slot_starts(np.array([m.start_s for m in messages]), ends, num_replicas * num_slots)
    tokens = np.array([float(m.num_tokens) for m in messages])
    late = starts >= from_s if (starts >= from_s).sum() >= _ENOUGH else np.ones_like(starts, dtype=bool)
    times, load, trains = _moments(starts, ends, training)
    spans_s: Floats = np.diff(times)
    others = np.maximum(load / num_replicas, 1) - 1
    prompts = np.array([m.num_prompt_tokens / num_replicas for m in messages])
    arrived: Floats = np.bincount(np.searchsorted(times, starts), prompts, len(times))[:-1].astype(float)

    def explain(slope: float, prompt_token_s: float, contention: float) -> tuple[float, float]:
        factor: Floats = np.where(trains, contention, 1.0)
        decoding_s: Floats = spans_s - factor * _reading_s(arrived * prompt_token_s, spans_s / factor)
        progress = np.concatenate([[0.0], np.cumsum(decoding_s / ((1 + slope * others) * factor))])
        worked_s = (np.interp(ends, times, progress) - np.interp(starts, times, progress))[late]
        token_s = max(float(worked_s.sum() / tokens[late].sum()), 1e-9)
        return float(np.mean((tokens[late] - worked_s / token_s) ** 2)), token_s

    overlap = float(np.sum(spans_s * load * trains) / np.sum(spans_s * load))
    contentions = _CONTENTIONS if 0.01 < overlap < 0.99 else (1.0,)  # else there is nothing to compare with
    slope, prompt_token_s, contention, error = 0.0, 0.0, 1.0, math.inf
    for _ in range(_ROUNDS):  # over two of the grids, and over the third
        (error, _), slope, prompt_token_s = min(
            (explain(slope, prompt_token_s, contention), slope, prompt_token_s)
            for slope, prompt_token_s in product(_SLOPES, _PROMPT_TOKEN_S)
        )
        (better, _), other = min((explain(slope, prompt_token_s, each), each) for each in contentions)
        if better >= error:
            break
        error, contention = better, other
    _, token_s = explain(slope, prompt_token_s, contention)
    speed = Speed(token_s, token_s * slope, contention=contention, prompt_token_s=prompt_token_s)
    return speed, 1 - error / max(float(np.var(tokens[late])), 1e-12)


_ENOUGH = 64
"""Messages that a fit needs."""
_ROUNDS = 4
_SLOPES = (0.0, *(10.0 ** (exponent / 5) for exponent in range(-20, 1)))
_PROMPT_TOKEN_S = (0.0, *(10.0 ** (exponent / 5) for exponent in range(-30, -9)))
_CONTENTIONS = tuple(1 + step / 10 for step in range(31))


def _reading_s(arriving_s: Floats, spans_s: Floats) -> Floats:
    """Return how much of each span is spent on prompts: first come, first read, what is left goes into the next."""
    backlog = np.cumsum(arriving_s - spans_s)
    backlog -= np.minimum.accumulate(np.minimum(backlog, 0.0))  # what is left after each span
    before = np.concatenate([[0.0], backlog[:-1]])
    return np.minimum(before + arriving_s, spans_s)


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
