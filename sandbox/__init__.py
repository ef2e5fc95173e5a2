"""The sandbox manager: one Docker container per agent, that stays up all night."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollcage.sandbox.errors import (
    BadArchive,
    BadRequest,
    BadSpec,
    DaemonForbidden,
    DaemonUnreachable,
    DeadlineExceeded,
    DiskPressure,
    HostUnavailable,
    ImageMissing,
    InternalError,
    NoSuchPath,
    Overloaded,
    SandboxError,
    SandboxNotFound,
    SandboxRestarted,
    SandboxUnavailable,
    ServiceUnreachable,
    StartFailed,
    StartTimeout,
    Unauthorized,
    UnsafePath,
)
from rollcage.sandbox.types import ExecResult, Probe, RestartPolicy, SandboxInfo, SandboxSpec, State

if TYPE_CHECKING:
    from rollcage.sandbox.client.client import Client, connect
    from rollcage.sandbox.manager.fleet import Settings
    from rollcage.sandbox.manager.manager import Manager
    from rollcage.sandbox.sync import SyncSandboxes

__all__ = [
    "BadArchive",
    "BadRequest",
    "BadSpec",
    "Client",
    "DaemonForbidden",
    "DaemonUnreachable",
    "DeadlineExceeded",
    "DiskPressure",
    "ExecResult",
    "HostUnavailable",
    "ImageMissing",
    "InternalError",
    "Manager",
    "NoSuchPath",
    "Overloaded",
    "Probe",
    "RestartPolicy",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxRestarted",
    "SandboxSpec",
    "SandboxUnavailable",
    "ServiceUnreachable",
    "Settings",
    "StartFailed",
    "StartTimeout",
    "State",
    "SyncSandboxes",
    "Unauthorized",
    "UnsafePath",
    "connect",
]

_LAZY = {
    "Client": "rollcage.sandbox.client.client",
    "Manager": "rollcage.sandbox.manager.manager",
    "Settings": "rollcage.sandbox.manager.fleet",
    "SyncSandboxes": "rollcage.sandbox.sync",
    "connect": "rollcage.sandbox.client.client",
}


def __getattr__(name: str) -> Any:
    """Import the manager, its client and its synchronous wrapper only when they are asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
