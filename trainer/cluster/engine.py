"""An engine replica on a Ray cluster, behind the seam of every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.errors import UserError
from rollcage.trainer.cluster.engine_actor import EngineActor, EngineMaker
from rollcage.trainer.cluster.packing import pack_request, unpack_generation
from rollcage.trainer.cluster.weights import StoredWeights, WeightStore
from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.types import Generation, Request

PING_S = 5.0
"""Between two looks whether the actor answers; no longer than it may take to answer."""


class RayEngine:
    """One replica (`Engine`) in an actor. An actor that is lost, or does not answer by a deadline, is a dead engine.

    `restart` makes another actor, on whichever node has room, and gives it the newest weights.

    Args:
        ray: the module, connected.
        config: of the engine that the actor makes.
        replica: its number.
        store: shared by all replicas, so that weights are put there once.
        options: of the actor: num_cpus, num_gpus, and where it may run.
        ping_timeout_s: an actor that does not answer for so long has died.
        on_start: called with the replica's name and where its actor is, each time that one was made.
        on_bytes: called with the sizes of arrays, as they go there and come back.

    Attributes:
        num_bytes: of the arrays that requests took there and generations brought back.
    """

    def __init__(
        self,
        ray: Any,
        config: EngineMaker,
        replica: int,
        store: WeightStore,
        options: dict[str, Any],
        *,
        ping_timeout_s: float = 30.0,
        on_start: Callable[[str, Whereabouts], None] = lambda actor, where: None,
        on_bytes: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self.policy_version = self.num_bytes = 0
        self.max_batch_size, self.max_context_tokens = config.max_batch_size, config.max_context_tokens
        self.where: Whereabouts | None = None
        """The actor's last place."""
        self._ray, self._config, self._replica, self._store = ray, config, replica, store
        self._options, self._ping_timeout_s, self._on_start = options, ping_timeout_s, on_start
        self._on_bytes = on_bytes
        self._actor: Any = None
        self._died: asyncio.Future[str] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._num_live = 0
        self._closed = False

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return self._num_live

    async def start(self) -> None:
        """Make the actor and load the model there; idempotent.

        Raises:
            UserError: there is no such model.
            EngineDied: no node had room, or the model did not load, within ``load_timeout_s``.
        """
        if self._actor is not None:
            return
        if self._closed:
            raise EngineDied("the engine was closed")
        self._died = asyncio.get_running_loop().create_future()
        self._actor = (
            self._ray.remote(EngineActor)
            .options(max_restarts=0, max_concurrency=10_000, **self._options)
            .remote(self._config, self._replica)
        )
        limit_s = self._config.load_timeout_s
        self.where = await self._ask("where", limit_s=limit_s)
        self._on_start(f"engine {self._replica}", self.where)
        self.max_context_tokens, self.max_batch_size = await self._ask("start", limit_s=limit_s)
        self._watch = asyncio.create_task(self._look_after(), name=f"engine {self._replica}: does it answer?")

    async def restart(self) -> None:
        """See `Restartable`."""
        if self._closed:
            raise EngineDied("the engine was closed")
        await self._end()
        await self.start()
        if self._store.newest is not None:
            await self._use(*self._store.newest)

    async def generate(self, request: Request) -> Generation:
        """See `Engine.generate`; the callers' deadlines bound it."""
        self._num_live += 1
        try:
            packed = pack_request(request)
            self._count(packed.num_bytes)
            answer = await self._ask("generate", packed, limit_s=None)
        except asyncio.CancelledError:
            if self._actor is not None and self._died is not None and not self._died.done():
                self._actor.give_up.remote(request.id)
            raise
        finally:
            self._num_live -= 1
        if isinstance(answer, EngineDied):
            self._die(str(answer))
        if isinstance(answer, EngineError):
            raise answer
        self._count(answer.num_bytes)
        return unpack_generation(answer)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._on_bytes(num_bytes)

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        await self._ask("abort", request_id)

    async def pause(self) -> None:
        """See `Engine.pause`."""
        await self._ask("pause")

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._ask("resume")

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """See `Engine.publish`: the weights go through the object store, once for all replicas."""
        stored = await asyncio.to_thread(self._store.put, weights, policy_version)
        await self._use(stored, policy_version)

    async def _use(self, stored: StoredWeights, policy_version: int) -> None:
        entries = [tuple(entry) for entry in stored.layout.entries]
        refused = await self._ask("publish", stored.reference, entries, policy_version)
        if refused is not None:
            raise refused
        self.policy_version = policy_version

    async def close(self) -> None:
        """End the actor; requests in flight get EngineDied. Idempotent."""
        self._closed = True
        self._die("the engine was closed")
        await self._end()

    async def _ask(self, method: str, *arguments: Any, limit_s: float | None = -1.0) -> Any:
        """Let the actor do something; ``limit_s``: a longer wait means that it has died (default: step_timeout_s)."""
        if self._died is not None and self._died.done():
            raise EngineDied(self._died.result())
        if self._actor is None or self._died is None:
            raise EngineError("the engine has not been started: call start() first")
        answer = asyncio.ensure_future(_awaited(getattr(self._actor, method).remote(*arguments)))
        limit_s = self._config.step_timeout_s if limit_s == -1.0 else limit_s
        try:
            await asyncio.wait([answer, self._died], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if not self._died.done():
                self._die(f"{method}: no answer within {limit_s:g} s")
            raise EngineDied(self._died.result())
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            self._die(f"{method} failed: {error.cause!r}")
            raise EngineDied(self._died.result()) from None
        except self._ray.exceptions.RayError as error:
            self._die((str(error).strip() or type(error).__name__).splitlines()[0])
            raise EngineDied(self._died.result()) from None
        finally:
            answer.cancel()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(min(PING_S, self._ping_timeout_s))
            try:
                await self._ask("ping", limit_s=self._ping_timeout_s)
            except EngineDied:
                return

    def _die(self, reason: str) -> None:
        if self._died is not None and not self._died.done():
            self._died.set_result(f"engine {self._replica} (an actor {self.where or 'that never started'}): {reason}")

    async def _end(self) -> None:
        watch, self._watch = self._watch, None
        actor, self._actor = self._actor, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        if actor is not None and self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)


async def _awaited(reference: Any) -> Any:
    return await reference
