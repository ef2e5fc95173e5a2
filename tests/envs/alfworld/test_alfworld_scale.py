"""Many games at once, and many one after the other."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rollcage.__main__ import main
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.games import open_game
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.envs.placements.frames import plain

TASKS = [f"train/{index}" for index in range(8)]
NUM_TURNS = 30


def record(task_id):
    """Play a game with random and expert actions; returns all that was said, and the actions."""
    env, rng = ALFWorldEnv(dataset="sample"), np.random.default_rng(int(task_id.rpartition("/")[2]))
    said, actions = [env.reset(options={"task": task_id})], []
    for turn in range(NUM_TURNS):
        actions.append(env.expert() if turn % 3 == 0 else env.random_action(rng))
        said.append(env.step(actions[-1]))
        if said[-1][2]:
            break
    return said, actions


def test_games_played_at_once_in_threads_say_what_they_say_one_by_one_e6():
    serial = [record(task_id) for task_id in TASKS]
    open_game.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(record, TASKS)) == serial


def test_games_translated_at_once_in_threads_are_whole_e6(tmp_path, monkeypatch):
    serial = [record(task_id) for task_id in TASKS]
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path))
    open_game.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(record, TASKS)) == serial


def test_games_played_at_once_in_processes_say_what_they_say_one_by_one_e6():
    serial = [record(task_id) for task_id in TASKS[:4]]

    async def play(handle, task_id, actions):
        said = [plain(await handle.reset(seed=None, options={"task": task_id}, deadline_s=60.0))]
        return said + [plain(await handle.step(action, deadline_s=60.0)) for action in actions]

    async def everything():
        placement = make_placement("process", EnvConfig("rollcage/ALFWorld-v0", {"dataset": "sample"}))
        try:
            handles = [await placement.acquire(deadline_s=60.0) for _ in serial]
            plays = zip(handles, TASKS, serial, strict=False)
            return await asyncio.gather(*(play(handle, task_id, actions) for handle, task_id, (_, actions) in plays))
        finally:
            await placement.close()

    assert asyncio.run(everything()) == [plain(said) for said, _ in serial]


def test_ten_thousand_resets_take_no_more_memory_than_a_thousand_e7():
    env, rng = ALFWorldEnv(dataset="sample"), np.random.default_rng(0)
    names = [env.tasks.task("train", index).id for index in range(20)]

    def state():
        gc.collect()
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return len(gc.get_objects()), peak_bytes

    for name in names:
        env.reset(options={"task": name})
    for number in range(1, 10_001):
        # Mostly games that are open already; one in ten is opened anew.
        position = int(rng.integers(4)) if number % 10 else int(rng.integers(len(names)))
        env.reset(options={"task": names[position]})
        env.step(env.random_action(rng))
        if number == 1_000:
            num_objects, peak_bytes = state()
    more_objects, more_bytes = state()
    assert more_objects < 1.02 * num_objects + 5_000
    assert more_bytes < peak_bytes + 16 * 2**20  # in a process full of other tests; alone it does not grow


def test_the_benchmark_runs_and_finds_no_difference(capsys):
    arguments = ["--dataset", "sample", "--games", "2", "--steps", "6", "--resets", "100"]
    assert main(["bench", "alfworld", *arguments]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["different"] == []
    assert {len(values) for values in result["seconds"].values()} == {2}
    assert len(result["memory"]) == 2
    assert set(result["footprint"]) == {"alfworld's own, a process each", "inline", "in a process"}
    assert all(value > 0 for value in result["footprint"].values())
