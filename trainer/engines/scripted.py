"""The scripted engine: a fake for tests and examples that says what a function tells it to, in virtual time too."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.requests import check_request
from rollcage.trainer.types import Generation, Request


@dataclass(frozen=True)
class Line:
    """What one request gets.

    Attributes:
        token_ids: sampled ids; cut at a stop id, at max_new_tokens and at the context.
        first_token_s: seconds before the first token.
        token_s: seconds before each further one.
        error: raised once the tokens are through; EngineDied takes the engine and all in flight with it.
        hang: never answer (until aborted, cancelled or closed).
    """

    token_ids: Sequence[int] = ()
    first_token_s: float = 0.0
    token_s: float = 0.0
    error: EngineError | None = None
    hang: bool = False


Script = Callable[[Request, int], Line | Sequence[int]]
"""(request, policy version when it gets its slot) -> what it gets; plain token ids come at once."""


@dataclass(eq=False)
class _Job:
    request: Request
    interrupted: asyncio.Future[None]
    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class ScriptedEngine:
    """An `Engine` without a model. It only ever waits by the event loop's clock, so `run_virtual` can drive it.

    Log-probabilities follow from seed, position and token. A script that ends without a stop id ends the generation
    with "stop".

    Args:
        script: decides every answer; must itself be deterministic.
        max_batch_size: most requests that run at once; more wait, first come, first served.
        max_context_tokens: longest prompt plus response.
        publish_s: seconds that `publish` takes.
    """

    def __init__(
        self, script: Script, *, max_batch_size: int = 64, max_context_tokens: int = 2048, publish_s: float = 0.0
    ) -> None:
        self.policy_version = 0
        self.max_batch_size = max_batch_size
        self.max_context_tokens = max_context_tokens
        self._script = script
        self._publish_s = publish_s
        self._jobs: dict[str, _Job] = {}
        self._slots = asyncio.Semaphore(max_batch_size)
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._died: EngineDied | None = None

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return len(self._jobs)

    async def start(self) -> None:
        """Nothing to load."""
        self._check_alive()

    async def generate(self, request: Request) -> Generation:
        """Play the script's line for ``request``; see `Engine.generate`."""
        self._check_alive()
        if request.id in self._jobs:
            raise EngineError(f"request id {request.id!r} is in use")
        request = replace(request, prompt_ids=list(request.prompt_ids))
        check_request(request, max_context_tokens=self.max_context_tokens)
        job = _Job(request, asyncio.get_running_loop().create_future())
        self._jobs[request.id] = job
        playing = asyncio.create_task(self._play(job), name=f"scripted {request.id}")
        either: list[asyncio.Future[Any]] = [playing, job.interrupted]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if job.interrupted.done():
                job.interrupted.result()
                return _generation(job, "abort")
            return playing.result()
        finally:
            del self._jobs[request.id]
            for future in either:
                future.cancel()
            await asyncio.wait([playing])  # it gives its slot back
            for future in either:
                if not future.cancelled():
                    future.exception()  # seen, or overtaken by the other or by the caller's cancellation

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        job = self._jobs.get(request_id)
        if job is not None and not job.interrupted.done():
            job.interrupted.set_result(None)

    async def pause(self) -> None:
        """Let no token through until `resume`; delays run on meanwhile."""
        self._check_alive()
        self._unpaused.clear()

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._check_alive()
        self._unpaused.set()

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Note the version, after ``publish_s``."""
        self._check_alive()
        await asyncio.sleep(self._publish_s)
        self._check_alive()
        self.policy_version = policy_version

    async def close(self) -> None:
        """Requests in flight get EngineDied; idempotent."""
        self.die("the engine was closed")

    def die(self, message: str = "scripted death") -> None:
        """Fail everything in flight and all that comes."""
        if self._died is None:
            self._died = EngineDied(message)
        for job in self._jobs.values():
            if not job.interrupted.done():
                job.interrupted.set_exception(EngineDied(message))

    def _check_alive(self) -> None:
        if self._died is not None:
            raise EngineDied(str(self._died))

    async def _play(self, job: _Job) -> Generation:
        async with self._slots:
            await self._unpaused.wait()
            request = job.request
            line = self._script(request, self.policy_version)
            if not isinstance(line, Line):
                line = Line(line)
            limit = min(request.sampling.max_new_tokens, self.max_context_tokens - len(request.prompt_ids))
            await _sleep(line.first_token_s)
            for index, token in enumerate(line.token_ids[:limit]):
                await _sleep(line.token_s if index else 0.0)
                await self._unpaused.wait()
                job.token_ids.append(token)
                job.versions.append(self.policy_version)
                if token in request.stop_ids:
                    break
            if line.hang:
                await asyncio.get_running_loop().create_future()
            if isinstance(line.error, EngineDied):
                self.die(str(line.error))
            if line.error is not None:
                raise line.error
            stopped = job.token_ids[-1:] and job.token_ids[-1] in request.stop_ids
            return _generation(job, "stop" if stopped or len(job.token_ids) < limit else "length")


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


def _generation(job: _Job, finish_reason: str) -> Generation:
    logprobs = [
        -(1 + zlib.crc32(f"{job.request.seed} {index} {token}".encode()) % 4096) / 2048
        for index, token in enumerate(job.token_ids)
    ]
    return Generation(job.token_ids, logprobs, job.versions, finish_reason)  # type: ignore[arg-type]
