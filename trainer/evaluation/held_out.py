"""The evaluations of a training run: its policy on held-out tasks, on the run's own engines, before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollcage.envs.countdown.tasks import published_files
from rollcage.envs.placements.base import EnvConfig, EnvHandle, Placement
from rollcage.errors import UserError
from rollcage.monitor.run_folder import RunFolder, read_rows
from rollcage.recorder import Recorder
from rollcage.trainer.config import TrainConfig
from rollcage.trainer.evaluation.evaluate import Evaluation, evaluate, plan
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Sampling

_PUBLISHED = {"countdown": published_files}
"""Published data sets that an evaluation can be made on, as the environment's argument ``data`` by split."""


class HeldOut:
    """What is evaluated, and what has been; the run folder remembers, so that a resumed run repeats nothing.

    Args:
        config: of the run.
        rows: the run folder, which gets a row for each evaluation.

    Raises:
        UserError: an unknown data set, or an environment that cannot be evaluated so.
    """

    def __init__(self, config: TrainConfig, rows: RunFolder) -> None:
        self._config, self._rows = config, rows
        self._evaluations = _planned(config) if config.eval.num_tasks else {}

    def is_done(self, when: str) -> bool:
        """Whether all evaluations of that time have been made."""
        return {(when, name) for name in self._evaluations} <= self._done()

    async def run(
        self,
        when: str,
        chat: ChatFormat,
        router: Router,
        place: Callable[[EnvConfig, int], Awaitable[Placement]],
        recorder: Recorder,
    ) -> None:
        """Make what is missing of the evaluations of that time.

        Args:
            when: "before" or "after".
            chat: how observations become tokens.
            router: of the engines.
            place: gives the environment its places, of which there are to be so many; they are closed here.
            recorder: is told that an evaluation begins.
        """
        policy, done = _RouterPolicy(self._config, self._rows.path, chat, router), self._done()
        for name, evaluation in self._evaluations.items():
            if (when, name) in done:
                continue
            recorder.event("evaluating", when=when, evaluation=name)
            placement = await place(evaluation.env, policy.concurrency)
            try:
                result = await evaluate(evaluation, policy, placement, progress=True)
            finally:
                await placement.close()
            self._rows.write(
                "evaluations",
                {
                    "when": when,
                    "name": name,
                    "policy_version": router.policy_version,
                    **result.summary(),
                    "samples": result.episodes[: self._config.eval.num_samples],
                },
            )

    def _done(self) -> set[tuple[str, str]]:
        return {(row["when"], row["name"]) for row in read_rows(self._rows.path, "evaluations")}


def _planned(config: TrainConfig) -> dict[str, Evaluation]:
    chosen = config.eval
    sets: dict[str, dict[str, Any]] = {"procedural": {}}
    if chosen.dataset:
        if chosen.dataset not in _PUBLISHED:
            known = ", ".join(_PUBLISHED)
            raise UserError(f"eval.dataset: unknown data set {chosen.dataset!r} (known: {known}).")
        try:
            sets["data file"] = {"data": _PUBLISHED[chosen.dataset]()[chosen.split]}
        except UserError:
            pass  # it is asked for only where it is on this machine
    return {
        name: plan(
            config.env.id,
            {**config.env.args, **arguments},
            split=chosen.split,
            num_tasks=chosen.num_tasks,
            seed=config.seed,
        )
        for name, arguments in sets.items()
    }


class _RouterPolicy:
    """The policy under training, as `evaluate` wants it: plays on the run's own engines."""

    def __init__(self, config: TrainConfig, folder: Path, chat: ChatFormat, router: Router) -> None:
        self._chat, self._router = chat, router
        self._sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
        self.name = config.model
        self.identity = f"{folder} at version {router.policy_version}"
        self.concurrency = config.rollout.num_slots

    async def start(self) -> None:
        """It runs."""

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> PolicyAgent:
        """See `Policy`."""
        return PolicyAgent(self._router, self._chat, self._sampling, name=name, seed=seed)

    async def close(self) -> None:
        """The run closes it."""
