"""How fast a replica decodes, by load, contexts and whether the learner trains: fitted to the messages of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Fit how fast a replica decodes, by load and contexts, the prompts that it reads and whether the learner trains.

    With n requests beside each other, the longest of which has c tokens of context, a token takes token_s +
    load_token_s (n - 1) + context_token_s n c seconds. A request that comes in holds all of its replica up for
    ``prompt_token_s`` per token of its prompt. All take ``contention`` times as long while the learner trains. The
    rates are the non-negative least squares of what the messages took (each weighted by 1 / its tokens; all together
    take as long as they took), for the contention of a grid that explains it best. Messages from before ``from_s`` only
    count as load. The share of the variance of the messages' seconds that is explained is returned too.
    """
    ends = np.array([m.end_s for m in messages])
    starts = _slot_starts(np.array([m.start_s for m in messages]), ends, num_replicas * num_slots)
    tokens = np.array([float(m.num_tokens) for m in messages])
    prompts = np.array([float(m.num_prompt_tokens) for m in messages])
    times, load, trains = _moments(starts, ends, training)
    spans_s: Floats = np.diff(times)
    beside = np.maximum(load / num_replicas, 1)
    context = _longest(times, starts, ends, tokens, prompts, num_replicas)
    arrived = np.bincount(np.searchsorted(times, starts), prompts / num_replicas, len(times))[:-1].astype(float)
    took_s = ends - starts
    fits = (took_s > 0) & (tokens > 0)
    late = fits & (starts >= from_s)
    late = late if late.sum() >= _ENOUGH else fits
    weights = np.sqrt(tokens[late])

    def during(values: Floats) -> Floats:
        """Return the sums of what fell into each span, over every message's time."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return np.asarray(np.interp(ends, times, sums) - np.interp(starts, times, sums))[late]

    def explain(contention: float) -> tuple[float, list[float], float]:
        """Return the weighted error, the four rates and the share of the variance that they explain."""
        factor: Floats = np.where(trains, contention, 1.0)
        costs = [factor, factor * (beside - 1), factor * beside * context]
        read = during(factor * arrived)
        step_s = factor
        for _ in range(
            _ROUNDS
        ):  # a message's tokens are spread over its time by how fast they came, once that is known
            steps = spans_s / step_s
            each = tokens[late] / during(steps)  # else what took long for other reasons blames all that came meanwhile
            columns = np.stack([*(each * during(steps * cost) for cost in costs), each * read], axis=1)
            rates = _non_negative(columns / weights[:, None], took_s[late] / weights)
            rates *= took_s[late].sum() / (columns @ rates).sum()
            step_s = np.maximum(rates[0] * costs[0] + rates[1] * costs[1] + rates[2] * costs[2], 1e-9)
        missed = took_s[late] - columns @ rates
        explained = 1 - float(np.mean(missed**2)) / max(float(np.var(took_s[late])), 1e-12)
        return float(np.mean((missed / weights) ** 2)), rates.tolist(), explained

    overlap = float(np.sum(spans_s * load * trains) / np.sum(spans_s * load))
    contentions = _CONTENTIONS if 0.01 < overlap < 0.99 else (1.0,)  # else there is nothing to compare with
    (_, (token_s, load_token_s, context_token_s, prompt_token_s), r2), contention = min(
        (explain(contention), contention) for contention in contentions
    )
    speed = Speed(
        max(token_s, 1e-9),
        load_token_s,
        contention=contention,
        prompt_token_s=prompt_token_s,
        context_token_s=context_token_s,
    )
    return speed, r2


_ENOUGH = 64
"""Messages that a fit needs."""
_ROUNDS = 4
_RIDGE = 0.01
_CONTENTIONS = tuple(1 + step / 10 for step in range(31))


def _non_negative(columns: Floats, values: Floats) -> Floats:
    """Return the least-squares weights of ``columns``; the most negative is left out until none is.

    Columns that cannot be told apart (slots that are always full: load and contexts never change) share alike, by a
    ridge so small that it does little else.
    """
    scale = np.sqrt((columns**2).sum(axis=0)) + 1e-300
    used = list(range(columns.shape[1]))
    while True:
        unit = columns[:, used] / scale[used]
        shares = np.zeros(columns.shape[1])
        shares[used] = np.linalg.solve(unit.T @ unit + _RIDGE * np.eye(len(used)), unit.T @ values)
        if (shares >= 0).all():
            return np.asarray(shares / scale)
        used.remove(int(np.argmin(shares)))


def _longest(times: Floats, starts: Floats, ends: Floats, tokens: Floats, prompts: Floats, num_replicas: int) -> Floats:
    """Return the longest context of a replica in the middle of each span, 0 where there is none.

    Which replica a message ran on is not recorded: the mean is taken over all ways to deal the messages out.
    """
    growth = tokens / np.maximum(ends - starts, 1e-9)
    order = np.argsort(starts, kind="stable")
    begun = np.searchsorted(starts[order], times[:-1], side="right")
    longest = np.zeros(len(times) - 1)
    active, num_begun = order[:0], 0
    for span, middle_s in enumerate((times[1:] + times[:-1]) / 2):
        if begun[span] > num_begun:
            active = np.concatenate([active, order[num_begun : begun[span]]])
            num_begun = begun[span]
        active = active[ends[active] > middle_s]
        if len(active):
            contexts = prompts[active] + growth[active] * (middle_s - starts[active])
            if num_replicas == 1:
                longest[span] = contexts.max()
            else:  # the k-th longest is a replica's longest where the k - 1 before it are on others
                chances = (1 - 1 / num_replicas) ** np.arange(len(active))
                longest[span] = np.sort(contexts)[::-1] @ chances / chances.sum()
    return longest


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
