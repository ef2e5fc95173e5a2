"""The routes of runs: what each shows, read through the run store."""

from __future__ import annotations

import json
import shlex
import time
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rollcage.errors import RollcageError, UserError
from rollcage.monitor.alerts.judged import judge
from rollcage.monitor.doctor import diagnose
from rollcage.monitor.server.accounts import account, environments
from rollcage.monitor.server.answers import Json, dumped
from rollcage.monitor.server.comparing import compare
from rollcage.monitor.server.control import ACTIONS, control_of
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.server.runs import FRESH_S, Runs, runs_of
from rollcage.monitor.server.summary import broken, summary
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.secrets import masked

router = APIRouter(prefix="/api")
LIST_S = 0.4
"""So long the list of runs waits for newer answers than those that are there, all together; runs that were never read
are listed as being read meanwhile."""

Names = Annotated[list[Annotated[str, Query(max_length=300)]] | None, Query(max_length=200)]
Points = Annotated[int, Query(ge=4, le=5000)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Page = Annotated[int, Query(ge=0, le=100_000_000)]
Text = Annotated[str, Query(max_length=500)]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]


@router.get("/runs")
def list_runs(request: Request) -> Response:
    """Return all runs, the newest first."""
    runs = runs_of(request)
    return Json(runs.shared(("runs",), lambda: {"runs": summaries(runs)}, fresh_s=1.0))


def summaries(runs: Runs) -> list[dict[str, Any]]:
    """Return all runs in a few lines each, the newest first; one that cannot be read says so."""
    ids = runs.ids()

    def listed(run_id: str, wait_s: float) -> dict[str, Any]:
        try:
            reading = dumped({**broken(run_id, ids[run_id], "is being read"), "is_partial": True})
            made = partial(summary, run_id, runs.reader(run_id))
            told: dict[str, Any] = json.loads(runs.shared((run_id, "summary"), made, meanwhile=reading, wait_s=wait_s))
            return told
        except (RollcageError, OSError, ValueError, KeyError, TypeError) as error:  # a folder that somebody damaged
            return broken(run_id, ids[run_id], f"cannot be read: {error}")

    for run_id in ids:  # begin with all of them before any is waited for
        listed(run_id, 0.0)
    ends_s = time.monotonic() + LIST_S
    return [listed(run_id, max(0.0, ends_s - time.monotonic())) for run_id in ids]


@router.get("/compare")
def compared(
    request: Request,
    runs: Annotated[list[str], Query(max_length=50)],
    names: Annotated[list[Annotated[str, Query(max_length=300)]], Query(max_length=20)],
    max_points: Points = 300,
) -> Response:
    """Return courses of several runs, with 95 % bands over those that differ only in their seeds."""
    all_runs = runs_of(request)
    known = [run_id for run_id in dict.fromkeys(runs) if run_id in all_runs.ids()]
    key = ("compare", *known, "", *names, str(max_points))

    def made() -> dict[str, Any]:
        groups = compare({run_id: all_runs.reader(run_id) for run_id in known}, names, max_points)
        return {"groups": groups, "unknown": [run_id for run_id in runs if run_id not in known]}

    return Json(all_runs.shared(key, made, fresh_s=2.0))


@router.get("/runs/{run_id:path}/status")
def status(request: Request, run_id: str) -> Response:
    """Return how one run stands, and what can be done to it."""

    def made(reader: RunReader) -> dict[str, Any]:
        told = summary(run_id, reader)
        can_act = told["state"] in ("running", "paused") and control_of(reader.path) is not None
        return {
            **told,
            "can_act": can_act,
            "actions": list(ACTIONS) if can_act else [],
            "num_trajectories": reader.trajectories(limit=1)[0],
            "event_kinds": reader.event_kinds(),
        }

    return _answer(request, run_id, "status", made)


@router.get("/runs/{run_id:path}/config")
def config(request: Request, run_id: str) -> Response:
    """Return a run's configuration without its secrets."""
    return _answer(request, run_id, "config", lambda reader: masked(reader.config()))


@router.get("/runs/{run_id:path}/metric_names")
def metric_names(request: Request, run_id: str) -> Response:
    """Return the names of the statistics that a run has."""
    return _answer(request, run_id, "names", lambda reader: {"names": reader.metric_names()})


@router.get("/runs/{run_id:path}/series")
def series(request: Request, run_id: str, names: Names = None, max_points: Points = 1000) -> Response:
    """Return the courses of statistics over policy versions."""
    points = max_points if names else min(max_points, 200)

    def made(reader: RunReader) -> dict[str, Any]:
        found = reader.series(names, points)
        return {"series": {name: {"policy_version": at, "value": value} for name, (at, value) in found.items()}}

    return _answer(request, run_id, f"series {points}", made, *(names or ()))


@router.get("/runs/{run_id:path}/events")
def events(
    request: Request,
    run_id: str,
    limit: Limit = 100,
    offset: Page = 0,
    kinds: Annotated[list[str] | None, Query(max_length=50)] = None,
    newest_first: bool = True,
) -> Response:
    """Return one page of what happened."""

    def made(reader: RunReader) -> dict[str, Any]:
        total, rows = reader.events(offset, limit, kinds, newest_first=newest_first)
        return {"total": total, "events": masked(rows)}

    return _answer(request, run_id, f"events {limit} {offset} {newest_first}", made, *(kinds or ()))


@router.get("/runs/{run_id:path}/timeline")
def timeline(
    request: Request,
    run_id: str,
    start_s: Finite = None,
    end_s: Finite = None,
    max_spans: Annotated[int, Query(ge=1, le=20_000)] = 2000,
) -> Response:
    """Return who was busy when."""

    def made(reader: RunReader) -> dict[str, Any]:
        first_s, last_s = reader.time_range()
        total, spans = reader.spans(start_s, end_s, max_spans)
        begin_s = first_s if start_s is None else max(start_s, first_s)
        window_s = max((last_s if end_s is None else min(end_s, last_s)) - begin_s, 1e-9)
        shares: dict[str, dict[str, float]] = {}
        for span in spans:
            of_track = shares.setdefault(span["track"], {})
            of_track[span["name"]] = of_track.get(span["name"], 0.0) + span["busy_s"] / window_s
        return {"first_s": first_s, "last_s": last_s, "total": total, "spans": spans, "shares": shares}

    return _answer(request, run_id, f"timeline {start_s} {end_s} {max_spans}", made)


@router.get("/runs/{run_id:path}/gauges")
def gauges(request: Request, run_id: str, names: Names = None, max_points: Points = 1000) -> Response:
    """Return quantities over the run's own clock."""

    def made(reader: RunReader) -> dict[str, Any]:
        found = reader.gauges(names, max_points)
        return {"gauges": {name: {"at_s": at_s, "value": value} for name, (at_s, value) in found.items()}}

    return _answer(request, run_id, f"gauges {max_points}", made, *(names or ()))


@router.get("/runs/{run_id:path}/histograms")
def histograms(request: Request, run_id: str) -> Response:
    """Return distributions over the whole run."""
    return _answer(request, run_id, "histograms", lambda reader: {"histograms": reader.histograms()})


@router.get("/runs/{run_id:path}/account")
def conservation(request: Request, run_id: str) -> Response:
    """Return what became of all samples."""
    return _answer(request, run_id, "account", account)


@router.get("/runs/{run_id:path}/evaluations")
def evaluations(request: Request, run_id: str) -> Response:
    """Return the evaluations."""
    return _answer(request, run_id, "evaluations", lambda reader: {"evaluations": reader.evaluations()})


@router.get("/runs/{run_id:path}/environments")
def by_environment(request: Request, run_id: str) -> Response:
    """Return success by environment, task and difficulty, and failures by kind."""
    return _answer(request, run_id, "environments", lambda reader: masked(environments(reader)), fresh_s=2.0)


@router.get("/runs/{run_id:path}/alerts")
def alerts(request: Request, run_id: str) -> Response:
    """Return the state of every rule, and what fired when."""
    return _answer(request, run_id, "alerts", judge)


@router.get("/runs/{run_id:path}/doctor")
def doctor(request: Request, run_id: str) -> Response:
    """Return in plain words what went wrong, and what to try."""
    return _answer(request, run_id, "doctor", lambda reader: masked(diagnose(reader)), fresh_s=2.0)


@router.get("/runs/{run_id:path}/trajectories")
def trajectories(
    request: Request,
    run_id: str,
    env_id: Text | None = None,
    task_id: Text | None = None,
    success: bool | None = None,
    failure: Text | None = None,
    min_version: int | None = None,
    max_version: int | None = None,
    text: Text = "",
    sort: Literal[
        "time", "return", "num_turns", "num_tokens", "duration_s", "start_version", "end_version", "task_id"
    ] = "time",
    descending: bool = True,
    offset: Page = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return one page of the episodes that match."""
    wanted: dict[str, Any] = {
        "env_id": env_id,
        "task_id": task_id,
        "success": success,
        "failure": failure or None,
        "min_version": min_version,
        "max_version": max_version,
        "text": text,
        "sort": sort,
        "descending": descending,
        "offset": offset,
        "limit": limit,
    }

    def made(reader: RunReader) -> dict[str, Any]:
        total, found = reader.trajectories(**wanted)
        return {"total": total, "trajectories": found}

    return _answer(request, run_id, "trajectories", made, *(str(value) for value in wanted.values()))


@router.get("/runs/{run_id:path}/trajectories/{key}")
def trajectory(request: Request, run_id: str, key: str) -> Response:
    """Return one episode whole, the other attempts at its task, and the command that plays it again."""

    def made(reader: RunReader) -> dict[str, Any]:
        try:
            record = reader.trajectory(key)
        except UserError as error:
            raise Refused(str(error), 404) from None
        replay = f"rollcage replay {shlex.quote(str(reader.path))} --trajectory {shlex.quote(str(record.get('id')))}"
        siblings = reader.siblings(str(record.get("task_id")))
        seed = None if record.get("seed") is None else str(record["seed"])  # browsers know no whole numbers beyond 2^53
        return {"trajectory": record, "siblings": siblings, "replay": replay, "seed": seed}

    return _answer(request, run_id, "trajectory", made, key)


def _answer(request: Request, run_id: str, what: str, made: Any, *of: str, fresh_s: float = FRESH_S) -> Response:
    runs = runs_of(request)
    reader = runs.reader(run_id)
    return Json(runs.shared((run_id, what, *of), lambda: made(reader), fresh_s=fresh_s))
