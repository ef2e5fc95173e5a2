"""Who may create a sandbox now: one fair queue in front of all hosts."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rollcage.sandbox.errors import HostUnavailable, Overloaded, SandboxError, SandboxUnavailable
from rollcage.sandbox.manager.placement import DEFAULT_LIMITS, HostLimits, choose_host, obstacle
from rollcage.sandbox.manager.places import Ledger, Place
from rollcage.sandbox.types import HostInfo, SandboxSpec

TURN = "Its turn has not come: others that wait are before it."
CLOSED = "The manager is closing: it takes no more creations."


class Admission:
    """The queue of creations in front of all hosts; it alone makes promises on them.

    Owners take turns, each one's creations in the order in which they came. What does not fit now lets others pass,
    but only so many: then one host takes nobody else until it has had its turn. Everything is decided in the event
    loop's thread without a wait between the look and the promise, so nothing is ever promised twice.

    Args:
        hosts: the hosts as they are now: name, condition, size, load. Their reservations are this class's business:
            what `hosts` says of them is not read.
        limits: what each host may promise.
        max_passes: so many later creations of other owners may pass one that does not fit.
    """

    def __init__(
        self, hosts: Callable[[], Sequence[HostInfo]], limits: HostLimits = DEFAULT_LIMITS, *, max_passes: int = 32
    ) -> None:
        self._hosts, self._limits, self._max_passes = hosts, limits, max_passes
        self._ledger = Ledger(self.wake)
        self._queues: dict[str, deque[_Waiter]] = {}
        self._turns: list[str] = []  # owners that wait, whose turn is next at the front
        self._restarts: defaultdict[str, deque[Place]] = defaultdict(deque)
        self._is_closed = False

    async def admit(
        self,
        spec: SandboxSpec,
        *,
        deadline: float,
        owner: str = "",
        only: Collection[str] = (),
        on_wait: Callable[[str], None] = lambda why: None,
    ) -> Place:
        """Wait for this creation's turn and for room, and return the place; `Place.release` it whatever happens.

        A creation that is cancelled or runs into its deadline leaves no trace.

        Args:
            spec: what needs a place.
            deadline: in the event loop's time.
            owner: whose turn it is.
            only: hosts that alone may take it (a snapshot's, which lies nowhere else); empty: all.
            on_wait: told once why it has to wait, where it has to.

        Raises:
            BadSpec: it can never fit. At once.
            DiskPressure: the hosts that are up are full. At once, or when that happens while it waits.
            Overloaded: no room by the deadline.
            HostUnavailable: by the deadline no host was open; or the queue was closed.
        """
        self._check_open()
        waiter = _Waiter(spec, only, asyncio.get_running_loop().create_future())
        why = TURN
        try:  # what can never be should not have to wait for its turn to hear so
            self._choose(waiter, self._reserved_hosts())
        except (Overloaded, HostUnavailable) as reason:
            why = str(reason)
        if owner not in self._queues:
            self._queues[owner] = deque()
            self._turns.append(owner)
        self._queues[owner].append(waiter)
        is_taken = False
        try:
            self.wake()
            if not waiter.place.done():
                on_wait(why)
            async with asyncio.timeout_at(deadline):
                place = await waiter.place
            is_taken = True
            return place
        except TimeoutError:
            raise self._why_not(waiter) from None
        finally:
            if not is_taken:
                self._leave(owner, waiter)

    async def restart(self, place: Place, *, deadline: float) -> None:
        """Wait for a start on the host of a place that is held already (a new life); then `Place.started` it.

        New lives go before new sandboxes.

        Raises:
            SandboxUnavailable: the place was released.
            Overloaded: no start was free by the deadline.
            HostUnavailable: the queue was closed.
        """
        self._check_open()
        if not place.is_held:
            raise SandboxUnavailable("its place has been released")
        if place.is_starting:
            return
        place.start = start = asyncio.get_running_loop().create_future()
        self._restarts[place.host].append(place)
        self.wake()
        is_taken = False
        try:
            async with asyncio.timeout_at(deadline):
                await start
            is_taken = True
        except TimeoutError:
            raise Overloaded(
                f"Host {place.host!r} was starting {self._limits.max_starts} others all the time."
            ) from None
        finally:
            place.start = None
            if place in self._restarts[place.host]:
                self._restarts[place.host].remove(place)
            if not is_taken:
                place.started()

    def adopt(self, host: str, spec: SandboxSpec) -> Place:
        """Return the place of a sandbox that exists already; counts even where it is more than the limits allow."""
        return Place(self._ledger, host, spec)

    def reserved(self, host: HostInfo) -> HostInfo:
        """Return ``host`` with its num_sandboxes, reserved_cpus and reserved_memory_bytes filled in."""
        return self._ledger.filled(host)

    def wake(self) -> None:
        """Look again: a host has opened, closed, appeared, gone or changed its size. Releases do this by themselves."""
        for host, places in self._restarts.items():
            while places and self._ledger.num_starts(host) < self._limits.max_starts:
                place = places.popleft()
                if place.start is not None and not place.start.done():
                    place.begin_start()
                    place.start.set_result(None)
        if not self._turns:
            return
        hosts = self._reserved_hosts()
        blocked: list[tuple[_Waiter, set[str]]] = []  # whom others may pass, and the hosts that could ever take them
        kept: set[str] = set()
        turn = 0
        while turn < len(self._turns):
            owner = self._turns[turn]
            waiter = self._queues[owner][0]
            try:
                if waiter.place.done():  # cancelled; it has not come to leave yet
                    self._pop(owner)
                    continue
                host = self._choose(waiter, hosts, kept)
            except (Overloaded, HostUnavailable):
                able = self._able(waiter, hosts)
                if waiter.num_passes >= self._max_passes:
                    waiter.keep_one(able, kept, hosts)
                blocked.append((waiter, able))
                turn += 1
            except SandboxError as error:
                waiter.place.set_exception(error)
                self._pop(owner)
            else:
                self._pop(owner, to_back=True)
                waiter.place.set_result(self._promise(host, waiter.spec))
                hosts[host] = self.reserved(hosts[host])
                for passed, able in blocked:
                    passed.num_passes += host in able

    @property
    def num_waiting(self) -> int:
        """Creations in the queue."""
        return sum(len(queue) for queue in self._queues.values())

    def close(self) -> None:
        """Let nobody in any more; those that wait get HostUnavailable. Idempotent."""
        self._is_closed = True
        starts = [place.start for places in self._restarts.values() for place in places]
        for waiting in [*starts, *(waiter.place for queue in self._queues.values() for waiter in queue)]:
            if waiting is not None and not waiting.done():
                waiting.set_exception(HostUnavailable(CLOSED))
        self._queues.clear()
        self._turns.clear()
        self._restarts.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostUnavailable(CLOSED)

    def _reserved_hosts(self) -> dict[str, HostInfo]:
        return {host.name: self.reserved(host) for host in self._hosts()}

    def _choose(self, waiter: _Waiter, hosts: Mapping[str, HostInfo], kept: Collection[str] = ()) -> str:
        starting = {host: self._ledger.num_starts(host) for host in hosts}
        allowed = waiter.allowed(hosts)
        return choose_host(waiter.spec, allowed, self._limits, num_starting=starting, kept=kept)

    def _why_not(self, waiter: _Waiter) -> SandboxError:
        try:
            self._choose(waiter, self._reserved_hosts())
        except SandboxError as reason:
            return reason
        return Overloaded(TURN)

    def _able(self, waiter: _Waiter, hosts: Mapping[str, HostInfo]) -> set[str]:
        return {
            host.name
            for host in waiter.allowed(hosts)
            if host.condition == "open" and host.num_cpus and not obstacle(waiter.spec, host, self._limits)
        }

    def _promise(self, host: str, spec: SandboxSpec) -> Place:
        place = self.adopt(host, spec)
        place.begin_start()
        return place

    def _pop(self, owner: str, *, to_back: bool = False) -> None:
        queue = self._queues[owner]
        queue.popleft()
        if not queue:
            del self._queues[owner]
        if not queue or to_back:
            self._turns.remove(owner)
        if queue and to_back:
            self._turns.append(owner)

    def _leave(self, owner: str, waiter: _Waiter) -> None:
        if waiter.place.done() and not waiter.place.cancelled() and waiter.place.exception() is None:
            waiter.place.result().release()  # granted in the very moment in which it gave up
        queue = self._queues.get(owner)
        if queue and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[owner]
                self._turns.remove(owner)
        self.wake()


@dataclass(slots=True, eq=False)
class _Waiter:
    """One creation in the queue."""

    spec: SandboxSpec
    only: Collection[str]
    place: asyncio.Future[Place]
    num_passes: int = 0
    kept_host: str = ""

    def allowed(self, hosts: Mapping[str, HostInfo]) -> list[HostInfo]:
        return [host for host in hosts.values() if not self.only or host.name in self.only]

    def keep_one(self, able: Collection[str], kept: set[str], hosts: Mapping[str, HostInfo]) -> None:
        """Keep one host, always the same: if it changed, others could fill the one while the other empties."""
        free = [host for host in able if host not in kept]
        if self.kept_host not in free:
            self.kept_host = min(
                free, key=lambda host: (hosts[host].reserved_memory_bytes, hosts[host].num_sandboxes, host), default=""
            )
        kept.add(self.kept_host)
