"""Replay: play recorded actions again in their environment and find the first difference."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from rollcage.envs import make
from rollcage.envs.placements import make_placement
from rollcage.envs.placements.base import EnvConfig, EnvHandle, Placement, PlacementError
from rollcage.errors import UserError
from rollcage.monitor.store.segments import closed_segments
from rollcage.trainer.rollout.record import trajectory_from_json
from rollcage.trainer.types import Trajectory

FILES = ("episodes.jsonl", "trajectories.jsonl")
"""What evaluations and training runs write into their folders."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay leaves its record.

    Attributes:
        turn: 0-based turn, or -1 for the reset.
        field: what differs.
        recorded, replayed: the two values.
    """

    turn: int
    field: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        """Return the place, and both values where they part."""
        where = "reset" if self.turn < 0 else f"turn {self.turn}"
        recorded, replayed = self.recorded, self.replayed
        if isinstance(recorded, str) and isinstance(replayed, str):
            pairs = enumerate(zip(recorded, replayed, strict=False))
            same = next((place for place, (a, b) in pairs if a != b), min(len(recorded), len(replayed)))
            begin = max(0, same - 20)
            where += f", character {same}"
            recorded, replayed = recorded[begin : same + 60], replayed[begin : same + 60]
        return f"{where}: {self.field}: recorded {recorded!r}, replayed {replayed!r}"


def read_records(source: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield ("file:line", record) for every episode of a file, or of an evaluation's or a run's folder.

    Of a run all segments are read, in order, whether its folder is given or its ``trajectories.jsonl``.
    An unfinished last line (its writer was killed) is left out.

    Raises:
        UserError: there is no such file, or a line is not JSON.
    """
    if source.is_dir():
        found = [source / name for name in FILES if (source / name).is_file()]
        if not found:
            raise UserError(
                f"{source}: holds neither {' nor '.join(FILES)}: give the folder of an evaluation or a run."
            )
        source = found[0]
    before = closed_segments(source.parent, source.stem) if source.name == FILES[1] else {}
    for path in (*before.values(), source):
        with _open(path) as file:
            yield from _records(path, file)


def _open(path: Path) -> BinaryIO:
    try:
        return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a file of recorded episodes.") from None


def _records(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise UserError(f"{place}: not valid JSON ({error}).") from None
        if not isinstance(record, dict):
            raise UserError(f"{place}: expected the record of an episode, found {type(record).__name__}.")
        yield place, record


def read_trajectory(place: str, record: Mapping[str, Any]) -> tuple[Trajectory, EnvConfig, dict[str, Any]]:
    """Return a recorded episode, its environment and its reset options; a UserError names ``place``."""
    try:
        trajectory, env = trajectory_from_json(record)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    options = record.get("options")
    return trajectory, env, dict(options) if options is not None else {"task": trajectory.task_id}


async def replay(
    trajectory: Trajectory, handle: EnvHandle, options: dict[str, Any], *, deadline_s: float
) -> Difference | None:
    """Reset as recorded, take the recorded actions, and return the first difference, or None where all is the same.

    An episode that failed half-way is compared as far as it was recorded.

    Args:
        trajectory: the record.
        handle: an instance of its environment.
        options: of the reset.
        deadline_s: of each reset and step.

    Raises:
        PlacementError: the environment failed where the record went on.
    """
    try:
        observation, info = await handle.reset(seed=trajectory.seed, options=options, deadline_s=deadline_s)
    except PlacementError as error:
        if trajectory.failure and not trajectory.turns:
            return None  # it failed at this very place when it was recorded
        return Difference(-1, "error", None, str(error).strip().splitlines()[-1])
    if trajectory.failure and not trajectory.prompt:
        return None
    if trajectory.task_id != info.get("task_id"):
        return Difference(-1, "task_id", trajectory.task_id, info.get("task_id"))
    if trajectory.prompt != observation:
        return Difference(-1, "observation", trajectory.prompt, observation)
    terminated = truncated = False
    for number, turn in enumerate(trajectory.turns):
        if terminated or truncated:
            return Difference(number, "the episode", "went on", "was over")
        observation, reward, terminated, truncated, info = await handle.step(turn.action, deadline_s=deadline_s)
        if turn.observation != observation:
            return Difference(number, "observation", turn.observation, observation)
        if turn.reward != reward:
            return Difference(number, "reward", turn.reward, reward)
    if trajectory.failure or "truncated_by" in trajectory.info:
        return None
    end = {"terminated": terminated, "truncated": truncated, "success": bool(info.get("success", False))}
    for field, replayed in end.items():
        if getattr(trajectory, field) != replayed:
            return Difference(len(trajectory.turns) - 1, field, getattr(trajectory, field), replayed)
    return None


async def replay_all(
    source: Path, trajectory_id: str | None, placement: str, *, deadline_s: float = 120.0
) -> list[tuple[str, Difference | None]]:
    """Replay the episodes of ``source``, or those with one id or task id; returns (name, first difference) of each.

    Raises:
        UserError: nothing to replay, or a record, environment or data set cannot be used.
    """
    placements: dict[str, Placement] = {}
    results = []
    try:
        for place, record in read_records(source):
            if trajectory_id is not None and trajectory_id not in (str(record.get("id")), record.get("task_id")):
                continue
            trajectory, env, options = read_trajectory(place, record)
            key = repr(env)
            if key not in placements:
                make(env.env_id, **env.kwargs).close()  # a wrong id or argument is one line here, not a dead worker
                placements[key] = make_placement(placement, env, num_workers=1)
            handle = await placements[key].acquire(deadline_s=deadline_s)
            try:
                difference = await replay(trajectory, handle, options, deadline_s=deadline_s)
            except PlacementError as error:
                difference = Difference(len(trajectory.turns), "error", None, str(error).strip().splitlines()[-1])
            finally:
                await handle.release()
            results.append((f"{record.get('id', place)} {trajectory.task_id}", difference))
    finally:
        for made in placements.values():
            await made.close()
    if not results:
        which = "no episode" if trajectory_id is None else f"no episode with the id or task id {trajectory_id!r}"
        raise UserError(f"{source}: {which}.")
    return results
