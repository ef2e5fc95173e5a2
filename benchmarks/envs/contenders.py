"""Who is measured, and how each is asked to do the same work. The packages of others are imported where installed."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium

from rollcage.benchmarks.envs.bare import make_bare
from rollcage.benchmarks.envs.bare import score as score_bare
from rollcage.benchmarks.envs.measure import Contender
from rollcage.benchmarks.envs.problems import Problem
from rollcage.envs.countdown.env import judge
from rollcage.envs.countdown.tasks import generate

ENV_ID = "rollcage/Countdown-v0"
THOUGHT = "Let me try a few combinations first.\n"
RIVALS = {"reasoning-gym": "reasoning_gym", "gem-llm": "gem", "skyrl-gym": "skyrl_gym"}
"""Distribution -> module."""

NUM_ENVS = 8

Score = Callable[[Problem], float]


def installed() -> dict[str, str]:
    """Return the version of each package to compare with that is installed."""
    found = {}
    for distribution in RIVALS:
        with contextlib.suppress(PackageNotFoundError):
            found[distribution] = version(distribution)
    return found


def scorers(rivals: Sequence[str]) -> dict[str, Score]:
    """Return a function from a problem to its answer's reward for each package, as its own environment gives it."""
    found: dict[str, Score] = {
        "rollcage": lambda p: float(judge(tagged(p.answer), p.numbers, p.target)[0] == "right"),
        "bare Gymnasium env": lambda p: score_bare(tagged(p.answer), p.numbers, p.target),
    }
    if "reasoning-gym" in rivals:
        countdown = import_module("reasoning_gym").create_dataset("countdown", size=1, seed=0)
        found["reasoning-gym"] = lambda p: countdown.score_answer(p.answer, entry(p))
    if "gem-llm" in rivals:
        found["gem-llm"] = _score_gem
    return found


def scoring(problems: Sequence[Problem], rivals: Sequence[str]) -> list[Contender]:
    """Answers scored, without an environment around."""
    own = [(tagged(p.answer), p.numbers, p.target) for p in problems]
    found = [
        Contender("rollcage", lambda: [judge(*arguments) for arguments in own], len(own)),
        Contender("bare scorer", lambda: [score_bare(*arguments) for arguments in own], len(own)),
    ]
    if "reasoning-gym" in rivals:
        score = import_module("reasoning_gym").create_dataset("countdown", size=1, seed=0).score_answer
        few = [(p.answer, entry(p)) for p in problems[:200]]
        found.append(Contender("reasoning-gym", lambda: [score(*arguments) for arguments in few], len(few)))
    return found


def episodes(problems: Sequence[Problem], rows: Path, rivals: Sequence[str]) -> list[Contender]:
    """Whole episodes, reset and one step, one environment at a time."""
    env = gymnasium.make(ENV_ID, data=rows, split="test")
    messages = _messages(env, problems)
    bare = make_bare([(p.numbers, p.target) for p in problems])
    plain = list(messages.values())
    procedural = gymnasium.make(ENV_ID)

    def play() -> None:
        for _ in plain:
            _, info = env.reset()
            env.step(messages[info["task_id"]])

    def play_bare() -> None:
        for _ in plain:
            _, info = bare.reset()
            bare.step(plain[info["index"]])

    def play_procedural() -> None:
        for message in plain:
            procedural.reset()
            procedural.step(message)

    found = [
        Contender("rollcage", play, len(plain)),
        Contender("bare Gymnasium env", play_bare, len(plain)),
        Contender("rollcage, a new problem generated at every reset", play_procedural, len(plain)),
    ]
    few = problems[:200]
    if "gem-llm" in rivals:
        gem_env, boxes = gem_env_on(few), [boxed(p.answer) for p in few]

        def play_gem() -> None:
            for box in boxes:
                gem_env.reset()
                gem_env.step(box)

        found.append(Contender("gem-llm", play_gem, len(few)))
        own_gem = import_module("gem").make("rg:countdown", size=20)

        def play_own_gem() -> None:
            for box in boxes[:20]:
                own_gem.reset()
                own_gem.step(box)

        found.append(Contender("gem-llm, a new problem generated at every reset", play_own_gem, 20))
    if "skyrl-gym" in rivals:
        make = import_module("skyrl_gym").make
        asked = [([{"role": "user", "content": f"Make {p.target}."}], skyrl_extras(p), f"#### {p.target}") for p in few]

        def play_skyrl() -> None:
            for prompt, extras, message in asked:
                skyrl = make("gsm8k", extras=extras)
                skyrl.init(prompt)
                skyrl.step(message)

        found.append(Contender("skyrl-gym, gsm8k (compares one number; it has no Countdown)", play_skyrl, len(few)))
    return found


def vectors(problems: Sequence[Problem], rows: Path, rivals: Sequence[str]) -> list[Contender]:
    """Episodes in `NUM_ENVS` environments that step together, and the same ones stepped one by one."""
    arguments: dict[str, Any] = {"data": str(rows), "split": "test"}
    singles = [gymnasium.make(ENV_ID, **arguments) for _ in range(NUM_ENVS)]
    messages = _messages(singles[0], problems)
    rounds = 50

    def one_by_one() -> None:
        for _ in range(rounds):
            for env in singles:
                _, info = env.reset()
                env.step(messages[info["task_id"]])

    def play(vector: Any, rounds: int) -> Callable[[], None]:
        _, first = vector.reset(seed=0)
        tasks = [first["task_id"]]  # those of the last reset: where the next work begins

        def work() -> None:
            ids = tasks.pop()
            for _ in range(rounds):
                vector.step([messages[task_id] for task_id in ids])
                ids = vector.step([""] * NUM_ENVS)[4]["task_id"]  # all episodes are over: this resets them
            tasks.append(ids)

        return work

    maker = [lambda: gymnasium.make(ENV_ID, **arguments)] * NUM_ENVS
    made = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, **arguments)
    asynchronous = gymnasium.vector.AsyncVectorEnv(maker, shared_memory=False)
    found = [
        Contender("rollcage, make_vec", play(made, rounds), rounds * NUM_ENVS),
        Contender("rollcage, one by one", one_by_one, rounds * NUM_ENVS),
        Contender("Gymnasium's SyncVectorEnv", play(gymnasium.vector.SyncVectorEnv(maker), rounds), rounds * NUM_ENVS),
        Contender(
            "Gymnasium's AsyncVectorEnv",
            play(asynchronous, 10),
            10 * NUM_ENVS,
            asynchronous.close,
        ),
    ]
    if "gem-llm" in rivals:
        with contextlib.redirect_stdout(io.StringIO()):
            gem = import_module("gem").make_vec(["rg:countdown"] * NUM_ENVS)
        for env in gem.envs:
            _put_rows(env, problems[:50])
        gem.reset()
        boxes = [boxed(p.answer) for p in problems[:50]]

        def play_gem() -> None:
            for box in boxes[:10]:
                gem.step([box] * NUM_ENVS)
                gem.step([""] * NUM_ENVS)

        found.append(Contender("gem-llm, make_vec", play_gem, 10 * NUM_ENVS))
    return found


def turns(env_id: str, actions: Sequence[str], rounds: int, *, placement: str = "inline") -> list[Contender]:
    """Turns of `NUM_ENVS` environments whose episodes have many; each repeats its own one of ``actions``."""
    singles = [gymnasium.make(env_id) for _ in range(NUM_ENVS)]
    for seed, env in enumerate(singles):
        env.reset(seed=seed)

    def one_by_one() -> None:
        for _ in range(rounds):
            for env, action in zip(singles, actions, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    def play(vector: Any) -> Callable[[], None]:
        vector.reset(seed=0)

        def work() -> None:
            for _ in range(rounds):
                vector.step(actions)

        return work

    maker = [lambda: gymnasium.make(env_id)] * NUM_ENVS
    made = gymnasium.make_vec(env_id, num_envs=NUM_ENVS, placement=placement)
    how = "" if placement == "inline" else f'(placement="{placement}")'
    found = [
        Contender(f"rollcage, make_vec{how}", play(made), rounds * NUM_ENVS, made.close),
        Contender("rollcage, one by one", one_by_one, rounds * NUM_ENVS),
    ]
    if placement == "inline":
        synchronous = gymnasium.vector.SyncVectorEnv(maker)
        found.append(Contender("Gymnasium's SyncVectorEnv", play(synchronous), rounds * NUM_ENVS, synchronous.close))
    else:
        workers = gymnasium.vector.AsyncVectorEnv(maker, shared_memory=False)
        found.append(Contender("Gymnasium's AsyncVectorEnv", play(workers), rounds * NUM_ENVS, workers.close))
    return found


def generation(rivals: Sequence[str]) -> list[Contender]:
    """Solvable problems made per second."""
    places = itertools.count()
    found = [
        Contender(f"rollcage, {name} numbers", _generate(low, high, places), 500)
        for name, low, high in (("3", 3, 3), ("4", 4, 4), ("6", 6, 6), ("3 to 6", 3, 6))
    ]
    if "reasoning-gym" in rivals:
        create = import_module("reasoning_gym").create_dataset
        alike = {"min_numbers": 3, "max_numbers": 3, "max_value": 99, "min_target": 10, "max_target": 100}
        for name, settings in (("3 numbers, as ours", alike), ("its own settings (4 to 6 numbers)", {})):
            tasks = create("countdown", size=10**9, seed=0, **settings)
            found.append(Contender(f"reasoning-gym, {name}", _generate_from(tasks, places), 10))
    return found


def _generate(low: int, high: int, places: itertools.count[int]) -> Callable[[], None]:
    def work() -> None:
        for _ in range(500):
            generate(low, high, "train", next(places))

    return work


def _generate_from(tasks: Any, places: itertools.count[int]) -> Callable[[], None]:
    def work() -> None:
        made = 0
        while made < 10:
            with contextlib.suppress(ValueError):  # what it raises for a seed that gave no valid problem
                tasks[next(places)]
                made += 1

    return work


# The forms in which the packages take answers and rows


def _messages(env: gymnasium.Env[str, str], problems: Sequence[Problem]) -> dict[str, str]:
    """Return the message for each task of an environment whose data file holds ``problems``."""
    tasks = env.get_wrapper_attr("tasks")
    return {tasks.task("test", index).id: tagged(p.answer) for index, p in enumerate(problems)}


def tagged(answer: str) -> str:
    """Return a message that ends with an answer in tags."""
    return f"{THOUGHT}<answer>{answer}</answer>"


def boxed(answer: str) -> str:
    r"""Return a message that ends with an answer in ``\boxed{}``."""
    return f"{THOUGHT}\\boxed{{{answer}}}"


def entry(problem: Problem) -> dict[str, Any]:
    """Return a problem as reasoning-gym's Countdown holds it."""
    question = f"Find a way to make {problem.target} using all of these numbers: {problem.numbers}."
    return {"question": question, "answer": "", "metadata": {"numbers": problem.numbers, "target": problem.target}}


def skyrl_extras(problem: Problem) -> dict[str, Any]:
    """Return a problem as skyrl-gym's gsm8k environment takes it."""
    return {"reward_spec": {"ground_truth": str(problem.target)}}


def gem_env_on(problems: Sequence[Problem]) -> Any:
    """Return gem's Countdown environment on these problems instead of generated ones, which would take far longer."""
    return _put_rows(import_module("gem").make("rg:countdown", size=1), problems)


def _put_rows(env: Any, problems: Sequence[Problem]) -> Any:
    env.ds_iter = itertools.cycle([entry(p) for p in problems])
    return env


def _score_gem(problem: Problem) -> float:
    env = gem_env_on([problem])
    env.reset()
    return float(env.step(boxed(problem.answer))[1])
