"""rollcage/Math-v0: problems from any publisher's file, answers verified, nothing to exploit."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollcage  # noqa: F401  (registers the environments)
from rollcage.envs.math import symbolic
from rollcage.envs.math.env import MathEnv
from rollcage.envs.math.equality import judge
from rollcage.envs.math.notation import normalise, read_number
from rollcage.envs.math.tasks import DATASETS, math_tasks, problem_from_row
from rollcage.errors import MissingExtra, UserError

# One row of each publisher's form, written by us.
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        "question": "A box holds 12 eggs. How many do 3 hold?",
        "answer": "Three hold 3*12=<<3*12=36>>36.\n#### 36",
    },
    "gsm8k with separators": {"question": "What is 30 times 50?", "answer": "It is 1,500.\n#### 1,500"},
    "math500": {
        "problem": "Simplify $\\sqrt{12}$.",
        "solution": "It is $\\boxed{2\\sqrt{3}}$.",
        "answer": "2\\sqrt{3}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    "aime": {"id": "aime24-0", "problem": "Find $5+2$.", "reference_solution": "\\boxed{007}", "expected_answer": "7"},
    "amc": {"id": 0, "problem": "Find 3 * 9.", "answer": 27.0, "question": "Find 3 * 9."},
    "minerva": {"problem": "Find $c$ in m/s.", "solution": "It is \\boxed{3e8} m/s.", "type": "Physics", "idx": 3},
    "olympiadbench": {
        "id": 1606,
        "context": None,
        "question": "Solve $x^2=x+2$.",
        "solution": ["By the formula."],
        "final_answer": ["$-1$,$2$"],
        "is_multiple_answer": True,
        "unit": None,
        "error": None,
    },
    "olympiadbench with error": {
        "id": 2,
        "context": "A rate.",
        "question": "Give it in percent.",
        "solution": [],
        "final_answer": ["4.2"],
        "is_multiple_answer": False,
        "unit": "%",
        "error": "1e-1",
    },
    "deepscaler": {"problem": "Find $1/3+1/6$.", "answer": "\\frac{1}{2}", "difficulty": 1.0, "type": "Algebra"},
    "capital letters": {"ID": "2024-I-1", "Problem": "Find 2+2.", "Answer": 4, "Solution": "Count."},
    "conversation": {"prompt": [{"role": "user", "content": "Find 2+3."}], "reward_model": {"ground_truth": "5"}},
    "nemo gym": {
        "responses_create_params": {"input": [{"role": "user", "content": "Find 2+3."}]},
        "expected_answer": "5",
    },
}


def make(**kwargs: Any) -> MathEnv:
    env = gymnasium.make("rollcage/Math-v0", **kwargs)
    assert isinstance(env, MathEnv)  # no wrapper stands between
    return env


def own(tmp_path: Path, *rows: dict[str, Any], **kwargs: Any) -> MathEnv:
    path = tmp_path / "own_test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return make(data=path, **kwargs)


def play(env: MathEnv, action: str, task: str | None = None) -> tuple[float, dict[str, Any]]:
    env.reset(options={"task": task} if task else None)
    _, reward, terminated, truncated, info = env.step(action)
    assert terminated
    assert not truncated
    assert info["success"] == (reward == 1.0) == (info["outcome"] == "right")
    return float(reward), info


def test_it_works_at_once_without_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = make()
    assert env.tasks.splits == {"train": 40, "test": 40}
    assert env.split == "train"
    for split in ("train", "test"):
        for index in range(40):
            task_id = env.tasks.task(split, index).id
            observation, info = env.reset(options={"task": task_id})
            assert "\\boxed{}" in observation
            assert info == {"task_id": task_id, "success": False, "failure": None, "outcome": None, "answer": None}
            assert env.step(env.expert())[1] == 1.0, task_id


def test_the_sample_needs_no_extra_and_an_answer_that_is_no_number_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # as where it is not installed
    assert play(make(), r"\boxed{9**9}")[0] == 0.0
    own(tmp_path, ROWS["gsm8k"])
    with pytest.raises(MissingExtra, match=r"rollcage\[math\]"):
        own(tmp_path, ROWS["gsm8k"], ROWS["math500"])


@pytest.mark.parametrize("form", ROWS)
def test_a_row_of_every_publisher_is_read_and_its_expert_is_right(tmp_path: Path, form: str) -> None:
    env = own(tmp_path, ROWS[form])
    env.reset()
    action = env.expert()
    reward, info = play(env, action)
    assert reward == 1.0
    assert info["answer"] is not None
    assert "<<" not in action


def test_what_the_fields_of_a_row_become() -> None:
    def read(form: str) -> dict[str, Any]:
        return problem_from_row(ROWS[form])

    assert read("gsm8k")["answer"] == "36"
    assert read("gsm8k")["solution"] == "Three hold 3*12=36."
    assert read("amc")["answer"] == "27"
    assert read("minerva")["answer"] == "3e8"
    assert read("olympiadbench with error")["problem"] == "A rate.\n\nGive it in percent."
    assert read("olympiadbench with error")["tolerance"] == "1e-1"
    assert (
        problem_from_row({"problem": "?", "final_answer": ["100,200"], "is_multiple_answer": True})["answer"]
        == "100, 200"
    )
    assert problem_from_row({"problem": "?", "answer": ["1", 2, 3.5]})["answer"] == "1, 2, 3.5"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "x"}, "no answer"), ({"answer": "5"}, "no question"),
        ({"problem": "", "answer": "5"}, "no question"),
        ({"problem": 5, "answer": "5"}, "no question"), ({"problem": "x", "answer": {"a": 1}}, "'answer'"),
        ({"problem": "x", "answer": True}, "'answer'"), ({"problem": "x", "answer": float("nan")}, "'answer'"),
        ({"problem": "x", "answer": "5", "error": "big"}, "'error'"),
        ({"problem": "x", "answer": "5", "error": -1}, "'error'"),
        ({"problem": "x", "answer": "5", "error": "1e999999999"}, "'error'"),
        ({"problem": "x", "answer": "5", "error": "9" * 5000}, "'error'"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named_with_its_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape("own_test.jsonl:2: ") + ".*" + re.escape(message)):
        own(tmp_path, ROWS["aime"], row)


def test_E13_rows_without_an_answer_are_quarantined_by_id(tmp_path: Path) -> None:
    env = own(
        tmp_path, {"problem": "x", "answer": None}, {"problem": "y", "answer": "5"}, {"problem": "z", "answer": " "}
    )
    assert env.tasks.splits == {"test": 1}
    assert math_tasks("sample", tmp_path / "own_test.jsonl").quarantined == {
        "test/own-0": "the row has no answer",
        "test/own-2": "the row has no answer",
    }


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "gsm8"}, "Did you mean 'gsm8k'"),
        ({"dataset": "gsm8k", "data_dir": "/nowhere"}, "openai/grade-school-math"),
        ({"dataset": "gsm8k", "data": "x.jsonl"}, "not both"), ({"data": "missing.jsonl"}, "missing.jsonl"),
        ({"split": "trian"}, "Did you mean 'train'"), ({"verify_timeout_s": 0}, "verify_timeout_s"),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_clear_line(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make(**kwargs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "outcome", "answer"),
    [
        (r"It is \boxed{2\sqrt{3}}.", "right", r"2\sqrt{3}"), (r"<answer>\sqrt{12}</answer>", "wrong", r"\sqrt{12}"),
        (r"\boxed{\sqrt{3}+\sqrt{3}}", "right", r"\sqrt{3}+\sqrt{3}"),
        (r"The answer is $2\sqrt{3}$.", "right", r"$2\sqrt{3}$"),
        (r"\boxed{2\sqrt{3}} \boxed{1}", "wrong", "1"), ("I do not know.", "no_answer", None),
        (r"\boxed{}", "no_answer", None),
        (r"\boxed{9^{9^{9}}}", "undecided", "9^{9^{9}}"),
    ],
)  # fmt: skip
def test_the_info_says_what_was_answered_and_how_it_was_judged(
    tmp_path: Path, action: str, outcome: str, answer: str | None
) -> None:
    env = own(tmp_path, ROWS["math500"], verify_timeout_s=0.5)
    reward, info = play(env, action)
    assert (info["outcome"], info["answer"], reward) == (outcome, answer, float(outcome == "right"))


def test_E15_gibberish_is_an_answer_or_none_but_never_an_error(tmp_path: Path) -> None:
    env = own(tmp_path, ROWS["math500"], ROWS["deepscaler"])
    rng = random.Random(0)
    texts = ["", "\x00", "\ud800\udfff", "a" * 2**20, "\\boxed{" * 10_000, "\\boxed{" + "(" * 10**5 + "}"]
    texts += ["\\boxed{" + "".join(chr(rng.randrange(1, 0x3000)) for _ in range(30)) + "}" for _ in range(40)]
    for text in texts:
        assert play(env, text)[0] == 0.0
    for seed in range(20):
        env.action_space.seed(seed)
        assert play(env, env.action_space.sample())[0] == 0.0


def exploited(env: MathEnv, task_id: str) -> list[str]:
    """The environment's own exploits that earn something on a task."""
    env.reset(options={"task": task_id})
    return [action for action in env.exploits() if play(env, action, task_id)[0] > 0]


@pytest.mark.parametrize("form", ["gsm8k", "math500", "olympiadbench", "deepscaler"])
def test_no_exploit_earns_reward(tmp_path: Path, form: str) -> None:
    env = own(tmp_path, ROWS[form])
    assert exploited(env, env.tasks.task("test", 0).id) == []


def test_a_random_action_is_a_small_number_in_a_box() -> None:
    env = make()
    env.reset(seed=0)
    actions = {env.random_action(np.random.default_rng(seed)) for seed in range(50)}
    assert len(actions) > 20
    assert all(re.fullmatch(r"\\boxed\{\d\d?\}", action) for action in actions)


def test_a_vector_of_environments_reads_the_data_once(tmp_path: Path) -> None:
    own(tmp_path, *({"problem": f"{n}+1", "answer": str(n + 1)} for n in range(100)))
    path = tmp_path / "own_test.jsonl"
    assert make(data=path).tasks is make(data=path).tasks


# Every gold answer of every data file (where the shared data are; else the sample), in forms that a model might write.

FORMS = {
    "as it stands": lambda gold: gold,
    "in dollars": lambda gold: f"${gold}$",
    "in parentheses": lambda gold: rf"\({gold}\)",
    "with a full stop": lambda gold: f"{gold}.",
    "with dfrac": lambda gold: gold.replace(r"\frac", r"\dfrac"),
    "with sized brackets": lambda gold: (
        gold if r"\left" in gold else gold.replace("(", r"\left(").replace(")", r"\right)")
    ),
    "with spaces": lambda gold: re.sub(r"([+=-])", r" \1 ", gold),
}
NUMBER_FORMS = {
    "as x": lambda gold: f"x = {gold}",
    "as a fraction": lambda gold: "{0.numerator}/{0.denominator}".format(read_number(normalise(gold)).value),  # type: ignore[union-attr]
}


@pytest.fixture(params=["sample", *DATASETS])
def tasks_of_a_set(request: pytest.FixtureRequest, shared_data: Path | None) -> Any:
    return math_tasks(request.param, None, shared_data) if shared_data else math_tasks("sample")


def test_every_gold_answer_is_right_in_every_form(tasks_of_a_set: Any) -> None:
    failures = []
    for split, size in tasks_of_a_set.splits.items():
        step = max(1, size // 1500)  # of the large sets every n-th
        for index in range(0, size, step):
            task = tasks_of_a_set.task(split, index)
            gold = task.data["answer"]
            number = read_number(normalise(gold))
            forms = FORMS | (NUMBER_FORMS if number and not number.percent and not gold.rstrip().endswith(".") else {})
            failures += [
                (task.id, name, gold)
                for name, form in forms.items()
                if judge(gold, form(gold), problem=task.data["problem"]) != "right"
            ]
    assert len(failures) <= 2, failures[:20]  # "x = \approx 8.24" is no way to write


def test_E13_golds_that_math_verify_cannot_read_are_few_and_compared_as_text(shared_data: Path | None) -> None:
    names = ("math500", "olympiadbench", "minerva_math") if shared_data else ("sample",)
    unreadable, total = [], 0
    for name in names:
        tasks = math_tasks(name, None, shared_data)
        golds = [tasks.task("test", index).data["answer"] for index in range(tasks.splits["test"])]
        for gold in (normalise(gold) for gold in golds[::8]):
            total += 1
            if read_number(gold) is None and symbolic.compare(gold, gold, 10.0) != "equal":
                unreadable.append(gold)
    assert len(unreadable) / total < 0.02, unreadable
    for gold in unreadable:
        assert judge(gold, f"${gold}$") == "right"


def test_one_problems_answer_is_not_right_for_another(shared_data: Path | None) -> None:
    tasks = math_tasks("math500", None, shared_data) if shared_data else math_tasks("sample")
    golds = sorted({normalise(tasks.task("test", index).data["answer"]) for index in range(tasks.splits["test"])})
    rng = random.Random(0)
    pairs = [rng.sample(golds, 2) for _ in range(150)]
    equal = [pair for pair in pairs if judge(*pair) == "right" and read_number(pair[0]) is None]
    assert equal == []
