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
from rollcage.sandbox.types import (
    Event,
    ExecResult,
    HostInfo,
    Output,
    Probe,
    RestartPolicy,
    SandboxInfo,
    SandboxSpec,
    Snapshot,
    State,
)

if TYPE_CHECKING:
    from rollcage.sandbox.base import Sandbox, Sandboxes, Session
    from rollcage.sandbox.client.client import Client, connect
    from rollcage.sandbox.manager.fleet import Settings
    from rollcage.sandbox.manager.manager import Manager
    from rollcage.sandbox.opening import open_default
    from rollcage.sandbox.sync import SyncSandbox, SyncSandboxes, SyncSession

__all__ = [
    "BadArchive",
    "BadRequest",
    "BadSpec",
    "Client",
    "DaemonForbidden",
    "DaemonUnreachable",
    "DeadlineExceeded",
    "DiskPressure",
    "Event",
    "ExecResult",
    "HostInfo",
    "HostUnavailable",
    "ImageMissing",
    "InternalError",
    "Manager",
    "NoSuchPath",
    "Output",
    "Overloaded",
    "Probe",
    "RestartPolicy",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxRestarted",
    "SandboxSpec",
    "SandboxUnavailable",
    "Sandboxes",
    "ServiceUnreachable",
    "Session",
    "Settings",
    "Snapshot",
    "StartFailed",
    "StartTimeout",
    "State",
    "SyncSandbox",
    "SyncSandboxes",
    "SyncSession",
    "Unauthorized",
    "UnsafePath",
    "connect",
    "open_default",
]

_LAZY = {
    "Client": "rollcage.sandbox.client.client",
    "Manager": "rollcage.sandbox.manager.manager",
    "Sandbox": "rollcage.sandbox.base",
    "Sandboxes": "rollcage.sandbox.base",
    "Session": "rollcage.sandbox.base",
    "Settings": "rollcage.sandbox.manager.fleet",
    "SyncSandbox": "rollcage.sandbox.sync",
    "SyncSandboxes": "rollcage.sandbox.sync",
    "SyncSession": "rollcage.sandbox.sync",
    "connect": "rollcage.sandbox.client.client",
    "open_default": "rollcage.sandbox.opening",
}


def __getattr__(name: str) -> Any:
    """Import the manager, its client and its synchronous wrapper only when they are asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
