"""What the manager's rooms share: its hosts, its store, its sandboxes, who is told what happens, and its tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from rollcage.sandbox.errors import HostUnavailable, SandboxError, SandboxNotFound
from rollcage.sandbox.manager.admission import Admission
from rollcage.sandbox.manager.box import Box
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.meter import Meter
from rollcage.sandbox.manager.placement import HostLimits
from rollcage.sandbox.manager.store import DELETED, Row, Store
from rollcage.sandbox.types import SandboxInfo, State

T = TypeVar("T")
INFO_FIELDS = {each.name for each in fields(SandboxInfo)}


@dataclass(frozen=True, slots=True)
class Settings:
    """How the manager works; the values suit a Docker host with some hundred sandboxes.

    Attributes:
        limits: what each host may promise.
        reconcile_s: from one comparison of a host with the store to the next, jittered by a tenth.
        sweep_s: from one look for ended leases to the next.
        images_s: from one look for orphaned images to the next.
        status_s: from one look at a host's size and disk to the next.
        call_timeout_s: longest wait for a host's answer, whose driver has shorter ones; ten times as long for creations
            and commits.
        slow_s: an answer that takes longer speaks against a host; ten times as long for creations and commits.
        connect_timeout_s: longest wait for the agent of a sandbox that runs already.
        remove_timeout_s: longest wait for a removal; then the reconciler goes on with it.
        recreate_timeout_s: longest creation of a new life's container, whose image the host has.
        operation_timeout_s: longest pause, snapshot, restore or deletion; then DeadlineExceeded. It goes on by itself.
        grace_s: so much after a call's own deadline it is given up.
        move_after_s: a sandbox whose host has answered nothing for so long begins its new life on another one, where
            its policy is "restart" or "restore" (and the other one has the snapshot); 0: never.
        backoff_s: pause before the second new life of a sandbox; doubled for each further one.
        max_backoff_s: longest pause.
        num_create_tries: a creation whose answer is lost is asked for again, under the same name.
        max_snapshots_per_sandbox, max_snapshots: more are removed, the oldest first.
        failed_ttl_s: a creation that failed stays listed for so long (or for the lease that it would have had, where
            that is shorter), for its reason to be read; so does a sandbox without lease that died.
        history_s: events, and the ids of deleted sandboxes, are kept for so long ...
        max_events, max_deleted: ... and so many of each at most, the newest: more than a night leaves behind in which
            two sandboxes are made every second, in a few hundred megabytes.
        num_hands: parallel removals, commits and reconnections per host.
        open_s: longest wait for the hosts' first answers when the manager opens.
        return_s: a lease that ended no longer than this before the manager opened, or would as soon after, gets so much
            from then on (or its own length, where that is shorter): nobody could renew it while no manager ran.
        close_s: longest wait for what is under way when the manager closes.
    """

    limits: HostLimits = field(default_factory=HostLimits)
    reconcile_s: float = 3.0
    sweep_s: float = 1.0
    images_s: float = 60.0
    status_s: float = 5.0
    call_timeout_s: float = 40.0
    slow_s: float = 5.0
    connect_timeout_s: float = 10.0
    remove_timeout_s: float = 30.0
    recreate_timeout_s: float = 60.0
    operation_timeout_s: float = 180.0
    grace_s: float = 10.0
    move_after_s: float = 30.0
    backoff_s: float = 1.0
    max_backoff_s: float = 30.0
    num_create_tries: int = 3
    max_snapshots_per_sandbox: int = 5
    max_snapshots: int = 200
    failed_ttl_s: float = 3600.0
    history_s: float = 7 * 86400.0
    max_events: int = 500_000
    max_deleted: int = 100_000
    num_hands: int = 8
    open_s: float = 5.0
    return_s: float = 5.0
    close_s: float = 10.0


class Fleet:
    """All that the rooms share.

    Args:
        hosts: by name.
        store: what must not be forgotten.
        admission: who may create now, and what is promised.
        meter: metrics.
        settings: see `Settings`.
        clock: seconds since the epoch.
        rng: for jitter.

    Attributes:
        boxes: the sandboxes that are not deleted, by id. ``keys``: those that a key leads to.
        is_closed: the manager is closing, or closed.
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        store: Store,
        admission: Admission,
        meter: Meter,
        settings: Settings,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.hosts, self.store, self.admission, self.meter = hosts, store, admission, meter
        self.settings, self.clock, self.rng = settings, clock, rng
        self.boxes: dict[str, Box] = {}
        self.keys: dict[str, Box] = {}
        self.is_closed = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._opened_s = asyncio.get_running_loop().time()

    def add(self, row: Row, kind: str, told: Mapping[str, Any] | None = None) -> Box:
        """Take in a sandbox; ``kind`` "" where the store knows it already."""
        box = Box(row)
        self.boxes[row.info.id] = box
        if kind:
            self.store.save(row, kind, told)
        self._settle(box, None)
        return box

    def move(self, box: Box, kind: str, told: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """Change what a sandbox is, in the store and in memory, and tell the event ``kind`` ("" tells none).

        Args:
            box: whose.
            kind: see `Event`.
            told: details, besides the state and the generation.
            changes: fields of `SandboxInfo` or of `Row`.
        """
        before = (box.info.host, box.info.state)
        about = {name: value for name, value in changes.items() if name in INFO_FIELDS}
        others = {name: value for name, value in changes.items() if name not in INFO_FIELDS}
        row = replace(box.row, info=replace(box.info, **about), **others)
        self.store.save(row, kind, {"state": row.info.state, "generation": row.info.generation, **(told or {})})
        box.row = row
        self._settle(box, before)

    def box(self, sandbox_id: str) -> Box:
        """Return a sandbox; raises SandboxNotFound."""
        if sandbox_id not in self.boxes:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r} (or it has been deleted)")
        return self.boxes[sandbox_id]

    def host(self, box: Box) -> Host:
        """Return a sandbox's host; raises HostUnavailable where this manager has no such host."""
        if box.info.host not in self.hosts:
            raise HostUnavailable(
                f"sandbox {box.info.id} is on host {box.info.host!r}, which this manager does not have"
            )
        return self.hosts[box.info.host]

    def silent_s(self, host: str) -> float:
        """Return for how long a host has answered nothing; one that this manager does not have never does."""
        if host in self.hosts:
            return self.hosts[host].silent_s
        return asyncio.get_running_loop().time() - self._opened_s

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run something in a task that ends with the manager at the latest."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    async def for_ever(self, work: Callable[[], Awaitable[object]], *, pause_s: float) -> None:
        """Do something again and again, with a jittered pause: whatever goes wrong in one turn does not end it."""
        while True:
            try:
                await work()
            except SandboxError:
                pass  # a host does not answer: the next turn may find it back
            except Exception as error:  # noqa: BLE001  # nobody else would go on with it, nor notice that nobody does
                told = {"message": "a turn of the sandbox manager's work failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
            await asyncio.sleep(pause_s * self.rng.uniform(0.9, 1.1))

    def shift_leases(self, jump_s: float) -> None:
        """The clock has jumped: let all leases end as many seconds from now as they would have."""
        self.store.tell("", "clock", {"jump_s": jump_s})
        for box in list(self.boxes.values()):
            if box.info.expires_at:
                self.move(box, "", expires_at=box.info.expires_at + jump_s)

    async def end_tasks(self) -> None:
        """Cancel all tasks and wait for their end; those that clean up behind others get ``close_s``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.close_s
        while self._tasks:
            late = loop.time() >= deadline
            for task in list(self._tasks):
                if late or not task.get_name().startswith("clean"):
                    task.cancel()
            await asyncio.wait(list(self._tasks), timeout=0.1)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody else need be

    def _settle(self, box: Box, before: tuple[str, State] | None) -> None:
        info = box.info
        self.meter.moved(before, (info.host, info.state))
        if info.key:
            if info.state not in (State.FAILED, State.DELETED) and box.row.desired != DELETED:
                self.keys.setdefault(info.key, box)
            elif self.keys.get(info.key) is box:
                del self.keys[info.key]
        if info.state is State.DELETED:
            self.boxes.pop(info.id, None)
        box.tell_changed()
