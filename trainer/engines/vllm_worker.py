"""The process of one vLLM replica: ``python -m rollcage.trainer.engines.vllm_worker SOCKET`` (its descriptor)."""

from __future__ import annotations

import math
import queue
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollcage.errors import UserError
from rollcage.trainer.engines.base import EngineError
from rollcage.trainer.types import Generation, Request
from rollcage.trainer.wire import listen, pack

if TYPE_CHECKING:
    from rollcage.trainer.engines.vllm_options import VllmEngineConfig
    from rollcage.trainer.learner.shared_weights import Layout


@dataclass(slots=True)
class _Running:
    """A request on its way, and the call that waits for it."""

    number: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def generation(self, reason: Literal["stop", "length", "abort"]) -> Generation:
        """Return what has been made."""
        return Generation(self.token_ids, self.logprobs, self.versions, reason)


class VllmWorker:
    """Steps vLLM's engine, and between two steps does what the parent asks for.

    Args:
        reply: (call's number, outcome, value) -> None, as `Line` wants them.
        host: this machine's address as the parent sees it.
    """

    def __init__(self, reply: Callable[[int, str, Any], None], host: str = "127.0.0.1") -> None:
        self._reply, self._host = reply, host
        self._running: dict[str, _Running] = {}
        self._engine: Any = None
        self._expected: Any = None
        self._paused = False
        self._has_diverged = False
        self._policy_version = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do before the next call."""
        return self._paused or not self._running

    def handle(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Do what one call asks for, and answer it; that of `generate` is answered when it is through."""
        try:
            if method == "generate":
                self._generate(number, *arguments)
            else:
                self._reply(number, "ok", getattr(self, method)(*arguments))
        except EngineError as error:
            self._reply(number, "refused", error)
        except UserError as error:
            self._reply(number, "refused", UserError(str(error)))

    def step(self) -> None:
        """Sample one token of each request that vLLM lets run, and answer those that are through."""
        for output in self._engine.step():
            job = self._running.get(output.request_id)
            if job is None:
                continue
            (made,) = output.outputs
            job.token_ids += made.token_ids
            logprobs = [position[token].logprob for token, position in zip(made.token_ids, made.logprobs, strict=True)]
            self._has_diverged |= not all(map(math.isfinite, logprobs))
            job.logprobs += logprobs
            job.versions += [self._policy_version] * len(made.token_ids)
            if output.finished:
                del self._running[output.request_id]
                self._answer(job, made.finish_reason)

    def start(self, config: VllmEngineConfig) -> tuple[int, int]:
        """Load the model; returns the longest context and the size of the vocabulary.

        Raises:
            UserError: there is no such model, or vLLM does not know its kind.
        """
        import torch
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        from rollcage.trainer.engines.published_weights import ExpectedWeights
        from rollcage.trainer.models import find_model, load_config, resolve_dtype, save_unpacked

        source = find_model(config.model)
        on_cpu = current_platform.device_type == "cpu"
        model_config = load_config(source)
        self._expected = ExpectedWeights(source)
        limit = getattr(model_config.get_text_config(), "max_position_embeddings", None)
        max_context_tokens = min(config.max_context_tokens, limit or config.max_context_tokens)
        if on_cpu and config.num_threads:
            torch.set_num_threads(config.num_threads)
        with tempfile.TemporaryDirectory() as scratch:
            if source.suffix == ".gguf":
                save_unpacked(source, Path(scratch))
                source = Path(scratch)
            try:
                arguments = EngineArgs(
                    model=str(source),
                    skip_tokenizer_init=True,
                    generation_config="vllm",  # not the model's own: the request says how tokens are drawn
                    dtype=resolve_dtype(config.dtype, "cpu" if on_cpu else "cuda"),
                    max_model_len=max_context_tokens,
                    max_num_seqs=config.max_batch_size,
                    tensor_parallel_size=config.tensor_parallel,
                    gpu_memory_utilization=config.gpu_memory_utilization,
                    kv_cache_memory_bytes=round(config.cache_gib * 2**30) if on_cpu else None,
                    enforce_eager=not config.compile,
                    enable_prefix_caching=True,
                    async_scheduling=False,  # a step ends before the next command: each token's version is certain
                    logprobs_mode="processed_logprobs",
                    worker_extension_cls="rollcage.trainer.engines.vllm_weights.WeightsReader",
                    disable_log_stats=True,
                )
                self._engine = LLMEngine.from_engine_args(arguments)
            except (ValueError, NotImplementedError) as error:  # vLLM's, and pydantic's, word for bad arguments
                traceback.print_exc()
                reason = " ".join(str(error).split())[:300]
                raise UserError(f"{config.model}: vLLM cannot run it here: {reason}") from error
        return max_context_tokens, int(model_config.get_text_config().vocab_size)

    def ping(self) -> None:
        """Answer, between two steps."""

    def pause(self) -> None:
        """Make no steps."""
        self._paused = True

    def resume(self) -> None:
        """Make steps again."""
        self._paused = False

    def abort(self, request_id: str) -> None:
        """End a request and answer it with what it has made."""
        job = self._take_out(request_id)
        if job is not None:
            self._answer(job, "abort")

    def cancel(self, request_id: str) -> None:
        """End a request that nobody waits for."""
        self._take_out(request_id)

    def can_read(self, path: str, content: bytes) -> bool:
        """Return whether the parent's memory at ``path`` can be read from here, which ``content`` proves."""
        try:
            with open(path, "rb") as file:
                return file.read(len(content)) == content
        except OSError:
            return False

    def check_weights(self, layout: Layout) -> None:
        """Raise EngineError unless names and shapes are the model's."""
        self._expected.check({entry.name: entry.shape for entry in layout.entries})

    def read_weights(self, path: str, layout: Layout, policy_version: int) -> None:
        """Put the weights in that lie at ``path``, and drop what earlier ones have computed."""
        self._engine.collective_rpc("read_shared_weights", args=(path, layout))
        self._forget(policy_version)

    def join_weights_group(self, trainer: str, port: int, size: int, backend: str, timeout_s: float) -> None:
        """Join the group in which the parent broadcasts weights."""
        arguments = (trainer, port, size, backend, self._host, timeout_s)
        self._engine.collective_rpc("join_weights_group", args=arguments)

    def receive_weights(self, layout: Layout, policy_version: int) -> None:
        """Put the weights in that the parent broadcasts, and drop what earlier ones have computed."""
        self._engine.collective_rpc("receive_weights", args=(layout,))
        self._forget(policy_version)

    def _forget(self, policy_version: int) -> None:
        """Drop keys and values of earlier weights; the next token is the new version's."""
        self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._has_diverged:
            self._engine.collective_rpc("clear_cache")
            self._has_diverged = False
        self._policy_version = policy_version

    def _generate(self, number: int, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=request.seed % 2**63,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=sorted(request.stop_ids),
            ignore_eos=True,  # only the request's own stop ids count
            logprobs=0,  # the sampled token's alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        try:
            self._engine.add_request(request.id, tokens_input(list(request.prompt_ids)), parameters)
        except ValueError as error:
            raise EngineError(f"vLLM refuses the request: {error}") from error
        self._running[request.id] = _Running(number)

    def _take_out(self, request_id: str) -> _Running | None:
        job = self._running.pop(request_id, None)
        if job is not None:
            self._engine.abort_request([request_id])
        return job

    def _answer(self, job: _Running, reason: str) -> None:
        if not all(map(math.isfinite, job.logprobs)):
            self._reply(job.number, "refused", EngineError("a log-probability is not finite: the policy has diverged"))
            return
        known: dict[str, Literal["stop", "length", "abort"]] = {"stop": "stop", "length": "length", "abort": "abort"}
        if reason not in known:
            self._reply(job.number, "refused", EngineError(f"vLLM ended the request: {reason}"))
            return
        self._reply(job.number, "ok", job.generation(known[reason]))


def main() -> None:
    """Serve until the parent closes its end or is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    calls = listen(connection)
    host = "127.0.0.1" if connection.family == socket.AF_UNIX else connection.getsockname()[0]
    worker = VllmWorker(lambda *message: connection.sendall(pack(message)), host)
    try:
        while True:
            if worker.is_idle:
                worker.handle(*calls.get())
            try:
                while True:
                    worker.handle(*calls.get_nowait())
            except queue.Empty:
                pass
            if not worker.is_idle:
                worker.step()
    except Exception:  # noqa: BLE001  (the process's boundary: its log tells why, its end tells the parent)
        traceback.print_exc()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
