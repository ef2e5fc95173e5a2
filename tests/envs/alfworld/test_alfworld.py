"""rollcage/ALFWorld-v0: tasks, actions, rewards, info, experts, snapshots."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

import rollcage.errors
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.planner import find_plan
from rollcage.envs.alfworld.source import TASK_TYPES
from rollcage.errors import MissingExtra, UserError

PICK, LOOK, CLEAN, HEAT, COOL, TWO = (f"train/{index}" for index in range(6))


def make(**arguments):
    return ALFWorldEnv(**{"dataset": "sample", "max_turns": None, **arguments})


def play_out(env, task_id):
    """Let the expert play; returns every (observation, reward, terminated, truncated, info)."""
    env.reset(options={"task": task_id})
    turns = []
    while not turns or not (turns[-1][2] or turns[-1][3]):
        turns.append(env.step(env.expert()))
    return turns


# Tasks


def test_there_are_three_splits_and_six_types_and_a_type_can_be_chosen():
    assert dict(make().tasks.splits) == {"train": 36, "valid_seen": 12, "valid_unseen": 12}
    only = make(task_types="pick_two_obj_and_place", split="valid_seen")
    assert only.tasks.splits == {"train": 6, "valid_seen": 2, "valid_unseen": 2}
    assert {only.reset(seed=seed)[1]["task_type"] for seed in range(5)} == {"pick_two_obj_and_place"}
    both = make(task_types=["pick_heat_then_place_in_recep", "look_at_obj_in_light"])
    assert both.tasks.splits["train"] == 12
    with pytest.raises(UserError, match="Did you mean 'look_at_obj_in_light'"):
        make(task_types="look_at_obj_in_lights")


def test_the_official_games_are_all_there(shared_data):
    if shared_data is None:
        with pytest.raises(UserError, match=r"not on this machine.*alfworld-download"):
            ALFWorldEnv()
        return
    env = ALFWorldEnv(data_dir=shared_data)
    sizes = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
    assert {split: env.tasks.splits[split] for split in sizes} == sizes
    assert env.tasks.licence.startswith("MIT")


@pytest.mark.parametrize("task_id", [PICK, LOOK, CLEAN, HEAT, COOL, TWO])
def test_every_type_is_won_by_the_expert(task_id):
    env = make()
    turns = play_out(env, task_id)
    assert [turn[1] for turn in turns] == [0.0] * (len(turns) - 1) + [1.0]
    assert turns[-1][2] is turns[-1][4]["success"] is True
    assert turns[-1][4]["goal_progress"] == 1.0
    assert env.task.data["task_type"] == TASK_TYPES[int(task_id.partition("/")[2])]


# Actions


def test_the_last_answer_counts_and_thinking_does_not():
    env = make()
    _, info = env.reset(options={"task": PICK})
    go = next(command for command in info["admissible_commands"] if command.startswith("go to"))
    for action in (go, f"  {go}\n", f"I think. <answer>{go}</answer>", f"<think>look</think> <answer> {go} </answer>"):
        env.reset(options={"task": PICK})
        assert env.step(action)[0].startswith("You arrive at"), action
    for action in (f"<answer>{go}", f"I {go}", f"<think>{go}", go.upper(), f"<answer>{go}</answer><answer>x</answer>"):
        env.reset(options={"task": PICK})
        assert env.step(action)[0] == "Nothing happens.", action


def test_a_command_that_is_not_admissible_changes_nothing_and_is_flagged_e9():
    env = make()
    _, before = env.reset(options={"task": PICK})
    observation, reward, terminated, truncated, info = env.step("take the moon from drawer 1")
    assert (observation, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, False)
    assert info["valid_action"] is False
    assert info["admissible_commands"] == before["admissible_commands"]
    go = next(command for command in info["admissible_commands"] if command.startswith("go to"))
    assert env.step(go)[4]["valid_action"] is True


# Observations


def test_the_first_observation_says_how_to_answer_and_later_ones_only_what_happens():
    env = make()
    first, _ = env.reset(options={"task": PICK})
    assert "<answer>go to desk 1</answer>" in first
    assert "You are in the middle of a room." in first
    assert "Your task is to: put a " in first
    plain, _ = make(instructions=False).reset(options={"task": PICK})
    assert plain.startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert first.endswith(plain)
    assert env.step("inventory")[0] == "You are not carrying anything."


def test_admissible_commands_can_be_shown():
    env = make(show_admissible=True)
    first, info = env.reset(options={"task": PICK})
    assert first.endswith(f"Admissible commands: {', '.join(info['admissible_commands'])}.")
    later, *_, info = env.step("nonsense")
    assert later == f"Nothing happens.\n\nAdmissible commands: {', '.join(info['admissible_commands'])}."


# Rewards


def test_progress_can_be_rewarded_and_turns_can_cost():
    env = make(progress_reward=0.5, step_penalty=0.1)
    env.reset(options={"task": HEAT})
    start = env.reset_info()["goal_progress"]
    turns = play_out(env, HEAT)
    progress = [start, *(turn[4]["goal_progress"] for turn in turns)]
    gained = [0.5 * (after - before) - 0.1 for before, after in itertools.pairwise(progress)]
    gained[-1] += 1
    assert [turn[1] for turn in turns] == pytest.approx(gained)
    assert 0 < max(progress[:-1]) < 1, "heated, but not yet where it belongs"


def test_what_is_undone_takes_its_progress_reward_back():
    env = make(progress_reward=1.0)
    _, info = env.reset(options={"task": TWO})
    rewards = []
    while info["goal_progress"] < 0.5:
        _, reward, *_, info = env.step(env.expert())
        rewards.append(reward)
    put = next(c for c in env.step("look")[4]["admissible_commands"] if c.startswith("take"))
    _, reward, *_ = env.step(put)
    assert sum(rewards) == pytest.approx(-reward) == pytest.approx(0.5)


# Experts


def test_the_expert_finds_its_way_back_from_anywhere():
    env, rng = make(), np.random.default_rng(0)
    num_won = 0
    for index in range(24):
        env.reset(options={"task": f"train/{index}"})
        if any(env.step(env.random_action(rng))[2] for _ in range(25)):
            continue
        while not env.step(env.expert())[2]:
            pass
        num_won += 1
    assert num_won > 12


def test_where_the_task_cannot_be_done_any_more_the_expert_says_so(monkeypatch):
    env = make()
    env.reset(options={"task": PICK})
    game = env._game
    stuck = [operator for operator in game.operators if not operator.command.startswith("move")]
    monkeypatch.setattr(game, "operators", stuck)
    with pytest.raises(UserError, match="cannot be won from here"):
        find_plan(game, game.start)


def test_the_plan_is_told_at_once_and_ends_with_the_task():
    env = make()
    env.reset(options={"task": CLEAN})
    plan = env.expert_plan()
    assert any(command.startswith("clean") for command in plan)
    for position, command in enumerate(plan):
        assert env.expert_plan() == plan[position:]
        _, _, terminated, _, _ = env.step(command)
    assert terminated
    with pytest.raises(UserError, match="no command is left"):
        env.expert()


def test_a_search_has_its_bound():
    env = make()
    env.reset(options={"task": TWO})
    with pytest.raises(UserError, match="among 1 states"):
        find_plan(env._game, env.state.state, max_states=1)


# Snapshots


def test_a_snapshot_is_small_and_goes_on_in_another_process(tmp_path):
    env = make()
    env.reset(options={"task": COOL})
    for _ in range(3):
        env.step(env.expert())
    saved = env.snapshot()
    assert len(saved) < 4_000
    (tmp_path / "snapshot").write_bytes(saved)
    rest = env.expert_plan()
    code = (
        "import pathlib, pickle, sys\n"
        "from rollcage.envs.alfworld.env import ALFWorldEnv\n"
        "env = ALFWorldEnv(dataset='sample', max_turns=None)\n"
        "env.restore(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "plan = env.expert_plan()\n"
        "said = [env.step(command) for command in plan]\n"
        "sys.stdout.buffer.write(pickle.dumps((plan, said, 'textworld' in sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "snapshot")], capture_output=True, check=True, timeout=60
    )
    plan, said, loaded = pickle.loads(done.stdout)
    assert plan == rest
    assert said == [env.step(command) for command in rest]
    assert not loaded, "a game that was translated once takes no TextWorld any more"


def test_a_fork_leaves_the_episode_alone():
    env, fork = make(), make()
    env.reset(options={"task": PICK})
    fork.restore(env.snapshot())
    fork.step("go nowhere")
    fork.step(fork.expert())
    assert env.num_turns == 0
    assert env.expert_plan()[1:] == fork.expert_plan()


# What is missing


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path))
    from rollcage.envs.alfworld import games, sample

    games.open_game.cache_clear()
    sample._logic.cache_clear()
    monkeypatch.setattr(rollcage.errors, "import_module", _nothing_there)
    with pytest.raises(MissingExtra, match=r"pip install 'rollcage\[alfworld\]'"):
        make().reset(seed=0)


def _nothing_there(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])


def test_an_unknown_data_set_is_refused():
    with pytest.raises(UserError, match="Did you mean 'official'"):
        ALFWorldEnv(dataset="oficial")
