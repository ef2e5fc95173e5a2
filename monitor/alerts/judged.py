"""The alerts of a run as its folder tells them: what the run itself said, else what it would have said."""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from rollcage.monitor.alerts.hysteresis import Hysteresis
from rollcage.monitor.alerts.rules import RULES
from rollcage.monitor.alerts.window import MAX_ROWS, NUM_FIRST, Row, Window
from rollcage.monitor.store import RunReader

NAMES = (
    "time",
    "time/elapsed_s",
    "rollout/reward",
    "rollout/mixed_groups",
    "rollout/cut_by_length",
    "learner/loss",
    "learner/grad_norm",
    "learner/entropy",
    "learner/approx_kl_k3",
    "learner/logprob_gap_mean",
    "account/started",
    "account/stale",
)
"""Statistics that rules look at."""
MAX_JUDGED = 500
"""Last updates that are judged afterwards, where the run did not do so itself."""
MAX_EVENTS = 20_000
RESTARTS = ("counter/sandbox_restarts", "counter/env_restarts")


def judge(reader: RunReader) -> dict[str, Any]:
    """Return the state of every rule, and what fired when.

    Returns:
        ``rules``: for each its name, title, severity, state ("firing", "ok", or "unknown": it cannot be measured),
        since, value, threshold, message and advice; ``history``: the alerts, oldest first.
    """
    first, rows = rows_of(reader)
    status = reader.status()
    history, last_told = _told(reader)
    now = _window(reader, status, first, rows[-MAX_ROWS:])
    if not history and not _watched_itself(reader):
        history = _afterwards(first, rows, now)
        last_told = {str(alert["rule"]): alert for alert in history}
    rules = []
    for rule in RULES.values():
        value, last = rule.measure(now), last_told.get(rule.name, {})
        is_firing = last.get("state") == "firing"
        rules.append(
            {
                "rule": rule.name,
                "title": rule.title,
                "severity": rule.severity,
                "state": "firing" if is_firing else "unknown" if value is None else "ok",
                "since": last.get("time") if is_firing else None,
                "value": value,
                "threshold": rule.fire,
                "message": (last.get("message") if is_firing and value is None else None)
                or ("not known" if value is None else rule.message(value)),
                "why": rule.why,
                "advice": " ".join(rule.advice),
            }
        )
    return {"rules": rules, "history": history}


def firing(reader: RunReader) -> list[str]:
    """Return the names of the rules that fire now, as `judge` has it; cheap where the run watches itself."""
    history, last_told = _told(reader)
    if not history and not _watched_itself(reader):
        return [rule["rule"] for rule in judge(reader)["rules"] if rule["state"] == "firing"]
    return [rule for rule, alert in last_told.items() if alert.get("state") == "firing" and rule in RULES]


def _told(reader: RunReader) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return what the run told, oldest first, and the last word on each rule since it was started or resumed last."""
    history: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    for event in reader.events(limit=1000, kinds=("alert", "start"), newest_first=True)[1][::-1]:
        if event["event"] == "start":
            last.clear()
        else:
            history.append(event)
            last[str(event.get("rule"))] = event
    return history, last


def _watched_itself(reader: RunReader) -> bool:
    """Whether the run judged its own rows: those that say when training begins do."""
    return "training" in reader.event_kinds()


def rows_of(reader: RunReader, most: int = MAX_JUDGED) -> tuple[list[Row], list[Row]]:
    """Return the first updates of a run and its last ``most``, with what is counted from events: see `Row`."""
    names = [name for name in reader.metric_names() if name.startswith(RESTARTS)]
    series = reader.series([*NAMES, *names], max_points=1_000_000)
    versions = series["time"][0]
    kept = [*versions[:NUM_FIRST].tolist(), *versions[NUM_FIRST:][-most:].tolist()]
    rows: dict[int, dict[str, float]] = {version: {} for version in kept}
    for name, (at, values) in series.items():
        for place in (slice(0, NUM_FIRST), slice(-most, None)):
            for version, value in zip(at[place].tolist(), values[place].tolist(), strict=True):
                if version in rows:
                    key = "restarts" if name in names else name
                    rows[version][key] = value + (rows[version].get(key, 0.0) if name in names else 0.0)
    found = [rows[version] for version in sorted(rows)]
    counts = _counted(reader)
    tally: Counter[str] = Counter()
    event = next(counts, None)
    for row in found:
        while event is not None and event[0] <= row.get("time", 0.0):
            if event[1] == "start":
                tally.clear()
            else:
                tally[event[1]] += 1
            event = next(counts, None)
        row.update({name: float(tally[name]) for name in ("failed/task", "failed/model", "failed/infra")})
        row["engine_deaths"] = float(tally["engine_deaths"])
    return [*found[:NUM_FIRST]], [*found[-most:]]


def _counted(reader: RunReader) -> Iterator[tuple[float, str]]:
    kinds = ("start", "sample_failed", "engine_died")
    for event in reader.events(limit=MAX_EVENTS, kinds=kinds, newest_first=True)[1][::-1]:
        name = event["event"]
        if name == "sample_failed":
            name = f"failed/{event.get('kind')}"
        yield float(event.get("time", 0.0)), "engine_deaths" if name == "engine_died" else name


def _window(reader: RunReader, status: Mapping[str, Any], first: list[Row], rows: list[Row]) -> Window:
    waited_s = None
    if status["state"] == "running":
        last = rows[-1].get("time", 0.0) if rows else 0.0
        begun = reader.events(limit=1, kinds=("start", "training", "evaluating"))[1]
        if begun and begun[0]["event"] == "training":
            waited_s = max(0.0, time.time() - max(last, begun[0]["time"]))
    free = None
    if status["state"] in ("running", "paused"):
        usage = shutil.disk_usage(reader.path)
        free = usage.free / usage.total
    return Window(rows, first, waited_s, free)


def _afterwards(first: list[Row], rows: list[Row], now: Window) -> list[dict[str, Any]]:
    """Return the alerts that the rules would have given, one look an update."""
    states, history = Hysteresis(), []
    seen: deque[Row] = deque(maxlen=MAX_ROWS)
    for row in rows:
        seen.append(row)
        for change in states.look(Window(tuple(seen), first)):
            history.append({"time": row.get("time"), "event": "alert", **change.to_json()})
    for change in states.look(now):
        history.append({"time": time.time(), "event": "alert", **change.to_json()})
    return history
