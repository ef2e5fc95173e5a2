"""The question of a data row, whichever way its publisher writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = ("problem", "question", "prompt", "input", "query")


def question_of(row: Mapping[str, Any]) -> str:
    """Return the question's text: "problem", "question", "prompt", "input" or "query", a "context" before it.

    A prompt may be a conversation (a list of messages, also within "responses_create_params"), whose last user message
    then is the question; where "template_metadata" shows how the question was wrapped, it is unwrapped.

    Raises:
        ValueError: there is none.
    """
    wrapped = row.get("responses_create_params")
    candidates = [row.get(field) for field in _FIELDS] + ([wrapped.get("input")] if isinstance(wrapped, dict) else [])
    for value in candidates:
        text = _last_message(value) if isinstance(value, list) else value
        if isinstance(text, str) and text.strip():
            context = row.get("context") or row.get("passage")
            question = _unwrapped(text, row.get("template_metadata")).strip()
            return f"{context.strip()}\n\n{question}" if isinstance(context, str) and context.strip() else question
    raise ValueError(
        f"no question: expected a text in one of the fields {', '.join(_FIELDS)} (found: {', '.join(row)})"
    )


def _last_message(messages: list[Any]) -> str | None:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"])
    return None


def _unwrapped(text: str, template: Any) -> str:
    wrapper = template.get("template_prompt") if isinstance(template, dict) else None
    if not isinstance(wrapper, str) or wrapper.count("{problem}") != 1:
        return text
    before, after = (part.replace("{{", "{").replace("}}", "}") for part in wrapper.split("{problem}"))
    for start, end in ((before, after), tuple(wrapper.split("{problem}"))):
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            return text[len(start) : len(text) - len(end)]
    return text
