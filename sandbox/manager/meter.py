"""The manager's metrics: what is counted and timed, and under which names; a few dictionary operations each."""

from __future__ import annotations

import time
from collections import Counter

from rollcage.recorder import Recorder
from rollcage.sandbox.types import ExecResult, State


class Meter:
    """Tells a recorder.

    Args:
        recorder: who is told.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_in: Counter[tuple[str, str]] = Counter()

    def moved(self, old: tuple[str, State] | None, new: tuple[str, State]) -> None:
        """A sandbox has changed its host or its state; ``old`` is None for a new one."""
        if old == new:
            return
        if old is not None:
            self._num_in[old] -= 1
            self._show(*old)
        if new[1] is not State.DELETED:
            self._num_in[new] += 1
            self._show(*new)
        self._recorder.counter("sandbox_transitions", state=new[1])

    def _show(self, host: str, state: State) -> None:
        # The clock of event loops: a run's timeline is over it.
        self._recorder.gauge("sandboxes", self._num_in[host, state], at_s=time.monotonic(), host=host, state=state)

    def created(self, phase: str, duration_s: float) -> None:
        """A creation spent so long in "queue", "create", "connect" or "ready"; "claim": all of it, from the pool."""
        self._recorder.histogram("sandbox_create_seconds", duration_s, phase=phase)

    def executed(self, result: ExecResult, duration_s: float) -> None:
        """A command has ended; ``duration_s`` as its caller saw it."""
        self._recorder.histogram("sandbox_exec_seconds", duration_s)
        for name in ("timed_out", "truncated"):
            if getattr(result, name):
                self._recorder.counter(f"sandbox_exec_{name}")

    def oom_killed(self, num: int = 1) -> None:
        """The kernel killed processes of a sandbox for memory."""
        self._recorder.counter("sandbox_oom_kills", num)

    def restarted(self, why: str) -> None:
        """A new life was begun: "died", "unhealthy" or "restore"."""
        self._recorder.counter("sandbox_restarts", why=why)

    def probed(self, duration_s: float, ok: bool) -> None:
        """A probe was answered, or not."""
        self._recorder.histogram("sandbox_probe_seconds", duration_s, ok=str(ok).lower())

    def orphan(self, kind: str) -> None:
        """A "container" or "image" was removed that had no right to be there."""
        self._recorder.counter("sandbox_orphans", kind=kind)

    def circuit(self, host: str, state: str) -> None:
        """A host's breaker has opened or closed."""
        self._recorder.counter("sandbox_circuit_changes", host=host, state=state)
