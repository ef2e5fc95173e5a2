"""The games that small policies play: for each policy, what it is taught on and where it is measured.

"small-critic" and "small-critic-tiny" are the bodies of mini-critics for "small": 18 % and 4 % of its size. They are
narrower models that learned the same demonstrations, as the mini-critics of the AsyPPO paper are the smallest model of
the policy's family (Qwen3-0.6B beside 4B to 14B), rather than a few layers cut out of the policy: what a lower layer
hands on is meant for the layers above it, and a cut-out one is neither half as small (one layer of six is 20 %) nor as
good a reader of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rollcage.envs.core import TextEnv
from rollcage.envs.countdown.env import CountdownEnv
from rollcage.envs.frozen_lake.env import FrozenLakeEnv
from rollcage.trainer.policies import countdown_traces, frozen_lake_traces


@dataclass(frozen=True, slots=True)
class Game:
    """What the policy of one game is made of.

    Attributes:
        env: makes the environment; takes ``split``.
        env_id: its id.
        demonstrations: seed -> endless conversations: observation, action, observation, action, ...
        num_layers: of the model.
        width: of a layer.
        steps: optimiser steps that teach it.
        max_new_tokens: most tokens of one message.
        lesson: what the demonstrations are like, and what they leave to learn.
        scope: all that the policy knows.
    """

    env: Callable[..., TextEnv]
    env_id: str
    demonstrations: Callable[[int], Iterator[tuple[str, ...]]]
    num_layers: int
    steps: int
    max_new_tokens: int
    lesson: str
    scope: str
    width: int = 128


GAMES: dict[str, Game] = {
    "small": Game(
        env=CountdownEnv,
        env_id="rollcage/Countdown-v0",
        demonstrations=countdown_traces.demonstrations,
        num_layers=6,
        steps=1800,
        max_new_tokens=160,
        lesson="searches that are right\nin every step, but badly aimed, and often given up early. So the policy can "
        "calculate, search and judge, and has much to\nlearn by reinforcement learning, which is what it is for.",
        scope="three or four numbers up to 99",
    ),
    "small-frozenlake": Game(
        env=FrozenLakeEnv,
        env_id="rollcage/FrozenLake-v0",
        demonstrations=frozen_lake_traces.demonstrations,
        num_layers=4,
        steps=800,
        max_new_tokens=16,
        lesson="walks. Before every\nmove they say, rightly, what lies around; the move is drawn: rather towards the "
        "goal than away from it, and into a hole\nnearly as often as onto ice. So the policy reads the map, and has "
        "caution and planning to learn by reinforcement\nlearning, which is what it is for.",
        scope="maps of 4 x 4 cells, one move per message",
    ),
}

GAMES["small-critic"] = replace(GAMES["small"], num_layers=4, width=64, steps=600)
GAMES["small-critic-tiny"] = replace(GAMES["small"], num_layers=3, width=32, steps=600)
