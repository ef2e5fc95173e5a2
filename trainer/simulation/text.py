"""A tokenizer for text that says nothing: every message is one id, so that the real conversation code runs on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollcage.trainer.rollout.conversation import ChatFormat


class OneIdTokenizer:
    """As much of a transformers tokenizer as `ChatFormat` asks for."""

    chat_template = "one id a message"
    eos_token_id = 0

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        """Return the messages' texts, a line each."""
        return "".join(message["content"] + "\n" for message in messages)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return one id, whatever the text."""
        return [1]

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Return nothing: a simulated environment does not read."""
        return ""


def silent_chat() -> ChatFormat:
    """Return a chat format in which every message of the environment is one id."""
    return ChatFormat(OneIdTokenizer())
