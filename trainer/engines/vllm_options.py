"""Configuration of the vLLM engine, and what a replica's process finds in its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from rollcage.errors import UserError


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
    servers: tuple[str, ...] = ()
    """Addresses of engine servers (`rollcage engine`), HOST:PORT or unix:PATH; replicas take them in turn. Empty:
    processes of ours on this machine."""
    token_file: str = ""
    """File with the servers' token."""
    weights: Literal["auto", "shared_memory", "gloo", "nccl"] = "auto"
    """How a replica gets weights: from memory that it shares with us (same machine and user), or by a collective
    broadcast through main memory (gloo) or from GPU to GPU (nccl; has never been run: there was no GPU to try it on).
    auto: shared memory where the replica can read it, else gloo."""


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
        if self.servers and not self.token_file:
            raise UserError("engine: vllm.servers needs vllm.token_file, the file that `rollcage engine` was given.")


def worker_environment(config: VllmEngineConfig, place: int) -> dict[str, str]:
    """Return the environment variables that vLLM has for what is no argument of its.

    Args:
        config: of the replica.
        place: which of the replicas on its machine it is, for its GPUs.
    """
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
    first = config.first_gpu + place * config.tensor_parallel
    wanted = range(first, first + config.tensor_parallel)
    names = visible.split(",") if visible else [str(index) for index in range(wanted.stop)]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(names[index] for index in wanted if index < len(names))
    return environment
