"""Mathematical problems with known answers, read from their publishers' files or the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage.envs.answers import final_answer
from rollcage.envs.data import SAMPLES, Data, FileTasks, Published, Row, find_dataset, load_tasks, own_files
from rollcage.envs.math.equality import MAX_ANSWER, read_tolerance
from rollcage.envs.prompts import question_of
from rollcage.errors import UserError

DATASETS: Mapping[str, Published] = {
    "gsm8k": Published("github.com/openai/grade-school-math (train.jsonl, test.jsonl)", "MIT"),
    "math500": Published("github.com/openai/prm800k (math_splits/test.jsonl)", "MIT"),
    "aime24": Published("github.com/NVIDIA/NeMo-Skills (dataset/aime24)", "Apache-2.0 (problems: MAA)"),
    "aime25": Published("github.com/NVIDIA/NeMo-Skills (dataset/aime25)", "Apache-2.0 (problems: MAA)"),
    "amc23": Published("github.com/QwenLM/Qwen2.5-Math (evaluation/data/amc23)", "MIT (problems: MAA)"),
    "olympiadbench": Published("github.com/OpenBMB/OlympiadBench (OE_TO_maths_en_COMP)", "MIT"),
    "minerva_math": Published(
        "github.com/QwenLM/Qwen2.5-Math (evaluation/data/minerva_math)", "MIT (problems: MIT OCW)"
    ),
    "deepscaler_math": Published("github.com/agentica-project/rllm (rllm/data/train/math/math.json)", "MIT"),
    "deepscaler_aime": Published(
        "github.com/agentica-project/rllm (rllm/data/train/math/aime.json)", "MIT (problems: MAA)"
    ),
    "deepscaler_amc": Published(
        "github.com/agentica-project/rllm (rllm/data/test/math/amc.json)", "MIT (problems: MAA)"
    ),
}

_ANSWER_FIELDS = ("expected_answer", "final_answer", "answer", "ground_truth", "target")
_SOLUTION_FIELDS = ("solution", "reference_solution")
_ID_FIELDS = ("id", "unique_id", "idx", "uuid")
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_AMBIGUOUS_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def math_tasks(dataset: str, data: Data | None = None, data_dir: str | Path | None = None) -> FileTasks:
    """Return the problems of a data set; see the arguments of `rollcage.envs.math.env.MathEnv`.

    Raises:
        UserError: unknown set, no such files, or a malformed row (names the file and the line).
    """
    if data is not None:
        if dataset != "sample":
            raise UserError(f"give either dataset={dataset!r} or data=, not both.")
        return load_tasks("math-file", own_files(data), problem_from_row)
    if dataset == "sample":
        return load_tasks("math-sample", own_files(SAMPLES / "math"), problem_from_row, licence="Apache-2.0")
    files = find_dataset(dataset, "math", DATASETS, data_dir)
    return load_tasks(dataset, files, problem_from_row, licence=DATASETS[dataset].licence)


def problem_from_row(row: Row, *, stem: str = "") -> Row:
    """Return a row of any of these sets as {"problem", "answer", "solution", "tolerance"}, and its "id" if it has one.

    The names of fields are taken in any case. The right answer is the first of "expected_answer", "final_answer" (also
    a list), "answer", "ground_truth" (also within "reward_model"), "target", or else the last box of the solution; of a
    GSM8K solution, what follows ``####``. "error" is the tolerance; "is_multiple_answer" makes 100,200 two numbers.

    Raises:
        ValueError: what is wrong with the row.
    """
    row = {key.lower(): value for key, value in row.items()}
    if isinstance(row.get("reward_model"), dict):
        row = {**row["reward_model"], **row}
    solution = _solution(row)
    field = next((field for field in _ANSWER_FIELDS if field in row), None)
    if field is not None:
        answer = _answer_text(row[field], field)
    elif solution:
        answer = final_answer(solution) or ""
    else:
        raise ValueError(
            f"no answer: expected a field 'answer' or a boxed answer in 'solution' (found: {', '.join(row)})"
        )
    if "####" in answer:
        reasoning, _, answer = answer.rpartition("####")
        solution = solution or _CALCULATOR.sub("", reasoning).strip()
    answer = answer.strip()
    if row.get("is_multiple_answer"):
        answer = _AMBIGUOUS_COMMA.sub(", ", answer)
    task: Row = {
        "problem": question_of(row),
        "answer": answer,
        "solution": solution,
        "tolerance": _tolerance(row.get("error")),
    }
    if len(answer) > MAX_ANSWER or not any(character.isalnum() for character in answer):
        task["quarantined"] = "the row has no answer" if not answer else "the row's answer cannot be compared"
    own_id = next((row[field] for field in _ID_FIELDS if row.get(field) is not None), None)
    return task if own_id is None else {"id": own_id, **task}


def _solution(row: Mapping[str, Any]) -> str:
    for field in _SOLUTION_FIELDS:
        value = row.get(field)
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = value[0] if value else None
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _answer_text(value: Any, field: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return ", ".join(_answer_text(item, field) for item in value)
    raise ValueError(f"the field {field!r} must be a text, a number or a list of these, not {value!r}")


def _tolerance(value: Any) -> str:
    """The largest absolute difference that the publisher allows, as text; of several, that of the first answer."""
    if value is None or value == "":
        return "0"
    text = str(value).partition(",")[0].strip()
    try:
        read_tolerance(text)
    except ValueError:
        raise ValueError(
            "the field 'error' must be a number that is not negative, of at most 100 digits and an exponent of at most "
            f"three, not {str(value)[:40]!r}"
        ) from None
    return text
