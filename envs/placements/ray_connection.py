"""The connection of this process to a Ray cluster: one for all that uses it."""

from __future__ import annotations

import os
import threading
from types import ModuleType

from rollcage.errors import UserError, require

_lock = threading.Lock()


def connect(address: str = "") -> ModuleType:
    """Return the module ``ray``, connected; may take seconds, and blocks meanwhile.

    Where this process is connected already, that connection is used.

    Args:
        address: of the cluster's head, HOST:PORT or "auto"; "": $RAY_ADDRESS, and without that a cluster is started on
            this machine, which ends with this process.

    Raises:
        MissingExtra: Ray is not installed.
        UserError: no cluster answers there.
    """
    # No statistics go to anybody, and what a node is told to show of its accelerators is as the operator set it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = require("ray", "ray")
    with _lock:
        if not ray.is_initialized():
            is_own = not address and not os.environ.get("RAY_ADDRESS")
            try:
                ray.init(
                    address="local" if is_own else address or None,
                    namespace="rollcage",
                    log_to_driver=False,
                    configure_logging=False,
                    **({"include_dashboard": False} if is_own else {}),
                )
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                where = address or os.environ.get("RAY_ADDRESS") or "this machine"
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    f"no Ray cluster at {where} ({reason}): start one with  ray start --head  and give its address."
                ) from None
    return ray


def disconnect() -> None:
    """End the connection, and with it all actors of this process; a cluster that it started ends too. Idempotent."""
    ray = require("ray", "ray")
    with _lock:
        if ray.is_initialized():
            ray.shutdown()
