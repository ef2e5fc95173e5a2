"""TextEnv: what an author gets from ``begin`` and ``advance``, and what Gymnasium gets from TextEnv."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rollcage.envs import RowTasks, TextEnv, Turn, UnicodeText
from rollcage.errors import UserError

WORDS = RowTasks(
    "words", {"train": [{"word": word} for word in ("ash", "oak", "elm", "fir")], "test": [{"word": "yew"}]}
)


class GuessEnv(TextEnv):
    """Guess the word; "luck" asks a coin. The state is the list of guesses."""

    option_keys = ("task", "first")

    def __init__(self, **arguments):
        super().__init__(WORDS, **arguments)

    def begin(self, task):
        self.state = []
        return "Guess the tree."

    def reset_info(self):
        return {"num_guesses": 0}

    def advance(self, action):
        self.state.append(action)
        info = {"num_guesses": len(self.state)}
        if action == self.task.data["word"]:
            return Turn("Right.", 1.0, True, True, info)
        if action == "give up":
            return Turn("As you like.", -1.0, True, info=info)
        if action == "luck":
            return Turn(f"The coin shows {self.np_random.integers(1_000_000)}.", info=info)
        return Turn(f"Wrong: {self.state}", info=info)


def play(env, *actions):
    return [env.step(action) for action in actions]


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "max_turns must be an integer of at least 1"),
        ({"max_turns": -3}, "max_turns"),
        ({"max_turns": 2.5}, "max_turns"),
        ({"max_turns": "5"}, "max_turns"),
        ({"render_mode": "human"}, "render_mode must be None or 'ansi', not 'human'"),
        ({"split": "tset"}, "Did you mean 'test'"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(arguments, message):
    with pytest.raises(UserError, match=message) as error:
        GuessEnv(**arguments)
    assert "\n" not in str(error.value)


def test_an_empty_split_is_refused():
    class EmptyEnv(TextEnv):
        def __init__(self):
            super().__init__(RowTasks("none", {"train": []}))

    with pytest.raises(UserError, match="split 'train' is empty"):
        EmptyEnv()


# Reset


def test_the_seed_decides_the_task_and_a_seedless_reset_goes_on_from_it():
    env, same = GuessEnv(), GuessEnv()
    drawn = [env.reset(seed=4)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(20))]
    assert drawn == [same.reset(seed=4)[1]["task_id"], *(same.reset()[1]["task_id"] for _ in range(20))]
    assert set(drawn) == {"train/0", "train/1", "train/2", "train/3"}
    assert len({GuessEnv().reset(seed=seed)[1]["task_id"] for seed in range(30)}) == 4


def test_tasks_come_from_the_split_that_was_asked_for():
    assert GuessEnv(split="test").reset(seed=0)[1]["task_id"] == "test/0"


def test_an_option_picks_the_task_even_of_another_split():
    env = GuessEnv()
    _, info = env.reset(options={"task": "test/0"})
    assert info == {"task_id": "test/0", "success": False, "failure": None, "num_guesses": 0}
    assert env.task.data == {"word": "yew"}


@pytest.mark.parametrize("options", [None, {}])
def test_no_options_are_no_options(options):
    assert GuessEnv().reset(seed=0, options=options)[1]["task_id"].startswith("train/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taks": "train/0"}, r"unknown reset option 'taks' \(known: task, first\)\. Did you mean 'task'\?"),
        ({7: "train/0"}, "unknown reset option 7"),
        ({"task": "train/9"}, "no task 'train/9'"),
        ({"task": 3}, "must be a task id"),
        ({"task": None}, "must be a task id"),
        ({"task": ["train/0"]}, "must be a task id"),
    ],
)
def test_bad_options_are_one_clear_line_and_leave_no_episode_running(options, message):
    env = GuessEnv()
    env.reset(seed=0)
    with pytest.raises(UserError, match=message) as error:
        env.reset(options=options)
    assert "\n" not in str(error.value)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("oak")


def test_an_environment_that_cannot_pose_its_task_leaves_no_episode_running():
    class BrokenEnv(GuessEnv):
        def begin(self, task):
            raise OSError("no such file")

    env = BrokenEnv()
    with pytest.raises(OSError, match="no such file"):
        env.reset(seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("oak")


# Step


def test_a_turn_becomes_gymnasiums_five_values():
    env = GuessEnv()
    env.reset(options={"task": "train/1"})
    turns = play(env, "elm", "oak")
    info = {"task_id": "train/1", "success": False, "failure": None, "num_guesses": 1}
    assert turns[0] == ("Wrong: ['elm']", 0.0, False, False, info)
    assert turns[1] == ("Right.", 1.0, True, False, info | {"success": True, "num_guesses": 2})
    assert env.num_turns == 2


def test_giving_up_terminates_without_success():
    env = GuessEnv()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("give up")
    assert (reward, terminated, truncated, info["success"]) == (-1.0, True, False, False)


def test_the_turn_limit_truncates_and_a_solution_in_the_last_turn_terminates_instead():
    env = GuessEnv(max_turns=2)
    env.reset(options={"task": "train/1"})
    assert [turn[2:4] for turn in play(env, "a", "b")] == [(False, False), (False, True)]
    env.reset(options={"task": "train/1"})
    assert [turn[2:4] for turn in play(env, "a", "oak")] == [(False, False), (True, False)]


def test_without_a_limit_an_episode_goes_on():
    env = GuessEnv()
    env.reset(seed=0)
    assert not any(truncated for *_, truncated, _ in play(env, *["?"] * 500))


@pytest.mark.parametrize("actions", [[], ["give up"], ["?", "?"]], ids=["before reset", "terminated", "truncated"])
def test_a_step_without_a_running_episode_asks_for_a_reset(actions):
    env = GuessEnv(max_turns=2)
    if actions:
        env.reset(seed=0)
        play(env, *actions)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"reset\(\)"):
        env.step("oak")
    env.reset(seed=0)
    env.step("oak")


@pytest.mark.parametrize("action", [None, 3, b"oak", ["oak"]])
def test_an_action_that_is_no_text_is_refused_and_costs_no_turn(action):
    env = GuessEnv()
    env.reset(seed=0)
    with pytest.raises(UserError, match=f"must be a string, not {type(action).__name__}"):
        env.step(action)
    assert env.num_turns == 0


def test_what_an_author_leaves_out_says_so():
    class BareEnv(TextEnv):
        def __init__(self):
            super().__init__(WORDS)

    env = BareEnv()
    with pytest.raises(NotImplementedError, match=r"BareEnv must implement begin"):
        env.reset(seed=0)
    with pytest.raises(NotImplementedError, match=r"BareEnv must implement advance"):
        env.advance("x")
    with pytest.raises(UserError, match="BareEnv offers no expert"):
        env.expert()
    with pytest.raises(UserError, match="BareEnv offers no random"):
        env.random_action(np.random.default_rng(0))
    assert env.tools == ()


# Rendering, spaces, Gymnasium


def test_render_shows_the_newest_observation_where_it_was_asked_for():
    env = GuessEnv(render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "Guess the tree."
    env.step("x")
    assert env.render() == "Wrong: ['x']"
    silent = GuessEnv()
    silent.reset(seed=0)
    assert silent.render() is None


def test_observations_and_actions_are_any_text():
    env = GuessEnv()
    assert env.observation_space == env.action_space == UnicodeText()
    assert env.observation_space is not env.action_space, "each has a generator of its own"


def test_gymnasiums_checker_finds_nothing():
    gymnasium.register("test/Guess-v0", GuessEnv, order_enforce=False, disable_env_checker=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(gymnasium.make("test/Guess-v0").unwrapped)
    finally:
        del gymnasium.registry["test/Guess-v0"]


def test_close_twice_is_fine():
    env = GuessEnv()
    env.close()
    env.close()


# Snapshot and restore


def test_restore_goes_back_in_the_same_instance():
    env = GuessEnv(max_turns=3, render_mode="ansi")
    env.reset(seed=0)
    env.step("a")
    saved = env.snapshot()
    first = play(env, "luck", "b")
    assert first[-1][3] is True
    env.restore(saved)
    assert env.render() == "Wrong: ['a']"
    assert play(env, "luck", "b") == first, "turn count, state and randomness"


def test_restore_continues_in_another_instance_after_the_state_has_changed():
    env, other = GuessEnv(), GuessEnv()
    env.reset(seed=0, options={"task": "train/2"})
    env.step("a")
    saved = env.snapshot()
    turns = play(env, "luck", "elm")
    other.reset(seed=99)
    other.restore(saved)
    assert play(other, "luck", "elm") == turns
    assert env.reset() == other.reset(), "the next task, too"


def test_a_snapshot_of_an_ended_episode_is_ended():
    env, other = GuessEnv(), GuessEnv()
    env.reset(seed=0)
    env.step("give up")
    other.restore(env.snapshot())
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step("x")


def test_a_snapshot_is_not_changed_by_what_follows():
    env = GuessEnv()
    env.reset(seed=0)
    saved = env.snapshot()
    env.step("a")
    env.restore(saved)
    env.step("b")
    env.restore(saved)
    assert env.state == []


def test_a_failure_ends_the_episode_without_a_verdict():
    class Failing(TextEnv):
        def begin(self, task):
            return "go"

        def advance(self, action):
            return Turn("broken", failure="infra")

    env = Failing(RowTasks("failing", {"train": [{}]}))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("x")
    assert (observation, reward, terminated, truncated) == ("broken", 0.0, False, True)
    assert (info["success"], info["failure"]) == (False, "infra")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
