"""What an environment is that makes sandboxes itself: one for the episode, others for a moment; none outlives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from rollcage.envs.core import TextEnv
from rollcage.envs.swe.lab import Lease
from rollcage.envs.tasks import Task, TaskSet
from rollcage.sandbox.sync import SyncSandbox
from rollcage.sandbox.types import SandboxSpec

_checked: set[tuple[tuple[str, ...], str]] = set()
"""Endpoints and images with which a sandbox of this process has come up."""


class SandboxedEnv(TextEnv):
    """An environment with sandboxes of its own. They belong to its process, and are no part of a pickle.

    Args:
        tasks: see `TextEnv`.
        spec: of every sandbox.
        endpoints: Docker daemons, or one; see `Lease`.
        settings: of `TextEnv`.
    """

    metadata: dict[str, Any] = {**TextEnv.metadata, "own_sandboxes": True}  # noqa: RUF012
    _unshared: ClassVar[tuple[str, ...]] = ("_lease", "_box")
    """What belongs to this process, and is no part of a pickle."""
    _start_timeout_s: ClassVar[float] = 120.0
    """For a sandbox to come up, the wait for a place included."""

    def __init__(self, tasks: TaskSet, spec: SandboxSpec, *, endpoints: str | Sequence[str], **settings: Any) -> None:
        super().__init__(tasks, **settings)
        self._spec = spec
        self._endpoints = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        self._lease: Lease | None = None
        self._box: SyncSandbox | None = None

    def close(self) -> None:
        """End the sandboxes; idempotent."""
        self._box = None
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(self._unshared)}

    def _drop_box(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            self._leased().delete(box)

    @contextmanager
    def _for_now(self) -> Iterator[SyncSandbox]:
        """Have a sandbox that nobody else has touched, until the block ends."""
        box = self._create()
        try:
            yield box
        finally:
            self._leased().delete(box)

    def _create(self) -> SyncSandbox:
        return self._leased().create(self._spec, deadline_s=self._start_timeout_s)

    def _leased(self) -> Lease:
        if self._lease is None:
            self._lease = Lease(self._endpoints)
        return self._lease

    def _ready(self, task: Task) -> None:
        """Make sure, once in a process, that sandboxes come up: what is missing is told before an episode begins."""
        key = self._endpoints, self._image_family()
        if key not in _checked:
            self._leased().delete(
                self._leased().create(replace(self._spec, labels={}), deadline_s=self._start_timeout_s)
            )
            _checked.add(key)

    def _image_family(self) -> str:
        """Return a name for the images of which one that comes up shows that all do."""
        return self._spec.image
