"""A process of the learner: ``python -m rollcage.trainer.learner.worker SOCKET MEMORY`` (descriptors; ROLE is set)."""

from __future__ import annotations

import os
import socket
import sys
import traceback

from rollcage.errors import UserError
from rollcage.trainer.learner.roles import serve
from rollcage.trainer.wire import listen, pack


def main() -> None:
    """Serve requests ``(number, method, arguments)`` until the parent closes its end or is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    requests = listen(connection)

    # Slow imports: after the listener's start, so that we end at once if the parent does.
    rank = serve(os.environ["ROLE"], memory=int(sys.argv[2]))
    while True:
        number, method, arguments = requests.get()
        try:
            reply = (number, "ok", getattr(rank, method)(*arguments))
        except UserError as error:
            reply = (number, "refused", UserError(str(error)))
        except Exception as error:  # the process's boundary: the parent is told, and this rank has no use any more
            traceback.print_exc()
            connection.sendall(pack((number, "error", f"{type(error).__name__}: {error}")))
            raise SystemExit(1) from error
        connection.sendall(pack(reply))


if __name__ == "__main__":
    main()
