"""How often Python looks for garbage while a run is under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 10_000
_OLD = 100


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector look less often inside the block.

    What is in flight is a hundred objects an episode, none of which is garbage, and each look walks through it: a
    quarter of the orchestration's time with ten thousand episodes. Objects without cycles are freed at once all the
    same; young cycles are found once there are 10,000 new objects, old ones once there are ten million.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_YOUNG, before[0]) if before[0] else 0, before[1], max(_OLD, before[2]))
    try:
        yield
    finally:
        gc.set_threshold(*before)
