"""The vLLM engine: a replica of vLLM in a process of ours, or of an engine server's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcage.errors import MissingExtra, UserError
from rollcage.trainer.child_process import ChildProcess
from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.published_weights import PublishedWeights
from rollcage.trainer.engines.requests import check_request
from rollcage.trainer.engines.served import ServedReplica, read_token
from rollcage.trainer.engines.vllm_options import VllmEngineConfig, worker_environment
from rollcage.trainer.engines.weights_group import WeightsGroup, open_store
from rollcage.trainer.models import find_model
from rollcage.trainer.types import Generation, Request

_PULSE_S = 5.0
"""Seconds between two questions whether the process still makes steps."""
_BROADCAST_TIMEOUT_S = 60.0
"""Longest wait for the other members of a broadcast, for each weight."""


class VllmEngine:
    """One replica (`Engine`) of vLLM, token ids in and token ids out.

    The process is ours, or runs on an engine server (``servers``); the two speak the same way. One that is killed or
    stops answering costs the requests that it had, and no other, and `restart` puts another in its place. It ends when
    this one does, however that ends. Log-probabilities are those of the distribution that was sampled from: at the
    temperature, and unlike the local engine's, renormalised over what top-p and top-k keep. (They agree where both are
    off, as they are in training.)

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
        self._child: ChildProcess | ServedReplica | None = None
        self._started: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._died: str | None = None
        self._publishing = asyncio.Lock()
        self._published = PublishedWeights()
        self._group: WeightsGroup | None = None
        self._closed = False

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        return len(self._live)

    @property
    def pid(self) -> int:
        """Process id of the replica, also the id of its process group; 0 where it is not here."""
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
        if not config.model:
            raise UserError("engine: no model is given: set its path.")
        self._child = await self._open_server() if config.servers else await self._open_process()
        self.max_context_tokens, self._vocab_size = await self._ask("start", config, limit_s=config.load_timeout_s)
        self._group = await self._join_group(self._child)
        self._pulse = asyncio.create_task(self._feel_pulse(), name=f"pulse of engine {self._replica}")

    async def _open_process(self) -> ChildProcess:
        if find_spec("vllm") is None:  # importing it here would take seconds and has side effects
            raise MissingExtra("'vllm' is not installed: run  pip install 'rollcage[vllm]'  (see README for CPUs).")
        find_model(self._config.model)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        self._child = child = ChildProcess(
            f"engine {self._replica}",
            "rollcage.trainer.engines.vllm_worker",
            died=EngineDied,
            environment=worker_environment(self._config, self._replica),
            log=self._log,
        )
        await child.open()
        return child

    async def _open_server(self) -> ServedReplica:
        servers = self._config.servers
        place, index = divmod(self._replica, len(servers))
        token = read_token(Path(self._config.token_file))
        child = ServedReplica(f"engine {self._replica}", servers[index], token)
        await child.open(self._config, place)
        return child

    async def _join_group(self, child: ChildProcess | ServedReplica) -> WeightsGroup | None:
        """Return the group in which weights are broadcast; None where the process reads our memory."""
        backend = self._config.weights
        if backend in ("auto", "shared_memory"):
            with self._published.probe() as (path, content):
                if await self._ask("can_read", path, content):
                    return None
            if backend == "shared_memory":
                raise UserError(f"engine {self._replica} cannot read our memory: set vllm.weights to gloo.")
            backend = "gloo"
        host = child.host if isinstance(child, ServedReplica) else "127.0.0.1"
        size, timeout_s = 1 + self._config.tensor_parallel, _BROADCAST_TIMEOUT_S
        store = open_store(host, 0, timeout_s=timeout_s)
        group, _ = await asyncio.gather(
            asyncio.to_thread(WeightsGroup, store, 0, size, backend=backend, host=host, timeout_s=timeout_s),
            self._ask("join_weights_group", host, store.port, size, backend, timeout_s),
        )
        return group

    async def restart(self) -> None:
        """Put a new process in the place of one that has died, with the newest weights; see `Restartable`."""
        await self._end("it starts anew")
        await self._cancel_tasks()
        if self._closed:
            raise EngineDied("the engine was closed")
        self._died = self._started = self._pulse = self._child = self._group = None
        await self.start()
        async with self._publishing:
            if self._published.policy_version is not None:
                await self._put_in(self._published.policy_version)

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
            await self._published.write(weights, policy_version)
            await self._put_in(policy_version)

    async def _put_in(self, policy_version: int) -> None:
        """Let the process have the weights that were written last."""
        layout = self._published.layout
        await self._ask("check_weights", layout)
        if self._group is None:
            await self._ask("read_weights", self._published.path, layout, policy_version)
        else:
            sending = asyncio.to_thread(self._group.send, self._published.tensors.values())
            receiving = self._ask("receive_weights", layout, policy_version)
            for result in await asyncio.gather(receiving, sending, return_exceptions=True):
                if isinstance(result, BaseException):
                    await self._end(f"engine {self._replica}: {result}")
                    raise EngineDied(self._died or "") from result
        self.policy_version = policy_version

    async def close(self) -> None:
        """End the process; requests in flight get EngineDied. Idempotent."""
        self._closed = True
        await self._end("the engine was closed")
        await self._cancel_tasks()
        await self._end("")  # a process that was just being started
        async with self._publishing:  # what was on its way has failed by now
            self._published.close()

    async def _cancel_tasks(self) -> None:
        for task in (self._started, self._pulse):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

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
