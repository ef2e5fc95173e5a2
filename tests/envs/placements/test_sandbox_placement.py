"""Placement `sandbox`: environments in real containers: the same transcripts, and what becomes of a lost place."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.places import served
from tests.sandbox.real_engine import Real

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
import placement_zoo  # noqa: F401  (registers zoo/Moody-v0)

from rollcage.envs.placements import (
    EnvConfig,
    EnvDied,
    EnvHandle,
    EnvOutOfMemory,
    EnvRaised,
    EnvTimeout,
    Placement,
    PlacementError,
    SandboxPlacement,
    make_placement,
)
from rollcage.errors import UserError
from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.types import MIB, SandboxSpec, State

MOODY = EnvConfig("zoo/Moody-v0")
LONG_S = 60.0
WORDS = ("one", "two", "three", "four", "five")
CHEAP = {
    "rollcage/Countdown-v0": {"max_turns": 4},
    "rollcage/FrozenLake-v0": {},
    "rollcage/Math-v0": {},
    "rollcage/QA-v0": {},
    "rollcage/Sokoban-v0": {},
}


@pytest.fixture
def real(docker_endpoint: str, env_image: str, manager_id: str, tmp_path: Path) -> Real:
    """The real daemon."""
    return Real(docker_endpoint, env_image, "", tmp_path / "manager", manager_id)


@asynccontextmanager
async def placed(sandboxes: Sandboxes, config: EnvConfig = MOODY, **options: Any) -> AsyncIterator[SandboxPlacement]:
    placement = SandboxPlacement(config, sandboxes=sandboxes, **options)
    try:
        yield placement
    finally:
        await placement.close()
        await placement.close()  # idempotent
        assert {info.state for info in await sandboxes.list_sandboxes()} <= {State.FAILED}, (
            "for their reason to be read"
        )


def on(real: Real, test: Callable[[Sandboxes], Awaitable[None]]) -> None:
    """Run a test with a manager; what it leaves on the daemon makes it fail."""

    async def main() -> None:
        async with real.managed() as manager:
            await test(manager)

    asyncio.run(main())


async def play(placement: Placement, actions: tuple[str, ...], *, seed: int = 7) -> list[Any]:
    """Return the transcript of the actions; an episode that ends is followed by another."""
    handle = await placement.acquire(deadline_s=LONG_S)
    log: list[Any] = [await handle.reset(seed=seed, deadline_s=LONG_S)]
    for action in actions:
        if action == "expert":
            action = await handle.call("expert", deadline_s=LONG_S)
        elif action == "random":
            action = await handle.call("random_action", len(log), deadline_s=LONG_S)
        log.append(await handle.step(action, deadline_s=LONG_S))
        if log[-1][2] or log[-1][3]:
            log.append(await handle.reset(deadline_s=LONG_S))
    await handle.release()
    return log


def test_every_cheap_environment_gives_the_same_transcript_inline_in_a_process_and_in_a_sandbox(
    real: Real, shared_data: Path | None
) -> None:
    games = {"dataset": "sample"} if shared_data is None else {"split": "valid_seen"}

    async def test(sandboxes: Sandboxes) -> None:
        async def compare(config: EnvConfig, actions: tuple[str, ...]) -> None:
            transcripts = []
            for kind in ("inline", "process"):
                placement = make_placement(kind, config)
                transcripts.append(await play(placement, actions))
                await placement.close()
            async with AsyncExitSandbox(sandboxes, config) as placement:
                transcripts.append(await play(placement, actions))
            assert transcripts[0] == transcripts[1] == transcripts[2], config.env_id
            assert len(transcripts[0]) > len(actions)

        actions = (
            "<answer>1</answer>",
            "nonsense \ud800 🙂",
            "random",
            "expert",
            "<answer>left</answer>",
            "x" * 70_000,
        )
        for env_id, kwargs in {**CHEAP, "rollcage/ALFWorld-v0": games}.items():
            offered = tuple(action for action in actions if action != "random" or env_id != "rollcage/Math-v0")
            await compare(EnvConfig(env_id, kwargs), offered)
        await compare(MOODY, ("ada", "bell", "x\x00y", "a" * 1_000_000, "\ud83d\ude00 two lone"))

    on(real, test)


class AsyncExitSandbox:
    """A sandbox placement that others may run beside."""

    def __init__(self, sandboxes: Sandboxes, config: EnvConfig, **options: Any) -> None:
        self.placement = SandboxPlacement(config, sandboxes=sandboxes, **options)

    async def __aenter__(self) -> SandboxPlacement:
        return self.placement

    async def __aexit__(self, *_: object) -> None:
        await self.placement.close()


def test_it_runs_through_the_service_as_in_process(real: Real, tmp_path: Path) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes) as placement:
            expected = await play(placement, ("ada", "b" * 700_000, "curie"))
        async with served(_Lent(sandboxes), tmp_path) as service, Client(service.address, service.token) as client:
            async with placed(client, restart="restore") as placement:
                assert await play(placement, ("ada", "b" * 700_000, "curie")) == expected

    on(real, test)


class _Lent:
    """A manager that a service may not close."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandboxes, name)

    async def close(self) -> None:
        pass


FAILURES: list[tuple[str, type[PlacementError], str, str]] = [
    ("raise oh no", EnvRaised, "env_raised", "oh no"),
    ("sleep 3600", EnvTimeout, "env_timeout", "1 s"),
    ("exit 3", EnvDied, "env_died", "exit code 3"),
    ("kill SIGKILL", EnvDied, "env_died", "signal 9"),
    ("segfault", EnvDied, "env_died", "(?s)signal 11.*Segmentation fault"),
    ("garbage", EnvDied, "env_died", "something else"),
    (f"giant {1 << 30}", EnvOutOfMemory, "env_oom", "Memory ran out"),
]


def test_a_failure_ends_by_its_deadline_as_its_own_kind_and_the_next_episode_is_well(real: Real) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        small = SandboxSpec(image=real.image, memory_bytes=256 * MIB)
        async with placed(sandboxes, spec=small, num_workers=2) as placement:
            for action, kind, reason, words in FAILURES:
                handle = await placement.acquire(deadline_s=LONG_S)
                await handle.reset(seed=0, deadline_s=LONG_S)
                assert (await handle.step("print noise", deadline_s=LONG_S))[0] == "noise"
                begin = time.monotonic()
                with pytest.raises(kind, match=words) as caught:
                    await handle.step(action, deadline_s=1.0 if kind is EnvTimeout else LONG_S)
                assert caught.value.reason == reason
                assert time.monotonic() - begin < 10.0, action
                with pytest.raises(EnvDied, match="broken"):
                    await handle.step("more", deadline_s=LONG_S)
                await handle.release()

    on(real, test)


async def _lose_container(real: Real, handle: EnvHandle) -> None:
    [name] = await real.containers()
    await real.kill(name)


async def _lose_worker(real: Real, handle: EnvHandle) -> None:
    await _signal_worker(real, handle, "KILL")


async def _hang_worker(real: Real, handle: EnvHandle) -> None:
    await _signal_worker(real, handle, "STOP")


async def _signal_worker(real: Real, handle: EnvHandle, name: str) -> None:
    [container] = await real.containers()
    pid = await asyncio.create_subprocess_exec(
        "docker", "-H", real.endpoint, "exec", container, "pkill", f"-{name}", "-f", "rollcage.envs.worker"
    )
    assert await pid.wait() == 0


LOSSES = {"container": _lose_container, "worker": _lose_worker, "hang": _hang_worker}


@pytest.mark.parametrize("what", LOSSES)
def test_with_restore_an_episode_goes_on_as_if_nothing_had_happened(what: str, real: Real) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes) as placement:
            undisturbed = await play(placement, WORDS)
        async with placed(sandboxes, restart="restore") as placement:
            handle = await placement.acquire(deadline_s=LONG_S)
            log: list[Any] = [await handle.reset(seed=7, deadline_s=LONG_S)]
            for turn, action in enumerate(WORDS):
                if turn == 3:
                    await LOSSES[what](real, handle)
                log.append(await handle.step(action, deadline_s=8.0 if what == "hang" else LONG_S))
            marks = [step[-1].pop("restarted", 0) for step in log]
            assert log == undisturbed, "the same observations, draws and rewards"
            assert marks == [0, 0, 0, 0, 1, 1]
            assert "restarted" not in (await handle.reset(seed=8, deadline_s=LONG_S))[1]
            [info] = await sandboxes.list_sandboxes()
            assert info.generation == (2 if what == "container" else 1)
            await handle.release()

    on(real, test)


@pytest.mark.parametrize("what", ["container", "worker"])
def test_files_are_part_of_the_checkpoint_where_the_environment_asks_for_it(what: str, real: Real) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes, EnvConfig("zoo/Scribe-v0"), restart="restore") as placement:
            handle = await placement.acquire(deadline_s=LONG_S)
            await handle.reset(seed=7, deadline_s=LONG_S)
            written: dict[str, str] = {}
            for turn, action in enumerate(("ada", "bell", "ada", "slow", "ada"), start=1):
                step = asyncio.create_task(handle.step(action, deadline_s=LONG_S))
                if action == "slow":  # the first of its two files is written by now, and the second is not
                    await asyncio.sleep(0.7)
                    await LOSSES[what](real, handle)
                observation, *_, info = await step
                for folder in ("/tmp/notes", "notes"):
                    path = f"{folder}/{action}"
                    written[path] = f"{written.get(path, '')}{turn} "
                expected = "\n".join(f"{path}: {text}" for path, text in sorted(written.items()))
                assert observation == expected, "every file, and nothing twice of the turn that was lost half-way"
                assert info.get("restarted", 0) == int(turn >= 4)
            assert len(await sandboxes.snapshots()) <= 5
            await handle.release()
        assert not await sandboxes.snapshots(), "they go with the sandbox"
        await sandboxes.prune_images()

    on(real, test)


def test_without_it_a_killed_container_ends_the_episode_as_data(real: Real) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes) as placement:
            handle = await placement.acquire(deadline_s=LONG_S)
            await handle.reset(seed=7, deadline_s=LONG_S)
            await _lose_container(real, handle)
            with pytest.raises(EnvDied, match=r"lost|broken") as caught:
                await handle.step("one", deadline_s=LONG_S)
            assert caught.value.reason == "env_died"
            await handle.release()
            assert len(await play(placement, WORDS)) == 6

    on(real, test)


def test_what_keeps_killing_its_place_fails_in_spite_of_restore(real: Real) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes, restart="restore") as placement:
            for action, kind in (("exit 3", EnvDied), ("sleep 60", EnvTimeout), ("raise it", EnvRaised)):
                handle = await placement.acquire(deadline_s=LONG_S)
                await handle.reset(seed=7, deadline_s=LONG_S)
                begin = time.monotonic()
                with pytest.raises(kind):
                    await handle.step(action, deadline_s=6.0)
                assert time.monotonic() - begin < 8.0
                await handle.release()

    on(real, test)


def test_without_image_or_docker_one_line_says_what_to_run(real: Real, tmp_path: Path) -> None:
    async def test(sandboxes: Sandboxes) -> None:
        async with placed(sandboxes, spec=SandboxSpec(image="no-such-image.invalid/x")) as placement:
            with pytest.raises(UserError, match="rollcage sandbox images build env") as caught:
                await placement.acquire(deadline_s=LONG_S)
            assert "\n" not in str(caught.value)

    on(real, test)


def test_without_docker_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLCAGE_SANDBOX", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    async def main() -> None:
        placement = make_placement("sandbox", EnvConfig("rollcage/Countdown-v0"))
        try:
            with pytest.raises(UserError, match="no Docker daemon answers") as caught:
                await placement.acquire(deadline_s=LONG_S)
            assert "\n" not in str(caught.value)
        finally:
            await placement.close()

    asyncio.run(main())
