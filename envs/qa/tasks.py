"""Questions of many domains, with options or short answers, read from their publishers' files or the user's own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from rollcage.envs.data import SAMPLES, Data, FileTasks, Published, Row, find_dataset, load_tasks, own_files
from rollcage.envs.prompts import question_of
from rollcage.errors import UserError, did_you_mean

_AGIEVAL = "github.com/ruixiangcui/AGIEval (data/v1)"
DATASETS: Mapping[str, Published] = {
    "mmlu": Published("github.com/hendrycks/test", "MIT"),
    "mmlu_sample": Published("github.com/hendrycks/test (a sample of it)", "MIT"),
    "bbh": Published("github.com/suzgunmirac/BIG-Bench-Hard (bbh/*.json)", "MIT"),
    "agieval_aqua-rat": Published(_AGIEVAL, "Apache-2.0"),
    "agieval_lsat-ar": Published(_AGIEVAL, "MIT"),
    "agieval_lsat-lr": Published(_AGIEVAL, "MIT"),
    "agieval_lsat-rc": Published(_AGIEVAL, "MIT"),
    "agieval_sat-en": Published(_AGIEVAL, "MIT"),
    "agieval_sat-en-without-passage": Published(_AGIEVAL, "MIT"),
    "agieval_sat-math": Published(_AGIEVAL, "MIT"),
    "agieval_logiqa-en": Published(_AGIEVAL, "CC-BY-NC-SA-4.0"),
}
COLLECTIONS: Mapping[str, Sequence[str]] = {
    "agieval": ("agieval_aqua-rat", "agieval_lsat-ar", "agieval_lsat-lr", "agieval_sat-en", "agieval_sat-math"),
    "all": (
        "mmlu",
        "bbh",
        "agieval_aqua-rat",
        "agieval_lsat-ar",
        "agieval_lsat-lr",
        "agieval_sat-en",
        "agieval_sat-math",
    ),
}

_ANSWER_FIELDS = (
    "label",
    "answer",
    "expected_answer",
    "answerkey",
    "ground_truth",
    "target",
    "answer_index",
    "answer_idx",
)
_DOMAIN_FIELDS = ("domain", "subject", "category", "topic")
_ID_FIELDS = ("id", "uuid", "question_id", "idx")
_LABELLED = re.compile(r"\s*\(?([A-Z])[).:]\s*(.*)", re.DOTALL)
_LISTED = re.compile(r"\n?Options:\s*\n(?=\s*\(A\))")
_LISTED_OPTION = re.compile(r"^\s*\(([A-Z])\) ?", re.MULTILINE)


def qa_tasks(
    dataset: str,
    data: Data | None = None,
    data_dir: str | Path | None = None,
    domains: str | Sequence[str] | None = None,
) -> FileTasks:
    """Return the questions of a data set; see the arguments of `rollcage.envs.qa.env.QAEnv`.

    Raises:
        UserError: unknown set or domain, no such files, or a malformed row (names the file and the line).
    """
    if data is not None:
        if dataset != "sample":
            raise UserError(f"give either dataset={dataset!r} or data=, not both.")
        tasks = load_tasks("qa-file", own_files(data), question_from_row)
    elif dataset == "sample":
        tasks = load_tasks("qa-sample", own_files(SAMPLES / "qa"), question_from_row, licence="Apache-2.0")
    else:
        names = COLLECTIONS.get(dataset, (dataset,))
        if dataset not in COLLECTIONS and dataset not in DATASETS:
            known = ("sample", *COLLECTIONS, *DATASETS)
            raise UserError(f"no qa data set {dataset!r} (known: {', '.join(known)}).{did_you_mean(dataset, known)}")
        files: dict[str, list[Path]] = {}
        for name in names:
            for split, paths in find_dataset(name, "qa", DATASETS, data_dir).items():
                files.setdefault(split, []).extend(paths)
        licence = ", ".join(dict.fromkeys(DATASETS[name].licence for name in names))
        tasks = load_tasks(dataset, files, question_from_row, licence=licence)
    return tasks if domains is None else _of_domains(tasks, [domains] if isinstance(domains, str) else domains)


def question_from_row(row: Row, *, stem: str = "") -> Row:
    """Return a row of these sets as {"question", "options", "answer", "domain", "solution"}, and its "id" if any.

    The names of fields are taken in any case. "options" is {letter: text}, empty for a short answer; then "answer" is a
    text, else a letter. Options are read from "options" or "choices" (a mapping, a list of texts with or without
    letters, a list of {letter: text}, {"text": [...], "label": [...]}), from the fields "A", "B", ..., or from the end
    of the question (BIG-Bench Hard). The answer is "label", "answer", "expected_answer", "answerKey", "ground_truth"
    (also within "reward_model"), "target" or "answer_index": a letter, a position from 0, or the text of an option.

    Raises:
        ValueError: what is wrong with the row.
    """
    row = {key.lower(): value for key, value in row.items()}
    if isinstance(row.get("reward_model"), dict):
        row = {**row["reward_model"], **row}
    if isinstance(row.get("question"), dict):  # ARC
        row = {**row, "choices": row["question"].get("choices"), "question": row["question"].get("stem")}
    field = next((field for field in _ANSWER_FIELDS if row.get(field) is not None), None)
    if field is None:
        raise ValueError(f"no answer: expected one of the fields {', '.join(_ANSWER_FIELDS)} (found: {', '.join(row)})")
    question = question_of(row)
    labels, texts = _options(row)
    if not texts and isinstance(row[field], str) and re.fullmatch(r"\([A-Z]\)", row[field].strip()):
        question, labels, texts = _listed_options(question)
    elif texts:
        question = _without_options(question, texts)
    other = row.get("other")
    task: Row = {
        "question": question,
        "options": dict(zip(ascii_uppercase, texts, strict=False)),
        "answer": _right_letter(row[field], field, labels, texts) if texts else _short_answer(row[field], field),
        "domain": str(next((row[field] for field in _DOMAIN_FIELDS if row.get(field)), None) or _domain_of(stem)),
        "solution": str((other.get("solution") if isinstance(other, dict) else None) or ""),
    }
    own_id = next((row[field] for field in _ID_FIELDS if row.get(field) is not None), None)
    return task if own_id is None else {"id": own_id, **task}


def _options(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The options' labels, as the row writes them, and texts; both empty where the row lists none."""
    value = row.get("options") or row.get("choices")
    if isinstance(value, (list, dict)) and len(value) > len(ascii_uppercase):
        raise ValueError(f"{len(value)} options are more than there are letters")
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value = [
            {"label": label, "text": text} for label, text in zip(value.get("label") or (), value["text"], strict=False)
        ]
    if isinstance(value, list) and all(isinstance(option, dict) for option in value):
        pairs = [
            (option.get("label"), option.get("text")) if "text" in option else next(iter(option.items()), ("", None))
            for option in value
        ]
    elif isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = _unlabelled(value)
    elif value is None:
        pairs = [(letter, row[letter.lower()]) for letter in "ABCDEFGHIJ" if row.get(letter.lower()) is not None]
    else:
        raise ValueError(f"the options must be a list or an object, not {value!r}")
    if not all(isinstance(text, (str, int, float)) for _, text in pairs):
        raise ValueError(f"every option must be a text: {value!r}")
    return [str(label).strip() for label, _ in pairs], [str(text).strip() for _, text in pairs]


def _unlabelled(options: Sequence[Any]) -> list[tuple[str, Any]]:
    """Texts with their labels; "(A) ..." is taken for a label where all options have theirs, in order."""
    labelled = [_LABELLED.fullmatch(option) if isinstance(option, str) else None for option in options]
    if all(match and match[1] == letter for match, letter in zip(labelled, ascii_uppercase, strict=False)):
        return [(match[1], match[2]) for match in labelled if match]
    return list(zip(ascii_uppercase, options, strict=False))


def _listed_options(question: str) -> tuple[str, list[str], list[str]]:
    """A question that ends with "Options:" and lines "(A) ...", taken apart; as it is where it does not."""
    parts = _LISTED.split(question)
    pieces = _LISTED_OPTION.split(parts[-1])[1:] if len(parts) == 2 else []
    labels = pieces[::2]
    if not labels or labels != list(ascii_uppercase[: len(labels)]):
        return question, [], []
    return parts[0].strip(), labels, [text.strip() for text in pieces[1::2]]


def _without_options(question: str, texts: Sequence[str]) -> str:
    """The question without a list of its options at its end (NeMo-Gym writes them into the prompt)."""
    lines = question.rstrip().split("\n")
    listed = [_LABELLED.fullmatch(line) for line in lines[-len(texts) :]]
    if [match and match.groups() for match in listed] == list(zip(ascii_uppercase, texts, strict=False)):
        return "\n".join(lines[: -len(texts)]).strip()
    return question


def _right_letter(value: Any, field: str, labels: Sequence[str], texts: Sequence[str]) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, int) and not isinstance(value, bool) and str(value) not in labels:
        if 0 <= value < len(texts):
            return ascii_uppercase[value]
    elif isinstance(value, (str, int)):
        text = str(value).strip()
        bare = text.strip("().: ")
        for wanted, among in ((bare, labels), (bare.upper(), labels), (text, texts)):
            if list(among).count(wanted) == 1:
                return ascii_uppercase[list(among).index(wanted)]
    raise ValueError(f"the field {field!r} must name one of the {len(texts)} options, not {value!r}")


def _short_answer(value: Any, field: str) -> str:
    known = isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))
    if known and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    raise ValueError(f"the field {field!r} must be a text or a number, not {json.dumps(value)}")


def _domain_of(stem: str) -> str:
    return stem.removeprefix("agieval_") or "general"


def _of_domains(tasks: FileTasks, domains: Sequence[str]) -> FileTasks:
    by_split = {split: [tasks.task(split, index).data for index in range(size)] for split, size in tasks.splits.items()}
    known = sorted({str(row["domain"]) for row in chain.from_iterable(by_split.values())})
    for domain in domains:
        if domain not in known:
            hint = did_you_mean(domain, known)
            raise UserError(f"task set {tasks.name!r} has no domain {domain!r} (it has: {', '.join(known)}).{hint}")
    chosen = {split: [dict(row) for row in rows if row["domain"] in domains] for split, rows in by_split.items()}
    return FileTasks(
        tasks.name, {split: rows for split, rows in chosen.items() if rows}, tasks.licence, tasks.quarantined
    )
