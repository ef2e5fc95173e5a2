"""What is DeepSpeed's own: how ranks meet, how the engine is built and stepped, how divided weights become whole."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.lora import base_name


def join_ranks(rank: int, world_size: int, store: TCPStore, timeout_s: float) -> None:
    """Join the process group through ``store``: NCCL where there is a GPU for each rank, else gloo on the CPU."""
    on_gpu = torch.cuda.device_count() >= world_size
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import deepspeed

    # DeepSpeed would compile a kernel (half a minute) for a collective of inference, which also puts files in /dev/shm.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ["MASTER_PORT"] = str(store.port)  # DeepSpeed wants to see it
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    deepspeed.init_distributed()


def make_engine(module: nn.Module, config: LearnerConfig) -> Any:
    """Return the DeepSpeed engine around ``module``, with AdamW and a schedule of its learning rate."""
    import deepspeed

    trained = [weight for weight in module.parameters() if weight.requires_grad]
    matrices = [weight for weight in trained if weight.ndim >= 2]
    others = [weight for weight in trained if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        fused=True,
    )
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        lr_scheduler=schedule(config),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # `backward` sets the boundaries
            "gradient_clipping": 0.0 if _clips_itself(config) else config.max_grad_norm,
            "zero_optimization": {"stage": config.zero_stage, **_offload(config)},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # its own would be compiled first, and differs from torch's
            "bf16": {"enabled": config.dtype == "bfloat16"},
            "steps_per_print": None,
        },
    )
    return engine


def backward(engine: Any, loss: Tensor, *, is_last: bool) -> None:
    """Add the gradient of ``loss``, averaged over ranks; the last call before `optimizer_step` says so.

    The forward pass of the last call must come after the backward pass of the one before.
    """
    engine.set_gradient_accumulation_boundary(is_last)
    engine.backward(loss)


def optimizer_step(engine: Any, config: LearnerConfig) -> float:
    """Clip the gradient and step; returns the gradient's global norm before clipping.

    Raises:
        FloatingPointError: the gradient is not finite.
    """
    if _clips_itself(config):
        norm = float(nn.utils.clip_grad_norm_(engine.module.parameters(), config.max_grad_norm or math.inf))
        if math.isfinite(norm):
            engine.step()
    else:
        engine.step()
        norm = float(engine.get_global_grad_norm())
    if not math.isfinite(norm):
        raise FloatingPointError(f"the gradient's norm is {norm}: go back to the last checkpoint with a lower lr")
    return norm


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of a CPU tensor over all ranks."""
    if torch.distributed.get_world_size() == 1:
        return tensor
    on_device = tensor.cuda() if torch.distributed.get_backend() == "nccl" else tensor.clone()
    torch.distributed.all_reduce(on_device)
    return on_device.cpu()


def named_weights(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and saved buffers under their names in ``state_dict``, tied ones once; adapters have none."""
    parameters = dict(policy.named_parameters())
    tied = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    saved = policy.state_dict(keep_vars=True)
    buffers = ((name, buffer) for name, buffer in policy.named_buffers() if name in saved and name not in tied)
    for name, weight in itertools.chain(parameters.items(), buffers):
        if own := base_name(name):
            yield own, weight


@contextmanager
def whole(weights: Sequence[Tensor], config: LearnerConfig) -> Iterator[None]:
    """Have weights that ZeRO 3 divides among the ranks whole for a while; all ranks must ask for the same."""
    if config.zero_stage < 3:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(weights)):
        yield


def schedule(config: LearnerConfig) -> Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]:
    """Linear warm-up, then, where ``decay_steps`` says so, a fall that is linear or half a cosine wave."""

    def share(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        if not config.decay_steps:
            return 1.0
        done = min(1.0, (step - config.warmup_steps) / config.decay_steps)
        left = 1.0 - done if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return config.min_lr_share + (1.0 - config.min_lr_share) * left

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def _offload(config: LearnerConfig) -> dict[str, Any]:
    """What of ZeRO's state waits in the host's memory: see `LearnerConfig.offload`."""
    waits = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    parts = {"none": (), "optimizer": ("offload_optimizer",), "all": ("offload_optimizer", "offload_param")}
    return {part: dict(waits) for part in parts[config.offload]}


def _clips_itself(config: LearnerConfig) -> bool:
    """Return whether DeepSpeed leaves plain float32 gradients on the weights and tells nobody their norm."""
    return config.zero_stage == 0 and config.dtype == "float32"
