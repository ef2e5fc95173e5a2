"""Placements: the same episode wherever it runs, and every failure ends by its deadline and costs itself only."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import placement_zoo

from rollcage.envs import Task, TextEnv, Turn, register
from rollcage.envs.placements import (
    EnvConfig,
    EnvDied,
    EnvHandle,
    EnvRaised,
    EnvTimeout,
    InlinePlacement,
    Placement,
    PlacementError,
    make_placement,
)
from rollcage.errors import UserError

KINDS = ("inline", "process")
MOODY = EnvConfig("zoo/Moody-v0")
LONG_S = 60.0


def children() -> set[int]:
    """Return the ids of all live descendants of this process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        stack = [task]
        while stack:
            try:
                pids = [int(pid) for pid in (stack.pop() / "children").read_text().split()]
            except OSError:
                continue
            found.update(pids)
            stack += [Path(f"/proc/{pid}/task/{pid}") for pid in pids]
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After every test: no process, no descriptor and no thread more than before."""
    before = (children(), descriptors(), threading.active_count())
    yield
    assert wait_for(lambda: (children() - before[0]) == set() and descriptors() <= before[1]), "left over"
    assert wait_for(lambda: threading.active_count() <= before[2]), threading.enumerate()


@asynccontextmanager
async def placed(kind: str, config: EnvConfig = MOODY, **kwargs: Any) -> AsyncIterator[Placement]:
    placement = make_placement(kind, config, **kwargs)
    try:
        yield placement
    finally:
        await placement.close()
        await placement.close()  # idempotent


async def started(placement: Placement) -> EnvHandle:
    handle = await placement.acquire(deadline_s=LONG_S)
    await handle.reset(seed=0, deadline_s=LONG_S)
    return handle


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


async def transcript(kind: str, config: EnvConfig, seed: int, actions: list[str]) -> list[Any]:
    async with placed(kind, config) as placement:
        handle = await placement.acquire(deadline_s=LONG_S)
        log: list[Any] = [await handle.reset(seed=seed, deadline_s=LONG_S)]
        for action in actions:
            log.append(await handle.step(action, deadline_s=LONG_S))
            if log[-1][2] or log[-1][3]:
                log.append(await handle.reset(deadline_s=LONG_S))
        await handle.release()
    return log


@pytest.mark.parametrize(
    ("config", "actions"),
    [
        (
            MOODY,
            ["ada", "bell", "curie", "x\x00y", "\ud800 lone", "\ud83d\ude00 two lone", "naïve 数 🙂", "a" * 300_000],
        ),
        (EnvConfig("zoo/Moody-v0", {"max_turns": 2}), ["", "ada", "bell", "curie", "none"]),
        (EnvConfig("rollcage/Countdown-v0"), ["<answer>1+1</answer>", "", "<answer>(1"]),
        (EnvConfig("rollcage/FrozenLake-v0"), ["right", "down", "<answer>left</answer>", "fly"]),
    ],
    ids=["moody", "moody-two-turns", "countdown", "frozen-lake"],
)
def test_transcripts_are_identical_inline_and_in_a_process(config: EnvConfig, actions: list[str]) -> None:
    inline, process = (run(transcript(kind, config, 7, actions)) for kind in KINDS)
    assert inline == process
    assert [type(part) for step in inline for part in step] == [type(part) for step in process for part in step]


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_in_info_arrives_as_plain_numbers(kind: str) -> None:
    log = run(transcript(kind, MOODY, 1, ["hello"]))
    observation, reward, terminated, truncated, info = log[1]
    assert (observation, reward, terminated, truncated) == ("hello", 0.0, False, False)
    assert type(reward) is float
    assert (type(info["draw"]), info["share"], info["pair"], info["row"]) == (int, 0.5, [1, 2], [0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_instances_are_reused_and_then_start_afresh(kind: str) -> None:
    async def scenario() -> None:
        async with placed(kind) as placement:
            first = await started(placement)
            pid = (await first.step("pid", deadline_s=LONG_S))[0]
            await first.release()
            await first.release()  # idempotent: must not give the instance away twice
            second, third = await started(placement), await started(placement)
            assert (await second.step("pid", deadline_s=LONG_S))[0] == pid
            with pytest.raises(EnvDied, match="released"):
                await first.step("pid", deadline_s=LONG_S)
            same_place = (await third.step("pid", deadline_s=LONG_S))[0] == pid
            assert same_place == (kind == "inline")

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_call_offers_expert_random_snapshot_and_tools(kind: str) -> None:
    async def scenario() -> None:
        async with placed(kind) as placement:
            handle = await started(placement)
            expert = await handle.call("expert", deadline_s=LONG_S)
            draws = [await handle.call("random_action", 3, deadline_s=LONG_S) for _ in range(2)]
            assert draws[0] == draws[1] in ("ada", "bell", "curie")
            assert await handle.call("tools", deadline_s=LONG_S) == []
            snapshot = await handle.call("snapshot", deadline_s=LONG_S)
            after = await handle.step("again", deadline_s=LONG_S)
            await handle.call("restore", snapshot, deadline_s=LONG_S)
            assert await handle.step("again", deadline_s=LONG_S) == after
            assert (await handle.step(expert, deadline_s=LONG_S))[1:3] == (1.0, True)
            with pytest.raises(UserError, match="close"):
                await handle.call("close", deadline_s=LONG_S)

    run(scenario())


FAILURES: list[tuple[str, str, type[PlacementError], str]] = [
    ("inline", "raise oh no", EnvRaised, "oh no"),
    ("process", "raise oh no", EnvRaised, "oh no"),
    ("inline", "quit", EnvRaised, "SystemExit"),
    ("process", "quit", EnvRaised, "SystemExit"),
    ("process", "sleep 3600", EnvTimeout, "1 s"),
    ("process", "lock", EnvTimeout, "1 s"),
    ("process", "exit 3", EnvDied, "exit code 3"),
    ("process", "exit 0", EnvDied, "exit code 0"),
    ("process", "kill SIGKILL", EnvDied, "SIGKILL"),
    ("process", "kill SIGSTOP", EnvTimeout, "1 s"),
    ("process", "segfault", EnvDied, "SIGSEGV"),
    ("process", "garbage", EnvDied, "something else"),
    ("inline", f"giant {1 << 25}", EnvRaised, "over the limit"),
    ("process", f"giant {1 << 25}", EnvRaised, "over the limit"),
]


@pytest.mark.parametrize(("kind", "action", "error", "words"), FAILURES, ids=[f"{k}-{a[:12]}" for k, a, *_ in FAILURES])
def test_a_failure_ends_by_its_deadline_and_costs_only_its_own_episode(
    kind: str, action: str, error: type[PlacementError], words: str
) -> None:
    async def scenario() -> None:
        async with placed(kind) as placement:
            bad, good = await started(placement), await started(placement)
            begin = time.monotonic()
            with pytest.raises(error, match=words):
                await bad.step(action, deadline_s=1.0 if error is EnvTimeout else LONG_S)
            assert time.monotonic() - begin < 5.0
            with pytest.raises(EnvDied, match="broken"):
                await bad.step("more", deadline_s=LONG_S)
            assert (await good.step("fine", deadline_s=LONG_S))[0] == "fine"
            await bad.release()
            again = await started(placement)  # replaced
            assert (await again.step("fine", deadline_s=LONG_S))[0] == "fine"

    run(scenario())


def test_a_hanging_inline_environment_does_not_stop_the_loop_and_its_thread_is_abandoned_and_counted() -> None:
    async def scenario() -> None:
        async with placed("inline") as placement:
            assert isinstance(placement, InlinePlacement)
            bad, good = await started(placement), await started(placement)
            hanging = asyncio.ensure_future(bad.step("sleep 3", deadline_s=0.5))
            for _ in range(20):
                assert (await good.step("fine", deadline_s=LONG_S))[0] == "fine"
            assert not hanging.done()
            with pytest.raises(EnvTimeout, match=r"0\.5 s"):
                await hanging
            await bad.release()
            assert placement.num_abandoned == 1
            assert (await (await started(placement)).step("fine", deadline_s=LONG_S))[0] == "fine"

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_start_ends_by_the_deadline(kind: str) -> None:
    async def scenario() -> None:
        async with placed(kind, EnvConfig("zoo/Moody-v0", {"start_s": 3.0})) as placement:
            begin = time.monotonic()
            with pytest.raises(EnvTimeout, match="no answer"):
                await placement.acquire(deadline_s=0.5)
            assert time.monotonic() - begin < 2.5

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_num_workers_makes_later_callers_wait_until_their_deadline(kind: str) -> None:
    async def scenario() -> None:
        async with placed(kind, num_workers=1) as placement:
            first = await started(placement)
            with pytest.raises(EnvTimeout, match="no worker became free"):
                await placement.acquire(deadline_s=0.05)
            waiting = asyncio.ensure_future(placement.acquire(deadline_s=LONG_S))
            await asyncio.sleep(0)
            await first.release()
            assert (await (await waiting).reset(seed=0, deadline_s=LONG_S))[1]["success"] is False

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_close_that_hangs_costs_seconds_not_for_ever(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"inline": "inline._CLOSE_S", "process": "worker_host.CLOSE_S"}[kind]
    monkeypatch.setattr(f"rollcage.envs.placements.{name}", 0.3)

    async def scenario() -> None:
        placement = make_placement(kind, EnvConfig("zoo/Moody-v0", {"close_s": 2.0}))
        await started(placement)
        begin = time.monotonic()
        await placement.close()
        assert time.monotonic() - begin < 1.5
        with pytest.raises(PlacementError, match="closed"):
            await placement.acquire(deadline_s=1.0)

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_a_call_breaks_its_handle_only(kind: str) -> None:
    async def scenario() -> None:
        async with placed(kind) as placement:
            bad, good = await started(placement), await started(placement)
            task = asyncio.ensure_future(bad.step("sleep 1", deadline_s=LONG_S))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await bad.release()
            assert (await good.step("fine", deadline_s=LONG_S))[0] == "fine"

    run(scenario())


def test_a_loop_that_ends_without_close_leaves_no_worker_behind() -> None:
    """The synchronous backstop; the fixture counts what is left."""
    for kind in KINDS:
        run(started(make_placement(kind, MOODY)))
    gc.collect()


def test_what_an_environment_prints_or_reads_stays_out_of_the_frames() -> None:
    async def scenario() -> None:
        async with placed("process") as placement:
            handle = await started(placement)
            assert (await handle.step("print hello", deadline_s=LONG_S))[0] == "hello"
            assert (await handle.step("stdin", deadline_s=LONG_S))[0] == "''"
            with pytest.raises(EnvDied, match=r"(?s)exit code 9.*noise hello.*noise of a child"):
                await handle.step("exit 9", deadline_s=LONG_S)  # the last words are kept

    run(scenario())


def test_a_process_that_an_environment_started_ends_with_its_worker() -> None:
    async def scenario() -> list[int]:
        pids = []
        async with placed("process") as placement:
            for end in ("exit 1", "sleep 60", ""):
                handle = await started(placement)
                pids.append(int((await handle.step("child 3600", deadline_s=LONG_S))[0]))
                if end:
                    with pytest.raises(PlacementError):
                        await handle.step(end, deadline_s=0.5)
                await handle.release()
        return pids

    pids = run(scenario())
    assert len(pids) == 3
    assert wait_for(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize("action", ["sleep 3600", "lock"])
def test_workers_end_when_their_parent_is_killed(action: str, tmp_path: Path) -> None:
    """kill -9 leaves no time to clean up: the workers notice by themselves, hanging or not."""
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent / "zoo")!r})
import placement_zoo
from rollcage.envs.placements import EnvConfig, make_placement

async def main():
    placement = make_placement("process", EnvConfig("zoo/Moody-v0"))
    idle, busy = [await placement.acquire(deadline_s=60) for _ in range(2)]
    pids = []
    for handle in (idle, busy):
        await handle.reset(seed=0, deadline_s=60)
        pids += [(await handle.step(verb, deadline_s=60))[0] for verb in ("pid", "child 3600")]
    asyncio.ensure_future(busy.step({action!r}, deadline_s=1.0))
    await asyncio.sleep(0.3)
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    )
    killed = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    pids = [int(pid) for pid in killed.stdout.split()]
    assert (killed.returncode, len(pids)) == (-signal.SIGKILL, 4), killed.stderr
    survivors = pids[:3] if action == "lock" else pids  # code that holds the lock cannot end its own child
    gone = wait_for(lambda: not any(alive(pid) for pid in survivors), 20.0)
    if alive(pids[3]):
        os.kill(pids[3], signal.SIGKILL)
    assert gone, [pid for pid in survivors if alive(pid)]


class LocalEnv(TextEnv):
    """Stands in a module that only pytest knows."""

    def __init__(self) -> None:
        super().__init__(placement_zoo.TASKS)

    def begin(self, task: Task) -> str:
        return task.id

    def advance(self, action: str) -> Turn:
        return Turn(action, terminated=True)


def test_a_class_that_no_other_process_can_import_is_one_clear_line() -> None:
    class Inner(LocalEnv):
        pass

    register("zoo/Inner-v0", Inner)
    with pytest.raises(UserError, match=r"zoo/Inner-v0.*put it in a module, or use placement 'inline'"):
        make_placement("process", EnvConfig("zoo/Inner-v0"))

    register("zoo/Local-v0", "module_that_only_this_process_knows:LocalEnv")

    async def scenario() -> None:
        async with placed("process", EnvConfig("zoo/Local-v0")) as placement:
            await placement.acquire(deadline_s=LONG_S)

    with pytest.raises(UserError, match=r"put the class in a module on sys\.path, or use placement 'inline'"):
        run(scenario())

    async def works_inline() -> str:
        async with placed("inline", EnvConfig("zoo/Inner-v0")) as placement:
            return (await started(placement)) and "works"

    assert run(works_inline()) == "works"


def test_the_id_may_name_the_module_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rollcage_user_module.py").write_text(
        "from placement_zoo import MoodyEnv\nfrom rollcage.envs import register\nregister('user/Mine-v0', MoodyEnv)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = EnvConfig("rollcage_user_module:user/Mine-v0", {"split": "train"})
    assert run(transcript("inline", config, 3, ["ada"])) == run(transcript("process", config, 3, ["ada"]))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_are_the_callers_mistake_not_a_failed_episode(kind: str) -> None:
    async def scenario(kwargs: dict[str, Any]) -> None:
        async with placed(kind, EnvConfig("zoo/Moody-v0", kwargs)) as placement:
            await placement.acquire(deadline_s=LONG_S)

    with pytest.raises(UserError, match="no split 'test'"):
        run(scenario({"split": "test"}))
    with pytest.raises(UserError, match="colour"):
        run(scenario({"colour": "red"}))
    with pytest.raises(UserError, match="zoo/Moody-v0"):
        make_placement(kind, EnvConfig("zoo/Moddy-v0"))


def test_unknown_placement_and_arguments_that_cannot_be_sent() -> None:
    with pytest.raises(UserError, match="Did you mean 'inline'"):
        make_placement("inlin", MOODY)
    with pytest.raises(UserError, match="cannot go to a worker process"):
        make_placement("process", EnvConfig("zoo/Moody-v0", {"split": object()}))
    with pytest.raises(UserError, match="at least 1"):
        make_placement("process", MOODY, num_workers=0)
