"""Infos in Gymnasium's vector convention, batched at the first look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

_OBJECTS = {str, type(None)}
_NUMBERS = {bool, int, float}

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


class VectorInfos(dict[str, Any]):
    """What `batch` returns, made when it is first looked at.

    Batching the infos of eight cheap environments takes as long as two of their steps, and most steps' infos are never
    looked at.

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

    def _fill(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            dict.clear(self)
            dict.update(self, batch(*pending))

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
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__len__", "__eq__", "__ne__", "__repr__"),
    *("__or__", "__ror__", "__ior__", "__reversed__", "get", "keys", "values", "items", "pop", "popitem"),
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
        for key, mask, column in zip(keys, masks, zip(*[info.values() for info in infos], strict=True), strict=True):
            kinds = {*map(type, column)}
            if kinds <= _OBJECTS:
                columns[key] = np.array(column, object)
            elif len(kinds) == 1 and kinds <= _NUMBERS:
                columns[key] = np.array(column, kinds.pop())
            else:
                columns = {}
                break
            columns["_" + key] = mask
    if not columns:
        for i, info in enumerate(infos):
            columns = add(columns, info, i)
    return columns
