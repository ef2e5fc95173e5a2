"""The attention model as a copy of the policy on a device of its own: its passes run beside those of the update."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from rollcage.errors import UserError
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import whole
from rollcage.trainer.learner.micro_batches import Rows
from rollcage.trainer.learner.rhythm.attention import Curves, attention_curves
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.row_tensors import gather
from rollcage.trainer.learner.token_logprobs import TokenLogprobs

Found = list[tuple[Rows, Curves]]
"""Rows of a batch, and the curves of all heads on them."""


class AttentionModel:
    """A copy of the policy, which a thread runs. Calls must be made on all ranks; each has a copy of its own.

    Args:
        module: holds the policy, which is whole yet: ZeRO 3 divides it later.
        config: of the learner; `RhythmConfig.device` is not empty, and its placement is learner.

    Raises:
        UserError: the device cannot be used.
    """

    def __init__(self, module: TokenLogprobs, config: LearnerConfig) -> None:
        self._module, self._config = module, config
        self._model = placed(copy.deepcopy(module.policy), config.rhythm.device)

    def start(self, batch: Batch, plan: Sequence[Rows], layers: Sequence[int]) -> Future[Found]:
        """Take the policy's weights as they are now, and begin to run over ``batch``.

        Args:
            batch: the update's.
            plan: this rank's micro-batches.
            layers: numbers of the layers to look at.

        Returns:
            The curves of each micro-batch, R being all its trainable tokens.
        """
        with torch.no_grad():
            for own, weight in zip(self._model.parameters(), self._module.policy.parameters(), strict=True):
                with whole([weight], self._config):
                    own.copy_(weight)
        executor = ThreadPoolExecutor(1, "attention-model")
        try:
            return executor.submit(self._run, batch, plan, layers)
        finally:
            executor.shutdown(wait=False)  # the thread ends with its work

    def _run(self, batch: Batch, plan: Sequence[Rows], layers: Sequence[int]) -> Found:
        return list(curves_of_rows(self._model, self._module, self._config.rhythm, batch, plan, layers))


def placed(policy: Any, device: str) -> Any:
    """Return ``policy`` on the device, only to be read.

    Raises:
        UserError: the device cannot be used.
    """
    try:
        return policy.to(device).requires_grad_(False).eval()
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is no such GPU
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"learner.rhythm.device {device!r} cannot be used: {reason}") from error


def curves_of_rows(
    model: Any, module: TokenLogprobs, config: RhythmConfig, batch: Batch, plan: Sequence[Rows], layers: Sequence[int]
) -> Iterator[tuple[Rows, Curves]]:
    """Run ``model`` over one micro-batch after the other, and yield its rows and the curves of all heads on them.

    Args:
        model: the attention model.
        module: says in which number types.
        config: FAI's and WAAD's windows.
        batch, plan, layers: see `AttentionModel.start`.
    """
    for rows in plan:
        if len(rows) == 0:
            continue
        token_ids, loss_mask = gather(batch.token_ids, batch.loss_mask, rows, model.device)
        with module.precision(model.device):
            curves = attention_curves(
                model,
                token_ids,
                None,
                loss_mask,
                layers,
                window=config.window,
                h_lo=config.h_lo,
                h_hi=config.h_hi,
            )
        yield rows, curves
