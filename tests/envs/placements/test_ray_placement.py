"""Placement `ray` on a real cluster: the same transcripts, failures as data, and episodes that outlive their node."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ray_cluster import RayNodes

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
import placement_zoo  # noqa: F401  (registers zoo/Moody-v0)

from rollcage.envs.placements import (
    EnvConfig,
    EnvDied,
    EnvHandle,
    EnvRaised,
    EnvTimeout,
    Placement,
    PlacementError,
    make_placement,
)
from rollcage.envs.placements.frames import plain
from rollcage.errors import MissingExtra, UserError

MOODY = EnvConfig("zoo/Moody-v0")
ACTIONS = ("ada", "<answer>1+1</answer>", "print x", "\ud800\x00", "bell", "curie")
LONG_S = 40.0


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


async def transcript(placement: Placement, seed: int) -> list[Any]:
    handle = await placement.acquire(deadline_s=LONG_S)
    log: list[Any] = [await handle.reset(seed=seed, deadline_s=LONG_S)]
    for action in ACTIONS:
        log.append(await handle.step(action, deadline_s=LONG_S))
        if log[-1][2] or log[-1][3]:
            break
    log.append(await handle.call("expert", deadline_s=LONG_S))
    await handle.release()
    return plain(log)


def test_the_same_transcripts_as_inline(ray_nodes: RayNodes) -> None:
    async def play(kind: str, env_id: str) -> list[Any]:
        placement = make_placement(kind, EnvConfig(env_id, {"max_turns": 5}), num_workers=1)
        try:
            return list(await asyncio.gather(*(transcript(placement, seed) for seed in range(4))))
        finally:
            await placement.close()

    async def both(kind: str) -> list[list[Any]]:
        return await asyncio.gather(play(kind, "rollcage/Countdown-v0"), play(kind, "zoo/Moody-v0"))

    assert asyncio.run(both("ray")) == asyncio.run(both("inline"))
    assert wait_for(lambda: not ray_nodes.actors("EnvActor")), "closing ends the actors"


def test_what_an_environment_does_wrong_costs_its_own_episode_by_the_deadline(ray_nodes: RayNodes) -> None:
    async def main() -> None:
        placement = make_placement("ray", MOODY, num_workers=3)
        wrongs = {"raise oh": EnvRaised, "exit 3": EnvDied, "lock": EnvTimeout}
        try:
            handles = [await placement.acquire(deadline_s=LONG_S) for _ in wrongs]
            for handle, (action, kind) in zip(handles, wrongs.items(), strict=True):
                await handle.reset(seed=0, deadline_s=LONG_S)
                began_s = time.monotonic()
                with pytest.raises(kind):
                    await handle.step(action, deadline_s=1.0)
                assert time.monotonic() - began_s < 9.0
                await handle.release()
            handle = await placement.acquire(deadline_s=LONG_S)
            assert (await handle.reset(seed=0, deadline_s=LONG_S))[0].startswith("Say")
            await handle.release()
        finally:
            await placement.close()

    asyncio.run(main())
    assert wait_for(lambda: not ray_nodes.actors("EnvActor")), "one that hangs in C code is killed, too"


def test_a_node_that_is_lost_takes_its_own_episodes_or_none(ray_nodes: RayNodes) -> None:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(1)))
    drawn = [int(generator.integers(1000)) for _ in range(5)]
    next_draw = dict(itertools.pairwise(drawn))

    async def begin(placement: Placement) -> tuple[EnvHandle, int]:
        handle = await placement.acquire(deadline_s=LONG_S)
        await handle.reset(seed=1, deadline_s=LONG_S)
        return handle, next_draw[(await handle.step("x", deadline_s=LONG_S))[-1]["draw"]]

    async def play(restart: str, turn: asyncio.Lock, ready: asyncio.Barrier, killed: asyncio.Event) -> tuple[int, int]:
        placement = make_placement("ray", MOODY, num_workers=3, restart=restart)
        lost = restarted = 0
        try:
            async with turn:  # one on each node, then one more on each
                begun = await asyncio.gather(*(begin(placement) for _ in range(3)))
            await ready.wait()
            steps = [asyncio.ensure_future(handle.step("sleep 1", deadline_s=LONG_S)) for handle, _ in begun]
            await killed.wait()
            results = await asyncio.gather(*steps, return_exceptions=True)
            for result, (_, draw) in zip(results, begun, strict=True):
                if isinstance(result, PlacementError):
                    assert isinstance(result, EnvDied)
                    lost += 1
                else:
                    assert not isinstance(result, BaseException), result
                    assert (result[0], result[-1]["draw"]) == ("1", draw)
                    restarted += result[-1].get("restarted", 0)
            for handle, _ in begun:
                await handle.release()
        finally:
            await placement.close()
        return lost, restarted

    async def main(node: Any) -> list[tuple[int, int]]:
        turn, ready, killed = asyncio.Lock(), asyncio.Barrier(3), asyncio.Event()

        async def kill() -> None:
            await ready.wait()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(ray_nodes.kill, node)
            killed.set()

        playing = [play(restart, turn, ready, killed) for restart in ("fail", "restore")]
        *played, _ = await asyncio.gather(*playing, kill())
        return played

    (lost, none_restarted), (none_lost, restarted) = asyncio.run(main(ray_nodes.add()))
    assert 1 <= lost < 3, "some were there, and some elsewhere"
    assert 1 <= restarted < 3
    assert none_restarted == none_lost == 0


def test_without_ray_all_else_works_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)

    async def acquire(kind: str) -> None:
        placement = make_placement(kind, MOODY, num_workers=1)
        try:
            await (await placement.acquire(deadline_s=LONG_S)).release()
        finally:
            await placement.close()

    asyncio.run(acquire("process"))
    with pytest.raises(MissingExtra, match="rollcage\\[ray\\]"):
        asyncio.run(acquire("ray"))


def test_an_environment_that_cannot_be_built_is_the_users_error(ray_nodes: RayNodes) -> None:
    async def main() -> None:
        placement = make_placement("ray", EnvConfig("rollcage/Countdown-v0", {"split": "nope"}))
        try:
            await placement.acquire(deadline_s=LONG_S)
        finally:
            await placement.close()

    with pytest.raises(UserError, match="no split 'nope'"):
        asyncio.run(main())


def test_where_an_environment_may_run_is_by_label_and_refused_where_no_node_has_it(ray_nodes: RayNodes) -> None:
    async def where(**options: Any) -> str:
        placement = make_placement("ray", MOODY, num_workers=1, **options)
        try:
            handle = await placement.acquire(deadline_s=LONG_S)
            await handle.reset(seed=0, deadline_s=LONG_S)
            with pytest.raises(EnvDied) as died:
                await handle.step("exit 3", deadline_s=LONG_S)
            return str(died.value)
        finally:
            await placement.close()

    told = asyncio.run(where(labels={"kind": "head"}))
    log = Path(told.partition(", log ")[2].partition(")")[0])
    assert log.is_file(), told
    with pytest.raises(UserError, match=r"no node can hold an environment: it asks for 0.01 CPU on a node with kind=x"):
        asyncio.run(where(labels={"kind": "x"}))
    with pytest.raises(UserError, match="it asks for 64 CPU on a node with whatever labels"):
        asyncio.run(where(num_cpus=64))
