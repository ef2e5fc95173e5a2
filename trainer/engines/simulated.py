"""The simulated engine: a replica as a latency model, slots, a decoding speed and response lengths."""

from __future__ import annotations

import asyncio
import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.requests import check_request
from rollcage.trainer.types import Generation, Request

SAMPLED_ID = 2
"""The id of every sampled token; a response that ends by itself ends with its request's smallest stop id."""


@dataclass(frozen=True)
class Speed:
    """How fast one replica decodes.

    Attributes:
        token_s: seconds between two tokens of a request that runs alone.
        load_token_s: seconds more for every further request that runs beside it.
        first_token_s: seconds before a request's first token, in its slot.
        publish_s: seconds that taking new weights holds all requests up.
        contention: how many times as long a token takes while the learner trains, where both share one machine.
        prompt_token_s: seconds that each token of a prompt holds its replica up, once the request has a slot: the
            others get no tokens while one's prompt is read.
        context_token_s: seconds more for every request that runs and every token of the longest one's context, prompt
            included: what attention over a padded batch takes.
    """

    token_s: float
    load_token_s: float = 0.0
    first_token_s: float = 0.0
    publish_s: float = 0.0
    contention: float = 1.0
    prompt_token_s: float = 0.0
    context_token_s: float = 0.0

    def slower(self, factor: float) -> Speed:
        """Return the speed of a replica that takes ``factor`` times as long for its tokens."""
        return replace(
            self,
            token_s=self.token_s * factor,
            load_token_s=self.load_token_s * factor,
            first_token_s=self.first_token_s * factor,
            prompt_token_s=self.prompt_token_s * factor,
            context_token_s=self.context_token_s * factor,
        )


@dataclass(eq=False, slots=True)
class _Job:
    request: Request
    length: int
    done: asyncio.Future[Generation]
    start: float = -1.0
    """Where the replica's progress stood at the first token; negative while the job waits."""


class SimulatedEngine:
    """An `Engine` that only takes time: requests run in slots at one common speed, which may depend on their number.

    All running requests advance together, so one number says how far (tokens that a request has got that runs since
    the beginning), and one timer waits for the next to finish, however many run.

    Args:
        length: tokens of the response to a request, at least 1; must itself be deterministic. Cut at max_new_tokens.
        speed: of decoding and publishing.
        max_batch_size: slots; more requests wait, first come, first served.
        max_context_tokens: longest prompt plus response, in ids.
        tokens_per_id: a sampled id stands for so many tokens, so that long responses are short lists; a token's
            version is then known to so many tokens.
    """

    def __init__(
        self,
        length: Callable[[Request], float],
        speed: Speed,
        *,
        max_batch_size: int = 64,
        max_context_tokens: int = 1 << 40,
        tokens_per_id: int = 1,
    ) -> None:
        self.policy_version = 0
        self.max_batch_size, self.max_context_tokens = max_batch_size, max_context_tokens
        self.num_tokens = 0
        """Tokens of finished requests (of aborted ones what they had)."""
        self.busy_slot_s = 0.0
        """Seconds of running requests, summed over slots, up to the last change."""
        self._length, self._speed, self._tokens_per_id = length, speed, tokens_per_id
        self._jobs: dict[str, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._running: dict[str, _Job] = {}
        self._ends: list[tuple[float, int, _Job]] = []
        self._num_starts = 0
        self._progress = 0.0
        self._reading_s = 0.0  # what prompts still hold everybody up, without the learner beside
        self._since_s = 0.0
        self._num_holds = 0
        self._published: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._died: EngineDied | None = None
        self._paused = False
        self._factor = 1.0
        self._lead = 0.0  # how much longer the longest context is than the progress

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return len(self._jobs)

    async def start(self) -> None:
        """Nothing to load."""
        self._check_alive()

    async def generate(self, request: Request) -> Generation:
        """Take the time that the response takes; see `Engine.generate`."""
        self._check_alive()
        if request.id in self._jobs:
            raise EngineError(f"request id {request.id!r} is in use")
        check_request(request, max_context_tokens=self.max_context_tokens)
        length = max(1, min(round(self._length(request)), request.sampling.max_new_tokens))
        job = self._jobs[request.id] = _Job(request, length, asyncio.get_running_loop().create_future())
        self._advance()
        self._waiting.append(job)
        self._fill()
        self._plan()
        try:
            return await job.done
        finally:
            self._remove(job)

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        job = self._jobs.get(request_id)
        if job is not None and not job.done.done():
            self._advance()
            sampled = int(self._progress - job.start) if job.start >= 0 else 0
            job.done.set_result(self._generation(job, min(max(sampled, 0), job.length), "abort"))
            self._remove(job)

    async def pause(self) -> None:
        """Stop the clock of all requests until `resume`."""
        self._check_alive()
        if not self._paused:
            self._paused = True
            self._hold(1)

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._check_alive()
        if self._paused:
            self._paused = False
            self._hold(-1)

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Take the new version: requests stand still for ``publish_s`` and go on under it."""
        self._check_alive()
        if self._speed.publish_s > 0:
            self._hold(1)
            try:
                await asyncio.sleep(self._speed.publish_s)
            finally:
                self._hold(-1)
            self._check_alive()
        self._advance()
        self.policy_version = policy_version
        self._published.append((self._progress, policy_version))

    def contend(self, is_training: bool) -> None:
        """Note that the learner begins or ends to train on the same machine."""
        self._advance()
        self._factor = self._speed.contention if is_training else 1.0
        self._plan()

    async def close(self) -> None:
        """Requests in flight get EngineDied; idempotent."""
        self.die("the engine was closed")

    def die(self, message: str = "simulated death") -> None:
        """Fail everything in flight and all that comes."""
        if self._died is None:
            self._died = EngineDied(message)
        for job in self._jobs.values():
            if not job.done.done():
                job.done.set_exception(EngineDied(message))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_alive(self) -> None:
        if self._died is not None:
            raise EngineDied(str(self._died))

    def _token_s(self) -> float:
        """Return the seconds of a token from now on; contexts that grow add `_growth_s` with each."""
        speed, num_running = self._speed, len(self._running)
        token_s = speed.token_s + speed.load_token_s * max(num_running - 1, 0)
        if speed.context_token_s:
            token_s += speed.context_token_s * num_running * max(self._lead + self._progress, 0.0)
        return self._factor * token_s

    def _growth_s(self) -> float:
        return self._factor * self._speed.context_token_s * len(self._running)

    def _advance(self) -> None:
        """Bring the progress up to now; before anything changes who runs or how fast."""
        now_s = asyncio.get_running_loop().time()
        if now_s > self._since_s:
            self.busy_slot_s += (now_s - self._since_s) * len(self._running)
            if self._running and not self._num_holds:
                read_s = min(self._reading_s, (now_s - self._since_s) / self._factor)
                self._reading_s -= read_s
                left_s, token_s = now_s - self._since_s - read_s * self._factor, self._token_s()
                if self._speed.context_token_s:  # token_s x + growth_s x^2 / 2 = left_s
                    token_s = (token_s + math.sqrt(token_s * token_s + 2 * self._growth_s() * left_s)) / 2
                self._progress += left_s / token_s
        self._since_s = now_s

    def _measure(self) -> None:
        """Find the longest context; whenever who runs has changed."""
        if self._speed.context_token_s:
            per_id = self._tokens_per_id
            self._lead = max(
                (len(job.request.prompt_ids) * per_id - job.start for job in self._running.values()), default=0.0
            )

    def _hold(self, change: int) -> None:
        self._advance()
        self._num_holds += change
        self._plan()

    def _fill(self) -> None:
        """Give free slots to those who wait. The first token's delay is work too: so many tokens' time."""
        while self._waiting and len(self._running) < self.max_batch_size:
            job = self._waiting.popleft()
            if job.done.done():
                continue  # it was aborted or cancelled while it waited
            self._running[job.request.id] = job
            job.start = self._progress + self._speed.first_token_s / self._token_s()
            self._reading_s += len(job.request.prompt_ids) * self._tokens_per_id * self._speed.prompt_token_s
            self._num_starts += 1
            heapq.heappush(self._ends, (job.start + job.length, self._num_starts, job))
        self._measure()

    def _plan(self) -> None:
        """Set the timer for the request that ends next."""
        while self._ends and self._ends[0][2].done.done():
            heapq.heappop(self._ends)  # it was aborted or cancelled
        when_s = None
        if self._ends and not self._num_holds and self._died is None:
            left = max(self._ends[0][0] - self._progress, 0.0)
            left_s = left * self._token_s()
            if self._speed.context_token_s:
                left_s += self._growth_s() * left * left / 2
            when_s = self._since_s + (self._reading_s * self._factor + left_s)
        if self._timer is not None:
            if when_s == self._timer.when():
                return
            self._timer.cancel()
            self._timer = None
        if when_s is not None:
            self._timer = asyncio.get_running_loop().call_at(when_s, self._finish)

    def _finish(self) -> None:
        self._timer = None
        self._advance()
        if self._ends:
            self._progress = max(self._progress, self._ends[0][0])  # rounding must not leave it a hair short
        while self._ends and self._ends[0][0] <= self._progress:
            _, _, job = heapq.heappop(self._ends)
            if not job.done.done():
                limit = job.request.sampling.max_new_tokens
                job.done.set_result(self._generation(job, job.length, "length" if job.length == limit else "stop"))
                del self._running[job.request.id]
        self._fill()
        self._plan()

    def _remove(self, job: _Job) -> None:
        """Forget a request, however it ended; idempotent."""
        if self._jobs.get(job.request.id) is not job:
            return
        del self._jobs[job.request.id]
        job.done.cancel()  # where it has no result
        if self._running.get(job.request.id) is job:
            self._advance()
            del self._running[job.request.id]
            self._fill()
            self._plan()

    def _generation(self, job: _Job, num_tokens: int, reason: Literal["stop", "length", "abort"]) -> Generation:
        self.num_tokens += num_tokens
        num_ids = -(-num_tokens // self._tokens_per_id)
        ids = [SAMPLED_ID] * num_ids
        if reason == "stop" and job.request.stop_ids:
            ids[-1] = min(job.request.stop_ids)
        # the version of a token is that of the last publication before it was sampled
        first = bisect_left(self._published, (job.start, -1))
        version = self._published[first - 1][1] if first else 0
        versions = [version] * num_ids
        for progress, later in self._published[first:]:
            done = max(0, int((progress - job.start) / self._tokens_per_id))
            versions[done:] = [later] * (num_ids - done)
        return Generation(ids, [-1.0] * num_ids, versions, reason)
