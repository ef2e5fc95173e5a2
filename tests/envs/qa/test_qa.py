"""rollcage/QA-v0: options and short answers of many domains, from any publisher's file."""

from __future__ import annotations

import doctest
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollcage.envs.qa.answers
from rollcage.envs.qa.answers import chosen_option, same_short_answer
from rollcage.envs.qa.env import QAEnv
from rollcage.envs.qa.tasks import qa_tasks, question_from_row
from rollcage.errors import UserError

CAPITALS = {"A": "Rome", "B": "Paris", "C": "Bern", "D": "None of these"}

# One row of each publisher's form, written by us, and what it becomes.
ROWS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "mmlu": (
        {"id": "mmlu-geo-1", "domain": "geo", "question": "Capital of France?", "options": CAPITALS, "answer": "B"},
        CAPITALS,
        "B",
    ),
    "mmlu with positions": (
        {"question": "2+2?", "subject": "maths", "choices": ["3", "4"], "answer": 1},
        {"A": "3", "B": "4"},
        "B",
    ),
    "agieval": (
        {
            "passage": "Ann is old.",
            "question": "Who is old?",
            "options": ["(A)Ann", "(B)Bob"],
            "label": "A",
            "answer": None,
            "other": {"solution": "It says so."},
        },
        {"A": "Ann", "B": "Bob"},
        "A",
    ),
    "bbh options": (
        {"id": "bbh-x-0", "domain": "x", "question": "Which?\nOptions:\n(A) one\n(B) two", "answer": "(B)"},
        {"A": "one", "B": "two"},
        "B",
    ),
    "bbh yes or no": ({"input": "Is it?\nOptions:\n- Yes\n- No", "target": "No"}, {}, "No"),
    "bbh brackets": ({"question": "Close: [ {", "answer": "} ]"}, {}, "} ]"),
    "bbh answer that is no option": (
        {"question": "Which?\nOptions:\n(A) Monsters\n(B) Inc", "answer": "Monsters, Inc"},
        {},
        "Monsters, Inc",
    ),
    "nemo gym": (
        {
            "responses_create_params": {"input": [{"role": "user", "content": "Box the letter. Which?\nA: x\nB: y"}]},
            "options": [{"A": "x"}, {"B": "y"}],
            "expected_answer": "B",
            "uuid": "u-1",
        },
        {"A": "x", "B": "y"},
        "B",
    ),
    "nemo gym wrapped": (
        {
            "responses_create_params": {"input": [{"role": "user", "content": "Say it.\n\nWhich city?\nEnd."}]},
            "template_metadata": {"template_prompt": "Say it.\n\n{problem}\nEnd."},
            "expected_answer": "Oslo",
        },
        {},
        "Oslo",
    ),
    "arc": (
        {
            "id": "q",
            "question": {"stem": "Hot?", "choices": [{"text": "ice", "label": "1"}, {"text": "sun", "label": "2"}]},
            "answerKey": "2",
        },
        {"A": "ice", "B": "sun"},
        "B",
    ),
    "texts and labels": (
        {"question": "?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"},
        {"A": "x", "B": "y"},
        "A",
    ),
    "columns": ({"question": "?", "A": "x", "B": "y", "answer": "B"}, {"A": "x", "B": "y"}, "B"),
    "the option's text": ({"question": "?", "options": ["x", "y"], "answer": "y"}, {"A": "x", "B": "y"}, "B"),
    "conversation": (
        {"prompt": [{"role": "user", "content": "Say x."}], "reward_model": {"ground_truth": "x"}},
        {},
        "x",
    ),
    "a number": ({"question": "6 * 4?", "answer": 24}, {}, "24"),
}


def make(**kwargs: Any) -> QAEnv:
    env = gymnasium.make("rollcage/QA-v0", **kwargs)
    assert isinstance(env, QAEnv)  # no wrapper stands between
    return env


def own(tmp_path: Path, *rows: dict[str, Any], **kwargs: Any) -> QAEnv:
    path = tmp_path / "own_test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return make(data=path, **kwargs)


def play(env: QAEnv, action: str, task: str | None = None) -> tuple[float, dict[str, Any]]:
    env.reset(options={"task": task} if task else None)
    _, reward, terminated, truncated, info = env.step(action)
    assert terminated
    assert not truncated
    assert info["success"] == (reward == 1.0) == (info["outcome"] == "right")
    return float(reward), info


def test_the_examples_of_the_module_run() -> None:
    assert doctest.testmod(rollcage.envs.qa.answers) == (0, 3)


def test_it_works_at_once_without_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = make()
    assert env.tasks.splits == {"train": 40, "test": 40}
    domains, letters = Counter[str](), Counter[str]()
    for split in ("train", "test"):
        for index in range(40):
            task = env.tasks.task(split, index)
            _, info = env.reset(options={"task": task.id})
            assert info == {
                "task_id": task.id, "success": False, "failure": None,
                "domain": task.data["domain"], "outcome": None, "answer": None,
            }  # fmt: skip
            domains[task.data["domain"]] += 1
            letters[task.data["answer"] if task.data["options"] else "short"] += 1
            assert env.step(env.expert())[1] == 1.0, task.id
    assert len(domains) >= 10
    assert max(letters[letter] for letter in "ABCD") - min(letters[letter] for letter in "ABCD") <= 2  # no lucky letter


@pytest.mark.parametrize("form", ROWS)
def test_a_row_of_every_publisher_is_read_and_its_expert_is_right(tmp_path: Path, form: str) -> None:
    row, options, answer = ROWS[form]
    task = question_from_row(row)
    assert (task["options"], task["answer"]) == (options, answer)
    env = own(tmp_path, row)
    observation, _ = env.reset()
    assert play(env, env.expert())[0] == 1.0
    for letter, text in options.items():
        assert observation.count(f"{letter}. {text}") == 1


def test_the_question_stands_alone_whatever_its_publisher_put_around_it() -> None:
    assert question_from_row(ROWS["nemo gym"][0])["question"] == "Box the letter. Which?"
    assert question_from_row(ROWS["nemo gym wrapped"][0])["question"] == "Which city?"
    assert question_from_row(ROWS["bbh options"][0])["question"] == "Which?"
    assert question_from_row(ROWS["agieval"][0])["question"] == "Ann is old.\n\nWho is old?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?"}, "no answer"), ({"answer": "x"}, "no question"),
        ({"question": "?", "answer": None}, "no answer"),
        ({"question": "?", "options": ["x", "y"], "answer": "C"}, "'answer'"),
        ({"question": "?", "answer": ["x"]}, "'answer'"),
        ({"question": "?", "options": ["x", "y"], "answer": 2}, "'answer'"),
        ({"question": "?", "answer": " "}, "'answer'"), ({"question": "?", "answer": True}, "not true"),
        ({"question": "?", "answer": float("nan")}, "not NaN"),
        ({"question": "?", "answer": float("inf")}, "not Infinity"),
        ({"question": "?", "options": ["x", None], "answer": "A"}, "every option"),
        ({"question": "?", "options": "x, y", "answer": "A"}, "the options"),
        ({"question": "?", "options": ["x", "y"], "label": ["A", "B"]}, "'label'"),
        ({"question": "?", "options": [str(n) for n in range(30)], "answer": 1}, "30 options"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named_with_its_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape("own_test.jsonl:2: ") + ".*" + re.escape(message)):
        own(tmp_path, ROWS["mmlu"][0], row)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "mmul"}, "Did you mean 'mmlu'"), ({"dataset": "bbh", "data_dir": "/nowhere"}, "BIG-Bench-Hard"),
        ({"dataset": "bbh", "data": "x.jsonl"}, "not both"), ({"data": "missing.jsonl"}, "missing.jsonl"),
        ({"domains": "phisics"}, "Did you mean 'physics'"), ({"split": "trian"}, "Did you mean 'train'"),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_clear_line(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make(**kwargs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"), ("b", "B"), ("(B)", "B"), ("[B]", "B"), ("B.", "B"), ("B)", "B"), ("**B**", "B"),
        (r"\text{B}", "B"), ("$B$", "B"),
        (r"\textbf{(B)}", "B"), ("option B", "B"), ("Choice: B", None), ("Paris", "B"), ("paris.", "B"),
        ("B. Paris", "B"),
        ("(B) Paris", "B"), ("B: Paris.", "B"), ("B - Paris", "B"), ("None of these", "D"),
        # hedges and near misses name nothing
        ("B. Rome", None), ("A or B", None), ("A, B, C, D", None), ("AB", None), ("A B", None), ("B C", None),
        ("not B", None),
        ("Rome or Paris", None), ("Rome, Paris, Bern", None), ("E", None), ("", None), ("B?!", None), ("all", None),
        ("Ａ", None),
        ("Β", None), ("B\x00", None), ("B " * 5000, None), ("Pari", None), ("A/B", None), ("(A)(B)", None),
        ("A. Rome B. Paris", None),
    ],
)  # fmt: skip
def test_an_option_is_named_by_its_letter_or_its_text_and_never_several(answer: str, letter: str | None) -> None:
    assert chosen_option(answer, CAPITALS) == letter


def test_texts_that_differ_in_case_only_or_not_at_all_are_told_apart_by_letter() -> None:
    genes = {"A": "Aa", "B": "AA", "C": "aa", "D": "Aa"}
    assert [chosen_option(answer, genes) for answer in ("AA", "aa", "Aa", "D")] == ["B", "C", None, "D"]


def test_a_letter_is_taken_for_the_letter_even_where_it_is_an_options_text() -> None:
    assert chosen_option("B", {"A": "B", "B": "Al"}) == "B"


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("valid", "Valid.", True), ("The Beatles", "beatles", True), ("yes", "**Yes**", True),
        ("Monsters, Inc", "Monsters Inc.", True),
        ("apple cherry plum", "Apple, cherry, plum", True), ("well-known", "well known", True), ("True", "true", True),
        ("24", "24.0", True), ("1000", "1,000", True), ("0.5", "1/2", True), ("8", "8 objects", True),
        ("-50", "−50", True), ("7", "$7$", True),
        ("] ]", "]]", True), ("} >", "} >", True), ("A", "a", True),
        (r"\[-\frac{\sqrt{2}}{4}\]", r"$-\frac{\sqrt2}{4}$", True),
        ("valid", "invalid", False), ("yes", "yes or no", False), ("yes", "yes, no", False),
        ("yes", "not yes", False), ("No", "", False),
        ("24", "42", False), ("24", "20 + 4", False), ("24", "23, 24, 25", False), ("24", "twenty-four", False),
        ("-50", "50", False),
        ("] ]", "] ] ]", False), ("} >", "> }", False), ("C++", "C", False), ("12 Monkeys", "12 Angry Men", False),
        ("two", "2", False),
        # what carries meaning
        ("1.5 kg", "15 kg", False), ("-5 °C", "5 °C", False), ("-x", "x", False), ("3:15", "315", False),
        ("3:15 pm", "315 PM", False), ("p < 0.05", "p < 005", False), ("Vitamin A", "vitamin", False),
        ("Type A", "type", False), ("5", "5 million", False), ("5!", "5", False), ("1,5 kg", "15 kg", False),
        ("Hepatitis A virus", "hepatitis virus", False), (".5 kg", "5 kg", False),
        ("1.5 kg", "**1.5 kg.**", True), ("-5 °C", "−5 °c", True), ("3:15 pm", "3:15 PM.", True),
        ("vitamin A", "Vitamin A", True), ("1,000 km", "1000 km", True), ("a dog", "Dog!", True),
        ("King of the Hill", "king of hill", True), ("the answer: no", "The answer - no", True),
        ("5000000", "5 million", True),
        ("apple plum", "plum apple", False), ("9", "9**9**9", False), ("Oslo", "Oslo " * 10_000, False),
    ],
)  # fmt: skip
def test_a_short_answer_is_the_same_text_or_the_same_number(gold: str, answer: str, same: bool) -> None:
    assert same_short_answer(gold, answer) is same


@pytest.mark.parametrize(
    ("action", "outcome", "answer"),
    [
        ("<answer>B</answer>", "right", "B"), (r"So it is \boxed{\text{B}}.", "right", "B"),
        ("The answer is (B).", "right", "B"),
        ("<answer>Paris</answer>", "right", "B"), ("<answer>A</answer>", "wrong", "A"), ("B", "no_answer", None),
        ("<answer>B</answer><answer>A</answer>", "wrong", "A"), ("<answer>A or B</answer>", "malformed", "A or B"),
        ("<think><answer>B</answer></think>", "no_answer", None),
    ],
)  # fmt: skip
def test_the_info_says_what_was_answered_and_how_it_was_judged(
    tmp_path: Path, action: str, outcome: str, answer: str | None
) -> None:
    reward, info = play(own(tmp_path, ROWS["mmlu"][0]), action)
    assert (info["outcome"], info["answer"], reward) == (outcome, answer, float(outcome == "right"))
    assert info["domain"] == "geo"


def test_E15_gibberish_is_an_answer_or_none_but_never_an_error(tmp_path: Path) -> None:
    env = own(tmp_path, ROWS["mmlu"][0], ROWS["bbh brackets"][0])
    rng = random.Random(0)
    texts = ["", "\x00", "\ud800\udfff", "a" * 2**20, "<answer>" * 10_000, "<answer>" + "B" * 2**20 + "</answer>"]
    texts += ["<answer>" + "".join(chr(rng.randrange(1, 0x3000)) for _ in range(30)) + "</answer>" for _ in range(100)]
    for text in texts:
        assert play(env, text)[0] == 0.0


def test_no_exploit_earns_reward(shared_data: Path | None) -> None:
    env = make(dataset="all", data_dir=shared_data) if shared_data else make(split="test")
    rng = random.Random(0)
    size = env.tasks.splits["test"]
    for index in rng.sample(range(size), min(size, 300)):
        task_id = env.tasks.task("test", index).id
        env.reset(options={"task": task_id})
        for action in env.exploits():
            assert play(env, action, task_id)[0] == 0.0, (task_id, action)


def test_one_letter_always_is_no_policy(shared_data: Path | None) -> None:
    env = make(dataset="mmlu_sample", data_dir=shared_data) if shared_data else make(split="test")
    tasks = [env.tasks.task("test", index) for index in range(env.tasks.splits["test"])]
    for letter in "ABCD":
        rewards = [play(env, f"<answer>{letter}</answer>", task.id)[0] for task in tasks]
        assert np.mean(rewards) < 0.35


def test_shuffled_options_depend_on_the_seed_and_the_question_only(tmp_path: Path) -> None:
    rows = [
        {"id": f"q-{n}", "question": f"{n}+1?", "options": [str(n + k) for k in range(4)], "answer": "B"}
        for n in range(20)
    ]
    plain, one, other = (own(tmp_path, *rows, shuffle_options=seed) for seed in (None, 1, 2))
    orders = []
    for env in (plain, one, other):
        seen = []
        for n in range(20):
            first, _ = env.reset(seed=n, options={"task": f"test/q-{n}"})
            again, _ = env.reset(seed=99, options={"task": f"test/q-{n}"})
            assert first == again  # all rollouts of a question see the same
            assert env.step(env.expert())[1] == 1.0
            assert play(env, f"<answer>{n + 1}</answer>", f"test/q-{n}")[0] == 1.0
            seen.append(first)
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_options_that_refer_to_others_keep_their_places(tmp_path: Path) -> None:
    row = {"question": "?", "options": ["x", "y", "z", "all of the above"], "answer": "D"}
    assert all(
        own(tmp_path, row, shuffle_options=seed).reset()[0] == own(tmp_path, row).reset()[0] for seed in range(10)
    )


def test_domains_choose_questions() -> None:
    env = make(domains=["physics", "law"])
    assert {
        env.tasks.task(split, i).data["domain"] for split, size in env.tasks.splits.items() for i in range(size)
    } == {
        "physics",
        "law",
    }
    assert make(domains="physics").tasks.splits == {"train": 4, "test": 4}


def test_a_random_action_names_one_of_the_options(tmp_path: Path) -> None:
    env = own(tmp_path, ROWS["mmlu"][0])
    env.reset()
    actions = {env.random_action(np.random.default_rng(seed)) for seed in range(50)}
    assert actions == {f"<answer>{letter}</answer>" for letter in "ABCD"}


@pytest.mark.parametrize("dataset", ["mmlu", "mmlu_sample", "bbh", "agieval", "agieval_sat-math", "all"])
def test_every_question_of_every_file_is_read_and_its_expert_is_right(dataset: str, shared_data: Path | None) -> None:
    env = make(dataset=dataset, data_dir=shared_data) if shared_data else make(split="test")
    if shared_data:
        assert env.tasks.licence
        assert env.split == "test"
    size = env.tasks.splits["test"]
    for index in range(0, size, max(1, size // 2000)):  # of the large sets every n-th
        task = env.tasks.task("test", index)
        env.reset(options={"task": task.id})
        assert env.step(env.expert())[1] == 1.0, task.id


def test_the_published_tables_of_mmlu_and_the_files_of_big_bench_hard_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "mmlu").mkdir()
    (tmp_path / "mmlu" / "geography_test.csv").write_text('"Capital of France, today?",Rome,Paris,Bern,Oslo,B\n')
    (tmp_path / "bbh").mkdir()
    examples = [{"input": "Which?\nOptions:\n(A) x\n(B) y", "target": "(A)"}, {"input": "Is it?", "target": "yes"}]
    (tmp_path / "bbh" / "puzzles.json").write_text(json.dumps({"canary": "x", "examples": examples}))
    mmlu, bbh = qa_tasks("mmlu", None, tmp_path), qa_tasks("bbh", None, tmp_path)
    assert (mmlu.task("test", 0).id, mmlu.task("test", 0).data["domain"]) == ("test/geography-0", "geography")
    assert [bbh.task("test", index).data["answer"] for index in range(2)] == ["A", "yes"]
    assert bbh.task("test", 1).data["domain"] == "puzzles"
