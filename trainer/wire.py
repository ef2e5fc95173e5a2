"""How a process of ours and the workers that it starts frame their messages: a length, then a pickle; one program."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import struct
import threading
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
    (size,) = HEADER.unpack(receive_bytes(connection, HEADER.size))
    return pickle.loads(receive_bytes(connection, size))


def listen(connection: socket.socket) -> queue.SimpleQueue[Any]:
    """Let a thread put what the parent sends into the queue that is returned.

    At the end of the line it ends our whole process group at once, whatever that computes: a worker cannot outlive its
    parent. To be called before slow imports.
    """
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    return messages


def _listen(connection: socket.socket, messages: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            messages.put(receive(connection))
    except EOFError:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def receive_bytes(connection: socket.socket, size: int) -> bytearray:
    """Wait for ``size`` bytes.

    Raises:
        EOFError: the other end has closed, or is gone.
    """
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
