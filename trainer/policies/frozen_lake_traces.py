"""Demonstrations for the small policy: walks over FrozenLake by somebody who looks around but hardly minds holes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rollcage.envs.frozen_lake.env import FrozenLakeEnv
from rollcage.envs.frozen_lake.map import Lake
from rollcage.envs.moves import MOVES, write_moves


@dataclass(frozen=True, slots=True)
class Walker:
    """Draws every move by itself: a move towards the goal has weight 1, the others less.

    Before a move it says what lies above, below, left and right of it: F, H, G as on the map, and E over the edge. That
    is always right. So a model taught on its walks reads the map and knows where the goal is, and yet steps into holes
    that it has just named, and never plans: what reinforcement learning can mend.

    Attributes:
        away: weight of a move that brings the goal no nearer.
        edge: weight of a move over the edge, which changes nothing.
        caution: share of its weight that a move into a hole loses.
    """

    away: float = 0.2
    edge: float = 0.05
    caution: float = 0.2

    def weights(self, lake: Lake, cell: int) -> list[float]:
        """Return the weight of each of `MOVES` on ``cell``."""
        (goal,) = lake.goals
        width = len(lake.rows[0])

        def distance(cell: int) -> int:
            return abs(cell // width - goal // width) + abs(cell % width - goal % width)

        weights = []
        for there in lake.near[cell]:
            weight = self.edge if there == cell else 1.0 if distance(there) < distance(cell) else self.away
            weights.append(weight * (1 - self.caution) if there in lake.holes else weight)
        return weights


def look_around(lake: Lake, cell: int) -> str:
    """Return what lies around ``cell``, in the order of `MOVES`."""
    cells = "".join(lake.rows).replace("S", "F")
    return " ".join("E" if there == cell else cells[there] for there in lake.near[cell])


def demonstrations(seed: int, walker: Walker = Walker()) -> Iterator[tuple[str, ...]]:
    """Yield episodes of `rollcage/FrozenLake-v0`'s training tasks: observation, action, observation, action, ..."""
    rng = random.Random(seed)
    env = FrozenLakeEnv()
    for index in count(rng.randrange(1 << 30)):
        task = env.tasks.task("train", index % env.tasks.splits["train"])
        observation, _ = env.reset(options={"task": task.id})
        texts: list[str] = []
        is_over = False
        while not is_over:
            lake = Lake.of(tuple(task.data["map"]))
            moves = rng.choices(list(MOVES), walker.weights(lake, env.state))
            action = look_around(lake, env.state) + write_moves(moves)
            texts += (observation, action)
            observation, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
        yield tuple(texts)
