"""A training run with something going on beside it, and what must hold of it whatever that was (guarantees 1 to 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollcage.monitor.run_folder import read_metrics
from rollcage.trainer.config import TrainConfig
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.run import Run
from rollcage.trainer.types import Trajectory

_COLUMNS = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")


def train(
    folder: Path, config: TrainConfig, disturb: Callable[[list[Trajectory]], Awaitable[None]]
) -> list[Trajectory]:
    """Train as `rollcage train` does and return every episode, tokens included.

    ``disturb`` runs meanwhile, and sees the episodes that have ended so far.
    """
    seen: list[Trajectory] = []

    async def main() -> None:
        run = Run.create(folder, config, "rollcage train")
        record = run._record

        def keep(trajectory: Trajectory) -> None:
            seen.append(trajectory)
            record(trajectory)

        run._record = keep  # type: ignore[method-assign]
        disturbing = asyncio.create_task(disturb(seen))
        try:
            await run()
        finally:
            disturbing.cancel()
            with suppress(asyncio.CancelledError):
                await disturbing

    asyncio.run(main())
    return seen


def check_columns(rows: Sequence[dict[str, Any]], num_updates: int) -> None:
    """Every update is there, the account closes at each, nothing is too old, and nothing was encoded again."""
    assert [row["policy_version"] for row in rows] == [*range(1, num_updates + 1)]
    for row in rows:
        assert row["account/started"] == sum(row[f"account/{column}"] for column in _COLUMNS)
        assert row["rollout/staleness_max"] <= 1
        assert row["rollout/splits"] == 0


def check_metrics(rows: Sequence[dict[str, Any]], num_updates: int) -> None:
    """`check_columns`, and the learner's statistics are in order."""
    check_columns(rows, num_updates)
    for row in rows:
        assert row["learner/grad_norm"] == row["learner/grad_norm"], "a number"
    assert rows[0]["learner/logprob_gap_mean"] < 0.05, "sampler and trainer see the same tokens"


def check_run(folder: Path, config: TrainConfig, seen: Sequence[Trajectory]) -> None:
    """`check_metrics`, and what the policy said is what its tokens say, within the context."""
    check_metrics(read_metrics(folder), config.num_updates)
    chat = ChatFormat(load_tokenizer(config.model_path))
    for trajectory in seen:
        for turn in trajectory.turns:
            segment = trajectory.segments[turn.segment]
            assert turn.end <= config.engine.max_context_tokens
            assert all(segment.loss_mask[turn.start : turn.end])
            assert chat.decode(segment.token_ids[turn.start : turn.end]) == turn.action
