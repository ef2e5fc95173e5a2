"""How the service and its client write the manager's types as JSON, and errors such that the same class comes out."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollcage.errors import RollcageError, UserError
from rollcage.sandbox import errors
from rollcage.sandbox.types import Event, ExecResult, HostInfo, Output, SandboxInfo, SandboxSpec, Snapshot, State

Json = dict[str, Any]

STATUS: dict[type[RollcageError], int] = {
    errors.Unauthorized: 401,
    errors.BadRequest: 400,
    errors.SandboxNotFound: 404,
    errors.NoSuchPath: 404,
    errors.SandboxUnavailable: 409,
    errors.SandboxRestarted: 409,
    errors.BadSpec: 422,
    errors.ImageMissing: 422,
    errors.UnsafePath: 422,
    errors.BadArchive: 422,
    errors.StartTimeout: 504,
    errors.StartFailed: 502,
    errors.DeadlineExceeded: 504,
    errors.HostUnavailable: 503,
    errors.Overloaded: 503,
    errors.DiskPressure: 507,
    errors.DaemonUnreachable: 503,
    errors.DaemonForbidden: 503,
    UserError: 400,
}
"""HTTP status of each error; 500 for every other."""

ERRORS: dict[str, type[RollcageError]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, RollcageError)
}


def text_of(data: bytes) -> str:
    """Return bytes as base64, which is how JSON carries them."""
    return base64.b64encode(data).decode("ascii")


def bytes_of(text: str) -> bytes:
    """Undo `text_of`; raises ValueError where it is no base64."""
    return base64.b64decode(text, validate=True)


def result_to_json(result: ExecResult) -> Json:
    """Write a result; its output is base64."""
    fields = {name: getattr(result, name) for name in ExecResult.__slots__}
    return {**fields, "stdout": text_of(result.stdout), "stderr": text_of(result.stderr)}


def result_from_json(data: Mapping[str, Any]) -> ExecResult:
    """Undo `result_to_json`."""
    return ExecResult(**{**data, "stdout": bytes_of(data["stdout"]), "stderr": bytes_of(data["stderr"])})


def output_to_json(output: Output) -> Json:
    """Write a piece of output; its bytes are base64."""
    return {"source": output.source, "data": text_of(output.data)}


def output_from_json(data: Mapping[str, Any]) -> Output:
    """Undo `output_to_json`."""
    return Output(source=data["source"], data=bytes_of(data["data"]))


def to_json(value: SandboxInfo | HostInfo | Event | Snapshot) -> Json:
    """Write what the manager knows of something."""
    return asdict(value)


def info_from_json(data: Mapping[str, Any]) -> SandboxInfo:
    """Read a `SandboxInfo`."""
    ports = {int(port): int(published) for port, published in data["ports"].items()}
    spec = SandboxSpec.from_json(data["spec"])
    return SandboxInfo(**{**data, "spec": spec, "state": State(data["state"]), "ports": ports})


def host_from_json(data: Mapping[str, Any]) -> HostInfo:
    """Read a `HostInfo`."""
    return HostInfo(**data)


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read an `Event`."""
    return Event(**data)


def snapshot_from_json(data: Mapping[str, Any]) -> Snapshot:
    """Read a `Snapshot`."""
    return Snapshot(**data)


def error_to_json(error: RollcageError) -> Json:
    """Write an error: the name of its class, its message and its attributes."""
    return {
        "type": next(base.__name__ for base in type(error).__mro__ if base.__name__ in ERRORS),
        "message": str(error),
        "attributes": {name: value for name, value in vars(error).items() if not name.startswith("_")},
        "status": status_of(error),
    }


def error_from_json(data: Mapping[str, Any]) -> RollcageError:
    """Return the error that was written; a class that this version does not know comes back as `SandboxError`."""
    kind = ERRORS.get(str(data.get("type")), errors.SandboxError)
    message, attributes = str(data.get("message")), dict(data.get("attributes") or {})
    try:
        return kind(message, **attributes)
    except TypeError:  # another version's attributes
        return kind(message)


def status_of(error: RollcageError) -> int:
    """Return the HTTP status of an error: its class's, or the nearest base's."""
    return next((STATUS[base] for base in type(error).__mro__ if base in STATUS), 500)
