"""The checker: a good environment passes, and a broken one is caught by exactly the check that is about its fault."""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
from checker_zoo import SUMS, SumEnv

from rollcage.__main__ import main
from rollcage.envs import RowTasks, Task, TextEnv, Turn, checker, register
from rollcage.envs.checker import check, run_check
from rollcage.envs.checks import CHECKS, contract, rewards
from rollcage.envs.checks.rewards import luck
from rollcage.errors import UserError

BROKEN: list[tuple[str, type[TextEnv], str]] = []


def broken(name: str, words: str) -> Callable[[type[TextEnv]], type[TextEnv]]:
    """Add a class to the zoo: caught by the check ``name``, which says ``words``."""

    def add(environment: type[TextEnv]) -> type[TextEnv]:
        BROKEN.append((name, environment, words))
        return environment

    return add


@broken("make", "no luck today")
class DoesNotStart(SumEnv):
    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("no luck today")


@broken("gymnasium", "share an object")
class ReusesItsInfo(SumEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        self.kept = getattr(self, "kept", {})
        self.kept.update(info)
        return *rest, self.kept


@broken("spaces", "action_space refuses")
class NarrowActions(SumEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = gymnasium.spaces.Text(20)  # type: ignore[assignment]


@broken("seeding", "same first observation")
class AlwaysTheFirstTask(SumEnv):
    def choose_task(self, options: Any) -> Task:
        return super().choose_task(options) if options else self.tasks.task(self.split, 0)


@broken("seeding", "global random generator")
class DrawsFromTheGlobalGenerator(SumEnv):
    def begin(self, task: Task) -> str:
        random.random()
        return super().begin(task)


@broken("gibberish", "'\\x00'")
class StumblesOverNul(SumEnv):
    def advance(self, action: str) -> Turn:
        if "\x00" in action:
            raise ValueError("embedded null character")
        return super().advance(action)


@broken("gibberish", "env_timeout")
class TakesLongForLongTexts(SumEnv):
    def advance(self, action: str) -> Turn:
        time.sleep(3.0 if len(action) > 500_000 else 0.0)
        return super().advance(action)


@broken("info", "extra")
class InfoWithAKeyNowAndThen(SumEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, ({**info, "extra": 1} if self.state["wrong"] == 2 else info)


@broken("info", "'success'")
class SuccessAsANumber(SumEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "success": int(info["success"])}


@broken("info", "changes its type: int and str")
class InfoThatChangesItsType(SumEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "wrong": str(info["wrong"]) if info["wrong"] == 2 else info["wrong"]}


@broken("info", "'failure'")
class AFailureOfItsOwn(SumEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "failure": None if info["success"] else "wrong answer"}


@broken("outcome", "at once")
class TerminatedAndTruncated(SumEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, truncated, info


@broken("outcome", "success without terminated")
class SuccessThatGoesOn(SumEnv):
    def advance(self, action: str) -> Turn:
        turn = super().advance(action)
        return turn._replace(terminated=turn.terminated and self.num_turns > 1)


@broken("order", "after the end")
class GoesOnAfterTheEnd(SumEnv):
    def step(self, action: str) -> Any:
        if self.task.id:
            self._running = True
        return super().step(action)


@broken("order", "a number")
class TakesNumbers(SumEnv):
    def step(self, action: Any) -> Any:
        return super().step(str(action))


@broken("pickling", "pickle")
class HoldsALambda(SumEnv):
    def begin(self, task: Task) -> str:
        self.hook = lambda: 0
        return super().begin(task)


@broken("snapshot", "restored in")
class ForgetsItsState(SumEnv):
    def begin(self, task: Task) -> str:
        self.attempts = 0
        return super().begin(task)

    def advance(self, action: str) -> Turn:
        self.attempts += 1
        turn = super().advance(action)
        return turn._replace(observation=f"{turn.observation} Attempt {self.attempts}.")


@broken("speed", "a step took")
class Slow(SumEnv):
    slept = False

    def advance(self, action: str) -> Turn:
        if action == self.expert() and not self.slept:
            time.sleep(0.6)
            self.slept = True
        return super().advance(action)


@broken("tasks", "stands in train")
class LeaksItsTests(SumEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(RowTasks("leak", {"train": SUMS[:40], "test": SUMS[39:80]}), **kwargs)


class Misnamed(RowTasks):
    def by_id(self, task_id: str) -> Task:
        return Task(task_id, {**super().by_id(task_id).data, "a": 99})


@broken("tasks", "by_id")
class NamesOtherTasks(SumEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Misnamed("misnamed", {"train": SUMS}), **kwargs)


@broken("tools", "no description")
class ToolWithoutDescription(SumEnv):
    tools = ({"name": "calculator", "parameters": {"type": "object"}},)


@broken("tools", "requires 'product'")
class ToolThatRequiresWhatItDoesNotTake(SumEnv):
    tools = ({"name": "c", "description": "d", "parameters": {"type": "object", "required": ["product"]}},)


@broken("expert", "the expert solves 0%")
class WrongExpert(SumEnv):
    def expert(self) -> str:
        return "<answer>1</answer>"


@broken("expert", "nearly as many")
class LuckyRandom(SumEnv):
    def random_action(self, rng: Any) -> str:
        return self.expert()


@broken("rewards", "earns reward on 16 of 16 tasks")
class RewardsMessagesWithoutAnswer(SumEnv):
    def right(self, action: str) -> bool:
        return "<answer>" not in action or super().right(action)


@broken("rewards", "many numbers in one message")
class LooksAnywhere(SumEnv):
    def right(self, action: str) -> bool:
        return self.solution() in action.split() or super().right(action)

    def random_action(self, rng: Any) -> str:
        return f"<answer>{rng.integers(1000)}</answer>"


@broken("rewards", "earns reward on 16 of 16 tasks, as '<answer>")
class RewardsTheFormat(SumEnv):
    def advance(self, action: str) -> Turn:
        turn = super().advance(action)
        return turn._replace(reward=max(turn.reward, 0.1 * ("<answer>" in action)))

    def exploits(self) -> list[str]:
        return []


@broken("rewards", "earns reward")
class PaysByTheLetter(SumEnv):
    def advance(self, action: str) -> Turn:
        turn = super().advance(action)
        return turn._replace(reward=turn.reward + 0.001 * len(action))


@broken("rewards", "always 42")
class AlwaysTakes42(SumEnv):
    def right(self, action: str) -> bool:
        return action == "42" or super().right(action)


@broken("rewards", "anything in full-width letters")
class FallsForFullWidth(SumEnv):
    def right(self, action: str) -> bool:
        return "ａ" in action or super().right(action)


@broken("rewards", "an exploit of its own")
class OwnExploitWorks(SumEnv):
    def right(self, action: str) -> bool:
        return f"{self.task.data['a']} + {self.task.data['b']}" == action or super().right(action)

    def exploits(self) -> list[str]:
        return [f"{self.task.data['a']} + {self.task.data['b']}"]


@broken("rewards", "the environment's own words")
class FooledByItsOwnWords(SumEnv):
    def right(self, action: str) -> bool:
        return action.startswith("Wrong, 1 so far") or super().right(action)


@broken("rewards", "the question itself")
class FooledByTheQuestion(SumEnv):
    def right(self, action: str) -> bool:
        return action.startswith("What is") or super().right(action)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tasks and shorter deadlines than on the command line."""
    monkeypatch.setattr(rewards, "NUM_TASKS", 16)
    monkeypatch.setattr(contract, "RESET_S", 1.5)
    monkeypatch.setattr(contract, "STEP_S", 0.5)


def summary(report: Any) -> str:
    return "\n".join(str(result) for result in report.results)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "environment", "words"), BROKEN, ids=[environment.__name__ for _, environment, _ in BROKEN]
)
def test_each_broken_environment_is_caught_by_exactly_its_check(
    name: str, environment: type[TextEnv], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id = f"broken/{environment.__name__}-v0"
    if env_id not in gymnasium.registry:
        # The class itself, not its name, so that it is tried in threads: many times faster than in processes.
        gymnasium.register(env_id, environment, order_enforce=False, disable_env_checker=True)
    if name != "rewards":
        monkeypatch.setattr(rewards, "NUM_TASKS", 1 if env_id == "rollcage/SWEBench-v0" else 2)
    report = check(env_id)
    assert report.failed == [name], summary(report)
    assert words in next(result.detail for result in report.results if not result.ok)
    gc.collect()


def test_every_check_has_a_broken_environment() -> None:
    """But determinism, which needs one that another process can import: below."""
    assert {name for name, _, _ in BROKEN} | {"determinism"} == set(CHECKS)


@pytest.mark.usefixtures("quick")
def test_a_good_environment_passes_every_check() -> None:
    report = check("checker_zoo:zoo/Sum-v0", split="test")
    assert report.ok, summary(report)
    assert [result.name for result in report.results] == list(CHECKS)
    assert all(result.offered for result in report.results)
    assert report.results[0].detail == "a TextEnv, in worker processes too"


@pytest.mark.usefixtures("quick")
def test_an_environment_that_is_no_text_env_passes_what_it_offers() -> None:
    report = check("zoo/Plain-v0")
    assert report.ok, summary(report)
    assert [result.name for result in report.results if not result.offered] == ["snapshot", "tasks", "tools", "expert"]


def test_what_differs_from_process_to_process_is_not_deterministic() -> None:
    report = check("zoo/ProcessDependent-v0", only=["determinism"])
    assert report.failed == ["determinism"]
    assert "in another process" in report.results[-1].detail


def test_a_scorer_that_evaluates_code_is_caught_without_stopping_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "TURN_S", 1.0)
    report = check("zoo/Evaluating-v0", only=["rewards"])
    assert report.failed == ["rewards"]
    assert any(word in report.results[-1].detail for word in ("env_died", "env_timeout", "exploit of its own"))


CHOICES = [{"id": f"q{i}", "question": f"Which is number {i}?", "answer": "ABCD"[i * 7 % 4]} for i in range(60)]


class ChoiceEnv(TextEnv):
    """Multiple choice without a random policy: a fixed letter is right now and then, a list of letters too."""

    def __init__(self, rows: Any = CHOICES, **kwargs: Any) -> None:
        super().__init__(RowTasks("choices", {"train": rows}), **kwargs)

    def begin(self, task: Task) -> str:
        return f"{task.data['question']} A) one B) two C) three D) four"

    def advance(self, action: str) -> Turn:
        letters = [letter for letter in action if letter in "ABCD"]
        right = bool(letters) and letters[-1] == self.task.data["answer"]
        return Turn("", float(right), True, right)


@pytest.mark.parametrize("rows", [CHOICES, CHOICES[:2], CHOICES[:1]], ids=["many", "two", "one"])
def test_an_attack_that_is_right_by_luck_is_no_false_alarm(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(rows) < 5:  # so few tasks that the last letter of every junk word decides: a scorer of whole answers only
        monkeypatch.setattr(ChoiceEnv, "advance", lambda self, action: _exact(self, action))
    gymnasium.register("zoo/Choice-v0", lambda: ChoiceEnv(rows), order_enforce=False, disable_env_checker=True)
    try:
        report = check("zoo/Choice-v0", only=["rewards"])
    finally:
        del gymnasium.registry["zoo/Choice-v0"]
    assert report.ok, summary(report)


def _exact(env: TextEnv, action: str) -> Turn:
    right = action == env.task.data["answer"]
    return Turn("", float(right), True, right)


def test_a_hanging_check_fails_after_its_limit() -> None:
    result = run_check("slow", lambda subject: time.sleep(1.0) or "", None, limit_s=0.05)  # type: ignore[arg-type, func-returns-value]
    assert (result.ok, result.detail) == (False, "did not finish within 0.05 s")


def test_a_slow_environment_has_fewer_episodes_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(SumEnv):
        def begin(self, task: Task) -> str:
            time.sleep(0.2)
            return super().begin(task)

    gymnasium.register("zoo/Slow-v0", Slow, order_enforce=False, disable_env_checker=True)
    monkeypatch.setattr(checker, "TELL_S", 0.3)
    lines: list[str] = []
    try:
        report = check("zoo/Slow-v0", only=["outcome"], seconds=0.9, progress=lines.append)
        played = [
            check("zoo/Slow-v0", only=["outcome"], seconds=seconds).results[-1].detail for seconds in (0.001, 60.0)
        ]
    finally:
        del gymnasium.registry["zoo/Slow-v0"]
    assert report.ok
    assert "zoo/Slow-v0: outcome: 2 of at most 16 episodes" in lines
    assert [detail.partition(" ")[0] for detail in played] == ["2", "16"]


def test_an_environment_that_always_opens_with_the_same_words_is_no_false_alarm() -> None:
    class KeepsItsCards(SumEnv):
        def begin(self, task: Task) -> str:
            super().begin(task)
            return "Guess my number."

    register("zoo/KeepsItsCards-v0", KeepsItsCards)
    report = check("zoo/KeepsItsCards-v0", only=["seeding"])
    assert report.ok, summary(report)


def test_luck() -> None:
    assert luck(0, 10, 0.3) == pytest.approx(1.0)
    assert luck(10, 10, 0.5) == pytest.approx(0.5**10)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    register("zoo/NoTools-v0", ToolWithoutDescription)
    assert main(["check", "zoo/Sum-v0", "--only", "tasks", "--only", "tools", "--env-arg", "split=test"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "ok    make         a TextEnv, in worker processes too",
        "ok    tasks        train: 72, test: 72",
        "ok    tools        calculator",
        "zoo/Sum-v0: keeps every promise",
    ]
    assert captured.err.splitlines()[-1] == "zoo/Sum-v0: tools ..."
    assert main(["check", "zoo/NoTools-v0", "--only", "tools", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["results"][-1]["name"]) == (False, "tools")


def test_bad_input_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["zoo/Summ-v0"], "Did you mean 'zoo/Sum-v0'"),
        (["nowhere:zoo/Sum-v0"], "cannot import the module 'nowhere'"),
        (["zoo/Sum-v0", "--only", "task"], "Did you mean 'tasks'"),
        (["zoo/Sum-v0", "--env-arg", "split=tset"], "Did you mean 'test'"),
        (["zoo/Sum-v0", "--env-arg", "colour=1"], "colour"),
        (["zoo/Sum-v0", "--env-arg", "split"], "write KEY=VALUE"),
        (["zoo/Sum-v0", "--env-arg", "split=a", "--env-arg", "split=b"], "given twice"),
    ):
        assert main(["check", *arguments]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert words in error, error
    with pytest.raises(UserError, match="unknown check"):
        check("zoo/Sum-v0", only=["x"])


WITHOUT_DATA = {
    "rollcage/ALFWorld-v0": {"dataset": "sample"},
    "rollcage/SWEBench-v0": {"dataset": "sample"},
    "rollcage/SWEMini-v0": {"endpoints": "process:"},
}
SLOW = ("rollcage/SWEBench-v0", "rollcage/SWEMini-v0")
"""Those whose episodes take a second each: two of them a check here, more in `rollcage check`."""


@pytest.mark.timeout(400)  # SWE-bench's repositories are made ready several times
@pytest.mark.parametrize("env_id", sorted(env_id for env_id in gymnasium.registry if env_id.startswith("rollcage/")))
def test_every_environment_of_the_suite_passes(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "NUM_TASKS", 6)
    if env_id in SLOW:
        monkeypatch.setattr(rewards, "NUM_TASKS", 1 if env_id == "rollcage/SWEBench-v0" else 2)
    report = check(env_id, seconds=0.1 if env_id in SLOW else 10.0, **WITHOUT_DATA.get(env_id, {}))
    assert report.ok, summary(report)
