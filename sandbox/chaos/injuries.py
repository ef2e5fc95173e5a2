"""What happens to sandboxes, from the inside and from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.chaos.caller import Caller
from rollcage.sandbox.chaos.schedule import Injury, Plan
from rollcage.sandbox.chaos.witness import until
from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.errors import SandboxError, SandboxRestarted, SandboxUnavailable
from rollcage.sandbox.types import MIB, Probe, RestartPolicy, SandboxSpec, State

DEADLY = (Injury.KILL, Injury.DISK, Injury.NO_BIN)
"""A life does not survive these, or is UNHEALTHY for good where its policy is to fail."""
NUM_TRIES = 4
LASTING = (Injury.FORK_BOMB, Injury.NO_BIN)
"""Under these a sandbox whose policy is to fail may stay UNHEALTHY; from all others it recovers."""
_KILL_AGENT = (
    "for it in /proc/[0-9]*; do grep -qs '[r]ollcage agent' $it/cmdline && kill -9 ${it#/proc/}; done; sleep 5"
)
_INSIDE = {
    Injury.OOM: ("head -c 209715200 /dev/zero | tail", 20.0),
    Injury.FORK_BOMB: ("bomb() { bomb | bomb & }; bomb; sleep 30", 2.0),
    Injury.DISK: ("head -c 67108864 /dev/zero > big; sleep 30", 40.0),
    Injury.AGENT: (_KILL_AGENT, 10.0),
    Injury.NO_BIN: ("rm -rf /bin", 10.0),
}
_LONG = "sleep 8.765 & sleep 8.765"
_STILL_RUNS = "for it in /proc/[0-9]*; do grep -qs '[s]leep.8.765' $it/cmdline && exit 7; done; exit 0"


def spec_of(plan: Plan, image: str, ttl_s: float) -> SandboxSpec:
    """Return the sandbox of a cycle."""
    return SandboxSpec(
        image=image,
        user="0:0" if plan.injury is Injury.NO_BIN else "1000:1000",  # only root may remove it
        cpus=0.5,
        memory_bytes=64 * MIB,
        num_pids=64,
        disk_bytes=16 * MIB if plan.injury is Injury.DISK else 0,
        ttl_s=ttl_s,
        start_timeout_s=15.0,
        restart=plan.restart,
        probe=Probe(interval_s=1.0, timeout_s=1.5),
    )


async def injure(
    caller: Caller, box: Sandbox, container: str, injury: Injury, driver: Driver, up: Callable[[], Awaitable[None]]
) -> None:
    """Let it happen.

    Args:
        caller: makes the calls.
        box: to whom.
        container: its container now.
        injury: what.
        driver: of the daemon, past the proxy.
        up: waits until the manager runs.
    """
    if injury in (Injury.KILL, Injury.PAUSE):
        act: Callable[[str], Awaitable[None]] = driver.kill if injury is Injury.KILL else driver.pause

        async def has_acted() -> bool:
            try:
                await act(container)
            except SandboxUnavailable:
                pass  # it died before
            except SandboxError:
                return False  # the daemon is being restarted
            return True

        await until(has_acted, 30.0)
    elif injury is Injury.RESTORE:
        if (await caller("restore", box.restore, 40.0)).ok:
            info = (await caller("info", box.info, 20.0)).value
            caller.generation = 0 if info is None else info.generation
    elif injury is Injury.HOLD:
        await caller("pause", box.pause, 40.0)

        async def is_resumed() -> bool:
            await up()
            return (await caller("resume", box.resume, 40.0)).ok

        await until(is_resumed, 60.0)
    elif injury is Injury.VANISH:
        client = asyncio.create_task(box.exec(_LONG, timeout_s=8.0))
        await asyncio.sleep(0.5)
        client.cancel()
        await asyncio.wait([client])

        async def has_ended() -> bool:
            await up()
            answer = await caller("exec", lambda: box.exec(_STILL_RUNS, timeout_s=5.0), 5.0)
            return isinstance(answer.error, SandboxUnavailable) or (answer.value is not None and answer.value.ok)

        caller.ledger.check("gone", caller.cycle, await until(has_ended, 60.0), "a vanished client's command")
    elif injury in _INSIDE:
        command, timeout_s = _INSIDE[injury]
        for _ in range(NUM_TRIES):
            await up()
            answer = await caller(f"exec ({injury})", lambda: box.exec(command, timeout_s=timeout_s), timeout_s)
            error = answer.error
            has_died = isinstance(error, SandboxUnavailable) and error.state not in ("", State.READY)
            if answer.ok or has_died or isinstance(error, SandboxRestarted):
                break  # else the connection to it broke, and the command with it
        if injury is Injury.OOM and answer.value is not None and not answer.value.timed_out:
            caller.ledger.check("answer", caller.cycle, answer.value.oom_killed, f"no OOM told: {answer.value}")


def may_end_so(plan: Plan, state: State) -> bool:
    """Whether a sandbox may be in such a state for good after the injury of its cycle."""
    if state is State.UNHEALTHY:
        return plan.restart is RestartPolicy.FAIL and plan.injury in LASTING
    return state in (State.FAILED, State.DELETED)
