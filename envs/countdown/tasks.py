"""Where Countdown's tasks come from: made on demand, solvable by construction, or read from data files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollcage.envs.data import Data, FileTasks, Published, find_dataset, load_tasks, own_files
from rollcage.envs.tasks import GeneratedTasks
from rollcage.errors import UserError

SPLIT_SIZES = {"train": 10_000_000, "validation": 10_000, "test": 10_000}
MAX_GENERATED = 6  # numbers of a generated task
MAX_NUMBERS, MAX_NUMBER, MAX_TARGET = 8, 999_999, 999_999_999  # of a problem set by hand or read from a file

PUBLISHED = {"countdown_3to4": Published("github.com/Jiayi-Pan/TinyZero (Countdown-Tasks-3to4)", "Apache-2.0")}

_NUM_BUCKETS = 8
_SPLIT_OF_BUCKET = {0: "test", 1: "validation"}  # every other bucket is train


def split_of(numbers: Sequence[int], target: int) -> str:
    """Return the one split that a problem belongs to, whatever the order of its numbers.

    A checksum of the problem decides, so the generated splits have no problem in common, with any number of numbers.

    >>> split_of([3, 5, 10], 80) == split_of([10, 3, 5], 80)
    True
    """
    key = f"{sorted(numbers)}{target}".encode()
    return _SPLIT_OF_BUCKET.get(zlib.crc32(key) % _NUM_BUCKETS, "train")


def generated_tasks(num_numbers: int | Sequence[int] = 3) -> GeneratedTasks:
    """Return the procedural task set for ``num_numbers`` numbers, or for a range (low, high), both ends included.

    Raises:
        UserError: ``num_numbers`` is neither an integer nor a pair, or lies outside 3 to 6.
    """
    low, high = (num_numbers, num_numbers) if isinstance(num_numbers, int) else _pair(num_numbers)
    if not 3 <= low <= high <= MAX_GENERATED:
        raise UserError(f"num_numbers must be 3 to 6, or a pair (low, high) within that, not {num_numbers!r}.")
    name = f"countdown-{low}" if low == high else f"countdown-{low}to{high}"
    return GeneratedTasks(name, SPLIT_SIZES, partial(generate, low, high))


def generate(low: int, high: int, split: str, index: int) -> dict[str, Any]:
    """Return task ``index`` of ``split`` with ``low`` to ``high`` numbers: {"numbers": [int], "target": int}.

    A pure function of its arguments, the same on every platform and Python version (BLAKE2 supplies the randomness).
    Random numbers from 1 to 99 are combined two at a time, exactly, until two values are left; the last operation is
    one that lands within 10 to 100 (where none does, all starts again). Every value on the way is an integer of at
    least 1, so one solution needs neither fractions nor negative numbers. Products and quotients are preferred where
    they are possible, for most random problems can be solved by adding and subtracting alone.
    """
    spread = high - low + 1
    key = b"rollcage.countdown/%d/%d/%s/%d/" % (low, high, split.encode(), index)
    block = bits = 0
    while True:
        if bits < 1 << 128:  # one attempt uses up to 75 bits
            bits = int.from_bytes(blake2b(key + b"%d" % block).digest(), "big")
            block += 1
        bits, more = divmod(bits, spread)
        numbers = []
        for _ in range(low + more):
            bits, number = divmod(bits, 99)
            numbers.append(number + 1)
        values = numbers.copy()
        for left in range(len(values), 2, -1):
            bits, choice = divmod(bits, left * (left - 1) * len(_OPERATORS))
            choice, operator = divmod(choice, len(_OPERATORS))
            first, second = divmod(choice, left - 1)
            values.append(_combine(values.pop(first), values.pop(second), _OPERATORS[operator]))
        bits, plus_first = divmod(bits, 2)
        target = _last_step(values[0], values[1], plus_first)
        if target and split_of(numbers, target) == split:
            return {"numbers": numbers, "target": target}


_OPERATORS = "+-**//"  # each equally likely
_MAX_PRODUCT = 2000  # a greater value seldom comes back to 100


def _combine(a: int, b: int, operator: str) -> int:
    """Apply ``operator`` to the pair where the result is a positive integer of use, else the next simpler one."""
    if a < b:
        a, b = b, a
    if operator == "/" and a % b == 0:
        return a // b
    if operator in "*/" and a * b <= _MAX_PRODUCT:
        return a * b
    if operator != "+" and a != b:
        return a - b
    return a + b


def _last_step(a: int, b: int, plus_first: int) -> int:
    """Return a target within 10 to 100 made of the last two values, or 0."""
    if a < b:
        a, b = b, a
    if b > 1:
        if a % b == 0 and 10 <= a // b <= 100:
            return a // b
        if 10 <= a * b <= 100:
            return a * b
    first, second = (a + b, a - b) if plus_first else (a - b, a + b)
    return first if 10 <= first <= 100 else second if 10 <= second <= 100 else 0


def published_files() -> dict[str, str]:
    """Return the files of Countdown-Tasks-3to4 by split, for the argument ``data`` of the environment.

    Raises:
        UserError: they are in none of the places of `rollcage.envs.data`.
    """
    files = find_dataset("countdown_3to4", "countdown", PUBLISHED)
    return {split: str(paths[0]) for split, paths in files.items()}


def file_tasks(data: Data, split: str) -> FileTasks:
    """Return the tasks of data files: one file, which becomes ``split``, or whatever else `own_files` takes.

    Raises:
        UserError: a file is missing or unreadable, or a row is malformed (the message names the file and the line).
    """
    if not isinstance(data, Mapping) and not Path(data).is_dir():
        data = {split: data}
    return load_tasks("countdown-file", own_files(data), problem_from_row)


def problem_from_row(row: Mapping[str, Any], *, stem: str = "") -> dict[str, Any]:
    """Return a row {"target", "nums" or "numbers"} as a checked problem {"numbers", "target"}, its other fields kept.

    Raises:
        ValueError: what is wrong with the row.
    """
    numbers = row.get("numbers", row.get("nums"))
    if numbers is None or "target" not in row:
        raise ValueError(f"expected the fields 'target' and 'numbers' or 'nums' (found: {', '.join(row) or 'none'})")
    if not isinstance(numbers, (list, tuple)) or not 1 <= len(numbers) <= MAX_NUMBERS:
        raise ValueError(f"the numbers must be a list of 1 to {MAX_NUMBERS} integers, not {numbers!r}")
    if not all(_is_int(number) and 0 <= number <= MAX_NUMBER for number in numbers):
        raise ValueError(f"the numbers must be integers from 0 to {MAX_NUMBER}, not {numbers!r}")
    target = row["target"]
    if not _is_int(target) or abs(target) > MAX_TARGET:
        raise ValueError(f"the target must be an integer from -{MAX_TARGET} to {MAX_TARGET}, not {target!r}")
    rest = {key: value for key, value in row.items() if key not in ("nums", "numbers", "target")}
    return {"numbers": list(numbers), "target": target, **rest}


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_int(end) for end in value):
        return value[0], value[1]
    raise UserError(f"num_numbers must be an integer or a pair (low, high), not {value!r}.")
