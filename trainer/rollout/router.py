"""The router: many engine replicas behind one `generate`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.engines.base import Engine, EngineDied, Weights
from rollcage.trainer.rollout.activity import Activity
from rollcage.trainer.rollout.loads import Loads
from rollcage.trainer.rollout.restarts import Restarts
from rollcage.trainer.types import Generation, Request

T = TypeVar("T")

_REMEMBERED = 65_536
"""Trajectories and groups whose replicas are remembered: the newest, so that memory stays bounded."""

_GAUGE_INTERVAL_S = 0.5
_MOST_GAUGES_A_SECOND = 128
"""Of all replicas together: thousands of them tell their loads less often."""


class Router:
    """Sends each request to a replica, publishes to all of them, and goes on without those that die.

    A trajectory's first turn goes to the live replica with the fewest members of its group, and among equals to the
    one with the fewest live requests: siblings spread, so that one long group does not fill one replica. Later turns
    go where the first one went (the replica may hold the prefix), unless it has died. A replica's death costs the
    requests that it had; they get EngineDied. One that can be restarted is, and takes part again once it has the newest
    weights; where none is left, requests and publications wait for it.

    Args:
        engines: the replicas.
        recorder: gets the counters ``sampled_tokens``, ``requests``, ``discarded_tokens``, ``restarted_requests`` and
            ``engine_deaths``, the gauge ``engine_live_requests`` (running and waiting, of each replica), and spans.
        replicate: whether siblings spread; False keeps all turns of a group on one replica.
        interrupt: what publishing does to requests in flight, those that wait in the engine included. "continue": they
            go on with the new weights; "abort": they are aborted and start again from their prompt; "wait": they come
            to their end first, and those that come meanwhile wait until the weights are there.
        max_restarts: restarts of one replica in a row, without a request that it serves between them.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        recorder: Recorder | None = None,
        replicate: bool = True,
        interrupt: Literal["continue", "abort", "wait"] = "continue",
        max_restarts: int = 5,
    ) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self.num_sampled_tokens = 0
        self.policy_version = min(engine.policy_version for engine in engines)
        """The version that all live replicas have reached: what a new trajectory may start with."""
        self._engines = list(engines)
        self._live = dict(enumerate(self._engines))
        self._loads = Loads(self._live)
        self._names = [str(index) for index in self._live]
        self._tracks = [f"engine {name}" for name in self._names]
        self._recorder = recorder or NullRecorder()
        self.activity = Activity(self._recorder)
        """When which replica was generating; others may count theirs beside it."""
        self._replicate, self._interrupt = replicate, interrupt
        self._requests: dict[str, int] = {}
        self._to_restart: set[str] = set()
        self._at_gate: dict[str, bool] = {}  # request -> whether it was aborted there
        self._gate = asyncio.Event()
        self._gate.set()
        self._drained = asyncio.Event()
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._siblings: OrderedDict[str, dict[int, int]] = OrderedDict()
        self._last_gauge_s = float("-inf")
        self._restarts = Restarts(dict(self._live), budget=max_restarts, back=self._rejoin, recorder=self._recorder)
        self._behind: dict[int, Engine] = {}  # restarted while newer weights were published: the next are for them too
        self._publishing = asyncio.Lock()
        self._is_paused = False

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus response that every replica takes."""
        return min(engine.max_context_tokens for engine in self._engines)

    @property
    def num_live(self) -> int:
        """Requests running or waiting, all replicas together."""
        return sum(engine.num_live for engine in self._live.values())

    @property
    def num_live_engines(self) -> int:
        """Replicas that have not died."""
        return len(self._live)

    async def start(self) -> None:
        """Start all replicas; if one cannot, its error is raised once all have answered."""
        await self._on_all(lambda engine: engine.start())

    async def generate(self, request: Request) -> Generation:
        """Sample on one of the replicas; see `Engine.generate`.

        Raises:
            EngineDied: the replica died with this request, or none is left.
        """
        while True:
            if not self._gate.is_set() and await self._wait_at_gate(request):
                return Generation([], [], [], "abort")
            while not self._live and self._restarts.is_any_under_way:  # the callers' deadlines bound this
                await self._restarts.wait()
            index = self._choose(request)
            self._requests[request.id] = index
            self._loads.change(index, 1)
            self._observe()
            try:
                with self.activity.during(self._tracks[index], "generate"):
                    generation = await self._engines[index].generate(request)
                self._restarts.served(index)
                restart = request.id in self._to_restart and generation.finish_reason == "abort"
            except EngineDied as error:
                self._bury(index, error)
                raise
            finally:
                self._to_restart.discard(request.id)
                del self._requests[request.id]
                self._loads.change(index, -1)
                if not self._requests:
                    self._drained.set()
            if not restart:
                break
            self._recorder.counter("restarted_requests", engine=str(index))
            self._recorder.counter("discarded_tokens", len(generation.token_ids), engine=str(index))
        self.num_sampled_tokens += len(generation.token_ids)
        name = self._names[index]
        self._recorder.counter("sampled_tokens", len(generation.token_ids), engine=name)
        self._recorder.counter("requests", finish_reason=generation.finish_reason, engine=name)
        return generation

    async def _wait_at_gate(self, request: Request) -> bool:
        """Wait while weights are being published; returns whether the request was aborted meanwhile."""
        self._at_gate[request.id] = False
        try:
            await self._gate.wait()
            return self._at_gate[request.id]
        finally:
            del self._at_gate[request.id]

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        self._to_restart.discard(request_id)
        index = self._requests.get(request_id)
        if index is not None:
            await self._engines[index].abort(request_id)
        elif request_id in self._at_gate:
            self._at_gate[request_id] = True

    async def pause(self) -> None:
        """Pause all replicas."""
        self._is_paused = True
        await self._on_all(lambda engine: engine.pause())

    async def resume(self) -> None:
        """Resume all replicas."""
        self._is_paused = False
        await self._on_all(lambda engine: engine.resume())

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Publish to all live replicas at once; on return all of them have copied the weights or died.

        Raises:
            EngineError: a replica refused the weights.
            EngineDied: no replica is left.
        """
        if self._interrupt == "continue":
            await self._publish(weights, policy_version)
            return
        self._gate.clear()
        try:
            if self._interrupt == "abort":
                await self._abort_all()
            self._drained.clear()
            while self._requests:  # their callers' deadlines bound this
                await self._drained.wait()
                self._drained.clear()
            await self._publish(weights, policy_version)
        finally:
            self._gate.set()

    async def _publish(self, weights: Weights, policy_version: int) -> None:
        while True:
            async with self._publishing:
                while self._behind:
                    await self._join(*self._behind.popitem())
                if self._live or not self._restarts.is_any_under_way:
                    await self._on_all(lambda engine: engine.publish(weights, policy_version))
                if self._live:
                    self.policy_version = policy_version
                    return
            await self._restarts.wait()  # bounded by the engines' deadlines and the budget

    async def _rejoin(self, index: int) -> None:
        """Let a restarted replica take part again, once it has the weights that the others have."""
        engine = self._engines[index]
        async with self._publishing:
            if engine.policy_version < self.policy_version:
                self._behind[index] = engine
            else:
                await self._join(index, engine)

    async def _join(self, index: int, engine: Engine) -> None:
        if self._is_paused:
            await engine.pause()
        self._live[index] = engine
        self._loads.add(index)

    async def _abort_all(self) -> None:
        """Abort all requests that the replicas have, to start them again when the gate opens."""
        self._to_restart.update(self._requests)
        by_engine: dict[int, list[str]] = {}
        for request_id, index in self._requests.items():
            by_engine.setdefault(index, []).append(request_id)

        async def abort(index: int) -> None:
            try:
                for request_id in by_engine[index]:
                    await self._engines[index].abort(request_id)
            except EngineDied as error:
                self._bury(index, error)

        await asyncio.gather(*map(abort, by_engine))

    async def close(self) -> None:
        """Close all replicas, dead ones too; an error is raised once all have been tried. Idempotent."""
        self._live.clear()  # what is in flight ends now, and is no death
        await self._restarts.close()
        results = await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _choose(self, request: Request) -> int:
        if not self._live:
            raise EngineDied("no engine replica is left")
        whole_group = bool(request.group) and not self._replicate
        affinity = f"group {request.group}" if whole_group else request.affinity
        home = self._homes.get(affinity) if affinity else None
        if home in self._live:
            self._homes.move_to_end(affinity)
            return home
        siblings = self._siblings.get(request.group, {})
        index = self._loads.least(siblings)
        if request.group:
            siblings[index] = siblings.get(index, 0) + 1
            _remember(self._siblings, request.group, siblings)
        if affinity:
            _remember(self._homes, affinity, index)
        return index

    async def _on_all(self, action: Callable[[Engine], Awaitable[None]]) -> None:
        """Run ``action`` on all live replicas at once; bury those that die, then raise what else went wrong."""
        live = dict(self._live)
        results = await asyncio.gather(*map(action, live.values()), return_exceptions=True)
        for index, result in zip(live, results, strict=True):
            if isinstance(result, EngineDied):
                self._bury(index, result)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, EngineDied):
                raise result
        if not self._live and not self._restarts.is_any_under_way:
            raise EngineDied("no engine replica is left")

    def _bury(self, index: int, error: EngineDied) -> None:
        if self._live.pop(index, None) is not None:
            self._loads.remove(index)
            self._recorder.counter("engine_deaths", engine=str(index))
            self._recorder.event("engine_died", engine=index, message=str(error), num_left=len(self._live))
            self._restarts.begin(index)

    def _observe(self) -> None:
        """Record the load of each replica, twice a second at most, and as seldom as there are many."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_gauge_s >= max(_GAUGE_INTERVAL_S, len(self._live) / _MOST_GAUGES_A_SECOND):
            self._last_gauge_s = now_s
            for index, engine in self._live.items():
                self._recorder.gauge("engine_live_requests", engine.num_live, at_s=now_s, engine=str(index))


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
