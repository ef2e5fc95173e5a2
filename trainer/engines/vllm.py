"""The vLLM engine: a replica of vLLM in a process of ours; weights reach it through shared memory."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcage.errors import MissingExtra, UserError
from rollcage.trainer.child_process import ChildProcess
from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.published_weights import PublishedWeights
from rollcage.trainer.engines.requests import check_request
from rollcage.trainer.models import find_model
from rollcage.trainer.types import Generation, Request

_PULSE_S = 5.0
"""Seconds between two questions whether the process still makes steps."""


@dataclass(frozen=True)
class VllmOptions:
    """What only vLLM has."""

    tensor_parallel: int = 1
    """GPUs that one replica is divided among."""
    first_gpu: int = 0
    """The first replica's first GPU, counted among the visible ones; the next replica takes the next ones."""
    gpu_memory_utilization: float = 0.85
    """Share of a GPU's memory that a replica takes (on a GPU)."""
    cache_gib: float = 1.0
    """Memory for keys and values (on the CPU), in GiB."""
    compile: bool = False
    """Let vLLM compile the model and capture CUDA graphs: a slow start, then faster steps."""


@dataclass(frozen=True)
class VllmEngineConfig(VllmOptions):
    """Configuration of `VllmEngine`; the fields that the local engine has too mean the same."""

    model: str = ""
    max_batch_size: int = 64
    max_context_tokens: int = 2048
    dtype: str = "float32"
    num_threads: int = 1
    load_timeout_s: float = 600.0
    step_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        least = {"max_batch_size": 1, "max_context_tokens": 2, "num_threads": 0, "tensor_parallel": 1, "first_gpu": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"engine: {name} is {getattr(self, name)}, it must be at least {bound}.")
        for name in ("load_timeout_s", "step_timeout_s", "cache_gib", "gpu_memory_utilization"):
            if not getattr(self, name) > 0:
                raise UserError(f"engine: {name} is {getattr(self, name)}, it must be above 0.")


class VllmEngine:
    """One replica (`Engine`) of vLLM, token ids in and token ids out.

    A process that is killed or stops answering costs the requests that it had, and no other; it ends when this one
    does, however that ends. Log-probabilities are those of the distribution that was sampled from: at the temperature,
    and unlike the local engine's, renormalised over what top-p and top-k keep. (They agree where both are off, as they
    are in training.)

    New weights are put in between two steps; keys and values made by earlier ones are dropped, prefix cache included,
    and those of running requests computed again. So every token is drawn as its version's weights see everything
    before it.

    Args:
        config: what to run.
        replica: which of the replicas this is, for its GPUs and its messages.
        log: file for vLLM's output; None: nowhere.
    """

    def __init__(self, config: VllmEngineConfig, *, replica: int = 0, log: Path | None = None) -> None:
        """Nothing is started before `start`."""
        self.policy_version = 0
        self.max_batch_size = config.max_batch_size
        self.max_context_tokens = config.max_context_tokens
        self._config, self._replica, self._log = config, replica, log
        self._vocab_size = 0
        self._live: set[str] = set()
        self._child: ChildProcess | None = None
        self._started: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._died: str | None = None
        self._publishing = asyncio.Lock()
        self._published = PublishedWeights()

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return len(self._live)

    @property
    def pid(self) -> int:
        """Process id of the replica, also the id of its process group; 0 where it does not run."""
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Start the process and load the model; idempotent.

        Raises:
            UserError: there is no such model, or vLLM cannot run it here.
            MissingExtra: vLLM is not installed.
            EngineDied: the process ended, or was not ready within ``load_timeout_s``, or the engine was closed.
        """
        self._check_alive()
        if self._started is None:
            self._started = asyncio.create_task(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        config = self._config
        if find_spec("vllm") is None:  # importing it here would take seconds and has side effects
            raise MissingExtra("'vllm' is not installed: run  pip install 'rollcage[vllm]'  (see README for CPUs).")
        if not config.model:
            raise UserError("engine: no model is given: set its path.")
        find_model(config.model)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        self._child = ChildProcess(
            f"engine {self._replica}",
            "rollcage.trainer.engines.vllm_worker",
            died=EngineDied,
            environment=_environment(config, self._replica),
            log=self._log,
        )
        await self._child.open()
        self.max_context_tokens, self._vocab_size = await self._ask("start", config, limit_s=config.load_timeout_s)
        self._pulse = asyncio.create_task(self._feel_pulse(), name=f"pulse of engine {self._replica}")

    async def generate(self, request: Request) -> Generation:
        """Sample until a stop id or a limit; see `Engine.generate`."""
        self._check_alive()
        if self._pulse is None or self._child is None:
            raise EngineError("the engine has not been started: call start() first")
        if request.id in self._live:
            raise EngineError(f"request id {request.id!r} is in use")
        request = replace(request, prompt_ids=[int(token) for token in request.prompt_ids])
        check_request(request, max_context_tokens=self.max_context_tokens, vocab_size=self._vocab_size)
        self._live.add(request.id)
        child = self._child
        try:
            # No deadline of its own: `_feel_pulse` ends a process that does not get on, and with it this call.
            generation: Generation = await child.call("generate", request)
            return generation
        except EngineDied as error:
            self._died = self._died or str(error)
            raise EngineDied(self._died) from None
        except asyncio.CancelledError:
            self._tell("cancel", request.id)
            raise
        finally:
            self._live.discard(request.id)

    async def abort(self, request_id: str) -> None:
        """End a request early; see `Engine.abort`."""
        if request_id in self._live:
            await self._ask("abort", request_id)

    async def pause(self) -> None:
        """Stop sampling; on return no step is running."""
        await self._ask("pause")

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._ask("resume")

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Copy ``weights`` and put them in between two steps; see `Engine.publish`.

        Cancelling it still waits for a copy that has begun: the caller may overwrite the weights afterwards.

        Raises:
            EngineError: names or shapes are not the model's; the old weights stay.
        """
        self._check_alive()
        work = asyncio.ensure_future(self._publish(weights, policy_version))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # bounded as every `_ask`
            if not work.cancelled():
                work.exception()
            raise

    async def _publish(self, weights: Weights, policy_version: int) -> None:
        async with self._publishing:
            path, layout = await self._published.write(weights)
            await self._ask("publish", path, layout, policy_version)
            self.policy_version = policy_version

    async def close(self) -> None:
        """End the process; requests in flight get EngineDied. Idempotent."""
        await self._end("the engine was closed")
        for task in (self._started, self._pulse):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        async with self._publishing:  # what was on its way has failed by now
            self._published.close()

    async def _end(self, reason: str) -> None:
        """Kill the process. Only the first call's reason counts."""
        self._died = self._died or reason
        if self._child is not None:
            await asyncio.shield(self._child.close())

    def _check_alive(self) -> None:
        if self._died is not None:
            raise EngineDied(self._died)

    async def _ask(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        """Call the process; one that does not answer in time is killed."""
        self._check_alive()
        if self._child is None:
            raise EngineError("the engine has not been started: call start() first")
        limit_s = limit_s or self._config.step_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._child.call(method, *arguments)
        except TimeoutError:
            log = self._child.describe_log()
            await self._end(f"engine {self._replica} did not answer {method!r} within {limit_s:g} s{log}")
            raise EngineDied(self._died or "") from None
        except EngineDied as error:
            await self._end(str(error))
            raise EngineDied(self._died or "") from None

    def _tell(self, method: str, *arguments: Any) -> None:
        """Call the process without waiting for it: for a caller that is being cancelled."""
        child = self._child
        if child is not None and self._died is None:
            task = asyncio.ensure_future(child.call(method, *arguments))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _feel_pulse(self) -> None:
        """Ask again and again whether steps are made: the deadline of all that runs."""
        try:
            while True:
                await self._ask("ping")
                await asyncio.sleep(min(_PULSE_S, self._config.step_timeout_s))
        except EngineError:
            pass  # it died, and whoever waits has been told


def _environment(config: VllmEngineConfig, replica: int) -> dict[str, str]:
    """Return the environment variables that vLLM has for what is no argument of its."""
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in our process: one to watch, one to kill
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    if not config.compile:
        environment["TORCHDYNAMO_DISABLE"] = "1"  # else the first token of a log-probability compiles for half a minute
    if config.num_threads:
        environment["OMP_NUM_THREADS"] = str(config.num_threads)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    first = config.first_gpu + replica * config.tensor_parallel
    wanted = range(first, first + config.tensor_parallel)
    names = visible.split(",") if visible else [str(index) for index in range(wanted.stop)]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(names[index] for index in wanted if index < len(names))
    return environment
