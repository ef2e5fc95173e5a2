"""Where data sets are looked for, which files are taken, and what is said where that fails."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from rollcage.envs.data import Published, Row, default_split, find_dataset, load_tasks, own_files
from rollcage.errors import UserError

KNOWN = {"sums": Published("example.org/sums", "MIT"), "sums_hard": Published("example.org/hard", "MIT")}


def keep(row: Row, *, stem: str) -> Row:
    """A converter that checks one field."""
    if "answer" not in row:
        raise ValueError("no answer")
    return dict(row, stem=stem)


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: the working directory is ``work`` in the folder that is returned."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("ROLLCAGE_DATA", raising=False)
    return tmp_path


def test_the_order_is_argument_then_variable_then_data_then_shared_data(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(data_dir: Path | None = None) -> Path:
        return find_dataset("sums", "math", KNOWN, data_dir)["test"][0].resolve()

    shared = write(places / "shared" / "data" / "math" / "sums_test.jsonl")
    assert found() == shared
    local = write(places / "work" / "data" / "math" / "sums_test.jsonl")
    assert found() == local
    named = write(places / "named" / "sums_test.jsonl")
    monkeypatch.setenv("ROLLCAGE_DATA", str(places / "named"))
    assert found() == named
    in_folder = write(places / "named" / "math" / "sums_test.jsonl")
    assert found() == in_folder  # the folder of the kind comes before the root
    given = write(places / "given" / "sums_test.jsonl")
    assert found(places / "given") == given


def test_a_folder_that_is_given_is_the_only_one(places: Path) -> None:
    write(places / "work" / "data" / "math" / "sums_test.jsonl")
    with pytest.raises(UserError, match="empty"):
        find_dataset("sums", "math", KNOWN, places / "empty")


@pytest.mark.usefixtures("places")
def test_a_missing_set_says_where_it_was_looked_for_who_publishes_it_and_what_to_put_where() -> None:
    with pytest.raises(UserError) as error:
        find_dataset("sums", "math", KNOWN)
    for part in ("'sums'", "data/math", "../shared/data/math", "example.org/sums", "sums_test.jsonl", "ROLLCAGE_DATA"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_set_gets_a_hint() -> None:
    with pytest.raises(UserError, match="Did you mean 'sums'"):
        find_dataset("sum", "math", KNOWN)


@pytest.mark.parametrize(
    ("file", "split"),
    [
        ("sums_train.jsonl", "train"), ("sums_test.jsonl.xz", "test"), ("sums_val.json", "validation"),
        ("sums.jsonl", "test"),
        ("sums_1140.jsonl", "test"), ("sums_dev.csv", "dev"), ("sums/train.jsonl", "train"),
        ("sums/easy_test.jsonl", "test"),
        ("sums/easy.json", "test"),
    ],
)  # fmt: skip
def test_the_name_of_a_file_says_its_split(places: Path, file: str, split: str) -> None:
    path = write(places / "work" / "data" / "math" / file)
    write(places / "work" / "data" / "math" / "sums_hard_test.jsonl")  # another set
    write(places / "work" / "data" / "math" / "sums_notes.md")
    assert {name: [p.resolve() for p in paths] for name, paths in find_dataset("sums", "math", KNOWN).items()} == {
        split: [path]
    }


def test_own_data_are_a_file_a_folder_or_a_mapping(tmp_path: Path) -> None:
    train, test = write(tmp_path / "my_train.jsonl"), write(tmp_path / "my_test.jsonl")
    assert own_files(train) == {"train": [train]}
    assert own_files(str(tmp_path)) == {"train": [train], "test": [test]}
    assert own_files({"easy": str(test)}) == {"easy": [test]}


@pytest.mark.parametrize("name", ["missing.jsonl", "empty"])
def test_own_data_that_are_not_there_get_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=name):
        own_files(tmp_path / name)


def test_ids_are_the_rows_own_or_the_files_name_and_position(tmp_path: Path) -> None:
    rows = [{"id": "a-1", "answer": 1}, {"id": 7, "answer": 1}, {"answer": 1}]
    tasks = load_tasks("mine", own_files(write(tmp_path / "sums_test.jsonl", *rows)), keep)
    assert [tasks.task("test", index).id for index in range(3)] == ["test/a-1", "test/sums-7", "test/sums-2"]
    assert tasks.by_id("test/sums-7").data["stem"] == "sums"


def test_the_same_id_in_two_files_is_told_apart_and_in_one_file_refused(tmp_path: Path) -> None:
    write(tmp_path / "a_test.jsonl", {"id": "x", "answer": 1})
    write(tmp_path / "b_test.jsonl", {"id": "x", "answer": 1})
    tasks = load_tasks("mine", own_files(tmp_path), keep)
    assert [tasks.task("test", index).id for index in range(2)] == ["test/x", "test/b-x"]
    twice = write(tmp_path / "c_test.jsonl", {"id": "x", "answer": 1}, {"id": "x", "answer": 1})
    with pytest.raises(UserError, match=r"c_test\.jsonl:2: the id 'x' stands twice"):
        load_tasks("mine", own_files(twice), keep)


def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    row = {"question": "2+2?", "options": ["3", "4", "5"], "answer": "B"}
    (tmp_path / "table_test.csv").write_text("2+2?,3,4,5,B\n")
    (tmp_path / "array_test.json").write_text(json.dumps([row]))
    (tmp_path / "examples.json").write_text(json.dumps({"canary": "x", "examples": [row]}))
    write(tmp_path / "lines.jsonl", row)
    write(tmp_path / "packed.jsonl.xz", row)
    for path in tmp_path.iterdir():
        task = load_tasks("mine", own_files(path), keep).task("test", 0)
        assert {key: task.data[key] for key in row} == row, path.name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "2+2?,3,4,5,B\n"),
        ("x.json", '[{"question": "2+2?", "answer": "B"}]'),
        ("x.jsonl", '{"question": "2+2?", "answer": "B"}'),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    task = load_tasks("mine", own_files(tmp_path / name), keep).task("test", 0)
    assert (task.data["question"], task.data["answer"]) == ("2+2?", "B")


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", "\na,b,c,A\n\n  \n{}\n"), ("x.jsonl", '\n{"answer": 1}\n\n  \n{}\n')],
)
def test_blank_lines_are_skipped_and_counted(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content.replace("{}\n", ""))
    assert load_tasks("mine", own_files(tmp_path / name), keep).splits == {"test": 1}
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name}:5: "):
        load_tasks("mine", own_files(tmp_path / name), keep)


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl"])
@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name}: is empty"):
        load_tasks("mine", own_files(tmp_path / name), keep)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"answer": 1}\n{"answer"', "x.jsonl:2: not valid JSON"),
        ("x.jsonl", '{"answer": 1}\n\n[1]\n', "x.jsonl:3: expected a JSON object"),
        ("x.jsonl", '{"answer": 1}\n{}\n', "x.jsonl:2: no answer"),
        ("x.json", '[{"answer": 1}, {}]', "x.json:2: no answer"),
        ("x.json", '[{"answer": 1}, 5]', "x.json:2: expected a JSON object"),
        ("x.json", '{"answer": 1}', "x.json: expected a JSON array"),
        ("x.json", "[" * 100_000, "x.json: cannot be read as JSON"),
        ("x.csv", "a,b,c,A\na,b\n", "x.csv:2: expected a question"),
        ("x.jsonl.xz", "no archive", "x.jsonl.xz: cannot be read"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        load_tasks("mine", own_files(tmp_path / name), keep)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"answer": 1})
    assert load_tasks("mine", own_files(path), keep).splits == {"test": 1}
    assert load_tasks("mine", own_files(path), keep) is load_tasks("mine", own_files(path), keep)
    write(path, {"answer": 1}, {"answer": 2})
    assert load_tasks("mine", own_files(path), keep).splits == {"test": 2}


def test_rows_that_cannot_be_scored_are_left_out_and_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"answer": 1}, {"answer": None, "quarantined": "nobody knows"})
    tasks = load_tasks("mine", own_files(path), keep)
    assert (tasks.splits, tasks.quarantined) == ({"test": 1}, {"test/x-1": "nobody knows"})


def test_the_default_split_is_train_or_the_one_there_is(tmp_path: Path) -> None:
    row = {"answer": 1}
    write(tmp_path / "a_test.jsonl", row)
    assert default_split(load_tasks("mine", own_files(tmp_path), keep)) == "test"
    write(tmp_path / "a_train.jsonl", row)
    assert default_split(load_tasks("mine", own_files(tmp_path), keep)) == "train"
