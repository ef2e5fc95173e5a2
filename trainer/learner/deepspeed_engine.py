"""What is DeepSpeed's own: how ranks meet, how the engine is built and stepped, how divided weights become whole."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollcage.trainer.learner.config import LearnerConfig


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
    """Return the DeepSpeed engine around ``module``, with AdamW and a linear warm-up."""
    import deepspeed

    matrices = [weight for weight in module.parameters() if weight.ndim >= 2]
    others = [weight for weight in module.parameters() if weight.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=config.lr,
        betas=config.betas,
        fused=True,
    )
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        lr_scheduler=_schedule(config),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # `backward` sets the boundaries
            "gradient_clipping": 0.0 if _clips_itself(config) else config.max_grad_norm,
            "zero_optimization": {"stage": config.zero_stage},
            "zero_allow_untested_optimizer": True,
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
    """Yield parameters and saved buffers under their names in ``state_dict``, tied ones once."""
    parameters = dict(policy.named_parameters())
    yield from parameters.items()
    tied = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    saved = policy.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in policy.named_buffers() if name in saved and name not in tied)


@contextmanager
def whole(weight: Tensor, config: LearnerConfig) -> Iterator[Tensor]:
    """Give the whole of a weight that ZeRO 3 divides among the ranks; all ranks must ask, for one after the other."""
    if config.zero_stage < 3:
        yield weight.detach()
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters([weight]):
        yield weight.detach()


def _schedule(config: LearnerConfig) -> Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]:
    """Linear warm-up, then, where ``decay_steps`` says so, a linear fall."""

    def share(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        if not config.decay_steps:
            return 1.0
        return max(0.0, 1.0 - (step - config.warmup_steps) / config.decay_steps)

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def _clips_itself(config: LearnerConfig) -> bool:
    """Return whether DeepSpeed leaves plain float32 gradients on the weights and tells nobody their norm."""
    return config.zero_stage == 0 and config.dtype == "float32"
