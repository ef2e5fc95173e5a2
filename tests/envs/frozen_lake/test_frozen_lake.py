"""rollcage/FrozenLake-v0: maps, moves, rewards, ice and expert."""

import json
import pickle
import zlib
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS

from rollcage.envs.frozen_lake.env import FrozenLakeEnv
from rollcage.envs.frozen_lake.map import Lake, generate, longest_way, safest_moves
from rollcage.envs.moves import MOVES, split_of
from rollcage.errors import UserError

CORRIDOR = ["SFFG", "HHHH"]


def play(env, actions):
    return [env.step(action) for action in actions]


def expert_episode(env, **reset):
    env.reset(**reset)
    rewards = []
    while True:
        _, reward, terminated, truncated, info = env.step(env.expert())
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info


# Maps


@pytest.mark.parametrize(("size", "hole_share", "split"), list(product((3, 4, 8), (0.0, 0.2, 0.6), ("train", "test"))))
def test_every_map_has_a_way_within_its_bounds(size, hole_share, split):
    for index in range(40):
        rows = generate(size, hole_share, split, index)["map"]
        letters = "".join(rows)
        assert [len(row) for row in rows] == [size] * size
        assert (letters.count("S"), letters.count("G")) == (1, 1)
        assert letters.count("H") <= round(hole_share * size * size)
        assert size - 1 <= moves_by_flooding(rows) <= longest_way(size)


def moves_by_flooding(rows):
    """Shortest way from S to G, without the library's search: sets of cells, grown a step at a time."""
    cells = {(r, c): letter for r, row in enumerate(rows) for c, letter in enumerate(row) if letter != "H"}
    reached = {place for place, letter in cells.items() if letter == "S"}
    goal = next(place for place, letter in cells.items() if letter == "G")
    num_moves = 0
    while goal not in reached:
        grown = {(r + dr, c + dc) for r, c in reached for dr, dc in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))}
        assert grown & cells.keys() != reached, "walled in"
        reached, num_moves = grown & cells.keys(), num_moves + 1
    return num_moves


def test_holes_reach_the_asked_share_where_the_map_is_large_enough():
    assert all("".join(generate(8, 0.25, "train", i)["map"]).count("H") == 16 for i in range(50))


def test_a_task_is_the_same_for_ever():
    maps = [
        generate(size, share, split, i)
        for size in (4, 7)
        for share in (0.2, 0.5)
        for split in ("train", "test")
        for i in range(20)
    ]
    assert zlib.crc32(json.dumps(maps).encode()) == 1254575256
    assert generate(4, 0.2, "train", 0)["map"] == ["FFFF", "GHHF", "FFFF", "FFHS"]


def test_splits_have_no_map_in_common():
    maps = {
        split: {tuple(generate(4, 0.2, split, i)["map"]) for i in range(300)}
        for split in ("train", "validation", "test")
    }
    assert all(split_of(rows) == split for split, found in maps.items() for rows in found)
    assert len(maps["train"]) > 290


def test_a_task_id_names_the_map():
    env = FrozenLakeEnv(split="test")
    first, info = env.reset(options={"task": "test/17"})
    assert info["task_id"] == "test/17"
    assert env.task.data == generate(4, 0.2, "test", 17)
    assert env.reset(options={"task": "test/17"})[0] == first


# What the policy sees


def test_first_observation_states_rules_format_and_map_later_ones_only_the_map():
    env = FrozenLakeEnv()
    first, info = env.reset(options={"map": CORRIDOR})
    assert first.endswith("\n\nP F F G\nH H H H")
    assert all(word in first for word in ("(P)", "(F)", "(G)", "(H)", "<answer>up</answer>", "down", "left", "right"))
    assert len(first) < 250
    assert info == {"task_id": "map", "success": False, "failure": None, "valid_action": True}
    assert env.step("right")[0] == "F P F G\nH H H H"


def test_moves_lead_where_they_say_and_the_edge_holds():
    env = FrozenLakeEnv()
    env.reset(options={"map": ["FFF", "FSF", "FFG"]})
    shown = [turn[0].replace(" ", "").split("\n") for turn in play(env, ["up", "up", "left", "left", "down"])]
    assert shown == [
        ["FPF", "FFF", "FFG"],
        ["FPF", "FFF", "FFG"],
        ["PFF", "FFF", "FFG"],
        ["PFF", "FFF", "FFG"],
        ["FFF", "PFF", "FFG"],
    ]


# Rewards and ends


def test_the_goal_gives_one_and_ends_the_episode():
    env = FrozenLakeEnv()
    env.reset(options={"map": CORRIDOR})
    *_, last = play(env, ["<answer>right</answer>"] * 3)
    assert last[1:4] == (1.0, True, False)
    assert last[4]["success"] is True


def test_a_hole_gives_nothing_and_ends_the_episode():
    env = FrozenLakeEnv()
    env.reset(options={"map": CORRIDOR})
    observation, reward, terminated, truncated, info = env.step("down")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "hole" in observation
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("up")


def test_an_invalid_action_moves_nobody_is_said_and_flagged_and_the_episode_goes_on():
    env = FrozenLakeEnv()
    env.reset(options={"map": CORRIDOR})
    observation, reward, terminated, truncated, info = env.step("I walk to the right.")
    assert (reward, terminated, truncated, info["valid_action"]) == (0.0, False, False, False)
    assert observation.startswith("That is no valid action.")
    assert observation.endswith("P F F G\nH H H H")
    assert env.step("right")[4]["valid_action"] is True


def test_penalties_are_subtracted_per_move_and_per_invalid_action():
    env = FrozenLakeEnv(step_penalty=0.25, invalid_penalty=0.5, moves_per_turn=2)
    env.reset(options={"map": CORRIDOR})
    assert [turn[1] for turn in play(env, ["?", "left", "right, right", "right"])] == [-0.5, -0.25, -0.5, 0.75]


def test_several_moves_a_turn_stop_at_the_end_of_the_episode():
    env = FrozenLakeEnv(moves_per_turn=4)
    first, _ = env.reset(options={"map": CORRIDOR})
    assert "up to 4 moves" in first
    assert env.step("right right right down")[1:3] == (1.0, True)
    env.reset(options={"map": CORRIDOR})
    assert env.step("right right right right right")[4]["valid_action"] is False, "more moves than allowed"


def test_the_turn_limit_truncates():
    env = FrozenLakeEnv(max_turns=2)
    env.reset(options={"map": CORRIDOR})
    assert [turn[2:4] for turn in play(env, ["left", "nonsense"])] == [(False, False), (False, True)]


def test_the_turn_limit_by_itself_leaves_twice_the_longest_way():
    assert FrozenLakeEnv(size=5).max_turns == 20
    assert FrozenLakeEnv(size=5, moves_per_turn=3).max_turns == 7
    assert FrozenLakeEnv(size=5, is_slippery=True, success_rate=0.5).max_turns == 40
    assert FrozenLakeEnv(max_turns=None).max_turns is None


# Slippery ice


def test_slips_go_to_the_sides_as_often_as_the_success_rate_says():
    env = FrozenLakeEnv(is_slippery=True, success_rate=0.6, max_turns=None)
    env.reset(seed=0, options={"map": ["FFF", "FSF", "FFG"]})
    ends = np.zeros(9)
    for _ in range(3000):
        env.state = 4
        env.step("up")
        ends[env.state] += 1
    assert ends[[1, 3, 5]].sum() == 3000, "never backwards, never still"
    assert np.allclose(ends[[1, 3, 5]] / 3000, [0.6, 0.2, 0.2], atol=0.03)


def test_the_ice_repeats_itself_for_the_same_seed_and_after_restore():
    def walk(env, num_turns):
        return [env.step("right")[0] for _ in range(num_turns)]

    lake = {"map": ["FFFFFFFF", "SFFFFFFF", "FFFFFFFG"]}
    env = FrozenLakeEnv(is_slippery=True, max_turns=None)
    env.reset(seed=5, options=lake)
    saved = env.snapshot()
    walked = walk(env, 5)
    env.reset(seed=5, options=lake)
    assert walk(env, 5) == walked
    other = FrozenLakeEnv(is_slippery=True, max_turns=None)
    other.restore(saved)
    assert walk(other, 5) == walked
    env.reset(seed=6, options=lake)
    assert walk(env, 5) != walked


# Expert


@pytest.mark.parametrize(
    "arguments", [{}, {"split": "test"}, {"size": 8, "hole_share": 0.5}, {"size": 6, "moves_per_turn": 3}, {"size": 3}]
)
def test_the_expert_always_succeeds_on_a_shortest_way(arguments):
    env = FrozenLakeEnv(**arguments)
    for index in range(100):
        rewards, info = expert_episode(env, options={"task": f"{env.split}/{index}"})
        assert info["success"]
        assert sum(rewards) == 1.0
        assert len(rewards) == -(-moves_by_flooding(env.task.data["map"]) // env.moves_per_turn)


@pytest.mark.parametrize("name", ["4x4", "8x8"])
def test_the_slippery_expert_has_the_best_policy_for_gymnasiums_own_table_of_transitions(name):
    reference = gymnasium.make("FrozenLake-v1", map_name=name, is_slippery=True).unwrapped
    actions = {"up": 3, "down": 1, "left": 0, "right": 2}
    table = safest_moves(Lake.of(tuple(MAPS[name])), 1 / 3, 100)
    best = expert = np.zeros(len(reference.P))
    for left in range(1, 101):

        def value(state, action, after):
            return sum(p * (reward + after[to] * (not end)) for p, to, reward, end in reference.P[state][action])

        moves = [actions[list(MOVES)[move]] for move in table[left]]
        best = np.array([max(value(state, action, best) for action in range(4)) for state in reference.P])
        expert = np.array([value(state, moves[state], expert) for state in reference.P])
    assert 0.4 < best[0] < 0.8
    assert best[0] - expert[0] < 0.005, "it gives away no more than its taste for shorter ways costs"


def test_the_slippery_expert_wins_as_often_as_its_policy_should():
    env = FrozenLakeEnv(is_slippery=True, max_turns=100)
    wins = [expert_episode(env, seed=seed, options={"map": MAPS["4x4"]})[1]["success"] for seed in range(300)]
    assert abs(np.mean(wins) - 0.74) < 0.08


def test_the_slippery_expert_keeps_off_the_edge_of_a_hole():
    # Beside the hole, "up" at the wall can only slip along the wall; every other move may slip into the hole.
    lake = Lake.of(("SFG", "HHH"))
    assert safest_moves(lake, 1 / 3, 20)[20][0] == list(MOVES).index("up")


def test_the_slippery_expert_takes_the_risk_when_its_last_turn_comes():
    lake = Lake.of(("SG", "HH"))
    assert safest_moves(lake, 0.5, 1)[1][0] == list(MOVES).index("right")


@pytest.mark.parametrize("is_slippery", [False, True])
def test_in_a_hole_the_expert_says_that_the_episode_is_over(is_slippery):
    env = FrozenLakeEnv(is_slippery=is_slippery, success_rate=1.0)
    env.reset(options={"map": CORRIDOR})
    env.step("down")
    with pytest.raises(UserError, match="over"):
        env.expert()


def test_the_random_policy_is_well_formed_and_rarely_wins():
    env, rng = FrozenLakeEnv(split="test"), np.random.default_rng(0)
    wins = 0
    for index in range(100):
        env.reset(options={"task": f"test/{index}"})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.random_action(rng))
            assert info["valid_action"]
            over = terminated or truncated
        wins += info["success"]
    assert wins < 30


# Maps by hand, bad input, snapshots


def test_gymnasiums_own_maps_can_be_played():
    rewards, info = expert_episode(FrozenLakeEnv(), options={"map": MAPS["8x8"]})
    assert info["success"]
    assert len(rewards) == 14


def test_an_oblong_map_with_two_goals_leads_to_the_nearer_one():
    rewards, info = expert_episode(FrozenLakeEnv(), options={"map": "GFFFFSFG"})
    assert info["success"]
    assert len(rewards) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["FFG"], "exactly one start"),
        (["SSG"], "exactly one start"),
        (["SFF"], "no way"),
        (["SHG"], "no way"),
        (["SFG", "F"], "same length"),
        (["SxG"], "unknown character"),
        ("", "list of strings"),
    ],
)
def test_a_malformed_map_is_refused_in_one_line(rows, message):
    with pytest.raises(UserError, match=message) as error:
        FrozenLakeEnv().reset(options={"map": rows})
    assert "\n" not in str(error.value)


def test_a_task_and_a_map_together_are_refused():
    with pytest.raises(UserError, match="not both"):
        FrozenLakeEnv().reset(options={"map": CORRIDOR, "task": "train/1"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 2},
        {"size": 21},
        {"size": 4.5},
        {"size": "4"},
        {"hole_share": -0.1},
        {"hole_share": 0.7},
        {"hole_share": float("nan")},
        {"success_rate": 0},
        {"success_rate": 1.1},
        {"moves_per_turn": 0},
        {"max_turns": "lots"},
        {"max_turns": 0},
        {"split": "dev"},
    ],
)
def test_an_argument_out_of_range_is_refused(arguments):
    with pytest.raises(UserError):
        FrozenLakeEnv(**arguments)


def test_a_snapshot_continues_a_map_by_hand_in_another_instance_and_is_small():
    env = FrozenLakeEnv()
    env.reset(options={"map": CORRIDOR})
    env.step("right")
    saved = env.snapshot()
    assert len(saved) < 2_000
    other = pickle.loads(pickle.dumps(FrozenLakeEnv()))
    other.restore(saved)
    assert other.expert() == "<answer>right</answer>"
    assert other.step("right") == env.step("right")


def test_no_tools_are_declared():
    assert FrozenLakeEnv.tools == ()
