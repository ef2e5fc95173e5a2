"""The agent that is a language model: samples every message from an engine, token in, token out."""

from __future__ import annotations

from rollcage.trainer.rollout.conversation import ChatFormat, Conversation
from rollcage.trainer.rollout.episode import Message
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Request, Sampling, Segment


class PolicyAgent:
    """Plays one episode by sampling from the replicas behind a router.

    Args:
        router: where requests go.
        chat: the model's chat format.
        sampling: how tokens are drawn.
        name: unique name of the episode; requests are called ``name/turn``.
        group: name of the episode's group.
        seed: the draws of turn t depend on this and t.
    """

    def __init__(
        self, router: Router, chat: ChatFormat, sampling: Sampling, *, name: str, group: str = "", seed: int = 0
    ) -> None:
        self._router, self._chat, self._sampling = router, chat, sampling
        self._name, self._group, self._seed = name, group, seed
        self._conversation = Conversation(chat)
        self._num_turns = 0

    @property
    def segments(self) -> list[Segment]:
        """See `Agent`."""
        return self._conversation.segments

    @property
    def policy_version(self) -> int:
        """See `Agent`."""
        return self._router.policy_version

    async def act(self, observation: str) -> Message:
        """See `Agent`."""
        self._conversation.observe(observation)
        generation = await self._router.generate(
            Request(
                id=f"{self._name}/{self._num_turns}",
                prompt_ids=list(self._conversation.token_ids),
                sampling=self._sampling,
                seed=key_seed(self._seed, self._num_turns),
                stop_ids=self._chat.stop_ids,
                group=self._group,
                affinity=self._name,
            )
        )
        self._num_turns += 1
        text, segment, start, end = self._conversation.reply(generation)
        return Message(text, generation.finish_reason, segment, start, end)
