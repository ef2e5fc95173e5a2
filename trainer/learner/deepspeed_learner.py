"""The learner: DeepSpeed ranks in processes of their own, spoken to without blocking the event loop."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.errors import MissingExtra, UserError
from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.rank_process import Rank, RankProcess
from rollcage.trainer.learner.shared_weights import map_weights, open_memory
from rollcage.trainer.learner.statistics import summarize
from rollcage.trainer.models import find_model

DIVISION_FILE = "learner.json"
"""In a checkpoint: how its state is divided among ranks."""


class DeepSpeedLearner:
    """A `Learner` of ``config.num_ranks`` processes, each with a DeepSpeed engine; CPU or GPUs.

    A rank that dies, raises or misses its deadline ends the learner: the call gets `LearnerDied` with the end of the
    rank's log, and all ranks are killed. The ranks also end when this process does, however it ends.

    Args:
        config: what to train, and how.
        checkpoint: folder that `save` wrote, to go on from.
        log_folder: where the ranks' output goes (``learner-rank0.log``, ...); None: nowhere.
    """

    def __init__(
        self, config: LearnerConfig, *, checkpoint: Path | None = None, log_folder: Path | None = None
    ) -> None:
        self._config, self._checkpoint, self._log_folder = config, checkpoint, log_folder
        self._ranks: list[Rank] = []
        self._weights: Weights = {}
        self._lock = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return [rank.pid for rank in self._ranks]

    async def start(self) -> None:
        """Load the model and get ready; idempotent.

        Raises:
            UserError: the model or checkpoint cannot be used.
            LearnerDied: a rank died or was not ready in time.
        """
        if self._ranks:
            return
        config = self._config
        if find_spec("deepspeed") is None:  # importing it here would take a second and its side effects
            raise MissingExtra("'deepspeed' is not installed: run  pip install 'rollcage[train]'.")
        find_model(self._checkpoint or config.model)  # the commonest mistakes, before any process starts
        if self._checkpoint is not None:
            _check_division(self._checkpoint, config)
        if self._log_folder is not None:
            self._log_folder.mkdir(parents=True, exist_ok=True)
        memory = open_memory()
        try:
            await self._open_ranks(memory)
            port = (await self._call("open_store", timeout_s=config.start_timeout_s, ranks=self._ranks[:1]))[0]
            layouts = await self._call("start", config, self._checkpoint, port, timeout_s=config.start_timeout_s)
            self._weights = map_weights(memory, layouts[0])
        except BaseException:
            await self.close()
            raise
        finally:
            os.close(memory)

    async def _open_ranks(self, memory: int) -> None:
        """Add the ranks, ready to be called; rank 0 publishes through ``memory``."""
        config = self._config
        processes: list[RankProcess] = []
        for rank in range(config.num_ranks):
            log = self._log_folder / f"learner-rank{rank}.log" if self._log_folder else None
            processes.append(RankProcess(rank, config.num_ranks, memory, config.num_threads, log))
            self._ranks.append(processes[-1])
        for process in processes:
            await process.open()

    async def train(self, batch: Batch) -> dict[str, float]:
        """Update the policy on ``batch``.

        Returns:
            loss, grad_norm (before clipping), lr, num_tokens (trainable), num_rows_skipped (they have no gradient, and
            are left out of the token statistics), seconds, staleness_mean and _max (over episodes, in policy
            versions), what `CriticEnsemble.judge` names where there are critics, and what `statistics.summarize` names.

        Raises:
            LearnerDied: see the class.
        """
        results = await self._call("train", batch, timeout_s=self._config.call_timeout_s)
        return {**results[0][1], **summarize(totals for totals, _ in results)}

    async def annotations(self) -> list[SampleAnnotations]:
        """Return what the last update had for the tokens of ``config.annotated_samples`` samples."""
        timeout_s = self._config.call_timeout_s
        found: list[SampleAnnotations] = (await self._call("annotations", timeout_s=timeout_s, ranks=self._ranks[:1]))[
            0
        ]
        return found

    async def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities of the batch's tokens under the current weights, 0 where loss_mask is off."""
        result: npt.NDArray[np.float32] = (await self._call("logprobs", batch, timeout_s=self._config.call_timeout_s))[
            0
        ]
        return result

    async def publish(self) -> Weights:
        """Return the current weights in shared memory; the next `publish` or `save` overwrites them."""
        await self._call("publish", timeout_s=self._config.call_timeout_s)
        return self._weights

    async def save(self, folder: Path) -> None:
        """Write DeepSpeed's state, and ``model/`` in transformers' format, which `load_model` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        await self._call("save", folder.absolute(), timeout_s=self._config.call_timeout_s)
        (folder / DIVISION_FILE).write_text(json.dumps(_division(self._config)))

    async def load(self, folder: Path) -> None:
        """Go back to what `save` wrote; training goes on from there bit by bit as it did then (on the CPU).

        Raises:
            UserError: there is no checkpoint there, or it does not fit this configuration.
        """
        _check_division(folder, self._config)
        await self._call("load", folder.absolute(), timeout_s=self._config.call_timeout_s)

    async def close(self) -> None:
        """End the processes; idempotent."""
        ranks, self._ranks = self._ranks, []
        await asyncio.shield(asyncio.gather(*(rank.close() for rank in ranks)))

    async def _call(
        self, method: str, *arguments: Any, timeout_s: float, ranks: Sequence[Rank] | None = None
    ) -> list[Any]:
        """Let all ranks run ``method`` and return what each returns; whatever goes wrong ends the learner."""
        async with self._lock:
            ranks = self._ranks if ranks is None else ranks
            if not ranks:
                raise LearnerDied("the learner is not running: it was not started, or has ended")
            calls = [asyncio.ensure_future(rank.call(method, *arguments)) for rank in ranks]
            try:
                async with asyncio.timeout(timeout_s):
                    return await asyncio.gather(*calls)
            except TimeoutError:
                logs = "".join(f"\nrank {rank.rank}{rank.describe_log()}" for rank in ranks)
                await self.close()
                raise LearnerDied(f"the learner did not answer {method!r} within {timeout_s:g} s{logs}") from None
            except (LearnerDied, UserError):
                await self.close()
                raise
            finally:
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)


def _division(config: LearnerConfig) -> dict[str, Any]:
    """Return what the files of a checkpoint's optimiser state depend on."""
    lora = {"lora_rank": config.lora_rank} if config.lora_rank else {}
    critics = {"num_critics": config.critic.num_critics} if config.needs_critics else {}
    return {
        "num_ranks": config.num_ranks,
        "zero_stage": config.zero_stage,
        "dtype": config.dtype,
        **lora,
        **critics,
    }


def _check_division(folder: Path, config: LearnerConfig) -> None:
    try:
        written = json.loads((folder / DIVISION_FILE).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a complete checkpoint: {DIVISION_FILE}: {error}") from error
    if written != _division(config):
        raise UserError(
            f"checkpoint {folder} was written with {written}, this run has {_division(config)}: use the same."
        )
