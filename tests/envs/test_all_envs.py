"""What every registered environment keeps to: Gymnasium's contract and the promises of TextEnv.

An environment that is registered is tested here; nothing has to be added for it.
"""

import inspect
import json
import math
import pickle
import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import rollcage.envs
from rollcage.envs import Task, TextEnv
from rollcage.errors import UserError

ENV_IDS = sorted(env_id for env_id in gymnasium.registry if env_id.startswith("rollcage/"))
VARIANTS = {
    "rollcage/ALFWorld-v0": [{"show_admissible": True, "progress_reward": 0.5, "step_penalty": 0.01}],
    "rollcage/Countdown-v0": [{"max_attempts": 3, "num_numbers": [3, 6]}],
    "rollcage/FrozenLake-v0": [{"is_slippery": True, "size": 6}, {"moves_per_turn": 3, "step_penalty": 0.1}],
    "rollcage/Sokoban-v0": [{"size": 8, "num_boxes": 3, "moves_per_turn": 2, "end_on_deadlock": True}],
}
WITHOUT_DATA = {
    "rollcage/ALFWorld-v0": {"dataset": "sample"},
    "rollcage/SWEBench-v0": {"dataset": "sample"},
    "rollcage/SWEMini-v0": {"endpoints": "process:"},
}
"""Arguments of environments that have to be given data, or Docker, by default."""

SLOW = ("rollcage/SWEBench-v0", "rollcage/SWEMini-v0")
"""Those whose episodes take a second each: a third as many of them."""

CASES = [(env_id, arguments) for env_id in ENV_IDS for arguments in [{}, *VARIANTS.get(env_id, [])]]
SECTIONS = (
    "Description",
    "Action Space",
    "Observation Space",
    "Rewards",
    "Episode End",
    "Info",
    "Arguments",
    "Version",
)
MEBIBYTE = 2**20

every_env = pytest.mark.parametrize("env_id", ENV_IDS)
every_case = pytest.mark.parametrize(
    ("env_id", "arguments"), CASES, ids=[f"{env_id}-{','.join(arguments)}" for env_id, arguments in CASES]
)


def make(env_id, **arguments):
    env = gymnasium.make(env_id, **WITHOUT_DATA.get(env_id, {}), **arguments)
    assert isinstance(env, TextEnv), "no wrapper stands between"
    return env


def offers(env, policy):
    """Whether the environment has the policy "expert" or "random_action"."""
    return getattr(type(env), policy) is not getattr(TextEnv, policy)


def mixed_action(env, rng):
    """The expert's action, a random one, or gibberish, as far as the environment offers them."""
    choice = rng.integers(3)
    if choice == 0 and offers(env, "expert"):
        return env.expert()
    if choice == 1 and offers(env, "random_action"):
        return env.random_action(rng)
    env.action_space.seed(int(rng.integers(1000)))
    return env.action_space.sample()


def transcript(env, *, actions_seed, num_turns=12, **reset):
    """Play ``num_turns`` turns, over as many episodes as they take; all that the environment said."""
    rng = np.random.default_rng(actions_seed)
    said = [env.reset(**reset)]
    for _ in range(num_turns // 3 if env.spec.id in SLOW else num_turns):
        said.append(env.step(mixed_action(env, rng)))
        if said[-1][2] or said[-1][3]:
            said.append(env.reset())
    return said


@every_case
def test_gymnasiums_check_env_finds_nothing_and_warns_of_nothing_e14(env_id, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(env_id, **arguments))


@every_env
def test_make_vec_with_plain_arguments_says_what_single_environments_say_e14(env_id):
    vector = gymnasium.make_vec(env_id, num_envs=4, **WITHOUT_DATA.get(env_id, {}))
    try:
        observations, infos = vector.reset(seed=7)
        singles = [make(env_id).reset(seed=7 + i) for i in range(4)]
        assert list(observations) == [observation for observation, _ in singles]
        assert list(infos["task_id"]) == [info["task_id"] for _, info in singles]
        assert vector.observation_space.contains(observations)
    finally:
        vector.close()


@every_case
def test_the_seed_and_the_actions_decide_everything(env_id, arguments):
    env, other = make(env_id, **arguments), make(env_id, **arguments)
    said = transcript(env, seed=3, actions_seed=0)
    assert transcript(other, seed=3, actions_seed=0) == said
    assert transcript(env, seed=3, actions_seed=0) == said, "nothing of an earlier episode is left"


@every_env
def test_different_seeds_and_later_resets_draw_different_tasks(env_id):
    env = make(env_id)
    by_seed = {env.reset(seed=seed)[1]["task_id"] for seed in range(30)}
    in_a_row = {env.reset()[1]["task_id"] for _ in range(30)}
    assert len(by_seed) > 1
    assert len(in_a_row) > 1


@every_case
def test_gibberish_raises_nothing_gains_nothing_and_is_answered_at_once_e15(env_id, arguments):
    env = make(env_id, **arguments)
    env.action_space.seed(0)
    gibberish = [env.action_space.sample() for _ in range(20)]
    gibberish += [
        "",
        " ",
        "\n",
        "\x00",
        "\ud800",
        "\udfff\ud800",
        "\ufeff",
        "\u202e",
        "<answer>",
        "</answer>",
        "</answer><answer>",
    ]
    gibberish += [
        unit * (MEBIBYTE // len(unit))
        for unit in ("x", " ", "\x00", "\ud800", "9", "(", "<answer>", "<think>", "{\\boxed{")
    ]
    gibberish += [f"<answer>{text}</answer>" for text in gibberish]
    env.reset(seed=0)
    for action in gibberish:
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        assert time.perf_counter() - started < 10, action[:20]
        assert observation in env.observation_space
        assert len(observation) < 10_000, "an answer is not repeated at any length"
        assert math.isfinite(reward)
        assert reward <= 0
        assert info["success"] is False
        if terminated or truncated:
            env.reset()


@every_case
def test_info_has_the_same_keys_at_the_reset_and_at_every_turn_and_is_json(env_id, arguments):
    said = transcript(make(env_id, **arguments), seed=1, actions_seed=1, num_turns=20)
    infos = [turn[-1] for turn in said]
    assert {"task_id", "success", "failure"} <= infos[0].keys()
    assert all(list(info) == list(infos[0]) for info in infos)
    assert json.loads(json.dumps(infos)) == infos
    assert all(isinstance(info["task_id"], str) and isinstance(info["success"], bool) for info in infos)
    assert all(info["failure"] in (None, "task", "model", "infra") for info in infos)
    assert all(turn[2] for turn in said if turn[-1]["success"]), "success only together with terminated"


@every_case
def test_the_first_step_never_truncates_by_default(env_id, arguments):
    env = make(env_id, **arguments)
    env.reset(seed=0)
    assert env.step("gibberish")[3] is False


@every_case
def test_an_episode_of_several_turns_is_truncated_by_max_turns(env_id, arguments):
    env = make(env_id, **arguments)
    env.reset(seed=0)
    if "max_turns" not in inspect.signature(type(env)).parameters:
        assert env.step("gibberish")[2] is True, "without a turn limit, every first message ends the episode"
        return
    env = make(env_id, **{**arguments, "max_turns": 2})
    env.reset(seed=0)
    _, _, terminated, truncated, _ = env.step("gibberish")
    assert truncated is False
    if not terminated:
        _, _, terminated, truncated, _ = env.step("gibberish")
        assert terminated != truncated


@every_case
def test_pickling_keeps_the_episode(env_id, arguments):
    env = make(env_id, **arguments)
    env.reset(seed=5)
    copy = pickle.loads(pickle.dumps(env))
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    assert copy.step(mixed_action(copy, same)) == env.step(mixed_action(env, rng))
    assert copy.reset() == env.reset()


@every_env
def test_the_spec_survives_pickle_and_json(env_id):
    spec = make(env_id).spec
    for copy in (pickle.loads(pickle.dumps(spec)), EnvSpec.from_json(spec.to_json())):
        assert gymnasium.make(copy).reset(seed=2) == make(env_id).reset(seed=2)


@every_case
def test_a_snapshot_continues_identically_here_and_in_another_instance(env_id, arguments):
    env, other = make(env_id, **arguments), make(env_id, **arguments)
    env.reset(seed=8)
    at_the_start = env.snapshot()
    turn = env.step("gibberish, which an episode of several turns survives")
    later = env.snapshot()
    over = turn[2] or turn[3]
    after = env.reset() if over else env.step(mixed_action(env, np.random.default_rng(1)))
    for again in (other, env):
        again.restore(at_the_start)
        assert again.step("gibberish, which an episode of several turns survives") == turn
        again.restore(later)
        if over:
            with pytest.raises(gymnasium.error.ResetNeeded):
                again.step("x")
            assert again.reset() == after
        else:
            assert again.step(mixed_action(again, np.random.default_rng(1))) == after


@every_case
def test_the_expert_succeeds_where_there_is_one(env_id, arguments):
    env = make(env_id, **arguments)
    env.reset(seed=0)
    if not offers(env, "expert"):
        with pytest.raises(UserError, match="offers no expert"):
            env.expert()
        return
    num_successes, num_episodes = 0, 3 if env_id in SLOW else 10
    for seed in range(num_episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.expert())
            over = terminated or truncated
        num_successes += info["success"]
    assert num_successes == num_episodes or arguments.get("is_slippery")


@every_env
def test_the_random_policy_is_seeded_where_there_is_one(env_id):
    env = make(env_id)
    env.reset(seed=0)
    if not offers(env, "random_action"):
        with pytest.raises(UserError, match="offers no random"):
            env.random_action(np.random.default_rng(0))
        return
    actions = [env.random_action(np.random.default_rng(seed)) for seed in range(20)]
    assert actions == [env.random_action(np.random.default_rng(seed)) for seed in range(20)]
    assert all(action in env.action_space for action in actions)
    assert len(set(actions)) > 1


@every_env
def test_the_first_and_the_last_task_of_every_split_can_be_posed_and_found_by_id(env_id):
    env = make(env_id)
    for split, size in env.tasks.splits.items():
        for index in (0, size - 1):
            task = env.tasks.task(split, index)
            assert isinstance(task, Task)
            assert env.tasks.by_id(task.id) == task
            observation, info = env.reset(options={"task": task.id})
            assert observation
            assert info["task_id"] == task.id


@every_env
def test_unknown_splits_tasks_options_and_arguments_are_one_clear_line(env_id):
    env = make(env_id)
    for provoke in (
        lambda: make(env_id, split="no such split"),
        lambda: env.reset(options={"task": "no such task"}),
        lambda: env.reset(options={"no such option": 1}),
        lambda: rollcage.envs.make(env_id, no_such_argument=1),
    ):
        with pytest.raises(UserError) as error:
            provoke()
        assert "\n" not in str(error.value)


@every_env
def test_a_step_before_a_reset_asks_for_one_and_close_may_come_at_any_time_twice(env_id):
    env = make(env_id)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.close()
    env.close()
    env = make(env_id, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    env.close()
    env.close()


@every_env
def test_the_docstring_is_a_documentation_page(env_id):
    env = make(env_id)
    page = inspect.getdoc(type(env))
    assert [section for section in SECTIONS if f"## {section}" not in page] == []
    arguments = [
        name for name in inspect.signature(type(env)).parameters if name not in ("split", "max_turns", "render_mode")
    ]
    assert [name for name in arguments if f"``{name}``" not in page] == [], "every argument is explained"
    _, info = env.reset(seed=0)
    own_keys = info.keys() - {"task_id", "success", "failure"}
    assert [key for key in own_keys if f"``{key}``" not in page] == [], "every key of info is explained"
