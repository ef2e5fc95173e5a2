"""Frames, the language of host and agent: a JSON header and a payload, each with its length before it."""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False  # loading `typing` would take as long as starting Python
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"\0rollcage-agent-1\n"
"""Comes before the first frame; what was written before it is no answer."""
WINDOW_BYTES = 1 << 19
"""Of one stream, so much may be on its way, unacknowledged."""
PIECE_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 25
"""Holds a command and its environment; the kernel's own limit on those is lower."""
MAX_ANSWER_HEADER_BYTES = 1 << 17
"""Of what comes from inside, where anybody may be: 32 MiB of JSON would hold up the host's loop for a second."""
MAX_ERROR_CHARS = 8000
"""Such that the header of an error is below that, however its characters are escaped."""

_LENGTHS = struct.Struct(">II")


class ProtocolError(Exception):
    """What came is no frame."""


def pack_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return one frame: two 4-byte lengths, a JSON object, raw bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def charge(piece: bytes) -> int:
    """Return what a piece of streamed output costs of its window: more than its length, so that tiny ones count."""
    return len(piece) + 512


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._buffer = bytearray()
        self._max_header_bytes = max_header_bytes

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that ``data`` completes; raises ProtocolError."""
        buffer = self._buffer
        buffer += data
        frames, at = [], 0
        while len(buffer) - at >= 8:
            num_header, num_payload = _LENGTHS.unpack_from(buffer, at)
            if num_header > self._max_header_bytes or num_payload > MAX_PAYLOAD_BYTES:
                raise ProtocolError("lengths out of range")
            end = at + 8 + num_header + num_payload
            if len(buffer) < end:
                break
            try:
                header = json.loads(bytes(buffer[at + 8 : at + 8 + num_header]).decode())
            except (ValueError, RecursionError) as error:
                raise ProtocolError("the header is no JSON") from error
            if not isinstance(header, dict):
                raise ProtocolError("the header is no object")
            frames.append((header, bytes(buffer[at + 8 + num_header : end])))
            at = end
        if at:
            del buffer[:at]
        return frames


class Kept:
    """Counts all bytes and keeps the first and last halves of ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.num_bytes += len(data)
        room = self.limit - self.limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            tail, most = self._tail, self.limit // 2
            tail += data
            if len(tail) > 2 * most:  # not each time: cutting moves what stays
                del tail[: len(tail) - most]

    def take(self) -> bytes:
        """Return what is kept."""
        tail, most = self._tail, self.limit // 2
        return bytes(self._head + tail[max(0, len(tail) - most) :])
