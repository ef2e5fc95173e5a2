"""The record of one episode as JSON: what evaluation and training write, and what `rollcage replay` re-runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollcage.envs.placements.base import EnvConfig
from rollcage.errors import UserError
from rollcage.trainer.types import Failure, Segment, Trajectory, TurnRecord

FORMAT = 1
"""Version of the record; a reader refuses newer ones."""


def trajectory_to_json(
    trajectory: Trajectory, env: EnvConfig, policy: str, *, tokens: bool = False, **extra: Any
) -> dict[str, Any]:
    """Return the record of one episode, ready for `dump_line`.

    Keys: ``format``, ``id`` ("group.member"), ``env_id``, ``env_kwargs``, ``policy``, ``task_id``, ``seed`` and
    ``options`` (of the reset), ``prompt``, ``turns`` (each with action, observation, reward, finish_reason, segment,
    start, end of its tokens, and seconds act_s, env_s), ``return``, ``success``, ``terminated``, ``truncated``,
    ``failure`` (None or kind, reason, message), ``info``, ``start_version``, ``end_version``, ``start_s``, ``end_s``,
    and with ``tokens`` the ``segments``.

    Args:
        trajectory: the episode.
        env: where it was played.
        policy: who played.
        tokens: write token ids and log-probabilities (to 6 decimals) too.
        **extra: further keys of the writer's own.
    """
    group, member = trajectory.sample_id
    record = {
        "format": FORMAT,
        "id": f"{group}.{member}",
        "env_id": env.env_id,
        "env_kwargs": dict(env.kwargs),
        "policy": policy,
        **extra,
        "task_id": trajectory.task_id,
        "seed": trajectory.seed,
        "options": {"task": trajectory.task_id},
        "prompt": trajectory.prompt,
        "turns": [
            asdict(turn) | {"act_s": round(turn.act_s, 4), "env_s": round(turn.env_s, 4)} for turn in trajectory.turns
        ],
        "return": trajectory.return_,
        "success": trajectory.success,
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "failure": asdict(trajectory.failure) if trajectory.failure else None,
        "info": trajectory.info,
        "start_version": trajectory.start_version,
        "end_version": trajectory.end_version,
        "start_s": round(trajectory.start_s, 4),
        "end_s": round(trajectory.end_s, 4),
    }
    if tokens:
        record["segments"] = [
            {
                "token_ids": segment.token_ids,
                "loss_mask": segment.loss_mask,
                "rollout_logprobs": [round(logprob, 6) for logprob in segment.rollout_logprobs],
                "policy_versions": segment.policy_versions,
            }
            for segment in trajectory.segments
        ]
    return record


def trajectory_from_json(record: Mapping[str, Any]) -> tuple[Trajectory, EnvConfig]:
    """Return the episode and its environment from what `trajectory_to_json` wrote; other writers may leave out much.

    Only ``env_id`` and ``turns`` (each with an ``action``) must be there.

    Raises:
        UserError: it is no such record, or one of a newer format.
    """
    if record.get("format", FORMAT) not in range(1, FORMAT + 1):
        raise UserError(f"the record has format {record['format']!r}, newer than this version reads: update rollcage.")
    try:
        group, _, member = str(record.get("id", "0.0")).partition(".")
        trajectory = Trajectory(
            sample_id=(int(group or 0), int(member or 0)),
            task_id=record.get("task_id", ""),
            seed=record.get("seed", 0),
            prompt=record.get("prompt", ""),
            turns=[
                TurnRecord(turn["action"], **{k: turn.get(k, v) for k, v in _TURN.items()}) for turn in record["turns"]
            ],
            segments=[Segment(**segment) for segment in record.get("segments", ())],
            failure=Failure(**record["failure"]) if record.get("failure") else None,
            info=record.get("info", {}),
            **{key: record[key] for key in _PLAIN if key in record},
        )
        return trajectory, EnvConfig(record["env_id"], record.get("env_kwargs", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"this is not the record of an episode ({type(error).__name__}: {error}).") from None


_TURN: dict[str, Any] = {
    "observation": "",
    "reward": 0.0,
    "segment": 0,
    "start": 0,
    "end": 0,
    "finish_reason": "stop",
    "act_s": 0.0,
    "env_s": 0.0,
}
_PLAIN = ("success", "terminated", "truncated", "start_version", "end_version", "start_s", "end_s")


def dump_line(value: Mapping[str, Any]) -> str:
    """Return ``value`` as one line of strict JSON, newline included: ASCII, whatever it holds; NaN becomes null."""
    try:
        return json.dumps(value, allow_nan=False) + "\n"
    except (TypeError, ValueError):
        return json.dumps(_plain(value), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays, tuples, sets and whatever an ``info`` holds into JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else repr(value)
