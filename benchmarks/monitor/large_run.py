"""A run folder of any size, written through the real recorder: what a very long run leaves behind."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcage.monitor.run_folder import RunFolder

NAMES = (*(f"learner/statistic_{number}" for number in range(38)), "rollout/reward", "time/elapsed_s")


def write_large_run(folder: Path, *, num_points: int, num_trajectories: int, num_tokens: int = 120) -> int:
    """Write a run and leave it as kill -9 would, with what is not tidied up yet left so; returns its policy version.

    Args:
        folder: a new one.
        num_points: of training statistics, 40 an update.
        num_trajectories: evenly among the updates, each of one turn.
        num_tokens: tokens of each.
    """
    rng = random.Random(0)
    folder.mkdir(parents=True)
    config = {"rollout": {}, "num_updates": 10**9, "num_engines": 1}
    (folder / "config.json").write_text(json.dumps({"command": "a benchmark", "config": config}))
    run = RunFolder(folder)
    num_updates = num_points // len(NAMES)
    written = 0
    run.event("start", resumed_from=None)
    for version in range(1, num_updates + 1):
        while written * num_updates < version * num_trajectories:
            run.trajectory(trajectory(rng, written, version, num_tokens))
            written += 1
        values = {name: rng.random() for name in NAMES}
        run.metrics(values | {"time/elapsed_s": 2.0 * version}, policy_version=version)
    run.close()
    return num_updates


def trajectory(rng: random.Random, number: int, version: int, num_tokens: int) -> Mapping[str, Any]:
    """Return the record of an episode of one turn with ``num_tokens`` tokens."""
    failed = number % 50 == 0
    action = " ".join(str(rng.randrange(1000)) for _ in range(num_tokens // 3))
    return {
        "format": 1,
        "id": f"{number // 8}.{number % 8}",
        "env_id": "rollcage/Countdown-v0",
        "env_kwargs": {"split": "train"},
        "policy": "small",
        "task_id": f"train/{number // 8}",
        "seed": number,
        "options": {"task": f"train/{number // 8}"},
        "prompt": "Make 83 from the numbers 3, 94, 14: use every number exactly once, with + - * / and parentheses.",
        "turns": [
            {
                "action": action,
                "observation": "Wrong: the expression is 52, not 83.",
                "reward": float(number % 3 == 0),
                "segment": 0,
                "start": 20,
                "end": num_tokens,
                "finish_reason": "stop",
                "act_s": 0.8,
                "env_s": 0.01,
            }
        ],
        "return": float(number % 3 == 0),
        "success": number % 3 == 0,
        "terminated": not failed,
        "truncated": False,
        "failure": {"kind": "infra", "reason": "env_timeout", "message": "no answer within 5 s."} if failed else None,
        "info": {"outcome": "wrong_value"},
        "start_version": version - 1,
        "end_version": version - 1,
        "start_s": 2.0 * version,
        "end_s": 2.0 * version + 1.5,
        "segments": [
            {
                "token_ids": [rng.randrange(500) for _ in range(num_tokens)],
                "loss_mask": [0] * 20 + [1] * (num_tokens - 20),
                "rollout_logprobs": [round(-3 * rng.random(), 6) for _ in range(num_tokens)],
                "policy_versions": [-1] * 20 + [version - 1] * (num_tokens - 20),
            }
        ],
    }
