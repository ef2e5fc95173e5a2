"""The walks that teach the small policy FrozenLake: right in what they say, and weak on purpose."""

from __future__ import annotations

from itertools import islice

from rollcage.envs.frozen_lake.env import FrozenLakeEnv
from rollcage.envs.frozen_lake.map import Lake
from rollcage.envs.moves import MOVES, parse_moves
from rollcage.trainer.policies.frozen_lake_traces import Walker, demonstrations, look_around


def test_a_walk_is_an_episode_of_a_training_task() -> None:
    env = FrozenLakeEnv()
    for texts in islice(demonstrations(3), 200):
        observations, actions = texts[::2], texts[1::2]
        assert len(observations) == len(actions) >= 1
        assert observations[0].startswith("You (P) are on a frozen lake.")
        cells = "".join(observations[0].split("\n\n")[1].split())
        rows = [cells[first : first + 4].replace("P", "S") for first in range(0, 16, 4)]
        env.reset(options={"map": rows})
        for turn, action in enumerate(actions):
            around, _, _ = action.partition("<answer>")
            assert around == look_around(Lake.of(tuple(env.task.data["map"])), env.state)
            assert parse_moves(action, 1) is not None
            observation, _, terminated, truncated, _ = env.step(action)
            if turn < len(actions) - 1:
                assert observation == observations[turn + 1]
        assert terminated or truncated, "it goes on to the end"


def test_a_move_weighs_more_towards_the_goal_and_less_into_a_hole() -> None:
    lake = Lake.of(("SHF", "FFF", "FFG"))
    walker = Walker(away=0.4, edge=0.1, caution=0.5)
    assert dict(zip(MOVES, walker.weights(lake, 0), strict=True)) == {"up": 0.1, "down": 1.0, "left": 0.1, "right": 0.5}
    assert dict(zip(MOVES, walker.weights(lake, 4), strict=True)) == {"up": 0.2, "down": 1.0, "left": 0.4, "right": 1.0}


def test_looking_around_names_the_cells_above_below_left_and_right() -> None:
    lake = Lake.of(("SHF", "FFF", "FFG"))
    assert look_around(lake, 0) == "E F E H"
    assert look_around(lake, 4) == "H F F F"
    assert look_around(lake, 5) == "F G F E"
    assert look_around(lake, 3) == "F F E F", "the start is ice like any other"


def share_solved(walker: Walker) -> float:
    env, solved = FrozenLakeEnv(), 0
    walks = list(islice(demonstrations(0, walker), 500))
    for texts in walks:
        cells = "".join(texts[0].split("\n\n")[1].split())
        env.reset(options={"map": [cells[first : first + 4].replace("P", "S") for first in range(0, 16, 4)]})
        for action in texts[1::2]:
            *_, info = env.step(action)
        solved += info["success"]
    return solved / len(walks)


def test_walks_often_end_in_a_hole_so_that_there_is_much_to_learn() -> None:
    assert 0.35 < share_solved(Walker()) < 0.5
    assert share_solved(Walker(away=0.2, edge=0.0, caution=1.0)) > 0.8, "caution alone nearly solves it"


def test_walks_are_reproducible_and_their_seeds_differ() -> None:
    first, again, other = (list(islice(demonstrations(seed), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
