"""The learner: DeepSpeed ranks, and what is apart from them, in processes; nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollcage.errors import MissingExtra, UserError
from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.rank_process import Rank, RankProcess
from rollcage.trainer.learner.roles import ATTENTION, CRITICS, POLICY
from rollcage.trainer.learner.shared_weights import map_weights, open_memory
from rollcage.trainer.learner.statistics import summarize
from rollcage.trainer.models import find_model

if TYPE_CHECKING:  # imports all of a rank
    from rollcage.trainer.learner.deepspeed_rank import RankState

DIVISION_FILE = "learner.json"
"""In a checkpoint: how its state is divided among ranks."""


class Ask(NamedTuple):
    """A method that each of ``ranks`` is to run."""

    ranks: Sequence[Rank]
    method: str
    arguments: tuple[Any, ...] = ()


class DeepSpeedLearner:
    """A `Learner` of ``config.num_ranks`` processes, each with a DeepSpeed engine; CPU or GPUs.

    Critics and attention model may have processes of their own (``config.apart``), which work beside these.

    A process that dies, raises or misses its deadline ends the learner: the call gets `LearnerDied` with the end of
    its log, and all are killed. They also end when this process does, however it ends.

    Args:
        config: what to train, and how.
        checkpoint: folder that `save` wrote, to go on from.
        log_folder: where the processes' output goes (``learner-rank0.log``, ...); None: nowhere.
    """

    def __init__(
        self, config: LearnerConfig, *, checkpoint: Path | None = None, log_folder: Path | None = None
    ) -> None:
        self._config, self._checkpoint, self._log_folder = config, checkpoint, log_folder
        self._groups: dict[str, list[Rank]] = {}
        self._weights: Weights = {}
        self._state: RankState | None = None
        """As it was after the last `train` or `load`, where something is apart from the ranks."""
        self._is_published = False
        self._lock = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, then of what is apart from them."""
        return [rank.pid for group in self._groups.values() for rank in group]

    @property
    def _ranks(self) -> list[Rank]:
        return self._groups.get(POLICY, [])

    @property
    def _critics(self) -> list[Rank]:
        return self._groups.get(CRITICS, [])

    @property
    def _attention(self) -> list[Rank]:
        return self._groups.get(ATTENTION, [])

    async def start(self) -> None:
        """Load the model and get ready; idempotent.

        Raises:
            UserError: the model or checkpoint cannot be used.
            LearnerDied: a rank died or was not ready in time.
        """
        if self._groups:
            return
        config, checkpoint = self._config, self._checkpoint
        if find_spec("deepspeed") is None:  # importing it here would take a second and its side effects
            raise MissingExtra("'deepspeed' is not installed: run  pip install 'rollcage[train]'.")
        find_model(checkpoint or config.model)  # the commonest mistakes, before any process starts
        if checkpoint is not None:
            _check_division(checkpoint, config)
        if self._log_folder is not None:
            self._log_folder.mkdir(parents=True, exist_ok=True)
        memory, self._is_published = open_memory(), False
        try:
            await self._open_ranks(memory)
            async with self._calling("start", config.start_timeout_s):
                ports = await self._call(Ask(self._ranks[:1], "open_store"), Ask(self._critics[:1], "open_store"))
                [layouts] = await self._call(Ask(self._ranks, "start", (config, checkpoint, ports[0][0])))
                await self._read_state()
                if self._state is not None:
                    critics = replace(config, num_ranks=max(1, len(self._critics)))
                    await self._call(
                        Ask(self._critics, "start", (critics, checkpoint, *ports[1], self._state.num_tokens)),
                        Ask(self._attention, "start", (config, checkpoint, layouts[0])),
                    )
            self._weights = map_weights(memory, layouts[0])
        except BaseException:
            await self.close()
            raise
        finally:
            os.close(memory)

    async def _open_ranks(self, memory: int) -> None:
        """Add all processes, ready to be called; the policy's rank 0 publishes through ``memory``."""
        config = self._config
        processes: list[RankProcess] = []
        for role, num in {POLICY: config.num_ranks, **config.apart}.items():
            group = self._groups.setdefault(role, [])
            gpus = config.critic.gpus if role == CRITICS else ""
            for rank in range(num):
                log = self._log_folder / f"{role.replace(' ', '-')}{rank}.log" if self._log_folder else None
                processes.append(RankProcess(role, rank, num, memory, config.num_threads, log, gpus))
                group.append(processes[-1])
        for process in processes:
            await process.open()

    async def train(self, batch: Batch) -> dict[str, float]:
        """Update the policy on ``batch``.

        Returns:
            loss, grad_norm (before clipping), lr, num_tokens (trainable), num_rows_skipped (they have no gradient, and
            are left out of the token statistics), seconds, staleness_mean and _max (over episodes, in policy
            versions), what `CriticEnsemble.judge` names where there are critics, and what `statistics.summarize` names;
            with processes apart ``wait_seconds``, which the ranks waited for these with nothing else to do.

        Raises:
            LearnerDied: see the class.
        """
        async with self._calling("train", self._config.call_timeout_s):
            if self._state is None:  # all in one call: a rank that dies meanwhile is missed at once
                update: tuple[Any, ...] = (None, None, batch)
            else:
                version, _, heads = self._state
                reads = [] if self._config.warms_up(version) else self._attention
                if reads and not self._is_published:
                    await self._publish()
                _, judged, read = await self._call(
                    Ask(self._ranks, "begin", (batch,)),
                    Ask(self._critics, "judge", (batch, version)),
                    Ask(reads, "read", (batch, version, heads)),
                )
                update = (*(judged[:1] or [None]), *(read or [None]))
            [results] = await self._call(Ask(self._ranks, "train", update))
            self._is_published = False
            if self._state is not None:
                await self._read_state()
        return {**results[0][1], **summarize(totals for totals, _ in results)}

    async def annotations(self) -> list[SampleAnnotations]:
        """Return what the last update had for the tokens of ``config.annotated_samples`` samples."""
        async with self._calling("annotations", self._config.call_timeout_s):
            [[found]] = await self._call(Ask(self._ranks[:1], "annotations"))
        annotations: list[SampleAnnotations] = found
        return annotations

    async def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities of the batch's tokens under the current weights, 0 where loss_mask is off."""
        async with self._calling("logprobs", self._config.call_timeout_s):
            [results] = await self._call(Ask(self._ranks, "logprobs", (batch,)))
        logprobs: npt.NDArray[np.float32] = results[0]
        return logprobs

    async def publish(self) -> Weights:
        """Return the current weights in shared memory; the next `publish` or `save` overwrites them."""
        async with self._calling("publish", self._config.call_timeout_s):
            return await self._publish()

    async def _publish(self) -> Weights:
        """Publish, and let the attention model take what there is then, where it has a process of its own."""
        await self._call(Ask(self._ranks, "publish"))
        weights = await self._hand_over()
        self._is_published = True
        return weights

    async def _hand_over(self) -> Weights:
        """Give what the ranks have published to the attention model, and return it."""
        await self._call(Ask(self._attention, "take"))
        return self._weights

    async def save(self, folder: Path) -> None:
        """Write DeepSpeed's state, and ``model/`` in transformers' format, which `load_model` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        async with self._calling("save", self._config.call_timeout_s):
            whole = (folder.absolute(),)
            await self._call(Ask(self._ranks, "save", whole), Ask(self._critics, "save", whole))
        (folder / DIVISION_FILE).write_text(json.dumps(_division(self._config)))

    async def load(self, folder: Path) -> None:
        """Go back to what `save` wrote; training goes on from there bit by bit as it did then (on the CPU).

        Raises:
            UserError: there is no checkpoint there, or it does not fit this configuration.
        """
        _check_division(folder, self._config)
        async with self._calling("load", self._config.call_timeout_s):
            whole = (folder.absolute(),)
            await self._call(Ask(self._ranks, "load", whole), Ask(self._critics, "load", whole))
            self._is_published = False
            await self._read_state()

    async def close(self) -> None:
        """End the processes; idempotent."""
        groups, self._groups = self._groups, {}
        await asyncio.shield(asyncio.gather(*(rank.close() for group in groups.values() for rank in group)))

    async def _read_state(self) -> None:
        if self._critics or self._attention:
            [[self._state]] = await self._call(Ask(self._ranks[:1], "state"))

    @asynccontextmanager
    async def _calling(self, what: str, timeout_s: float) -> AsyncIterator[None]:
        """Have the processes for a while; whatever goes wrong, or lasts too long, ends the learner."""
        async with self._lock:
            if not self._groups:
                raise LearnerDied("the learner is not running: it was not started, or has ended")
            try:
                async with asyncio.timeout(timeout_s):
                    yield
            except TimeoutError:
                ranks = [rank for group in self._groups.values() for rank in group]
                logs = "".join(f"\n{rank.name}{rank.describe_log()}" for rank in ranks)
                await self.close()
                raise LearnerDied(f"the learner did not answer {what!r} within {timeout_s:g} s{logs}") from None
            except (LearnerDied, UserError):
                await self.close()
                raise

    async def _call(self, *asks: Ask) -> list[list[Any]]:
        """Let all that are asked work at the same time, and return what each of each group returns."""
        calls = [[asyncio.ensure_future(rank.call(ask.method, *ask.arguments)) for rank in ask.ranks] for ask in asks]
        flat = [call for group in calls for call in group]
        try:
            await asyncio.gather(*flat)
            return [[call.result() for call in group] for group in calls]
        finally:
            for call in flat:
                call.cancel()
            await asyncio.gather(*flat, return_exceptions=True)


def _division(config: LearnerConfig) -> dict[str, Any]:
    """Return what the files of a checkpoint's optimiser state depend on."""
    lora = {"lora_rank": config.lora_rank} if config.lora_rank else {}
    critics = {"num_critics": config.critic.num_critics} if config.needs_critics else {}
    num_critic_ranks = config.apart.get(CRITICS, config.num_ranks)
    return {
        "num_ranks": config.num_ranks,
        "zero_stage": config.zero_stage,
        "dtype": config.dtype,
        **lora,
        **critics,
        **({"num_critic_ranks": num_critic_ranks} if num_critic_ranks != config.num_ranks else {}),
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
