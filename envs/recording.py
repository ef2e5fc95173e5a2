"""Recording: every episode as one line of JSON, which `rollcage replay` plays again."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import gymnasium

from rollcage.envs.placements.frames import plain
from rollcage.envs.placements.instance import describe_error
from rollcage.envs.wrappers import TextWrapper
from rollcage.errors import UserError

FORMAT = 1
"""Version of the record, which `rollcage.trainer.rollout.record` reads and writes as well."""

_START = b'{"format": '


class Recording(TextWrapper):
    """Appends every episode to a file of JSON lines.

    Keys of a line: ``format``, ``id`` (number of the episode), ``env_id``, ``env_kwargs``, ``task_id``, ``seed``,
    ``options``, ``prompt`` and ``prompt_info`` (what `reset` returned), ``turns`` (each with action, observation,
    reward, info), ``return``, ``success``, ``terminated``, ``truncated``, ``failure`` (None or kind, reason, message),
    ``info`` (the last).

    A line is written at once when its episode ends, under a lock, so that several processes may record to one file and
    a kill leaves no broken line; an episode that is reset before its end is not written. An environment that raises is
    written with failure "infra". A `reset` without a seed draws one from the environment's own generator, since an
    episode can only be played again by itself where its seed is known.

    Args:
        env: what `gymnasium.make` returned, not wrapped further: only that can be made again by its id.
        path: the file; its folder is created.

    Raises:
        UserError: the environment is wrapped or was not made by id, or the file is not a recording.
    """

    def __init__(self, env: gymnasium.Env[str, str], path: str | Path) -> None:
        super().__init__(env, path=str(path))
        spec = env.spec
        if spec is None or spec.additional_wrappers:
            raise UserError("Recording must wrap what gymnasium.make returned; put other wrappers around Recording.")
        self.path = Path(path)
        limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
        self._env_id, self._env_kwargs = spec.id, {**spec.kwargs, **limit}
        self._num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        if seed is None:
            seed = int(self.unwrapped.np_random.integers(2**31))
        self.episode = None
        observation, info = self.env.reset(seed=seed, options=options)
        self.episode = {
            "format": FORMAT,
            "id": str(self._num_episodes),
            "env_id": self._env_id,
            "env_kwargs": self._env_kwargs,
            "task_id": info.get("task_id", ""),
            "seed": seed,
            "options": options or {},
            "prompt": observation,
            "prompt_info": plain(info),
            "turns": [],
        }
        self._num_episodes += 1
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            if self.episode is not None:
                message = describe_error("step", error)[1]
                self._write(False, False, {}, {"kind": "infra", "reason": "env_raised", "message": message})
            raise
        turn = {"action": action, "observation": observation, "reward": float(reward), "info": plain(info)}
        if self.episode is not None:
            self.episode["turns"].append(turn)
            if terminated or truncated:
                kind = info.get("failure")
                reason, message = info.get("failure_reason") or "env_failed", info.get("failure_message") or ""
                failure = {"kind": kind, "reason": reason, "message": message}
                self._write(terminated, truncated, turn["info"], failure if kind else None)
        return observation, reward, terminated, truncated, info

    def _write(self, terminated: bool, truncated: bool, info: dict[str, Any], failure: dict[str, Any] | None) -> None:
        episode, self.episode = self.episode, None
        end = {
            "return": sum(turn["reward"] for turn in episode["turns"]),
            "success": bool(info.get("success", False)),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "failure": failure,
            "info": info,
        }
        append_line(self.path, json.dumps({**episode, **end}))


def append_line(path: Path, line: str) -> None:
    """Append one line to a recording: whole or not at all, whoever else appends.

    Raises:
        UserError: the file cannot be written, or it is something else than a recording.
    """
    data = line.encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _whole_lines(descriptor, path)
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except OSError:
                os.ftruncate(descriptor, size)  # a full disk: nothing half-written
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


def _whole_lines(descriptor: int, path: Path) -> int:
    """Cut off a line that a killed writer left unfinished; returns the size."""
    size = os.fstat(descriptor).st_size
    if size and not os.pread(descriptor, len(_START), 0).startswith(_START[:size]):
        raise UserError(f"{path}: exists, and is not a recording of episodes; give another file.")
    end = size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        block = os.pread(descriptor, min(end, 1 << 16), max(0, end - (1 << 16)))
        newline = block.rfind(b"\n")
        end = end - len(block) + newline + 1
    if end != size:
        os.ftruncate(descriptor, end)
    return end
