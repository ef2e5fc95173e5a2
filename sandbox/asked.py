"""What callers ask for, checked before anything runs: the types and bounds that hold for every host and driver."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollcage.sandbox.errors import BadRequest, BadSpec
from rollcage.sandbox.types import ExecRequest, Probe, RestartPolicy, SandboxSpec

_TEXTS = ("image", "ready_command", "workdir", "user")
_LISTS = {"command": str, "network": str, "ports": int}
_NUMBERS = ("cpus", "ttl_s", "start_timeout_s")
_WHOLE = ("memory_bytes", "num_pids", "disk_bytes", "max_restarts")


def checked_spec(spec: SandboxSpec) -> SandboxSpec:
    """Return a specification whose fields are of their types: lists made tuples, a policy given by its name made one.

    What a kind of host refuses beyond that is its driver's to say.

    Raises:
        BadSpec: a field is of another type, or no number of its kind.
    """
    if not isinstance(spec, SandboxSpec):
        raise BadSpec(f"a sandbox is made of a SandboxSpec, not of {spec!r}.")
    for name in _TEXTS:
        if not isinstance(value := getattr(spec, name), str):
            raise BadSpec(f"{name} must be a string, not {value!r}.")
    if not spec.image:
        raise BadSpec("image is empty: name one, such as 'rollcage-base'.")
    for name, kind in _LISTS.items():
        value = getattr(spec, name)
        if not isinstance(value, tuple | list) or not all(isinstance(item, kind) for item in value):
            raise BadSpec(f"{name} must be a tuple of {'strings' if kind is str else 'numbers'}, not {value!r}.")
    for name in ("env", "labels"):
        if not _is_text_by_text(value := getattr(spec, name)):
            raise BadSpec(f"{name} must give a string for each name, not {value!r}.")
    for name in _NUMBERS:
        if not _is_number(value := getattr(spec, name)):
            raise BadSpec(f"{name} must be a number, not {value!r}.")
    for name in _WHOLE:
        if isinstance(value := getattr(spec, name), bool) or not isinstance(value, int):
            raise BadSpec(f"{name} must be a whole number, not {value!r}.")
    if spec.ttl_s < 0:
        raise BadSpec(f"ttl_s must be a number of seconds, or 0 for no end, not {spec.ttl_s}.")
    if spec.start_timeout_s <= 0:
        raise BadSpec(f"start_timeout_s must be above 0, not {spec.start_timeout_s}.")
    _check_probe(spec.probe)
    try:
        policy = RestartPolicy(spec.restart)
    except ValueError:
        policies = ", ".join(repr(str(policy)) for policy in RestartPolicy)
        raise BadSpec(f"restart must be one of {policies}, not {spec.restart!r}.") from None
    command, network, ports = tuple(spec.command), tuple(spec.network), tuple(spec.ports)
    return replace(spec, command=command, network=network, ports=ports, restart=policy)


def checked_request(request: ExecRequest) -> ExecRequest:
    """Return a command that can be run as it is asked for; raises BadRequest."""
    command = request.command
    if not isinstance(command, str) and not all(isinstance(part, str) for part in command):
        raise BadRequest(f"command must be a string, or strings, not {command!r}.")
    if not isinstance(request.stdin, bytes):
        raise BadRequest(f"stdin must be bytes, not {type(request.stdin).__name__}.")
    if not isinstance(request.cwd, str):
        raise BadRequest(f"cwd must be a string, not {request.cwd!r}.")
    if not _is_text_by_text(request.env):
        raise BadRequest(f"env must give a string for each name, not {request.env!r}.")
    check_bounds(request.timeout_s, request.max_output_bytes)
    return request


def check_bounds(timeout_s: float, max_output_bytes: int) -> None:
    """Raise BadRequest where a command's deadline or its bound on output is none."""
    if not _is_number(timeout_s) or timeout_s <= 0:
        raise BadRequest(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}.")
    if not isinstance(max_output_bytes, int) or max_output_bytes < 0:
        raise BadRequest(f"max_output_bytes must be a whole number of at least 0, not {max_output_bytes!r}.")


def _check_probe(probe: Probe) -> None:
    if not isinstance(probe, Probe):
        raise BadSpec(f"probe must be a Probe, not {probe!r}.")
    for name in ("interval_s", "timeout_s"):
        if not _is_number(value := getattr(probe, name)) or value <= 0:
            raise BadSpec(f"probe: {name} must be a number of seconds above 0, not {value!r}.")
    counts = (probe.num_failures, probe.num_recent)
    if not all(isinstance(count, int) for count in counts) or not 1 <= probe.num_failures <= probe.num_recent:
        raise BadSpec(f"probe: num_failures must be from 1 to num_recent, not {counts[0]!r} of {counts[1]!r}.")
    if not isinstance(probe.command, str):
        raise BadSpec(f"probe: command must be a string, not {probe.command!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text_by_text(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
