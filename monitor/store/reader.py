"""One run folder, read: how it stands, what happened, and all that `Curves` and `Episodes` read, while it grows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import islice

from rollcage.errors import UserError
from rollcage.monitor.store.curves import Curves
from rollcage.monitor.store.episodes import Episodes, key_of
from rollcage.monitor.store.secrets import masked
from rollcage.monitor.store.segments import START, Place
from rollcage.monitor.store.status import WORDS, eta_s, is_held, state_of
from rollcage.monitor.store.summary import Row, parse, summarize

FOLLOWED = ("metrics", "events", "timeline", "trajectories", "evaluations")


class RunReader(Curves, Episodes):
    """Reads one run; thread-safe. Every method first takes in what the run has written since the last one."""

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def config(self) -> Row:
        """Return ``{"command", "config"}``; what is called like a secret (token, key, password ...) is masked."""
        data = masked(json.loads((self.path / "config.json").read_text(encoding="utf-8")))
        return {"command": data.get("command", ""), "config": data.get("config", {})}

    def status(self) -> Row:
        """Return how the run stands.

        Keys: ``state`` ("running", "paused", "finished", "failed", "stopped": by somebody, "dead": it ended without a
        word, "unknown"), ``is_partial`` (rows are left that were not read yet; see ``pace_s``),
        ``policy_version``, ``num_updates`` (to make), ``started_at`` and ``updated_at`` (seconds since 1970; None where
        nothing was written yet), ``train_s`` (spent), ``eta_s`` (left, by the last 20 updates; None where unknown),
        ``error`` (of a failed run, else None).
        """
        config = self.config()["config"]
        num_updates, max_train_s = int(config.get("num_updates", 0)), float(config.get("max_train_s") or "inf")
        with self._index.reading() as tables:
            elapsed, written = self._curve("metric", "time/elapsed_s"), self._curve("metric", "time")
            first, last = tables.execute("SELECT min(time), max(time) FROM events").fetchone()
            marks = ", ".join("?" * len(WORDS))
            word = tables.execute(
                f"SELECT kind, segment, offset FROM events WHERE kind IN ({marks}) ORDER BY id DESC LIMIT 1", WORDS
            ).fetchone()
        version, train_s = (int(elapsed["at"][-1]), float(elapsed["value"][-1])) if len(elapsed) else (0, 0.0)
        times = [time for time in (first, last) if time is not None] + [float(time) for time in written["value"][-1:]]
        complete = version > 0 and (version >= num_updates or train_s >= max_train_s)
        state = state_of(word[0] if word else "", is_held(self.path), complete)
        failure = self._row("events", word[1:]) if word and state == "failed" else None
        return {
            "state": state,
            "is_partial": self._index.is_behind,
            "policy_version": version,
            "num_updates": num_updates,
            "started_at": min(times, default=None),
            "updated_at": max(times, default=None),
            "train_s": train_s,
            "eta_s": eta_s(elapsed[-21:], num_updates, max_train_s) if state in ("running", "paused") else None,
            "error": failure.get("error") if failure else None,
        }

    def events(
        self, offset: int = 0, limit: int = 100, kinds: Collection[str] | None = None, *, newest_first: bool = True
    ) -> tuple[int, list[Row]]:
        """Return (how many there are, one page of them): ``time``, ``event`` and its own fields.

        Args:
            offset, limit: the page.
            kinds: values of ``event``; None is all.
            newest_first: the order.
        """
        where, values = "", []
        if kinds is not None:
            where, values = f"WHERE kind IN ({', '.join('?' * len(kinds))})", list(kinds)
        order = "DESC" if newest_first else "ASC"
        with self._index.reading() as tables:
            (total,) = tables.execute(f"SELECT count(*) FROM events {where}", values).fetchone()
            places = tables.execute(
                f"SELECT segment, offset FROM events {where} ORDER BY id {order} LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
        rows = [self._row("events", place) for place in places]
        return total, [row for row in rows if row is not None]

    def event_kinds(self) -> dict[str, int]:
        """Return how many events there are of each kind."""
        with self._index.reading() as tables:
            return dict(tables.execute("SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind"))

    def evaluations(self) -> list[Row]:
        """Return the evaluations, in order, as the run wrote them."""
        lines = self._index.streams.lines("evaluations", START)
        return [row for row in (parse(line) for _, line in lines) if row is not None]

    def follow(
        self, cursor: str | None = None, max_rows: int = 2000, streams: Sequence[str] = FOLLOWED
    ) -> tuple[dict[str, list[Row]], str]:
        """Return ({stream: rows written since ``cursor``}, the next cursor); trajectories come as summaries.

        Args:
            cursor: what the last call returned; None is now: no rows.
            max_rows: most of each stream; what is left comes with the next call.
            streams: of `FOLLOWED`; the same at every call.
        """
        if cursor is None:
            ends = self.ends()
            return {name: [] for name in streams}, json.dumps({name: ends[name] for name in streams})
        places = _places(cursor, streams)
        found: dict[str, list[Row]] = {}
        for stream in streams:
            rows = found[stream] = []
            for place, line in islice(self._index.streams.lines(stream, places[stream]), max_rows):
                row = parse(line)
                if row is not None:
                    rows.append({"key": key_of(place), **summarize(row)} if stream == "trajectories" else row)
                places[stream] = place[0], place[1] + len(line)
        return found, json.dumps(places)

    def ends(self) -> dict[str, Place]:
        """Return where each of `FOLLOWED` ends now."""
        return self._index.streams.ends(FOLLOWED)


def _places(cursor: str, streams: Sequence[str]) -> dict[str, Place]:
    try:
        places = json.loads(cursor)
        found = {name: (int(places[name][0]), int(places[name][1])) for name in streams}
    except (ValueError, KeyError, TypeError, IndexError):
        raise UserError(f"{cursor[:80]!r} is no cursor of `follow`.") from None
    if any(segment < 1 or offset < 0 for segment, offset in found.values()):
        raise UserError(f"{cursor[:80]!r} is no cursor of `follow`.")
    return found
