"""Tasks and task sets: named splits, stable ids, known sizes, deterministic order."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rollcage.errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: a stable id and whatever its environment needs to pose and score it (JSON-able)."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


class TaskSet(Protocol):
    """A set of tasks in named splits. The same name, split and index always mean the same task.

    Attributes:
        name: short name, for reports.
        licence: licence of the data, or "" where it is generated.
        splits: number of tasks of each split.
    """

    name: str
    licence: str
    splits: Mapping[str, int]

    def task(self, split: str, index: int) -> Task:
        """Return task ``index`` (0-based) of ``split``; raises UserError for an unknown split or index."""
        ...

    def by_id(self, task_id: str) -> Task:
        """Return the task with this id; raises UserError where there is none."""
        ...


def check_split(tasks: TaskSet, split: str) -> int:
    """Return the size of ``split``; raises UserError that names the known splits."""
    try:
        return tasks.splits[split]
    except KeyError:
        known = ", ".join(tasks.splits)
        raise UserError(
            f"task set {tasks.name!r} has no split {split!r} (it has: {known}).{did_you_mean(split, tasks.splits)}"
        ) from None


def sample_indices(tasks: TaskSet, split: str, num_tasks: int | None, seed: int) -> list[int]:
    """Return ``num_tasks`` distinct indices of ``split`` in a seeded order (all of them where None or too many).

    Raises:
        UserError: unknown split, or a negative number of tasks.
    """
    size = check_split(tasks, split)
    if num_tasks is not None and num_tasks < 0:
        raise UserError(f"the number of tasks must not be negative: {num_tasks}.")
    return random.Random(seed).sample(range(size), min(size, num_tasks if num_tasks is not None else size))


class RowTasks:
    """Tasks that stand in memory: rows by split.

    A row's id is ``split/<row["id"]>`` where the row has an id, else ``split/<position>``.

    Raises:
        UserError: a row is not a mapping, or an id stands twice.
    """

    def __init__(self, name: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], *, licence: str = "") -> None:
        self.name, self.licence = name, licence
        self._tasks: dict[str, list[Task]] = {}
        self._by_id: dict[str, Task] = {}
        for split, rows in splits.items():
            for position, row in enumerate(rows):
                if not isinstance(row, Mapping):
                    raise UserError(
                        f"task set {name!r}: row {position} of split {split!r} must be a mapping, "
                        f"not {type(row).__name__}."
                    )
            tasks = [Task(f"{split}/{row.get('id', position)}", row) for position, row in enumerate(rows)]
            self._tasks[split] = tasks
            for task in tasks:
                if task.id in self._by_id:
                    raise UserError(f"task set {name!r}: the id {task.id!r} stands twice; ids must be unique.")
                self._by_id[task.id] = task
        self.splits: Mapping[str, int] = {split: len(tasks) for split, tasks in self._tasks.items()}

    def task(self, split: str, index: int) -> Task:
        """See `TaskSet.task`."""
        tasks = self._tasks.get(split)
        if tasks is None or not 0 <= index < len(tasks):
            last = check_split(self, split) - 1
            raise UserError(f"task set {self.name!r}: index {index} is outside split {split!r} (0 to {last}).")
        return tasks[index]

    def by_id(self, task_id: str) -> Task:
        """See `TaskSet.by_id`."""
        try:
            return self._by_id[task_id]
        except KeyError:
            raise UserError(
                f"task set {self.name!r} has no task {task_id!r}.{did_you_mean(task_id, self._by_id)}"
            ) from None


class GeneratedTasks:
    """Tasks that are made on demand: ``generate(split, index)`` returns a task's data, always the same.

    Ids are ``split/index``.
    """

    def __init__(self, name: str, splits: Mapping[str, int], generate: Callable[[str, int], Mapping[str, Any]]) -> None:
        self.name, self.licence, self.splits = name, "", splits
        self._generate = generate

    def task(self, split: str, index: int) -> Task:
        """See `TaskSet.task`."""
        size = check_split(self, split)
        if not 0 <= index < size:
            raise UserError(f"task set {self.name!r}: index {index} is outside split {split!r} (0 to {size - 1}).")
        return Task(f"{split}/{index}", self._generate(split, index))

    def by_id(self, task_id: str) -> Task:
        """See `TaskSet.by_id`."""
        split, _, index = task_id.rpartition("/")
        # One task has one id: "7", but not "07" (nor a number too long to read).
        if split not in self.splits or not index.isdecimal() or len(index) > 20 or index != str(int(index)):
            known = ", ".join(f"{name}/0..{size - 1}" for name, size in self.splits.items())
            raise UserError(f"task set {self.name!r} has no task {task_id!r} (ids are {known}).")
        return self.task(split, int(index))


def read_jsonl(
    path: str | Path,
    required: Iterable[str] = (),
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Read JSON lines (``.jsonl`` or ``.jsonl.xz``, UTF-8); blank lines are skipped.

    ``convert`` may check and change each row; its ValueError says what is wrong with the row.

    Raises:
        UserError: the file cannot be read, a line is not a JSON object, a key of ``required`` is missing, or
            ``convert`` refuses a row; the message names the file and the line.
    """
    path = Path(path)
    rows: list[dict[str, Any]] = []
    try:
        # "utf-8-sig" is UTF-8 that may begin with a byte order mark, as some editors write it.
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{path}:{number}: not valid JSON ({error}); mend or remove the line.") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}.")
                if missing := [key for key in required if key not in row]:
                    raise UserError(f"{path}:{number}: the field {missing[0]!r} is missing (found: {', '.join(row)}).")
                try:
                    rows.append(convert(row) if convert else row)
                except ValueError as error:
                    raise UserError(f"{path}:{number}: {error}.") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of a JSON-lines file.") from None
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:  # EOFError: an archive cut short
        raise UserError(f"{path}: cannot be read ({error}).") from None
    return rows
