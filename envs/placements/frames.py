"""Frames: how a worker and its client speak. A header (magic, length), then one JSON message in UTF-8."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from rollcage.errors import RollcageError

MAX_FRAME_BYTES = 128 << 20
"""A longer message is refused on either side: no reply may fill the memory of its reader."""

_HEADER = struct.Struct(">4sI")
_MAGIC = b"RCF1"


class FrameError(RollcageError):
    """Bytes that are no frame, or a message that cannot become one."""


def _number_or_list(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON-able")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_number_or_list).encode


def plain(value: Any) -> Any:
    """Return ``value`` as it would come out of a frame: numpy scalars and arrays become numbers and lists.

    Raises:
        TypeError, ValueError: it is not JSON-able.
    """
    return json.loads(_encode(value))


def encode(message: Any) -> bytes:
    """Return one frame.

    Raises:
        TypeError, ValueError: the message is not JSON-able.
        FrameError: it is too long.
    """
    # "surrogatepass", not escapes: a string with two lone surrogates in a row must not come back as one character.
    body = _encode(message).encode("utf-8", "surrogatepass")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(_MAGIC, len(body)) + body


class FrameBuffer:
    """Bytes in, messages out, in whatever pieces the bytes come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what has been read."""
        self._data += data

    def take(self) -> Any | None:
        """Return the next whole message, or None where it has not all come yet.

        Raises:
            FrameError: what came is not a frame.
        """
        if len(self._data) < _HEADER.size:
            if not _MAGIC.startswith(self._data[: len(_MAGIC)]):
                raise FrameError(f"not a frame: {bytes(self._data)!r}")
            return None
        magic, length = _HEADER.unpack_from(self._data)
        if magic != _MAGIC or length > MAX_FRAME_BYTES:
            raise FrameError(f"not a frame: {bytes(self._data[:32])!r}")
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        try:
            message = json.loads(self._data[_HEADER.size : end].decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame that holds no JSON: {error}") from None
        del self._data[:end]
        return message
