"""Append-only columns of numbers in plain files: fixed-size records, read through memory maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

POINT = np.dtype([("at", "<f8"), ("value", "<f8")])
"""A point of a curve: policy version or moment, and value."""

SPAN = np.dtype(
    [
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("busy_s", "<f8"),
        ("num", "<u4"),
        ("track", "<u4"),
        ("name", "<u4"),
    ]
)
"""A span, or ``num`` of them with ``busy_s`` seconds together; ``track`` and ``name`` are numbers of texts."""


class Column:
    """One file of records. Only the first ``length`` count: what a killed writer left behind them is written over.

    Args:
        path: of the file.
        dtype: of a record.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path, self._dtype = path, dtype

    def append(self, length: int, records: list[tuple[Any, ...]]) -> int:
        """Write behind the first ``length`` records; returns the new length."""
        data, offset = memoryview(np.array(records, self._dtype).tobytes()), length * self._dtype.itemsize
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)  # few calls: each lets other threads go first
        try:
            while data:
                written = os.pwrite(descriptor, data, offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(descriptor)
        return length + len(records)

    def write(self, records: npt.NDArray[Any]) -> int:
        """Write all records anew; returns how many. Nobody may read the file yet."""
        self._path.write_bytes(records.astype(self._dtype, copy=False).tobytes())
        return len(records)

    def holds(self, length: int) -> bool:
        """Whether there are ``length`` records."""
        if not length:
            return True
        try:
            return self._path.stat().st_size >= length * self._dtype.itemsize
        except FileNotFoundError:
            return False

    def read(self, length: int) -> npt.NDArray[Any]:
        """Return the first ``length`` records, without loading them; they must be there."""
        if not length:
            return np.empty(0, self._dtype)
        return np.memmap(self._path, self._dtype, mode="r", shape=(length,))
