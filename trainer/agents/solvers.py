"""The agents that an environment brings itself: its expert and its random actions."""

from __future__ import annotations

from typing import Literal

from rollcage.envs.placements.base import EnvHandle
from rollcage.errors import UserError
from rollcage.trainer.rollout.episode import AgentFailed, Message
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Segment


class SolverAgent:
    """Plays one episode with the actions that the environment itself proposes.

    Args:
        handle: the environment that is played.
        kind: "expert" or "random".
        seed: of the random actions.
        deadline_s: of each proposal.
    """

    policy_version = 0

    def __init__(self, handle: EnvHandle, kind: Literal["expert", "random"], *, seed: int, deadline_s: float) -> None:
        self._handle, self._kind, self._seed, self._deadline_s = handle, kind, seed, deadline_s
        self._num_turns = 0
        self.segments: list[Segment] = []

    async def act(self, observation: str) -> Message:
        """See `Agent`; the observation is not looked at. A task that the solver cannot solve is its failure."""
        try:
            if self._kind == "expert":
                action = await self._handle.call("expert", deadline_s=self._deadline_s)
            else:
                seed = key_seed(self._seed, self._num_turns)
                action = await self._handle.call("random_action", seed, deadline_s=self._deadline_s)
        except UserError as error:
            raise AgentFailed("model", f"no_{self._kind}", str(error)) from None
        self._num_turns += 1
        return Message(action)
