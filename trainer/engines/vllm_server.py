"""The engine server (``rollcage engine``): runs vLLM replicas for training runs on this machine or another."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from rollcage import __version__
from rollcage.command import CommandParser, natural
from rollcage.errors import UserError
from rollcage.trainer.child_process import kill_group
from rollcage.trainer.engines.served import (
    HANDSHAKE_TIMEOUT_S,
    MAX_HELLO_BYTES,
    NONCE_BYTES,
    keep_alive,
    parse_address,
    prove,
    read_token,
)
from rollcage.trainer.engines.vllm_options import VllmEngineConfig, worker_environment
from rollcage.trainer.wire import HEADER, receive_bytes

_WATCH_INTERVAL_MS = 200
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class EngineServer:
    """Gives every caller that knows the token a replica: the process of the vLLM engine, on the caller's connection.

    So a server is the same as an engine's process of its own, only started elsewhere. It ends with its connection, and
    a caller whose replica has died calls again and gets a new one. What is said after the handshake is not encrypted.

    Args:
        address: to listen at.
        token: what callers must know.
        log_folder: folder for the replicas' output.
    """

    def __init__(self, address: str, token: bytes, log_folder: Path) -> None:
        self._token, self._log_folder = token, log_folder
        log_folder.mkdir(parents=True, exist_ok=True)
        family, where = parse_address(address)
        self._path = Path(where) if isinstance(where, str) else None
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if self._path is None:
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            elif self._path.is_socket() and not _is_answered(self._path):
                self._path.unlink()  # of a server that was killed
            self._listener.bind(where)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise UserError(f"engine: cannot listen at {address}: {error.strerror}.") from None
        bound = self._listener.getsockname()
        self.address = address if self._path else f"{address.rpartition(':')[0]}:{bound[1]}"
        """Where it listens; with port 0, the one that the system chose."""
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def serve(self) -> None:
        """Take callers until `close`."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._attend, args=(connection,))
            thread.start()
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]

    def close(self) -> None:
        """End all replicas; idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        for thread in self._threads:
            thread.join()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _attend(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(HANDSHAKE_TIMEOUT_S)
                config, place = self._greet(connection)
                connection.settimeout(None)
                if connection.family != socket.AF_UNIX:
                    keep_alive(connection)
                self._run(connection, config, place)
            except (OSError, EOFError, _Refused):
                pass  # the caller is no one of ours, or has been told

    def _greet(self, connection: socket.socket) -> tuple[VllmEngineConfig, int]:
        """Let both ends prove that they know the token, and return what replica is wanted."""
        theirs, ours = bytes(receive_bytes(connection, NONCE_BYTES)), os.urandom(NONCE_BYTES)
        connection.sendall(ours + prove(self._token, b"server", theirs, ours))
        proof = bytes(receive_bytes(connection, NONCE_BYTES))
        if not hmac.compare_digest(proof, prove(self._token, b"client", theirs, ours)):
            raise _Refused
        (size,) = HEADER.unpack(receive_bytes(connection, HEADER.size))
        fault = ""
        try:
            hello = json.loads(receive_bytes(connection, min(size, MAX_HELLO_BYTES)))
            if hello["rollcage"] != __version__:
                fault = f"it runs Rollcage {__version__}, and the run {hello['rollcage']}"
            else:
                config, place = VllmEngineConfig(**hello["config"]), int(hello["place"])
        except (ValueError, LookupError, TypeError, UserError) as error:
            fault = f"it cannot read what is asked for ({error})"
        connection.sendall(HEADER.pack(len(fault.encode())) + fault.encode())
        if fault:
            raise _Refused
        return config, place

    def _run(self, connection: socket.socket, config: VllmEngineConfig, place: int) -> None:
        """Run one replica until it ends, the caller hangs up, or the server closes."""
        with (self._log_folder / f"engine{place}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rollcage.trainer.engines.vllm_worker", str(connection.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[connection.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **worker_environment(config, place)},
            )
        try:
            sys.stderr.write(f"engine {place}: process {process.pid}\n")
            poll = select.poll()
            poll.register(connection, _HUNG_UP)  # a replica that hangs does not see it
            while process.poll() is None and not self._closed.is_set() and not poll.poll(_WATCH_INTERVAL_MS):
                pass
        finally:
            kill_group(process.pid)
            process.wait()
            sys.stderr.write(f"engine {place}: process {process.pid} has ended\n")


class _Refused(Exception):
    """This caller gets nothing."""


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def run_engine(argv: Sequence[str]) -> int:
    """``rollcage engine``: serve until SIGTERM or Ctrl-C."""
    parser = CommandParser(
        "rollcage engine",
        "Run vLLM replicas for training runs elsewhere. A run connects with\n"
        "  --engine.kind vllm --engine.vllm.servers HOST:PORT --engine.vllm.token-file FILE\n"
        "and gets a process for each of its replicas, with the model and settings of its own configuration; the\n"
        "model's files must lie at the same path here. A connection is not encrypted: use a network that you\n"
        "trust, or ssh -L.",
        "rollcage engine --listen 127.0.0.1:7000 --token-file engine-token\n"
        "rollcage engine --listen unix:/tmp/engine.sock --token-file engine-token",
    )
    parser.add_argument("--listen", required=True, metavar="ADDRESS", help="HOST:PORT (port 0: any) or unix:PATH")
    parser.add_argument("--token-file", type=Path, required=True, help="shared secret; made where there is none")
    parser.add_argument("--logs", type=Path, default=Path("engine-logs"), help="folder for vLLM's output (%(default)s)")
    parser.add_argument(
        "--metrics-port", type=natural, default=0, help="of /metrics, on loopback (default: any free one)"
    )
    arguments = parser.parse_args(argv)
    from rollcage.monitor.live import measuring

    with suppress(FileExistsError):
        descriptor = os.open(arguments.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    server = EngineServer(arguments.listen, read_token(arguments.token_file), arguments.logs)

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    sys.stderr.write(f"listening at {server.address}\n")
    try:
        with measuring(arguments.metrics_port, arguments.logs) as (_, metrics):
            if metrics:
                sys.stderr.write(f"metrics: {metrics}\n")
            server.serve()
    except KeyboardInterrupt:
        return 130
    finally:
        server.close()
    return 0
