"""The local engine: any transformers causal language model, on the CPU or a GPU, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from rollcage.errors import UserError
from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.batching import SlotBatch
from rollcage.trainer.engines.loading import load_batch
from rollcage.trainer.engines.requests import check_request
from rollcage.trainer.engines.worker import Job, Worker, settle
from rollcage.trainer.models import resolve_dtype
from rollcage.trainer.types import Generation, Request

T = TypeVar("T")


@dataclass(frozen=True)
class LocalEngineConfig:
    """Configuration of `LocalEngine`.

    Keys and values take ``(max_batch_size + parked_prefixes) * max_context_tokens`` times the model's bytes a token.
    """

    model: str = ""
    """Folder in transformers' format, checkpoint of ours, or GGUF file."""
    max_batch_size: int = 64
    """Most requests that run at once; more wait."""
    max_context_tokens: int = 2048
    """Longest prompt plus response; the model's own limit where that is smaller."""
    dtype: str = "float32"
    """Number type of weights and cache: float32, bfloat16, float16; auto: bfloat16 where the device is made for it."""
    device: str = "cpu"
    """Where it runs: cpu, cuda or cuda:N."""
    num_threads: int = 1
    """CPU threads of one forward pass; 0 leaves PyTorch's choice."""
    parked_prefixes: int = 64
    """Finished turns whose keys and values are kept for the trajectory's next turn; 0 keeps none (one-turn tasks). They
    are dropped when weights are published, so that a turn is computed by the weights that it names."""
    load_timeout_s: float = 600.0
    """Longest wait for the model to load."""
    step_timeout_s: float = 300.0
    """A step, or a copy of weights, that takes longer means that the engine is dead."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        least = {"max_batch_size": 1, "max_context_tokens": 2, "num_threads": 0, "parked_prefixes": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"engine: {name} is {getattr(self, name)}, it must be at least {bound}.")
        for name in ("load_timeout_s", "step_timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"engine: {name} is {getattr(self, name)}, it must be above 0.")


class LocalEngine:
    """One replica (`Engine`): continuous batching over the slots of a `SlotBatch`.

    The event loop and the engine's thread meet in two places: the loop leaves commands for the thread's `Worker`,
    and the thread hands results back with ``call_soon_threadsafe``. Between two steps the thread takes all commands,
    admits waiting requests into free slots, and goes on; PyTorch releases the interpreter lock in its kernels, so the
    loop stays responsive.

    A request's tokens depend on its seed and the logits alone, and the logits on the rest of the batch only by the
    rounding of the matrix kernels, which changes with the batch's size (about 1e-6 in float32).
    """

    def __init__(self, config: LocalEngineConfig) -> None:
        """Nothing is loaded before `start`."""
        self.policy_version = 0
        self.max_batch_size = config.max_batch_size
        self.max_context_tokens = config.max_context_tokens
        self._config = config
        self._vocab_size = 0
        self._jobs: dict[str, Job] = {}
        self._calls: set[asyncio.Future[None]] = set()
        self._commands: deque[Callable[[Worker], None]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ready: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._died: EngineDied | None = None
        self._busy_since: float | None = None  # when the thread began what it is doing; None while it waits

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return len(self._jobs)

    async def start(self) -> None:
        """Load the model in the engine's thread; idempotent.

        Raises:
            UserError: there is no such model, or it cannot run here.
            EngineDied: loading took longer than ``load_timeout_s``, or the engine was closed.
        """
        if self._ready is None:
            self._check_alive()
            loop = asyncio.get_running_loop()
            self._ready, self._ended = loop.create_future(), loop.create_future()
            self._thread = threading.Thread(
                target=self._run, args=(loop, self._ready, self._ended), name="rollcage-engine", daemon=True
            )
            self._thread.start()
        await asyncio.wait([self._ready], timeout=self._config.load_timeout_s)
        if not self._ready.done():
            self._die(EngineDied(f"the model did not load within {self._config.load_timeout_s:g} s"))
        self._ready.result()
        self._check_alive()

    async def generate(self, request: Request) -> Generation:
        """Sample until a stop id or a limit; see `Engine.generate`."""
        self._check_alive()
        if self._ready is None or not self._ready.done():
            raise EngineError("the engine has not been started: call start() first")
        if request.id in self._jobs:
            raise EngineError(f"request id {request.id!r} is in use")
        request = replace(request, prompt_ids=[int(token) for token in request.prompt_ids])
        check_request(request, max_context_tokens=self.max_context_tokens, vocab_size=self._vocab_size)
        job = Job(request, asyncio.get_running_loop().create_future())
        self._jobs[request.id] = job
        self._send(lambda worker: worker.waiting.append(job))
        try:
            return await self._wait(job.result)
        finally:
            del self._jobs[request.id]
            if not job.result.done():  # the caller was cancelled
                job.result.cancel()
                self._send(lambda worker: worker.cancel(job))

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        job = self._jobs.get(request_id)
        if job is not None:
            self._send(lambda worker: worker.abort(job))

    async def pause(self) -> None:
        """Stop sampling; on return no step is running."""
        await self._call(lambda worker: worker.pause(True))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._call(lambda worker: worker.pause(False))

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Copy ``weights`` between two steps; see `Engine.publish`.

        Cancelling it still waits for a copy that has begun: the caller may overwrite the weights afterwards.

        Raises:
            EngineError: names or shapes are not the model's; the old weights stay.
        """
        await self._call(lambda worker: worker.batch.load(weights, policy_version))
        self.policy_version = policy_version

    async def close(self) -> None:
        """End the thread and free the model; requests in flight get EngineDied. Idempotent.

        Raises:
            EngineError: the thread is stuck and did not end within ``step_timeout_s``.
        """
        self._die(EngineDied("the engine was closed"))
        if self._thread is None or self._ended is None or self._ready is None:
            return
        await asyncio.wait([self._ended], timeout=self._config.step_timeout_s)
        if not self._ended.done():
            raise EngineError(f"the engine's thread did not end within {self._config.step_timeout_s:g} s")
        self._thread.join(timeout=self._config.step_timeout_s)
        self._ready.exception()  # told here at the latest

    def _check_alive(self) -> None:
        if self._died is not None:
            raise EngineDied(str(self._died))

    def _send(self, command: Callable[[Worker], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _call(self, action: Callable[[Worker], None]) -> None:
        """Let the thread run ``action`` between two steps, and wait for it even when cancelled."""
        self._check_alive()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.add(done)
        self._send(lambda worker: worker.call(action, done))
        waiter = asyncio.ensure_future(self._wait(done))
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError:
            await asyncio.wait([waiter])  # bounded as every `_wait`
            waiter.exception()
            raise
        finally:
            self._calls.discard(done)

    async def _wait(self, future: asyncio.Future[T]) -> T:
        """Wait for the thread's answer; a thread that makes no progress is declared dead."""
        limit_s = self._config.step_timeout_s
        while not future.done():
            await asyncio.wait([future], timeout=limit_s)
            busy_since = self._busy_since
            if busy_since is not None and time.monotonic() - busy_since > limit_s:
                self._die(EngineDied(f"a step took longer than {limit_s:g} s"))
        return future.result()

    def _die(self, error: EngineDied) -> None:
        """Fail everything in flight, and tell the thread to end. Only the first call's reason counts."""
        if self._died is None:
            self._died = error
            waiting: list[asyncio.Future[Any]] = [*self._calls, *(job.result for job in self._jobs.values())]
            for future in waiting if self._ready is None else [self._ready, *waiting]:
                settle(future, EngineDied(str(error)))
        self._send(lambda worker: worker.end())

    def _loaded(self, ready: asyncio.Future[None], max_context_tokens: int, vocab_size: int) -> None:
        self.max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
        settle(ready, None)

    def _run(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None], ended: asyncio.Future[None]) -> None:
        """The thread: load, then step until told to end; whatever goes wrong, every caller hears of it."""

        def tell(callback: Callable[..., None], *args: Any) -> None:
            try:
                loop.call_soon_threadsafe(callback, *args)
            except RuntimeError:  # the loop was closed without closing the engine: nobody listens
                pass

        try:
            with torch.inference_mode():
                batch = self._load()
                tell(self._loaded, ready, batch.max_context_tokens, batch.vocab_size)
                worker = Worker(batch, tell)
                while not worker.ended and not loop.is_closed():
                    for command in self._take_commands(worker):
                        command(worker)
                    worker.step()
        except UserError as error:
            tell(settle, ready, error)
            tell(self._die, EngineDied(str(error)))
        except Exception as error:  # noqa: BLE001  (boundary of the thread: every caller is told)
            tell(self._die, EngineDied(f"the engine crashed: {type(error).__name__}: {error}"))
        finally:
            self._busy_since = None
            tell(settle, ended, None)

    def _load(self) -> SlotBatch:
        config = self._config
        if not config.model:
            raise UserError("engine: no model is given: set its path.")
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        return load_batch(
            config.model,
            dtype=resolve_dtype(config.dtype, config.device),
            device=config.device,
            num_slots=config.max_batch_size,
            num_parked=config.parked_prefixes,
            max_context_tokens=config.max_context_tokens,
        )

    def _take_commands(self, worker: Worker) -> list[Callable[[Worker], None]]:
        with self._wake:
            if worker.is_idle and not self._commands:
                self._busy_since = None
                self._wake.wait(timeout=1.0)  # then look whether the loop is still there
            self._busy_since = time.monotonic()
            commands = list(self._commands)
            self._commands.clear()
        return commands
