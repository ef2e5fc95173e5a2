"""Commands that begin while their container is being saved or paused, where each command is a Docker exec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sandbox.drivers.docker_rig import Rig

from rollcage.sandbox.drivers.base import LABEL_MANAGER
from rollcage.sandbox.drivers.docker_frost import Frost
from rollcage.sandbox.errors import GuestLost
from rollcage.sandbox.types import SandboxSpec

OnDocker = Callable[[Callable[[Rig], Coroutine[Any, Any, None]]], None]


class FakeExec:
    """Says in turn what Docker tells of a process."""

    def __init__(self, *told: tuple[bool, int, int | None]) -> None:
        self.told = list(told)

    async def inspect(self) -> dict[str, Any]:
        running, pid, exit_code = self.told.pop(0)
        return {"Running": running, "Pid": pid, "ExitCode": exit_code}


def test_a_container_is_frozen_only_between_starts() -> None:
    async def main() -> None:
        frost, seen = Frost(), list[str]()
        first, other = FakeExec((False, 0, None), (True, 0, None), (True, 7, None)), FakeExec()
        await frost.begin("a", first)  # type: ignore[arg-type]
        await frost.begin("b", other)  # type: ignore[arg-type]  # another container's: nobody asks about it

        async def start_second() -> None:
            await frost.begin("a", FakeExec())  # type: ignore[arg-type]
            seen.append("second may start")

        async with frost.freezing("a"):
            assert first.told == []
            second = asyncio.create_task(start_second())
            await asyncio.sleep(0.01)
            seen.append("frozen")
        await second
        assert seen == ["frozen", "second may start"]

    asyncio.run(main())


def test_commands_and_snapshots_at_once_hang_nothing(on_docker: OnDocker, bare_image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box, is_over, num_commands = await rig.start(SandboxSpec(image=bare_image)), False, 0

        async def work() -> None:
            nonlocal num_commands
            while not is_over:
                try:
                    assert (await box.sh("echo on")).stdout == b"on\n"
                    num_commands += 1
                except GuestLost:  # the container is paused: it takes no command
                    await asyncio.sleep(0.01)

        workers = [asyncio.create_task(work()) for _ in range(3)]
        for number in range(8):
            await rig.driver.commit(box.name, f"{rig.manager}:{number}", {LABEL_MANAGER: rig.manager})
            await rig.driver.pause(box.name)
            await rig.driver.unpause(box.name)
            await asyncio.sleep(0.2)
        is_over = True
        await asyncio.gather(*workers)
        assert num_commands > 8

    on_docker(scenario)
