"""From Docker's answers to what the manager knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rollcage.sandbox.drivers.base import HostEvent, Observed
from rollcage.sandbox.drivers.docker_config import LABEL_PART_OF

Row = dict[str, Any]
_FRACTION = re.compile(r"\.(\d{1,6})\d*")


def is_running(row: Row) -> bool:
    """Return whether a row of a listing is of a container whose main process lives."""
    return row["State"] in ("running", "paused")


def observed(found: Row, gate: Row | None) -> Observed:
    """Read the answer to an inspection, and what an inspection or a listing tells of its gate, which has the ports."""
    state = found["State"]
    ended = state["Status"] in ("exited", "dead", "removing")
    return Observed(
        name=found["Name"].lstrip("/"),
        status=_status(state["Status"]),
        labels=found["Config"].get("Labels") or {},
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=ended and bool(state.get("OOMKilled")),
        started_at=_instant(state.get("StartedAt", "")),
        ports=_ports(gate or {}),
    )


def listed(name: str, row: Row, gate: Row, started_at: float) -> Observed:
    """Read a row of a listing of one that runs, and that of its gate."""
    return Observed(name, _status(row["State"]), row.get("Labels") or {}, started_at=started_at, ports=_ports(gate))


def _ports(gate: Row) -> dict[int, int]:
    if "NetworkSettings" in gate and "Ports" in gate["NetworkSettings"]:  # an inspection
        published = gate["NetworkSettings"]["Ports"] or {}
        return {int(key.split("/")[0]): int(found[0]["HostPort"]) for key, found in published.items() if found}
    return {int(port["PrivatePort"]): int(port["PublicPort"]) for port in gate.get("Ports", ()) if "PublicPort" in port}


def sort_parts(containers: Iterable[Row], networks: Iterable[Row]) -> tuple[dict[str, Row], dict[str, Row]]:
    """Return, by sandbox, its own container, and what stands beside it (its gate, else its network)."""
    mains: dict[str, Row] = {}
    others: dict[str, Row] = {}
    for row in (*networks, *containers):
        own = row["Names"][0].lstrip("/") if row.get("Names") else row.get("Name", "")
        name = (row.get("Labels") or {}).get(LABEL_PART_OF, own)
        (mains if name == own else others)[name] = row
    return mains, others


def image_names(row: Row) -> list[str]:
    """Return what an image of a listing can be asked for by; where its name has gone to another one, its id."""
    return [tag for tag in row.get("RepoTags") or () if tag != "<none>:<none>"] or [row["Id"]]


def host_event(message: Mapping[str, Any]) -> HostEvent | None:
    """Read one message of the event stream; None where it is not a sandbox's own container's."""
    attributes = message.get("Actor", {}).get("Attributes", {})
    name = attributes.get("name", "")
    if not name or attributes.get(LABEL_PART_OF, name) != name:
        return None
    code = attributes.get("exitCode", "")
    return HostEvent(name, message["Action"], int(code) if code.isdigit() else None)


def _status(status: str) -> str:
    return {"removing": "dead", "restarting": "exited"}.get(status, status)


def _instant(text: str) -> float:
    """Read an instant with nanoseconds; 0 for Docker's "never"."""
    if not text or text.startswith("0001-"):
        return 0.0
    return datetime.fromisoformat(_FRACTION.sub(lambda match: f".{match[1]:0<6}", text)).timestamp()
