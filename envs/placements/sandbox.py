"""Placement `sandbox`: each instance in a container of its own, in a worker that is spoken to through the sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import sysconfig
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage.envs.placements.base import EnvConfig, EnvDied, EnvOutOfMemory, EnvTimeout, PlacementError
from rollcage.envs.placements.frames import FrameBuffer, FrameError
from rollcage.envs.placements.pool import PooledPlacement
from rollcage.envs.placements.restoring import restarting
from rollcage.envs.placements.shared_manager import Shared
from rollcage.envs.placements.worker_host import CLOSE_S, WorkerHost
from rollcage.envs.placements.worker_process import make_request
from rollcage.errors import UserError

if TYPE_CHECKING:
    from rollcage.sandbox.base import Sandbox, Sandboxes
    from rollcage.sandbox.types import SandboxSpec

MODULES = "/tmp/rollcage-modules"
"""Where a container keeps the user's own modules."""
HOW_TO_BUILD = "run  rollcage sandbox images build env  (with --extra NAME for what the environment needs)"
_LIFE_S = 86_000.0
"""Of one worker; a sandbox's commands may take a day."""
_MAX_LOG_BYTES = 4_000
_DELETE_S = 60.0


class ContainerHost(WorkerHost):
    """One environment in a worker inside a sandbox; see `WorkerHost`. A new worker begins in the same sandbox.

    Args:
        shared: gives the manager.
        spec: of the sandbox.
        make_args: arguments of the worker's "make".
        modules: files and folders of the user's that the worker imports.
    """

    def __init__(self, shared: Shared, spec: SandboxSpec, make_args: dict[str, Any], modules: list[Path]) -> None:
        super().__init__({**make_args, "sys_path": [MODULES]})
        self._shared, self._spec, self._modules = shared, spec, modules
        self._sandbox: Sandbox | None = None
        self._files = ""
        """Snapshot of the container that belongs to the last checkpoint; "" where it has no files."""
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._talking: asyncio.Task[None] | None = None
        self._renewed_at_s = 0.0
        self._end = ""
        self._oom_killed = False

    async def _open(self, deadline_s: float) -> None:
        from rollcage.sandbox.errors import DeadlineExceeded, ImageMissing, Overloaded, SandboxError

        await self._kill()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_s):
                if self._sandbox is None:
                    sandboxes = await self._shared.sandboxes()
                    self._sandbox = await sandboxes.create(self._spec, owner="environments", deadline_s=deadline_s)
                    self._renewed_at_s = loop.time()
                elif self._files:  # also where only the worker is lost: it may have got half-way through a turn
                    await self._sandbox.restore(self._files)
                for module in self._modules:
                    await self._sandbox.put(module, f"{MODULES}/{module.name}")
        except ImageMissing as error:
            raise ImageMissing(f"placement 'sandbox' has no image {self._spec.image!r}: {HOW_TO_BUILD}.") from error
        except UserError:
            raise
        except (TimeoutError, DeadlineExceeded, Overloaded) as error:
            raise EnvTimeout(f"no sandbox for the environment within {deadline_s:g} s. {error}".rstrip()) from None
        except SandboxError as error:
            raise EnvDied(f"no sandbox for the environment: {error}") from None
        self._frames, self._end, self._oom_killed = asyncio.Queue(), "", False
        self._talking = asyncio.create_task(self._talk(self._sandbox))

    def _send(self, frame: bytes) -> None:
        if self._talking is None or self._talking.done():
            raise EnvDied("the worker in the sandbox has ended.")
        self._frames.put_nowait(frame)

    async def ask(self, operation: str, args: dict[str, Any], deadline_s: float, *, checkpoint: bool = False) -> Any:
        """See `WorkerHost.ask`; keeps the sandbox's lease running."""
        now_s, ttl_s = asyncio.get_running_loop().time(), self._spec.ttl_s
        if self._sandbox is not None and ttl_s and now_s - self._renewed_at_s > ttl_s / 4:
            from rollcage.sandbox.errors import SandboxError

            self._renewed_at_s = now_s
            with suppress(SandboxError, TimeoutError):  # a sandbox that is gone shows in the answer
                async with asyncio.timeout(deadline_s / 2):
                    await self._sandbox.renew()
            deadline_s -= asyncio.get_running_loop().time() - now_s
        return await super().ask(operation, args, deadline_s, checkpoint=checkpoint)

    async def _keep(self, reply: dict[str, Any], deadline_s: float) -> str | None:
        state = await super()._keep(reply, deadline_s)
        if state is None or not reply["files"] or self._sandbox is None:
            return state
        from rollcage.sandbox.errors import SandboxError

        try:
            async with asyncio.timeout(deadline_s):
                self._files = (await self._sandbox.snapshot()).id
        except (SandboxError, TimeoutError):
            return None  # then the checkpoint before this one counts
        return state

    def _hear(self, reply: Any) -> None:
        """Nothing: what is isolated shall not write into a run's metrics."""

    async def _said(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._frames.get()

    async def _talk(self, sandbox: Sandbox) -> None:
        """Run one worker to its end, and hand over what it answers."""
        from rollcage.sandbox.errors import SandboxError, SandboxUnavailable
        from rollcage.sandbox.images import ENV_PYTHON
        from rollcage.sandbox.types import ExecResult

        buffer = FrameBuffer()
        # -P: a module of the work folder must not stand in for one of the standard library.
        command = (ENV_PYTHON, "-P", "-m", "rollcage.envs.worker")
        items = sandbox.stream(command, timeout_s=_LIFE_S, stdin=self._said(), max_output_bytes=_MAX_LOG_BYTES)
        try:
            async with aclosing(items) as answers:
                async for item in answers:
                    if isinstance(item, ExecResult):
                        self._oom_killed = item.oom_killed and item.signal is not None
                        how = (
                            f"exit code {item.exit_code}" if item.signal is None else f"killed by signal {item.signal}"
                        )
                        log = item.stderr_text.strip()
                        self._end = f"{how}; its last words:\n{log}" if log else how
                    elif item.source == "stdout":
                        buffer.feed(item.data)
                        while (reply := buffer.take()) is not None:
                            self._settle(reply)
            self._settle(EnvDied("the worker in the sandbox has ended."))
        except FrameError as error:
            self._settle(EnvDied(f"the worker in the sandbox wrote something else than replies: {error}"))
        except SandboxError as error:
            self._oom_killed = isinstance(error, SandboxUnavailable) and error.oom_killed
            self._settle(EnvDied(f"the worker in the sandbox is lost: {error}"))

    async def _kill(self) -> None:
        talking, self._talking = self._talking, None
        if talking is not None:
            talking.cancel()  # which ends the command and all that it started
            await asyncio.wait([talking], timeout=CLOSE_S)

    def _buried(self, error: PlacementError) -> PlacementError:
        kind = EnvOutOfMemory if self._oom_killed and isinstance(error, EnvDied) else type(error)
        return kind(f"{error} {'Memory ran out. ' if self._oom_killed else ''}{self._end}".rstrip())

    async def end(self) -> None:
        """See `Host.end`; the sandbox goes too."""
        await super().end()
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            from rollcage.sandbox.errors import SandboxError

            with suppress(SandboxError, TimeoutError):  # then its lease ends, or the next manager removes it
                async with asyncio.timeout(_DELETE_S):
                    await sandbox.delete()


class SandboxPlacement(PooledPlacement):
    """A pool of sandboxes; each hosts one instance and is reused after `release`.

    As `ProcessPlacement`, with a container around each worker: no network, memory and processes bounded. It uses the
    sandbox service that runs for this user, else a manager of its own in this process. What the environment's module
    imports must be in the image, and so must be its data; the module (or package) itself is copied in.

    With ``restart="restore"``, an environment with ``metadata["checkpoint_files"]`` has the container's file system as
    part of each checkpoint (a fraction of a second, and what was written, each turn): an episode that goes on finds
    every file as it was, outside of a ``read_only`` sandbox's memory. Processes that it had started are gone.

    Args:
        config: which environment.
        num_workers: at most so many live at once, later callers wait; None for no limit.
        restart: "fail": an episode whose place is lost ends as data. "restore": it goes on in another worker, in a new
            life of the container where that was lost too; see `RestoringHost`.
        spec: of the sandboxes, whose ``restart`` follows from the one here; None: the image `rollcage-env`.
        sandboxes: whose; None: see above. They are not closed here.

    Raises:
        UserError: the environment cannot be built elsewhere; from `acquire`, also that there is no Docker or no image.
    """

    def __init__(
        self,
        config: EnvConfig,
        *,
        num_workers: int | None = None,
        restart: str = "fail",
        spec: SandboxSpec | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        from rollcage.sandbox.images import ENV_IMAGE
        from rollcage.sandbox.types import RestartPolicy, SandboxSpec

        make_args = make_request(config)
        modules = _modules(config.env_id, make_args["spec"])
        self._shared = Shared(sandboxes)
        # As many lives as it takes: how many an episode may have is counted by whom it belongs to.
        told = replace(
            spec or SandboxSpec(image=ENV_IMAGE),
            restart=RestartPolicy.RESTORE if restart == "restore" else RestartPolicy.FAIL,
            max_restarts=1_000_000,
        )
        new_host = restarting(restart, lambda: ContainerHost(self._shared, told, make_args, modules))
        super().__init__(new_host, num_workers)

    async def close(self) -> None:
        """See `Placement.close`."""
        await super().close()
        await self._shared.close()


def _modules(env_id: str, spec_json: str) -> list[Path]:
    """Return where the modules that an environment's id and class name are found, if they are the user's own."""
    import json

    names = [env_id.rpartition(":")[0], str(json.loads(spec_json)["entry_point"]).partition(":")[0]]
    installed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    found: list[Path] = []
    for top in dict.fromkeys(name.partition(".")[0] for name in names if name):
        spec = importlib.util.find_spec(top) if top != "rollcage" else None
        if spec is None:
            continue
        places = [Path(folder) for folder in spec.submodule_search_locations or ()] or [Path(spec.origin or "")]
        found += [place for place in places if place.exists() and not any(place.is_relative_to(i) for i in installed)]
    return found
