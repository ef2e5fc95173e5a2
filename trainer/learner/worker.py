"""The process of one learner rank: ``python -m rollcage.trainer.learner.worker SOCKET MEMORY`` (its descriptors)."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from rollcage.errors import UserError
from rollcage.trainer.learner.wire import pack, receive


def main() -> None:
    """Serve requests ``(number, method, arguments)`` until the parent closes its end or is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    requests: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()

    # A slow import: after the listener's start, so that we end at once if the parent does.
    from rollcage.trainer.learner.deepspeed_rank import DeepSpeedRank

    rank = DeepSpeedRank(memory=int(sys.argv[2]))
    while True:
        number, method, arguments = requests.get()
        try:
            reply = (number, "ok", getattr(rank, method)(*arguments))
        except UserError as error:
            reply = (number, "user_error", str(error))
        except Exception as error:  # the process's boundary: the parent is told, and this rank has no use any more
            traceback.print_exc()
            connection.sendall(pack((number, "error", f"{type(error).__name__}: {error}")))
            raise SystemExit(1) from error
        connection.sendall(pack(reply))


def _listen(connection: socket.socket, requests: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]) -> None:
    """Take requests off the line; at its end, end the whole process group at once, whatever it computes."""
    try:
        while True:
            requests.put(receive(connection))
    except EOFError:
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
