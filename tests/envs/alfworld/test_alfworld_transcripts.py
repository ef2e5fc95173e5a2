"""What rollcage/ALFWorld-v0 says is what alfworld's own environment says, on the expert's path and off it."""

from __future__ import annotations

import copy
import random

import pytest

from rollcage.benchmarks.envs.alfworld_play import Said, Stock, choose_action
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.games import open_game
from rollcage.envs.alfworld.planner import find_plan
from rollcage.envs.alfworld.sample import SampleSource
from rollcage.envs.alfworld.source import TASK_TYPES

SAMPLE = [f"train/{index}" for index in range(12)]  # two of each type
VERBS = ["go", "open", "close", "take", "move", "examine", "clean", "heat", "cool", "slice", "use", "look", "inventory"]


@pytest.fixture(scope="module")
def stock():
    return Stock()


def play_both(env, stock, task_id, *, num_turns, seed, choose=choose_action):
    """Play the same actions in both; returns (action, what alfworld said, what we said) of every turn."""
    rng = random.Random(seed)
    observation, info = env.reset(options={"task": task_id})
    theirs, ours = stock.reset(env.tasks.source.text(task_id)), Said(observation, info["admissible_commands"], False)
    turns = [("reset", theirs, ours)]
    plan = env.expert_plan()
    for _ in range(num_turns):
        action = choose(rng, theirs, plan)
        theirs = stock.step(action)
        observation, _, won, _, info = env.step(action)
        turns.append((action, theirs, Said(observation, info["admissible_commands"], won)))
        if won:
            break
    return turns


def differences(turns):
    return [(action, theirs, ours) for action, theirs, ours in turns if theirs != ours]


@pytest.mark.parametrize("task_id", SAMPLE)
def test_on_and_off_the_experts_path_both_say_the_same(stock, task_id):
    env = ALFWorldEnv(dataset="sample", instructions=False, max_turns=None)
    turns = play_both(env, stock, task_id, num_turns=25, seed=task_id)
    assert differences(turns) == []
    assert len(turns) > 5


@pytest.mark.parametrize("verb", VERBS)
def test_every_kind_of_command_does_the_same_in_both(stock, verb):
    env = ALFWorldEnv(dataset="sample", instructions=False, max_turns=None)
    task_id, plan = next(filter(None, (plan_for(task_id, verb) for task_id in SAMPLE)))
    after = [*plan, "look", "inventory", plan[-1], "help"]
    turns = play_both(env, stock, task_id, num_turns=len(after), seed=0, choose=lambda *_: after.pop(0))
    assert differences(turns) == []
    assert turns[len(plan)][1].observation != "Nothing happens."


def plan_for(task_id, verb):
    """The commands up to the first that begins with ``verb``, where the game has one."""
    game = copy.copy(open_game(SampleSource(), task_id).game)
    for operator in game.operators:
        if operator.command.split()[0] == verb:
            game.goals = [(operator.needed, operator.forbidden)]
            return task_id, [*find_plan(game, game.start), operator.command]
    return None


def test_official_games_of_every_type(stock, shared_data):
    if shared_data is None:
        return  # the rules and the grammar are the same as those of the games above
    env = ALFWorldEnv(data_dir=shared_data, split="valid_seen", instructions=False, max_turns=None)
    tasks = [env.tasks.task("valid_seen", index) for index in range(env.tasks.splits["valid_seen"])]
    for kind in TASK_TYPES:
        task_ids = [task.id for task in tasks if task.data["task_type"] == kind]
        task_id = min(task_ids, key=lambda task_id: len(env.tasks.source.text(task_id).problem))  # the quickest
        assert differences(play_both(env, stock, task_id, num_turns=12, seed=kind)) == []
