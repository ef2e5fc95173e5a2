"""A recorded run: what it was asked to do, and how fast it trained once its pipeline was full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from typing import Any

from rollcage.errors import UserError
from rollcage.monitor.run_folder import read_metrics
from rollcage.trainer.rollout.config import RolloutConfig


@dataclass(frozen=True)
class Recorded:
    """What a simulation is compared with.

    Attributes:
        run: its folder.
        config: how samples were made.
        env: its environment as it was configured, with ``id`` and ``args``; empty where that is not known.
        num_replicas: engine replicas.
        num_slots: requests that one of them runs at once.
        max_new_tokens: most tokens of a message.
        warmup: updates at the start that are left out of all figures.
        measured: metrics of the updates that remain.
        samples_per_s: trained samples per second that were measured over them.
    """

    run: Path
    config: RolloutConfig
    env: Mapping[str, Any]
    num_replicas: int
    num_slots: int
    max_new_tokens: int
    warmup: int
    measured: Sequence[Mapping[str, Any]]
    samples_per_s: float

    @property
    def num_updates(self) -> int:
        """Updates that were measured."""
        return len(self.measured)


def read_recorded(run: Path) -> Recorded:
    """Read the run in folder ``run``.

    Raises:
        UserError: it is no run folder, or holds fewer than two updates.
    """
    metrics = read_metrics(run)
    if len(metrics) < 2:
        raise UserError(f"{run}: {len(metrics)} updates are too few to calibrate from: two at least.")
    given = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
    known = {field.name for field in fields(RolloutConfig)}
    config = RolloutConfig(**{name: value for name, value in given["rollout"].items() if name in known})
    warmup = min(ceil(config.async_ratio) + 1, len(metrics) - 1)
    before, last = metrics[warmup - 1], metrics[-1]
    return Recorded(
        run,
        config,
        env=given.get("env", {}),
        num_replicas=int(given["num_engines"]),
        num_slots=int(given["engine"]["max_batch_size"]),
        max_new_tokens=int(given["sampling"]["max_new_tokens"]),
        warmup=warmup,
        measured=metrics[warmup:],
        samples_per_s=(last["account/trained"] - before["account/trained"])
        / (last["time/elapsed_s"] - before["time/elapsed_s"]),
    )
