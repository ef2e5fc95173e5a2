"""rollcage/Sokoban-v0: levels, pushes, rewards, deadlocks and expert."""

import json
import pickle
import random
import zlib
from collections import deque

import gymnasium
import numpy as np
import pytest

from rollcage.envs.moves import MOVES, split_of
from rollcage.envs.sokoban.env import SokobanEnv
from rollcage.envs.sokoban.level import Level, parse_level
from rollcage.envs.sokoban.solver import solve
from rollcage.envs.sokoban.tasks import generate, solution_bounds
from rollcage.errors import UserError

CORRIDOR = ["#######", "#@_$_.#", "#######"]
ROOM = ["######", "#_@__#", "#_$__#", "#__.##", "######"]
TWO_BOXES = ["#######", "#@$__.#", "#_$__.#", "#######"]
SIZES = [(5, 1), (5, 2), (6, 1), (6, 2), (6, 3), (8, 2), (8, 4), (10, 1), (10, 4)]


def play(env, actions):
    return [env.step(action) for action in actions]


def expert_episode(env, **reset):
    env.reset(**reset)
    num_turns = 0
    while True:
        _, _, terminated, truncated, info = env.step(env.expert())
        num_turns += 1
        if terminated or truncated:
            return num_turns, info


class PlainSokoban:
    """The rules once more, with sets of (row, column) instead of bitboards: the judge of the fast ones."""

    def __init__(self, rows):
        places = {(r, c): letter for r, row in enumerate(rows) for c, letter in enumerate(row)}
        self.walls = {place for place, letter in places.items() if letter == "#"}
        self.targets = frozenset(place for place, letter in places.items() if letter in ".*+")
        boxes = frozenset(place for place, letter in places.items() if letter in "$*")
        self.start = (next(place for place, letter in places.items() if letter in "@+"), boxes)

    def move(self, position, word):
        (row, column), boxes = position
        down, right = MOVES[word]
        there, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if there in self.walls or (there in boxes and (beyond in boxes or beyond in self.walls)):
            return position
        return there, (boxes - {there}) | {beyond} if there in boxes else boxes

    def fewest_pushes(self, position):
        """Fewest pushes to a solution by a search over all single moves, or None where there is none."""
        costs, queue = {position: 0}, deque([position])
        while queue:
            position = queue.popleft()
            if position[1] == self.targets:
                return costs[position]
            for word in MOVES:
                after = self.move(position, word)
                cost = costs[position] + (after[1] != position[1])
                if cost < costs.get(after, cost + 1):
                    costs[after] = cost
                    (queue.append if cost > costs[position] else queue.appendleft)(after)
        return None


def count_pushes(rows, moves):
    plain = PlainSokoban(rows)
    position, num_pushes = plain.start, 0
    for word in moves:
        after = plain.move(position, word)
        num_pushes += after[1] != position[1]
        position = after
    assert position[1] == plain.targets, "the moves do not solve the level"
    return num_pushes


# Levels


@pytest.mark.parametrize(("size", "num_boxes"), SIZES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_level_is_well_formed_and_solved_within_its_bounds(size, num_boxes, split):
    fewest, most = solution_bounds(size, num_boxes)
    for index in range(10):
        rows = generate(size, num_boxes, split, index)["map"]
        letters = "".join(rows)
        assert [len(row) for row in rows] == [size] * size
        assert parse_level(rows) == rows, "closed by walls, nothing walled off"
        assert letters.count("$") == letters.count(".") + letters.count("+") == num_boxes
        assert "*" not in letters
        level = Level.of(tuple(rows))
        assert fewest <= len(solve(level, *level.start)) <= most


# Among these are levels that a search in haste solves with more pushes than it takes.
@pytest.mark.parametrize(
    ("size", "num_boxes", "indices"),
    [
        (5, 1, range(60)),
        (6, 1, range(60)),
        (5, 2, range(30)),
        (6, 2, range(40, 55)),
        (6, 3, range(45, 60)),
        (7, 2, range(170, 180)),
        (8, 2, range(40, 48)),
    ],
)
def test_an_independent_search_solves_every_level_with_as_many_pushes_as_the_expert(size, num_boxes, indices):
    for index in indices:
        rows = generate(size, num_boxes, "test", index)["map"]
        plain, level = PlainSokoban(rows), Level.of(tuple(rows))
        fewest = plain.fewest_pushes(plain.start)
        assert fewest is not None
        assert count_pushes(rows, solve(level, *level.start)) == fewest


def test_a_task_is_the_same_for_ever():
    levels = [
        generate(size, boxes, split, i)
        for size, boxes in ((6, 1), (8, 3))
        for split in ("train", "test")
        for i in range(10)
    ]
    assert zlib.crc32(json.dumps(levels).encode()) == 1341995607
    assert generate(6, 1, "train", 0)["map"] == ["######", "#___.#", "#___##", "#_$#_#", "##@__#", "######"]


def test_splits_have_no_level_in_common():
    levels = {
        split: {tuple(generate(6, 1, split, i)["map"]) for i in range(150)} for split in ("train", "validation", "test")
    }
    assert all(split_of(rows) == split for split, found in levels.items() for rows in found)
    assert len(levels["train"]) > 140


# Rules


def test_first_observation_states_rules_format_and_room_later_ones_only_the_room():
    env = SokobanEnv()
    first, info = env.reset(options={"map": CORRIDOR})
    assert first.endswith("\n\n# # # # # # #\n# @ _ $ _ . #\n# # # # # # #")
    assert all(word in first for word in ("$", ".", "@", "*", "+", "<answer>up</answer>", "down", "left", "right"))
    assert len(first.split("\n\n")[0]) < 300
    assert info == {
        "task_id": "map",
        "success": False,
        "failure": None,
        "valid_action": True,
        "boxes_on_target": 0,
        "deadlock": False,
    }
    assert env.step("right")[0] == "# # # # # # #\n# _ @ $ _ . #\n# # # # # # #"


def test_a_box_is_pushed_onto_and_off_a_target_but_neither_pulled_nor_two_at_once_nor_into_a_wall():
    env = SokobanEnv(max_turns=None)
    env.reset(options={"map": ["########", "#_@$.$.#", "########"]})
    lines = [turn[0].replace(" ", "").split("\n")[1] for turn in play(env, ["right", "left", "right", "right"])]
    assert lines == ["#__@*$.#", "#_@_*$.#", "#__@*$.#", "#__@*$.#"]
    env.reset(options={"map": ["#########", "#_@*__.$#", "#########"]})
    lines = [turn[0].replace(" ", "").split("\n")[1] for turn in play(env, ["right", "right", "right", "right"])]
    assert lines == ["#__+$_.$#", "#__.@$.$#", "#__._@*$#", "#__._@*$#"]


@pytest.mark.parametrize("rows", [ROOM, TWO_BOXES, *(generate(8, 3, "train", i)["map"] for i in range(5))])
def test_the_bitboard_rules_agree_with_plain_ones_on_random_walks(rows):
    level, plain, rng = Level.of(tuple(rows)), PlainSokoban(rows), random.Random(0)
    state, position = level.start, plain.start
    for _ in range(500):
        word = rng.choice(list(MOVES))
        state, position = level.move(word, *state), plain.move(position, word)
        assert state[0] == 1 << position[0][0] * level.width + position[0][1]
        assert state[1] == sum(1 << row * level.width + column for row, column in position[1])


# Rewards and ends


def test_success_gives_one_by_default_and_nothing_before():
    env = SokobanEnv()
    env.reset(options={"map": CORRIDOR})
    turns = play(env, ["<answer>right</answer>"] * 3)
    assert [turn[1:4] for turn in turns] == [(0.0, False, False), (0.0, False, False), (1.0, True, False)]
    assert turns[-1][4]["success"] is True
    assert turns[-1][4]["boxes_on_target"] == 1
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("up")


def test_the_rewards_of_gym_sokoban_can_be_had():
    env = SokobanEnv(step_penalty=0.1, box_reward=1, success_reward=10, max_turns=None)
    env.reset(options={"map": ["#########", "#_@*__.$#", "#_______#", "#########"]})
    rewards = [turn[1] for turn in play(env, ["right", "right", "right"])]
    assert rewards == pytest.approx([-1.1, -0.1, 0.9])
    env.reset(options={"map": CORRIDOR})
    assert [turn[1] for turn in play(env, ["right"] * 3)] == pytest.approx([-0.1, -0.1, 10.9])


def test_an_invalid_action_moves_nobody_is_said_and_flagged_and_the_episode_goes_on():
    env = SokobanEnv(invalid_penalty=0.5, step_penalty=0.1)
    env.reset(options={"map": CORRIDOR})
    observation, reward, terminated, truncated, info = env.step("push the box")
    assert (reward, terminated, truncated, info["valid_action"]) == (-0.5, False, False, False)
    assert observation.startswith("That is no valid action.")
    assert observation.endswith("\n\n# # # # # # #\n# @ _ $ _ . #\n# # # # # # #")
    assert env.step("right")[4]["valid_action"] is True


def test_several_moves_a_turn_stop_at_the_solution():
    env = SokobanEnv(moves_per_turn=5, step_penalty=0.25)
    first, _ = env.reset(options={"map": CORRIDOR})
    assert "up to 5 moves" in first
    assert env.step("right, right, right, left, left")[1:3] == (0.25, True)


def test_the_turn_limit_truncates_and_by_itself_leaves_twice_the_longest_solution():
    env = SokobanEnv(max_turns=2)
    env.reset(options={"map": CORRIDOR})
    assert [turn[2:4] for turn in play(env, ["left", "nonsense"])] == [(False, False), (False, True)]
    assert SokobanEnv().max_turns == 24
    assert SokobanEnv(size=10, num_boxes=4, moves_per_turn=3).max_turns == 34
    assert SokobanEnv(max_turns=None).max_turns is None


# Deadlocks


def test_a_box_in_a_corner_is_flagged_and_may_end_the_episode():
    for end_on_deadlock in (False, True):
        env = SokobanEnv(end_on_deadlock=end_on_deadlock)
        env.reset(options={"map": ROOM})
        turns = play(env, ["left", "down", "down", "right", "up"])  # around the box: from below, up along the wall
        assert [turn[4]["deadlock"] for turn in turns] == [False, False, False, False, True]
        assert turns[-1][1:4] == (0.0, end_on_deadlock, False)
        assert turns[-1][4]["success"] is False


@pytest.mark.parametrize(
    ("rows", "deadlocked"),
    [
        (["######", "#_$$_#", "#_@_.#", "#___.#", "######"], True),  # two side by side at a wall
        (["######", "#_**_#", "#_@$.#", "#____#", "######"], False),  # the same on targets: done, not dead
        (["######", "#____#", "#_$$_#", "#_$$@#", "#....#", "######"], True),  # a block of four
        (["######", "#____#", "#_$$_#", "#_@__#", "#..__#", "######"], False),  # side by side in the open
        (["######", "#_$__#", "#_@_.#", "#____#", "######"], True),  # along a wall without a target it only slides
        (["######", "#_$_.#", "#_@__#", "#____#", "######"], False),
    ],
)
def test_boxes_that_hold_each_other_are_a_deadlock_unless_all_stand_on_targets(rows, deadlocked):
    level = Level.of(tuple(parse_level(rows)))
    assert level.deadlocked(level.start[1]) is deadlocked


@pytest.mark.parametrize(("size", "num_boxes", "num_levels"), [(5, 1, 40), (5, 2, 25), (6, 2, 10)])
def test_a_flagged_deadlock_can_never_be_solved_and_the_solver_agrees_with_the_independent_search(
    size, num_boxes, num_levels
):
    rng, seen = random.Random(0), {"deadlock": 0, "lost": 0, "open": 0}
    for index in range(num_levels):
        rows = generate(size, num_boxes, "train", index)["map"]
        level, plain = Level.of(tuple(rows)), PlainSokoban(rows)
        state, position = level.start, plain.start
        for _ in range(rng.randrange(5, 40)):
            word = rng.choice(list(MOVES))
            state, position = level.move(word, *state), plain.move(position, word)
        fewest = plain.fewest_pushes(position)
        if level.deadlocked(state[1]):
            seen["deadlock"] += 1
            assert fewest is None
        if fewest is None:
            seen["lost"] += 1
            with pytest.raises(UserError, match="cannot be solved any more"):
                solve(level, *state)
        else:
            seen["open"] += 1
            shown = level.draw(*state, separator="").split("\n")
            assert count_pushes(shown, solve(level, *state)) == fewest
    assert min(seen.values()) > 0, seen


def test_a_large_block_of_boxes_is_judged_at_once():
    rows = ["#" * 20, *["#" + "$" * 9 + "." * 9 + "#"] * 17, "#@" + "_" * 17 + "#", "#" * 20]
    level = Level.of(tuple(parse_level(rows)))
    assert level.deadlocked(level.start[1]) is True


# Expert


@pytest.mark.parametrize(
    ("arguments", "num_tasks"),
    [
        ({}, 300),
        ({"split": "test"}, 100),
        ({"size": 7, "num_boxes": 2, "moves_per_turn": 4}, 100),
        ({"size": 8, "num_boxes": 3}, 50),
        ({"size": 10, "num_boxes": 4}, 25),
    ],
)
def test_the_expert_always_succeeds_within_the_bound(arguments, num_tasks):
    env = SokobanEnv(**arguments)
    _, most = solution_bounds(arguments.get("size", 6), arguments.get("num_boxes", 1))
    for index in range(num_tasks):
        num_turns, info = expert_episode(env, options={"task": f"{env.split}/{index}"})
        assert info["success"] is True
        assert num_turns <= -(-most // env.moves_per_turn)


def test_the_expert_plans_again_after_a_detour():
    env, rng = SokobanEnv(size=8, num_boxes=2, max_turns=None), np.random.default_rng(1)
    solved = 0
    for index in range(30):
        env.reset(options={"task": f"train/{index}"})
        over, info = False, {"deadlock": False}
        for turn in range(200):
            if info["deadlock"]:
                break
            try:
                action = env.random_action(rng) if turn in (2, 5, 7) else env.expert()
            except UserError:
                break  # the random move lost the game
            _, _, over, _, info = env.step(action)
            if over:
                solved += 1
                break
        else:
            pytest.fail("the expert walks in circles")
    assert solved >= 20


def test_where_the_position_is_lost_or_the_episode_over_the_expert_says_so():
    env = SokobanEnv()
    env.reset(options={"map": ROOM})
    play(env, ["left", "down", "down", "right", "up"])
    with pytest.raises(UserError, match="cannot be solved any more"):
        env.expert()
    env.reset(options={"map": CORRIDOR})
    play(env, ["right"] * 3)
    with pytest.raises(UserError, match="no move is left"):
        env.expert()


def test_the_search_is_bounded_and_says_so():
    rows = generate(10, 4, "train", 0)["map"]
    level = Level.of(tuple(rows))
    with pytest.raises(UserError, match="no solution of this position among 3 positions"):
        solve(level, *level.start, max_positions=3)


def test_the_expert_is_not_misled_by_the_plan_for_another_level():
    env = SokobanEnv()
    env.reset(options={"map": ["#####", "#@$.#", "#___#", "#####"]})
    assert env.expert() == "<answer>right</answer>"
    env.reset(options={"map": ["#####", "#@$_#", "#_._#", "#####"]})  # same player, same box, another target
    with pytest.raises(UserError, match="cannot be solved"):
        env.expert()


# Levels by hand, bad input, snapshots


def test_a_level_in_the_usual_notation_can_be_played():
    rows = "  ####\n###  ###\n#  $ . #\n#@-##  #\n####  ##\n   ####\n"
    env = SokobanEnv()
    first, _ = env.reset(options={"map": rows})
    assert first.split("\n\n")[1].replace(" ", "").split("\n") == [
        "########",
        "###__###",
        "#__$_._#",
        "#@_##__#",
        "####__##",
        "########",
    ]
    assert [env.step(move)[2] for move in ("up", "right", "right", "right")] == [False, False, False, True]


def test_five_boxes_are_more_than_a_generated_level_has_and_are_solved_all_the_same():
    env = SokobanEnv(max_turns=None)
    rows = ["########", "#@_____#", "#_$$_$_#", "#______#", "#_$_$__#", "#.....##", "########"]
    assert expert_episode(env, options={"map": rows})[1]["boxes_on_target"] == 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["#####", "#_$.#", "#####"], "exactly one player"),
        (["#####", "#@@$.#", "#####"], "exactly one player"),
        (["#####", "#@$_#", "#####"], "as many targets as boxes"),
        (["#####", "#@__#", "#####"], "as many targets as boxes"),
        (["#####", "#@*_#", "#####"], "solved already"),
        (["#####", "#@$.", "#####"], "open at row 2"),
        (["###_#", "#@$.#", "#####"], "open at row 1, column 4"),
        (["@"], "as many targets"),
        (["#######", "#@#$._#", "#######"], "walled off"),
        (["#####", "#@$x#", "#####"], "unknown character"),
        ([], "list of strings"),
    ],
)
def test_a_malformed_level_is_refused_in_one_line(rows, message):
    with pytest.raises(UserError, match=message) as error:
        SokobanEnv().reset(options={"map": rows})
    assert "\n" not in str(error.value)


def test_a_task_and_a_map_together_are_refused():
    with pytest.raises(UserError, match="not both"):
        SokobanEnv().reset(options={"map": CORRIDOR, "task": "train/1"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 4},
        {"size": 11},
        {"size": 6.5},
        {"num_boxes": 0},
        {"num_boxes": 4},
        {"size": 10, "num_boxes": 5},
        {"moves_per_turn": 0},
        {"max_turns": "lots"},
        {"split": "dev"},
    ],
)
def test_an_argument_out_of_range_is_refused(arguments):
    with pytest.raises(UserError):
        SokobanEnv(**arguments)


def test_a_snapshot_continues_in_another_instance_and_is_small():
    env = SokobanEnv()
    env.reset(options={"map": CORRIDOR})
    env.step("right")
    saved = env.snapshot()
    assert len(saved) < 2_000
    other = pickle.loads(pickle.dumps(SokobanEnv()))
    other.restore(saved)
    assert other.expert() == "<answer>right</answer>"
    assert other.step("right") == env.step("right")


def test_no_tools_are_declared():
    assert SokobanEnv.tools == ()
