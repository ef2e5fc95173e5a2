"""The agents that an environment brings itself: its expert, its random actions, an official answer, or none."""

from __future__ import annotations

from typing import Literal

from rollcage.envs.placements.base import EnvHandle
from rollcage.errors import UserError
from rollcage.trainer.rollout.episode import AgentFailed, Message
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Segment

Solver = Literal["expert", "random", "gold", "empty"]
"""Whose actions: a solver's, random ones, the official answer (a patch, say), or none at all."""


class SolverAgent:
    """Plays one episode with the actions that the environment itself proposes.

    Args:
        handle: the environment that is played.
        kind: see `Solver`.
        seed: of the random actions.
        deadline_s: of each proposal.
    """

    policy_version = 0

    def __init__(self, handle: EnvHandle, kind: Solver, *, seed: int, deadline_s: float) -> None:
        self._handle, self._kind, self._seed, self._deadline_s = handle, kind, seed, deadline_s
        self._num_turns = 0
        self.segments: list[Segment] = []

    async def act(self, observation: str) -> Message:
        """See `Agent`; the observation is not looked at. A task that the solver cannot solve is its failure."""
        try:
            if self._kind == "random":
                seed = key_seed(self._seed, self._num_turns)
                action = await self._handle.call("random_action", seed, deadline_s=self._deadline_s)
            else:
                action = await self._handle.call(self._kind, deadline_s=self._deadline_s)
        except UserError as error:
            raise AgentFailed("model", f"no_{self._kind}", str(error)) from None
        self._num_turns += 1
        return Message(action)
