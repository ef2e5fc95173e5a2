"""The sandbox manager: one Docker container per agent, that stays up all night."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollcage.sandbox.errors import (
    BadSpec,
    DaemonForbidden,
    DaemonUnreachable,
    DeadlineExceeded,
    DiskPressure,
    HostUnavailable,
    ImageMissing,
    NoSuchPath,
    Overloaded,
    SandboxError,
    SandboxNotFound,
    SandboxRestarted,
    SandboxUnavailable,
    StartFailed,
    StartTimeout,
    UnsafePath,
)
from rollcage.sandbox.types import ExecResult, Probe, RestartPolicy, SandboxInfo, SandboxSpec, State

if TYPE_CHECKING:
    from rollcage.sandbox.fleet import Settings
    from rollcage.sandbox.manager import Manager

__all__ = [
    "BadSpec",
    "DaemonForbidden",
    "DaemonUnreachable",
    "DeadlineExceeded",
    "DiskPressure",
    "ExecResult",
    "HostUnavailable",
    "ImageMissing",
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
    "Settings",
    "StartFailed",
    "StartTimeout",
    "State",
    "UnsafePath",
]

_LAZY = {"Manager": "rollcage.sandbox.manager", "Settings": "rollcage.sandbox.fleet"}


def __getattr__(name: str) -> Any:
    """Import the manager only when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
