"""The agent that is a language model behind an endpoint: text in, text out."""

from __future__ import annotations

from rollcage.trainer.agents.endpoint import ChatEndpoint
from rollcage.trainer.rollout.episode import Message
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Sampling, Segment


class ChatAgent:
    """Plays one episode by sending the whole conversation to an endpoint at every turn.

    Args:
        endpoint: where to.
        sampling: how the endpoint shall draw; endpoints are free to honour the seed.
        system: first message of the conversation; "" for none.
        seed: the draw of turn t depends on this and t.
    """

    policy_version = 0

    def __init__(self, endpoint: ChatEndpoint, sampling: Sampling, *, system: str = "", seed: int) -> None:
        self._endpoint, self._sampling, self._seed = endpoint, sampling, seed
        self._messages = [{"role": "system", "content": system}] if system else []
        self.segments: list[Segment] = []

    async def act(self, observation: str) -> Message:
        """See `Agent`. What no UTF-8 can hold becomes ``?``, as in token-based agents."""
        clean = observation.encode("utf-8", "replace").decode("utf-8")
        self._messages.append({"role": "user", "content": clean})
        seed = key_seed(self._seed, len(self._messages))
        reply = await self._endpoint.chat(self._messages, self._sampling, seed)
        self._messages.append({"role": "assistant", "content": reply.text})
        return Message(reply.text, reply.finish_reason)
