"""From a command to its results: start the policy once, let it play one or more evaluations, stop everything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rollcage.envs.placements import make_placement
from rollcage.recorder import Recorder
from rollcage.trainer.agents.policies import Policy
from rollcage.trainer.evaluation.evaluate import DEADLINES, Evaluation, Result, evaluate
from rollcage.trainer.rollout.episode import Deadlines


def run_evaluations(
    policy: Policy,
    evaluations: Sequence[tuple[Evaluation, Path | None]],
    *,
    placement: str | None = None,
    restart: str = "fail",
    concurrency: int | None = None,
    deadlines: Deadlines = DEADLINES,
    recorder: Recorder | None = None,
    announce: str = "",
) -> list[Result]:
    """Run evaluations one after the other, with progress on standard error; see `evaluate`.

    Args:
        policy: who plays; it is started, and closed however this ends.
        evaluations: each with its output folder, or None for none.
        placement: "inline", "process" or "sandbox"; None for what each environment asks for.
        restart: "fail" or "restore"; see `rollcage.envs.placements.make_placement`.
        concurrency: episodes at once; None for the policy's own choice.
        deadlines: of every wait.
        recorder: is told every finished episode.
        announce: a line for standard error, written when the first episode begins.

    Raises:
        UserError: the policy or an output folder cannot be used.
    """

    async def run() -> list[Result]:
        results = []
        try:
            most = max((len(e.task_ids) * e.attempts for e, _ in evaluations), default=1)
            policy.concurrency = num_slots = min(concurrency or policy.concurrency, max(1, most))
            await policy.start()
            for number, (evaluation, output) in enumerate(evaluations):
                kind = placement or evaluation.placement
                where = make_placement(kind, evaluation.env, num_workers=num_slots, restart=restart)
                try:
                    results.append(
                        await evaluate(
                            evaluation,
                            policy,
                            where,
                            deadlines=deadlines,
                            output=output,
                            progress=True,
                            recorder=recorder,
                            announce="" if number else announce,
                        )
                    )
                finally:
                    await where.close()
        finally:
            await policy.close()
        return results

    return asyncio.run(run())
