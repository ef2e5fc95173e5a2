"""The router: many engine replicas behind one `generate`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.engines.base import Engine, EngineDied, Weights
from rollcage.trainer.types import Generation, Request

T = TypeVar("T")

_REMEMBERED = 65_536
"""Trajectories and groups whose replicas are remembered: the newest, so that memory stays bounded."""

_GAUGE_INTERVAL_S = 0.5


class Router:
    """Sends each request to a replica, publishes to all of them, and goes on without those that die.

    A trajectory's first turn goes to the live replica with the fewest members of its group, and among equals to the
    one with the fewest live requests: siblings spread, so that one long group does not fill one replica. Later turns
    go where the first one went (the replica may hold the prefix), unless it has died. A replica's death costs the
    requests that it had; they get EngineDied.

    Args:
        engines: the replicas.
        recorder: gets the counters ``sampled_tokens``, ``requests`` and ``engine_deaths`` and the gauge
            ``engine_live_requests`` (running and waiting, of each replica).
    """

    def __init__(self, engines: Sequence[Engine], *, recorder: Recorder | None = None) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self.num_sampled_tokens = 0
        self._engines = list(engines)
        self._live = dict(enumerate(self._engines))
        self._recorder = recorder or NullRecorder()
        self._requests: dict[str, int] = {}
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._siblings: OrderedDict[str, list[int]] = OrderedDict()
        self._last_version = 0
        self._last_gauge_s = float("-inf")

    @property
    def policy_version(self) -> int:
        """The oldest version among the live replicas: what a new trajectory may start with."""
        if self._live:
            self._last_version = min(engine.policy_version for engine in self._live.values())
        return self._last_version

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
        index = self._choose(request)
        self._requests[request.id] = index
        self._observe()
        try:
            generation = await self._engines[index].generate(request)
        except EngineDied as error:
            self._bury(index, error)
            raise
        finally:
            del self._requests[request.id]
        self.num_sampled_tokens += len(generation.token_ids)
        self._recorder.counter("sampled_tokens", len(generation.token_ids), engine=str(index))
        self._recorder.counter("requests", finish_reason=generation.finish_reason, engine=str(index))
        return generation

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        index = self._requests.get(request_id)
        if index is not None:
            await self._engines[index].abort(request_id)

    async def pause(self) -> None:
        """Pause all replicas."""
        await self._on_all(lambda engine: engine.pause())

    async def resume(self) -> None:
        """Resume all replicas."""
        await self._on_all(lambda engine: engine.resume())

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Publish to all live replicas at once; on return all of them have copied the weights or died.

        Raises:
            EngineError: a replica refused the weights.
            EngineDied: no replica is left.
        """
        await self._on_all(lambda engine: engine.publish(weights, policy_version))

    async def close(self) -> None:
        """Close all replicas, dead ones too; an error is raised once all have been tried. Idempotent."""
        self._last_version = self.policy_version
        self._live.clear()  # what is in flight ends now, and is no death
        results = await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _choose(self, request: Request) -> int:
        if not self._live:
            raise EngineDied("no engine replica is left")
        home = self._homes.get(request.affinity)
        if home in self._live:
            self._homes.move_to_end(request.affinity)
            return home
        siblings = self._siblings.get(request.group, [0] * len(self._engines))
        index = min(self._live, key=lambda index: (siblings[index], self._live[index].num_live, index))
        if request.group:
            siblings[index] += 1
            _remember(self._siblings, request.group, siblings)
        if request.affinity:
            _remember(self._homes, request.affinity, index)
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
        if not self._live:
            raise EngineDied("no engine replica is left")

    def _bury(self, index: int, error: EngineDied) -> None:
        if self._live.pop(index, None) is not None:
            self._recorder.counter("engine_deaths", engine=str(index))
            self._recorder.event("engine_died", engine=index, message=str(error), num_left=len(self._live))

    def _observe(self) -> None:
        """Record the load of each replica, twice a second at most."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_gauge_s >= _GAUGE_INTERVAL_S:
            self._last_gauge_s = now_s
            for index, engine in self._live.items():
                self._recorder.gauge("engine_live_requests", engine.num_live, at_s=now_s, engine=str(index))


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
