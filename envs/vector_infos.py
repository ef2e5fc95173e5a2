"""Infos in Gymnasium's vector convention, batched when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_OBJECTS = {str, type(None)}
_NUMBERS = {bool, int, float}

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


class VectorInfos(dict[str, Any]):
    """What `batch` returns, made when it is looked at: one key where one is asked for, else all.

    Batching the infos of eight cheap environments takes as long as two of their steps, and most are never looked at.

    Args:
        infos: one info for each environment.
        add: `gymnasium.vector.VectorEnv._add_info`.
    """

    __slots__ = ("_pending",)

    def __init__(self, infos: Sequence[dict[str, Any]], add: AddInfo) -> None:
        # The keys of one info: C code that finds a dictionary empty (json's) would not look any further.
        super().__init__(dict.fromkeys(infos[0]))
        # Copied, since an environment may go on with its own dictionary before anybody looks here.
        self._pending: tuple[list[dict[str, Any]], AddInfo] | None = ([info.copy() for info in infos], add)

    def __getitem__(self, key: str) -> Any:
        """Return the array of one key; the others wait."""
        if self._pending is not None and dict.get(self, key) is None:
            infos = self._pending[0]
            column = _column([info[key] for info in infos if key in info])
            if column is not None and len(column) == len(infos):
                dict.__setitem__(self, key, column)
            else:
                self._fill()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the array of one key, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def _fill(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            handed_out = {key: column for key, column in dict.items(self) if column is not None}
            dict.clear(self)
            dict.update(self, batch(*pending))
            dict.update(self, handed_out)  # the caller may have written into them

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys; defined in Python, which also keeps `dict(infos)` from reading past `_fill`."""
        self._fill()
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain dictionary."""
        return dict, (dict(self),)


def _looks_first(name: str) -> Callable[..., Any]:
    original = getattr(dict, name)

    def method(self: VectorInfos, *args: Any, **kwargs: Any) -> Any:
        self._fill()
        return original(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, original.__doc__
    return method


for _name in (
    *("__setitem__", "__delitem__", "__contains__", "__len__", "__eq__", "__ne__", "__repr__"),
    *("__or__", "__ror__", "__ior__", "__reversed__", "keys", "values", "items", "pop", "popitem"),
    *("setdefault", "update", "clear", "copy"),
):
    setattr(VectorInfos, _name, _looks_first(_name))


def batch(infos: Sequence[dict[str, Any]], add: AddInfo) -> dict[str, Any]:
    """Return ``infos`` as a dictionary of arrays [num_envs], each key with its ``_key`` mask [num_envs] of bool.

    ``add`` is Gymnasium's own slow way, for infos that differ in their keys or hold more than text and numbers.
    """
    keys = [*infos[0]]
    columns: dict[str, Any] = {}
    if all([*info] == keys for info in infos):
        masks = np.ones((len(keys), len(infos)), np.bool_)
        for key, mask, values in zip(keys, masks, zip(*[info.values() for info in infos], strict=True), strict=True):
            column = _column(values)
            if column is None:
                columns = {}
                break
            columns[key], columns["_" + key] = column, mask
    if not columns:
        for i, info in enumerate(infos):
            columns = add(columns, info, i)
    return columns


def _column(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return one key's values as an array, or None where they are more than text and numbers."""
    kinds = {*map(type, values)}
    if kinds and kinds <= _OBJECTS:
        return np.array(values, object)
    if len(kinds) == 1 and kinds <= _NUMBERS:
        return np.array(values, kinds.pop())
    return None
