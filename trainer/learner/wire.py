"""How the learner and its ranks frame their messages: a length, then a pickle. Both ends are the same program."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

HEADER = struct.Struct("!Q")


def pack(message: Any) -> bytes:
    """Return the frame of ``message``."""
    body = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(body)) + body


def receive(connection: socket.socket) -> Any:
    """Wait for one message.

    Raises:
        EOFError: the other end has closed, or is gone.
    """
    (size,) = HEADER.unpack(_receive_bytes(connection, HEADER.size))
    return pickle.loads(_receive_bytes(connection, size))


def _receive_bytes(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        try:
            count = connection.recv_into(view[done:])
        except ConnectionError:
            count = 0
        if count == 0:
            raise EOFError("the other end has closed")
        done += count
    return buffer
