"""One contender in a process of its own: asked over stdin, answers over stdout, one JSON line each.

The rivals' Python runs this file as a script, and Rollcage is not installed there: standard library only, besides the
contender's own package. All are measured by the same code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

MIB = 1024 * 1024
MEMORY_BYTES = 256 * MIB
"""Of each sandbox; with one CPU and 512 processes."""

Run = Callable[[str], Awaitable[str]]
"""Runs a command and returns its output."""


class Contender(Protocol):
    """Who is measured. A box is whatever it calls one sandbox."""

    version: str

    async def open(self) -> None:
        """Get ready; not measured."""

    async def create(self) -> Any:
        """Return a new box, such that commands can run."""

    async def run(self, box: Any, command: str, timeout_s: float) -> str:
        """Run a shell command and return its output; raises TimeoutError where the time is over."""

    async def session(self, box: Any) -> Run | None:
        """Return a shell that stays, or None where there is no such thing."""

    async def delete(self, box: Any) -> None:
        """Remove a box."""

    async def close(self) -> None:
        """Leave nothing."""


class DockerPy:
    """The Docker client for Python, as plain as its documentation shows it; its calls block, so each has a thread.

    Args:
        image: of all boxes.
        network: "none", or the name of one.
    """

    def __init__(self, image: str, network: str) -> None:
        self.version = version("docker")
        self._image, self._network = image, network
        self._client: Any = None

    async def open(self) -> None:
        """See `Contender`."""
        self._client = await asyncio.to_thread(import_module("docker").from_env)

    async def create(self) -> Any:
        """See `Contender`."""
        return await asyncio.to_thread(
            self._client.containers.run,
            self._image,
            ["sleep", "infinity"],
            detach=True,
            init=True,
            network=self._network,
            mem_limit=MEMORY_BYTES,
            nano_cpus=10**9,
            pids_limit=512,
        )

    async def run(self, box: Any, command: str, timeout_s: float) -> str:
        """See `Contender`. It has no timeout: the caller stops waiting."""
        async with asyncio.timeout(timeout_s):
            _, output = await asyncio.to_thread(box.exec_run, ["sh", "-c", command])
        return str(output, errors="replace")

    async def session(self, box: Any) -> Run | None:
        """See `Contender`."""
        return None

    async def delete(self, box: Any) -> None:
        """See `Contender`."""
        await asyncio.to_thread(box.remove, force=True, v=True)

    async def close(self) -> None:
        """See `Contender`."""
        await asyncio.to_thread(self._client.close)


class SweRex:
    """SWE-ReX: a server inside each container, spoken to over a published port.

    Args:
        image: of all boxes; holds its server.
        network: name of a bridge.
    """

    def __init__(self, image: str, network: str) -> None:
        self.version = version("swe-rex")
        self._image, self._network = image, network
        self._docker, self._asked = import_module("swerex.deployment.docker"), import_module("swerex.runtime.abstract")
        self._late: type[Exception] = import_module("swerex.exceptions").CommandTimeoutError

    async def open(self) -> None:
        """See `Contender`."""
        import_module("logging").disable()

    async def create(self) -> Any:
        """See `Contender`."""
        limits = [f"--memory={MEMORY_BYTES}", "--cpus=1", "--pids-limit=512"]
        box = self._docker.DockerDeployment(
            image=self._image,
            pull="never",
            startup_timeout=60.0,
            docker_args=["--init", f"--network={self._network}", *limits],
        )
        await box.start()
        return box

    async def run(self, box: Any, command: str, timeout_s: float) -> str:
        """See `Contender`."""
        asked = self._asked.Command(command=command, shell=True, timeout=timeout_s)
        try:
            async with asyncio.timeout(timeout_s + 5):
                return str((await box.runtime.execute(asked)).stdout)
        except self._late as error:
            raise TimeoutError from error

    async def session(self, box: Any) -> Run | None:
        """See `Contender`."""
        await box.runtime.create_session(self._asked.CreateBashSessionRequest())

        async def run(command: str) -> str:
            return str((await box.runtime.run_in_session(self._asked.BashAction(command=command))).output)

        return run

    async def delete(self, box: Any) -> None:
        """See `Contender`."""
        await box.stop()

    async def close(self) -> None:
        """See `Contender`."""


class Measure:
    """What a contender is asked to do, one public method each; arguments and answer are JSON-able.

    Args:
        who: the contender.
    """

    def __init__(self, who: Contender) -> None:
        self._who = who
        self._box: Any = None
        self._run_in_session: Run | None = None

    async def begin(self) -> dict[str, Any]:
        """Get ready: one box stays for what is asked of a warm one."""
        await self._who.open()
        self._box = await self._who.create()
        await self._who.run(self._box, "true", 30.0)
        self._run_in_session = await self._who.session(self._box)
        return {"version": self._who.version, "has_session": self._run_in_session is not None}

    async def cold(self, num: int) -> list[float]:
        """Return seconds from asking for a box until its first command has answered; its removal is not counted."""
        return [await self._cold() for _ in range(num)]

    async def exec(self, num: int) -> list[float]:
        """Return seconds of a small command in a box that is there."""
        return [await self._timed(lambda: self._who.run(self._box, "echo hi", 30.0), "hi") for _ in range(num)]

    async def session(self, num: int) -> list[float]:
        """Return seconds of a small command in a shell that is there."""
        run = self._run_in_session
        return [] if run is None else [await self._timed(lambda: run("echo hi"), "hi") for _ in range(num)]

    async def many(self, num: int, num_at_once: int, timeout_s: float) -> dict[str, float]:
        """Create so many boxes, some at once, run a command in each; all stay until the end, which is not counted."""
        places, boxes = asyncio.Semaphore(num_at_once), []
        begin_s = time.perf_counter()

        async def one() -> None:
            async with places:
                box = await self._who.create()
                boxes.append(box)
                await self._timed(lambda: self._who.run(box, "echo hi", 30.0), "hi")

        tasks = [asyncio.create_task(one()) for _ in range(num)]
        ended, left = await asyncio.wait(tasks, timeout=timeout_s)
        took_s = time.perf_counter() - begin_s
        for task in left:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        failures = [task for task in ended if task.cancelled() or task.exception() is not None]
        await self._delete_all(boxes, num_at_once)
        return {"seconds": took_s, "num_ready": len(ended) - len(failures), "num_failed": len(failures) + len(left)}

    async def output(self, num_bytes: int) -> dict[str, Any]:
        """Let a command write a lot, and return by how much this process grew at most, and what came."""
        Path("/proc/self/clear_refs").write_text("5")
        before, begin_s = _status_kib("VmRSS"), time.perf_counter()
        try:
            text = await self._who.run(self._box, f"yes | head -c {num_bytes}", 120.0)
            outcome = f"{len(text) / 1e6:.0f} MB came" if len(text) > 1000 else text
        except Exception as error:  # noqa: BLE001  (what goes wrong in another's package is the finding)
            outcome = f"{type(error).__name__}: {str(error)[:80]}"
        grown_mib = (_status_kib("VmHWM") - before) / 1024
        return {"grown_mib": grown_mib, "seconds": time.perf_counter() - begin_s, "outcome": outcome}

    async def background(self, timeout_s: float) -> dict[str, Any]:
        """Run a command that leaves a child behind which holds its output open."""
        box = await self._who.create()
        found = await self._outcome(box, "sleep 30 & echo hi", timeout_s)
        await self._who.delete(box)
        return found

    async def timeout(self, timeout_s: float) -> dict[str, Any]:
        """Run a command that takes too long, and count what of it is alive a while after its time is over."""
        box, length_s = await self._who.create(), f"600.{os.getpid()}"
        found = await self._outcome(box, f"echo begun; sleep {length_s}; true", timeout_s)
        await asyncio.sleep(2)
        found["num_survivors"] = _num_processes(f"sleep {length_s}")
        await self._who.delete(box)
        return found

    async def end(self) -> dict[str, Any]:
        """Leave nothing."""
        await self._who.delete(self._box)
        await self._who.close()
        return {}

    async def _outcome(self, box: Any, command: str, timeout_s: float) -> dict[str, Any]:
        begin_s = time.perf_counter()
        try:
            outcome = repr(await self._who.run(box, command, timeout_s))
        except Exception as error:  # noqa: BLE001  (what goes wrong in another's package is the finding)
            outcome = type(error).__name__
        return {"outcome": outcome, "seconds": time.perf_counter() - begin_s}

    async def _cold(self) -> float:
        begin_s = time.perf_counter()
        box = await self._who.create()
        await self._who.run(box, "echo hi", 30.0)
        took_s = time.perf_counter() - begin_s
        await self._who.delete(box)
        return took_s

    async def _delete_all(self, boxes: list[Any], num_at_once: int) -> None:
        places = asyncio.Semaphore(num_at_once)

        async def one(box: Any) -> None:
            async with places:
                await self._who.delete(box)

        await asyncio.gather(*(one(box) for box in boxes), return_exceptions=True)

    async def _timed(self, call: Callable[[], Awaitable[str]], expected: str) -> float:
        begin_s = time.perf_counter()
        answer = await call()
        took_s = time.perf_counter() - begin_s
        if answer.strip() != expected:
            raise RuntimeError(f"expected {expected!r}, got {answer!r}")
        return took_s


def serve(make: Callable[[], Contender]) -> int:
    """Answer questions on stdin until it ends: ``{"do": name, ...}`` -> ``{"answer": ...}`` or ``{"error": ...}``."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a package prints is no answer

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(32))
        measure = Measure(make())
        while line := await asyncio.to_thread(sys.stdin.readline):
            question = json.loads(line)
            try:
                answer = {"answer": await getattr(measure, question.pop("do"))(**question)}
            except Exception as error:  # noqa: BLE001  (the one who asked decides what it means)
                answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    asyncio.run(main())
    return 0


def _status_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _num_processes(command: str) -> int:
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += file.read_bytes().replace(b"\0", b" ").strip() == command.encode()
        except OSError:
            continue  # it has ended
    return found


RIVALS: dict[str, Callable[[str, str], Contender]] = {
    "docker-py": lambda image, _: DockerPy(image, "none"),
    "docker-py with network": DockerPy,
    "swe-rex": SweRex,
}

if __name__ == "__main__":
    name, image, network = sys.argv[1:]
    sys.exit(serve(lambda: RIVALS[name](image, network)))
