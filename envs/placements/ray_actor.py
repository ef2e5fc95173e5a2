"""Placement `ray`: each instance in an actor of its own, on whichever node of a Ray cluster has room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from rollcage.envs.placements.base import EnvConfig, EnvDied, EnvOutOfMemory, PlacementError
from rollcage.envs.placements.frames import FrameBuffer
from rollcage.envs.placements.pool import PooledPlacement
from rollcage.envs.placements.ray_connection import connect
from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.envs.placements.restoring import restarting
from rollcage.envs.placements.worker_host import WorkerHost
from rollcage.envs.placements.worker_process import make_request
from rollcage.errors import UserError

NUM_CPUS = 0.01
"""Of a node, for one environment: it mostly waits for the policy. So a hundred fit where one CPU is free."""
_NUM_STARTS = 4
_PAUSE_S = 1.0


class EnvActor:
    """What runs on the node: the server of a worker process (`rollcage.envs.worker`), a frame in, a frame out."""

    def __init__(self) -> None:
        from rollcage.envs.worker import Server

        self._server = Server()

    def where(self) -> Whereabouts:
        """Return where this is."""
        from rollcage.envs.placements.ray_whereabouts import whereabouts

        return whereabouts()

    def answer(self, frame: bytes) -> bytes:
        """Answer one request; never raises."""
        buffer = FrameBuffer()
        buffer.feed(frame)
        return self._server.answer(buffer.take())  # type: ignore[arg-type]  # the frame is whole


class RayHost(WorkerHost):
    """One environment in an actor; see `WorkerHost`.

    Args:
        make_args: arguments of the worker's "make".
        address, num_cpus, labels, on_start, seats: see `RayPlacement`.
    """

    def __init__(
        self,
        make_args: dict[str, Any],
        address: str,
        num_cpus: float,
        labels: Mapping[str, str],
        on_start: Callable[[str, Whereabouts], None],
        seats: dict[int, RayHost],
    ) -> None:
        super().__init__(make_args)
        self._address, self._num_cpus, self._labels = address, num_cpus, dict(labels)
        self._on_start, self._seats = on_start, seats
        self._seat = next(number for number in count() if number not in seats)
        seats[self._seat] = self
        self._where: Whereabouts | None = None
        self._ray: Any = None
        self._actor: Any = None
        self._asking: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None

    async def start(self, deadline_s: float) -> None:
        """See `Host.start`; tried again where the actor is lost before its environment is built.

        For some seconds after its loss a node may still be given actors.
        """
        end_s = asyncio.get_running_loop().time() + deadline_s
        for left in reversed(range(_NUM_STARTS)):
            try:
                await super().start(max(0.0, end_s - asyncio.get_running_loop().time()))
                return
            except EnvDied:
                if not left:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _open(self, deadline_s: float) -> None:
        await self._kill()
        self._ray = await asyncio.to_thread(connect, self._address)
        await asyncio.to_thread(self._check_nodes)
        options = {"num_cpus": self._num_cpus, "label_selector": self._labels, "scheduling_strategy": "SPREAD"}
        self._actor = self._ray.remote(EnvActor).options(max_restarts=0, max_task_retries=0, **options).remote()
        self._where = None
        self._finding = asyncio.create_task(self._find(self._actor.where.remote()), name="where an environment is")

    def _check_nodes(self) -> None:
        """Raise UserError where no node may ever hold the environment: Ray itself would wait for one."""
        rows = [row for row in self._ray.nodes() if row["Alive"]]
        fitting = [row for row in rows if self._labels.items() <= (row.get("Labels") or {}).items()]
        if not any(row["Resources"].get("CPU", 0.0) >= self._num_cpus for row in fitting):
            labels = ", ".join(f"{key}={value}" for key, value in self._labels.items()) or "whatever labels"
            raise UserError(
                f"ray: no node can hold an environment: it asks for {self._num_cpus:g} CPU on a node with {labels}; "
                f"of {len(rows)} nodes {len(fitting)} have them, none with so many CPUs. Ask for less, or start a node."
            )

    async def _find(self, reference: Any) -> None:
        with suppress(self._ray.exceptions.RayError):  # whoever asks it for something is told
            self._where = await reference
            self._on_start(f"environment {self._seat}", self._where)

    def _send(self, frame: bytes) -> None:
        if self._actor is None:
            raise EnvDied("the environment's actor has been ended.")
        self._asking = asyncio.create_task(self._ask(self._actor.answer.remote(frame)), name="environment in an actor")

    async def _ask(self, reference: Any) -> None:
        errors = self._ray.exceptions
        try:
            reply = FrameBuffer()
            reply.feed(await reference)
            self._settle(reply.take())
        except errors.OutOfMemoryError as error:
            self._settle(EnvOutOfMemory(_first_line(error)))
        except errors.RayError as error:  # the actor, its node, or the whole cluster
            where = self._where or "that never started"
            self._settle(EnvDied(f"the environment's actor ({where}) is gone: {_first_line(error)}"))

    async def _kill(self) -> None:
        actor, self._actor = self._actor, None
        tasks = [task for task in (self._asking, self._finding) if task is not None]
        self._asking = self._finding = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if actor is not None and self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def _buried(self, error: PlacementError) -> PlacementError:
        return error

    async def end(self) -> None:
        """See `Host.end`; another one may have its number then."""
        await super().end()
        if self._seats.get(self._seat) is self:
            del self._seats[self._seat]


class RayPlacement(PooledPlacement):
    """Environments on the nodes of a Ray cluster, spread over them. What a node takes with it when it goes is data.

    Deadlines, crashes and the restart policy are as in placement `process`: an instance that does not answer by its
    deadline is killed; with "restore" its episode goes on in another actor, on another node where its own is gone.

    Args:
        config: which environment; its module must be importable on every node.
        num_workers: at most so many instances live at once.
        restart: "fail" or "restore"; see `rollcage.envs.placements.restoring.RestoringHost`.
        address: of the cluster; see `connect`.
        num_cpus: of a node, for one environment.
        labels: that its node must have, with these values; empty: any node.
        on_start: called with a name ("environment 3") and where its actor is, each time that one has started.
        seats: numbers in use; placements that share them give no number twice. An ended environment's is free again.

    Raises:
        UserError: unknown environment, or one that cannot run elsewhere; from `acquire`, also that no node may hold it.
    """

    def __init__(
        self,
        config: EnvConfig,
        *,
        num_workers: int | None = None,
        restart: str = "fail",
        address: str = "",
        num_cpus: float = NUM_CPUS,
        labels: Mapping[str, str] | None = None,
        on_start: Callable[[str, Whereabouts], None] = lambda actor, where: None,
        seats: dict[int, RayHost] | None = None,
    ) -> None:
        make_args, taken = make_request(config), {} if seats is None else seats

        def new_host() -> RayHost:
            return RayHost(make_args, address, num_cpus, labels or {}, on_start, taken)

        super().__init__(restarting(restart, new_host), num_workers)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
