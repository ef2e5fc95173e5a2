"""Token in, token out: a conversation is a list of ids that only grows, and the learner trains on the sampler's own.

What the policy sampled is never decoded and encoded again. The text around it (turn markers, observations) is what the
chat template puts there, taken from a rendering of a stand-in conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rollcage.errors import UserError
from rollcage.trainer.types import Generation, Segment

_STAND_IN = "stand-in-for-the-reply-5d41402a"
_HARMONY_CALL, _HARMONY_END = "<|call|>", "<|end|>"
"""In Harmony (of gpt-oss) a call ends what the policy says, and the template closes with another token."""


class ChatFormat:
    """A tokenizer's chat template, as pieces of token ids.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        stop_ids: further ids that end a message, beside the tokenizer's own end-of-sequence id and Harmony's <|call|>.
        system: system message put before every conversation; "" for none.
        tools: declared tools (JSON schemas), passed to the template.

    Raises:
        UserError: the tokenizer has no chat template or no end-of-sequence token.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_ids: Sequence[int] = (),
        system: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError("the tokenizer has no chat template; set tokenizer.chat_template and save it again.")
        if tokenizer.eos_token_id is None:
            raise UserError("the tokenizer has no end-of-sequence token, so no message could ever end; set eos_token.")
        self._tokenizer, self._system, self._tools = tokenizer, system, list(tools) or None
        added: Mapping[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
        calls = {int(added[_HARMONY_CALL])} if _HARMONY_CALL in added else set()
        self._closing_ids = {int(added[_HARMONY_END])} if calls and _HARMONY_END in added else set()
        self.stop_ids = frozenset({int(tokenizer.eos_token_id), *stop_ids, *calls})
        named = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk"))
        self._unsaid = self.stop_ids | {token_id for token_id in named if token_id is not None}
        self._first = lru_cache(maxsize=256)(self._encode_first)
        self._next = lru_cache(maxsize=256)(self._encode_next)
        asked = self._render([{"role": "user", "content": "question"}])
        self.continuable = self._answered("question", "more")[0].startswith(asked)
        """Whether a conversation can be continued token by token: the template renders a question alike before and
        after it was answered, but for what the policy writes itself (Harmony's channel). Where not (some templates hide
        earlier reasoning), every turn starts a new segment."""

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        system = [{"role": "system", "content": self._system}] if self._system else []
        text = self._tokenizer.apply_chat_template(
            [*system, *messages], tools=self._tools, tokenize=False, add_generation_prompt=True
        )
        return str(text)

    def _answered(self, question: str, observation: str) -> tuple[str, str]:
        rendered = self._render(
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": _STAND_IN},
                {"role": "user", "content": observation},
            ]
        )
        before, _, after = rendered.partition(_STAND_IN)
        return before, after

    def encode(self, text: str) -> list[int]:
        """Encode text that already holds its special tokens; what no UTF-8 can hold becomes ``?``."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(self._tokenizer.encode(clean, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled ids as the environment shall read them.

        What ends or fills up a message is left out, wherever it stands. Other special tokens stay: chat formats mark
        tool calls with them, and without its marks a call is plain text.
        """
        said = [token_id for token_id in token_ids if token_id not in self._unsaid]
        return str(self._tokenizer.decode(said, skip_special_tokens=False))

    def token_texts(self) -> list[str]:
        """Return the text of every token by id, special ones included."""
        texts = self._tokenizer.batch_decode([[token_id] for token_id in range(len(self._tokenizer))])
        return [str(text) for text in texts]

    def _encode_first(self, observation: str) -> list[int]:
        return self.encode(self._render([{"role": "user", "content": observation}]))

    def _encode_next(self, observation: str) -> list[int]:
        return self.encode(self._answered("question", observation)[1])

    def first(self, observation: str) -> list[int]:
        """Return the ids of a conversation that opens with ``observation``, up to where the policy speaks."""
        return self._first(observation)

    def next(self, observation: str, last_id: int) -> list[int]:
        """Return the ids that follow a sampled message whose last id is ``last_id``, up to where the policy speaks."""
        ids = self._next(observation)
        is_closed = last_id in self.stop_ids and bool(ids) and (ids[0] == last_id or ids[0] in self._closing_ids)
        return ids[1:] if is_closed else ids

    def whole(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a whole conversation, rendered anew."""
        return self.encode(self._render(messages))


class Conversation:
    """One episode's token ids, with who said what.

    Attributes:
        segments: see `Segment`; the last one is the live conversation.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._messages: list[dict[str, str]] = []  # where it cannot be continued, and is rendered anew
        self.segments: list[Segment] = []

    @property
    def token_ids(self) -> list[int]:
        """The prompt of the next generation. Do not change it."""
        return self.segments[-1].token_ids

    def observe(self, observation: str) -> None:
        """Add the environment's message. A conversation that cannot be continued starts a new segment."""
        if not self._chat.continuable:
            self._messages.append({"role": "user", "content": observation})
        if not self.segments:
            self.segments.append(Segment())
            self._extend(self._chat.first(observation))
        elif self._chat.continuable:
            self._extend(self._chat.next(observation, self.token_ids[-1]))
        else:
            self.segments.append(Segment())
            self._extend(self._chat.whole(self._messages))

    def reply(self, generation: Generation) -> tuple[str, int, int, int]:
        """Add what the policy sampled; returns its text, the segment's index, and the span [start, end) in it.

        Raises:
            ValueError: the engine's lists differ in length: without the sampler's own ids nothing can be trained.
        """
        lengths = {len(generation.token_ids), len(generation.logprobs), len(generation.policy_versions)}
        if len(lengths) != 1:
            raise ValueError(
                f"the engine returned lists of unequal lengths {sorted(lengths)} for ids, logprobs, versions"
            )
        segment = self.segments[-1]
        start = len(segment.token_ids)
        segment.token_ids += generation.token_ids
        segment.loss_mask += [1] * len(generation.token_ids)
        segment.rollout_logprobs += generation.logprobs
        segment.policy_versions += generation.policy_versions
        text = self._chat.decode(generation.token_ids)
        if not self._chat.continuable:
            self._messages.append({"role": "assistant", "content": text})
        return text, len(self.segments) - 1, start, len(segment.token_ids)

    def _extend(self, ids: Sequence[int]) -> None:
        segment = self.segments[-1]
        segment.token_ids += ids
        segment.loss_mask += [0] * len(ids)
        segment.rollout_logprobs += [0.0] * len(ids)
        segment.policy_versions += [-1] * len(ids)
