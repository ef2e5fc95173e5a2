"""A tokenizer for text that says nothing: all messages are the same ids, so that the real conversation code runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollcage.trainer.rollout.conversation import ChatFormat


class SilentTokenizer:
    """As much of a transformers tokenizer as `ChatFormat` asks for."""

    chat_template = "the same ids for every message"
    eos_token_id = 0

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        """Return the messages' texts, a line each."""
        return "".join(message["content"] + "\n" for message in messages)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the same ids, whatever the text."""
        return [1] * self._num_ids

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Return nothing: a simulated environment does not read."""
        return ""


def silent_chat(num_ids: int = 1) -> ChatFormat:
    """Return a chat format in which every message of the environment has so many ids."""
    return ChatFormat(SilentTokenizer(num_ids))
