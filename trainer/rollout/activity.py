"""Who is busy when, told in bounded pieces: a bounded number of spans a second, however much work there is."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from rollcage.recorder import Recorder

PIECE_S = 1.0
"""A piece of work is told once it is so old, or at the next look after it."""
MOST_A_SECOND = 64
"""Spans of all kinds together: where there are more kinds (thousands of replicas), their pieces are longer."""


class Activity:
    """Counts what is under way, by track and name, and tells a recorder when there was any.

    A span ``(track, name)`` has the fields ``busy_s`` (seconds in which at least one was under way) and ``num`` (how
    many ended in it). What begins and ends costs a few operations; the clock is looked at where the first begins and
    the last ends.

    Args:
        recorder: hears of the spans.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pieces: dict[tuple[str, str], _Piece] = {}
        self._next_look_s = 0.0
        self.piece_s = PIECE_S
        """How old a piece must be to be told."""

    def during(self, track: str, name: str) -> AbstractContextManager[None]:
        """Return what counts one more while its block runs: the same for all of a kind, for none of them needs more."""
        piece = self._pieces.get((track, name))
        if piece is None:
            piece = self._pieces[track, name] = _Piece(track, name, self, self._recorder)
            self.piece_s = max(PIECE_S, len(self._pieces) / MOST_A_SECOND)
        return piece

    def look(self, *, at_end: bool = False) -> None:
        """Tell what is old enough, so that work which takes long shows before its end; ``at_end``: everything.

        To be called once in a while: it looks at all pieces no more than four times in the time that they take.
        """
        now_s = asyncio.get_running_loop().time()
        if not at_end and now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self.piece_s / 4
        old_s = float("inf") if at_end else now_s - self.piece_s
        for piece in self._pieces.values():
            if piece.start_s is not None and piece.start_s <= old_s:
                piece.tell(now_s)


class _Piece(AbstractContextManager[None]):
    """What was done of one kind since the last span, which is to begin at ``start_s``; None: there was nothing."""

    __slots__ = (
        *("_activity", "_busy_s", "_last_s", "_name", "_num_ended", "_num_under_way", "_recorder"),
        *("_since_s", "_track", "start_s"),
    )

    def __init__(self, track: str, name: str, activity: Activity, recorder: Recorder) -> None:
        self._track, self._name = track, name
        self._activity, self._recorder = activity, recorder
        self._num_under_way = self._num_ended = 0
        self.start_s: float | None = None
        self._since_s = self._last_s = self._busy_s = 0.0

    def __enter__(self) -> None:
        if self._num_under_way == 0:
            now_s = asyncio.get_running_loop().time()
            if self.start_s is not None and now_s - self.start_s >= self._activity.piece_s:
                self.tell(now_s)
            self._since_s = now_s
            if self.start_s is None:
                self.start_s = now_s
        self._num_under_way += 1

    def __exit__(self, *raised: object) -> None:
        self._num_under_way -= 1
        self._num_ended += 1
        if self._num_under_way == 0:
            now_s = asyncio.get_running_loop().time()
            self._busy_s += now_s - self._since_s
            self._last_s = now_s
            if self.start_s is not None and now_s - self.start_s >= self._activity.piece_s:
                self.tell(now_s)

    def tell(self, now_s: float) -> None:
        if self.start_s is None:
            return
        if self._num_under_way:
            self._busy_s += now_s - self._since_s
            self._since_s = self._last_s = now_s
        start_s, end_s = self.start_s, self._last_s
        num, busy_s = self._num_ended, self._busy_s
        self.start_s = now_s if self._num_under_way else None
        self._num_ended, self._busy_s = 0, 0.0
        self._recorder.span(self._track, self._name, start_s, end_s, num=num, busy_s=round(busy_s, 6))
