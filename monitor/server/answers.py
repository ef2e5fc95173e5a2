"""Answers as JSON that every browser reads: no NaN, no infinity, ASCII whatever a model wrote."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from starlette.responses import Response


class Json(Response):
    """A JSON answer; arrays become lists, what is no finite number becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return dumped(content)


def dumped(content: Any) -> bytes:
    """Return strict JSON.

    >>> dumped({"value": float("nan"), "curve": np.array([1.0, 2.0])})
    b'{"value":null,"curve":[1.0,2.0]}'
    """
    if isinstance(content, bytes):
        return content
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except ValueError:
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"), default=str)
    return text.encode()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
