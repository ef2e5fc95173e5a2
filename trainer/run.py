"""One run from configuration to report: evaluate, train with checkpoints, evaluate again, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rollcage.envs import TextEnv, make
from rollcage.envs.placements import make_placement
from rollcage.envs.placements.base import EnvConfig, Placement
from rollcage.errors import RollcageError, UserError, unwrap
from rollcage.monitor.live import Live
from rollcage.monitor.report import write_report
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store.vocabulary import write_vocabulary
from rollcage.sandbox.opening import measured_by
from rollcage.trainer.checkpoints import newest_checkpoint, read_state, remove_partial, write_checkpoint
from rollcage.trainer.config import TrainConfig, read_config, write_config
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.evaluation.held_out import HeldOut
from rollcage.trainer.garbage import rare_collections
from rollcage.trainer.learner.base import Learner, LearnerDied
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner
from rollcage.trainer.loop import Parts, Progress, train
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.pause import Pause
from rollcage.trainer.progress import ProgressLine
from rollcage.trainer.rollout.collector import GREEDY
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.episode import declared_s
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.record import trajectory_to_json
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.tasks import TaskOrder
from rollcage.trainer.run_actions import RunActions
from rollcage.trainer.types import Sampling, Trajectory

if TYPE_CHECKING:
    from rollcage.trainer.cluster.cluster import RayCluster


class Run:
    """One training run in one folder.

    Args:
        folder: the run folder.
        config: what to do.
        command: the command that reproduces the run, for its report.
    """

    def __init__(self, folder: Path, config: TrainConfig, command: str) -> None:
        self.folder, self.config, self._command = folder, config, command
        self._env = EnvConfig(config.env.id, {**config.env.args, "split": config.env.split})
        inner = make(self._env.env_id, **self._env.kwargs).unwrapped
        if not isinstance(inner, TextEnv):
            raise UserError(f"{config.env.id}: it has no task set to train on: derive it from rollcage.envs.TextEnv.")
        self._rollout = config.rollout.allowing(declared_s(inner.metadata))
        self._order = TaskOrder(inner.tasks, config.env.split, config.seed)
        self._chat = ChatFormat(load_tokenizer(config.model_path), system=config.env.system, tools=inner.tools)
        rows = RunFolder(folder, config.store)
        self._held_out = HeldOut(config, rows)
        self._live = Live(rows, folder, config.monitor, asdict(config))
        self._recorder = self._live.recorder
        self._pause = Pause()
        self._lock: TextIO | None = None
        self._cluster: RayCluster | None = None

    @classmethod
    def create(cls, folder: Path, config: TrainConfig, command: str) -> Run:
        """Begin a run in a folder that holds none.

        Raises:
            UserError: the folder holds a run already, or the configuration cannot work; nothing is written then.
        """
        if (folder / "config.json").exists():
            raise UserError(
                f"{folder} holds a run already: go on with  rollcage train --resume {folder}  or choose --out."
            )
        run = cls(folder, config, command)
        run._lock = _claim(folder)
        write_config(folder / "config.json", config, command)
        write_vocabulary(folder, run._chat.token_texts())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open a run to go on with it.

        Raises:
            UserError: it is no run folder, or another process uses it.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise UserError(
                f"{folder}: not a run folder (no config.json); give the folder that `rollcage train` printed."
            )
        config, command = read_config(path)
        run = cls(folder, config, command)
        run._lock = _claim(folder)
        remove_partial(folder)
        return run

    async def __call__(self) -> Path:
        """Train to the end, or on to the end, and return the folder of the report.

        A kill at any moment loses what came after the newest checkpoint, and nothing else: `open` and call again.

        Raises:
            RollcageError: the run cannot go on.
        """
        try:
            checkpoint = newest_checkpoint(self.folder)
            progress = _read_progress(checkpoint) if checkpoint else Progress()
            budget = num_left = self.config.ray.learner_restarts if self.config.cluster == "ray" else 0
            while not self._is_finished(progress):
                began_at = progress.policy_version
                try:
                    await self._go_on(checkpoint, progress)
                    break
                except LearnerDied as error:
                    checkpoint = newest_checkpoint(self.folder)
                    progress = _read_progress(checkpoint) if checkpoint else Progress()
                    if progress.policy_version > began_at:
                        num_left = budget
                    if num_left == 0:
                        raise
                    num_left -= 1
                    self._recorder.event(
                        "learner_restarted", message=str(error), policy_version=progress.policy_version
                    )
        finally:
            self._recorder.close()
            remove_partial(self.folder)  # of a checkpoint that a stop broke off
            if self._lock is not None:
                self._lock.close()
        return write_report(self.folder, command=self._command)

    async def _go_on(self, checkpoint: Path | None, progress: Progress) -> None:
        try:
            with (
                self._live.serving(RunActions(self._pause, self._recorder).actions()),
                measured_by(self._recorder),
                rare_collections(),
            ):
                self._recorder.event("start", resumed_from=str(checkpoint) if checkpoint else None)
                async with self._parts(checkpoint, progress.policy_version) as parts:
                    if checkpoint is None:
                        await self._evaluate("before", parts)
                    await self._train(parts, progress)
                    await self._evaluate("after", parts)
            self._recorder.event("finished", policy_version=progress.policy_version)
        except BaseException as error:
            cause = unwrap(error) if isinstance(error, BaseExceptionGroup) else error
            name, told = "stopped", ""
            if isinstance(cause, Exception):
                name = "failed"
                told = str(cause) if isinstance(cause, RollcageError) else f"{type(cause).__name__}: {cause}"
            with contextlib.suppress(OSError):  # a full disk, say, which is the cause itself
                self._recorder.event(name, error=told, policy_version=progress.policy_version)
            if cause is not error:
                raise cause from error
            raise

    def _is_finished(self, progress: Progress) -> bool:
        """Whether a resumed run has nothing left to do but its report."""
        trained = progress.policy_version >= self.config.num_updates or progress.train_s >= self.config.max_train_s
        return trained and self._held_out.is_done("after")

    async def _train(self, parts: Parts, progress: Progress) -> None:
        config = self.config
        line = ProgressLine(config.num_updates, "updates", done=progress.policy_version)
        sampled = [parts.router.num_sampled_tokens, progress.train_s]

        async def after_update(metrics: dict[str, float]) -> None:
            tokens, seconds = parts.router.num_sampled_tokens - sampled[0], progress.train_s - sampled[1]
            sampled[:] = parts.router.num_sampled_tokens, progress.train_s
            line.update(
                progress.policy_version,
                **{  # type: ignore[arg-type]
                    "reward": metrics["rollout/reward"],
                    "success": metrics["rollout/success"],
                    "staleness": metrics["rollout/staleness"],
                    "failed": f"{metrics['account/failed']:.0f}",
                    "tokens/s": f"{tokens / max(seconds, 1e-9):.0f}",
                },
            )
            last = progress.policy_version >= config.num_updates or progress.train_s >= config.max_train_s
            if last or progress.policy_version % config.checkpoint_every == 0:
                await self._checkpoint(parts, progress)

        self._recorder.event("training", policy_version=progress.policy_version)
        try:
            await train(
                self._rollout,
                parts,
                progress,
                self._recorder,
                num_updates=config.num_updates,
                max_train_s=config.max_train_s,
                seed=config.seed,
                after_update=after_update,
                pause=self._pause,
            )
        finally:
            line.close()

    async def _checkpoint(self, parts: Parts, progress: Progress) -> None:
        path = await write_checkpoint(
            self.folder,
            progress.policy_version,
            progress.to_json(),
            parts.learner.save,
            keep=self.config.keep_checkpoints,
        )
        self._recorder.event("checkpoint", path=path.name, policy_version=progress.policy_version)

    @asynccontextmanager
    async def _parts(self, checkpoint: Path | None, policy_version: int) -> AsyncIterator[Parts]:
        config = self.config
        async with AsyncExitStack() as stack:
            engines, learner = await self._engines_and_learner(stack, checkpoint)
            rollout = config.rollout
            router = Router(engines, recorder=self._recorder, replicate=rollout.replicate, interrupt=rollout.interrupt)
            stack.push_async_callback(router.close)
            stack.push_async_callback(learner.close)
            placement = await self._place(self._env, rollout.num_slots)
            stack.push_async_callback(placement.close)
            async with asyncio.TaskGroup() as starting:
                starting.create_task(learner.start())
                starting.create_task(router.start())
            await router.publish(await learner.publish(), policy_version)
            sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)

            def new_agent(group: int, member: int, seed: int) -> PolicyAgent:
                how = replace(sampling, temperature=0.0) if member == GREEDY else sampling
                return PolicyAgent(router, self._chat, how, name=f"{group}.{member}", group=str(group), seed=seed)

            yield Parts(learner, router, placement, self._order.task_id, new_agent, self._record)

    async def _engines_and_learner(
        self, stack: AsyncExitStack, checkpoint: Path | None
    ) -> tuple[list[Engine], Learner]:
        config, logs = self.config, self.folder / "logs"
        if config.cluster == "ray":
            from rollcage.trainer.cluster.cluster import RayCluster

            in_actors = config.env.placement in ("process", "ray")
            self._cluster = cluster = await RayCluster.connect(
                config.address,
                config.ray,
                num_engines=config.num_engines,
                num_ranks=config.learner.num_ranks,
                apart=config.learner.apart,
                # after training an evaluation has its own beside those of the training
                num_envs=(2 if config.eval.num_tasks else 1) * config.rollout.num_slots if in_actors else 0,
                folder=self.folder / "sandboxes",
                logs=logs,
                recorder=self._recorder,
            )
            stack.push_async_callback(cluster.close)
            engines = cluster.engines(config.engine_config, config.num_engines)
            return engines, cluster.learner(config.learner_config, checkpoint=checkpoint)
        make = config.engine_config.make
        engines = [make(index, log=logs / f"engine{index}.log") for index in range(config.num_engines)]
        return engines, DeepSpeedLearner(config.learner_config, checkpoint=checkpoint, log_folder=logs)

    async def _place(self, env: EnvConfig, num_workers: int) -> Placement:
        choice = self.config.env
        if self._cluster is not None:
            return await self._cluster.place(choice.placement, env, num_workers=num_workers, restart=choice.restart)
        return make_placement(choice.placement, env, num_workers=num_workers, restart=choice.restart)

    def _record(self, trajectory: Trajectory) -> None:
        store = self.config.store
        tokens = store.tokens and sum(len(segment.token_ids) for segment in trajectory.segments) <= store.max_tokens
        self._recorder.trajectory(trajectory_to_json(trajectory, self._env, self.config.model, tokens=tokens))

    async def _evaluate(self, when: str, parts: Parts) -> None:
        await self._held_out.run(when, self._chat, parts.router, self._place, self._recorder)


def _read_progress(checkpoint: Path) -> Progress:
    try:
        return Progress.from_json(read_state(checkpoint))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{checkpoint}: trainer.json is damaged ({error!r}); remove the folder to go on from an older one."
        ) from None


def _claim(folder: Path) -> TextIO:
    """Hold the run folder until the result is closed, or this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("a")
    for _ in range(5):  # a monitor that looks whether somebody has it holds it for a moment
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            time.sleep(0.05)
    file.close()
    raise UserError(f"{folder} is in use by another process: wait for it, or stop it.") from None


def run_to_end(run: Run) -> Path:
    """Run in an event loop of its own; Ctrl-C and SIGTERM stop it cleanly.

    Raises:
        KeyboardInterrupt: it was stopped.
        RollcageError: the run cannot go on.
    """

    async def main() -> Path:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
