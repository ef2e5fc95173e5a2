"""Failures of samples by kind and reason, with the messages that come most often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rollcage.monitor.store import RunReader

MAX_READ = 20_000
"""Newest failures that are counted."""
MAX_MESSAGES = 10


def sample_failures(reader: RunReader) -> list[dict[str, Any]]:
    """Return the events of the newest samples that failed, in order."""
    return reader.events(limit=MAX_READ, kinds=("sample_failed",), newest_first=True)[1][::-1]


def failures(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return failures by kind and reason, the most frequent first, each with its most frequent messages.

    A message of several lines, such as a traceback, counts by its last one, which says what was raised.
    """
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        grouped[str(event.get("kind")), str(event.get("reason"))].append(event)
    result = []
    for (kind, reason), members in sorted(grouped.items(), key=lambda item: -len(item[1])):
        times = [float(event["time"]) for event in members if "time" in event]
        by_message: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for event in members:
            by_message[_headline(str(event.get("message") or ""))].append(event)
        ranked = sorted(by_message.items(), key=lambda item: -len(item[1]))
        result.append(
            {
                "kind": kind,
                "reason": reason,
                "count": len(members),
                "first": min(times, default=None),
                "last": max(times, default=None),
                "messages": [_message(text, told) for text, told in ranked[:MAX_MESSAGES]],
            }
        )
    return result


def _message(text: str, events: list[Mapping[str, Any]]) -> dict[str, Any]:
    newest = events[-1]
    whole = str(newest.get("traceback") or newest.get("message") or "")
    sample = newest.get("sample_id")
    return {
        "message": text,
        "count": len(events),
        "traceback": whole if "\n" in whole.strip() else None,
        "task_id": newest.get("task_id"),
        "sample_id": ".".join(str(part) for part in sample) if isinstance(sample, list) else sample,
    }


def _headline(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in text and lines else lines[0] if lines else "")[:300]
