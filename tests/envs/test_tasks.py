"""Task sets: named splits, stable ids, known sizes, deterministic order; and the reader of JSON lines."""

import json
import lzma
import pickle

import pytest

from rollcage.envs.tasks import GeneratedTasks, RowTasks, Task, check_split, read_jsonl, sample_indices
from rollcage.errors import UserError


def square(split, index):
    return {"question": f"{index} * {index}", "split": split}


def row_tasks():
    return RowTasks(
        "sums", {"train": [{"id": "easy", "q": "1+1"}, {"q": "2+2"}], "test": [{"q": "3+3"}]}, licence="MIT"
    )


GENERATED = GeneratedTasks("squares", {"train": 100, "test": 10}, square)


# Both kinds


@pytest.mark.parametrize("tasks", [row_tasks(), GENERATED], ids=["rows", "generated"])
def test_every_task_is_found_again_by_its_id(tasks):
    for split, size in tasks.splits.items():
        found = [tasks.task(split, index) for index in range(size)]
        assert len({task.id for task in found}) == size
        assert all(task.id.startswith(f"{split}/") and tasks.by_id(task.id) == task for task in found)


@pytest.mark.parametrize("tasks", [row_tasks(), GENERATED], ids=["rows", "generated"])
def test_unknown_splits_indices_and_ids_are_clear_errors(tasks):
    with pytest.raises(UserError, match=r"no split 'tset' \(it has: train, test\)\. Did you mean 'test'\?"):
        tasks.task("tset", 0)
    for index in (-1, tasks.splits["test"]):
        with pytest.raises(UserError, match=f"index {index} is outside split 'test'"):
            tasks.task("test", index)
    for task_id in ("", "test", "test/", "/0", "dev/0", "test/-1", "test/999", "test/x"):
        with pytest.raises(UserError):
            tasks.by_id(task_id)


def test_check_split_returns_the_size():
    assert check_split(GENERATED, "test") == 10


# Rows


def test_a_row_is_named_by_its_id_or_else_by_its_place():
    tasks = row_tasks()
    assert tasks.splits == {"train": 2, "test": 1}
    assert (tasks.name, tasks.licence) == ("sums", "MIT")
    assert [tasks.task("train", index).id for index in (0, 1)] == ["train/easy", "train/1"]
    assert tasks.by_id("train/1").data == {"q": "2+2"}


def test_a_misspelt_row_id_gets_a_hint():
    with pytest.raises(UserError, match="Did you mean 'train/easy'"):
        row_tasks().by_id("train/esay")


def test_an_id_that_stands_twice_is_refused():
    with pytest.raises(UserError, match="'train/a' stands twice"):
        RowTasks("sums", {"train": [{"id": "a"}, {"id": "a"}]})
    RowTasks("sums", {"train": [{"id": "a"}], "test": [{"id": "a"}]})  # in two splits these are two ids


def test_a_row_that_is_no_mapping_is_refused_with_its_place():
    with pytest.raises(UserError, match="row 1 of split 'train' must be a mapping, not list"):
        RowTasks("sums", {"train": [{"q": 1}, ["q", 2]]})


# Generated


def test_a_generated_task_is_the_same_each_time_and_pickles():
    assert (
        GENERATED.task("train", 7)
        == GENERATED.task("train", 7)
        == Task("train/7", {"question": "7 * 7", "split": "train"})
    )
    assert pickle.loads(pickle.dumps(GENERATED)).by_id("test/3") == GENERATED.by_id("test/3")


@pytest.mark.parametrize(
    "task_id", ["train/07", "train/٣", "train/²", "train/1_0", "train/+1", "train/ 1", "train/" + "9" * 5000]
)
def test_one_generated_task_has_one_id(task_id):
    with pytest.raises(UserError):
        GENERATED.by_id(task_id)


# Sampling


def test_sampled_indices_are_distinct_seeded_and_in_the_split():
    drawn = sample_indices(GENERATED, "train", 20, seed=1)
    assert len(set(drawn)) == 20
    assert set(drawn) <= set(range(100))
    assert drawn == sample_indices(GENERATED, "train", 20, seed=1)
    assert drawn != sample_indices(GENERATED, "train", 20, seed=2)
    assert drawn == [17, 72, 97, 8, 32, 15, 63, 57, 60, 83, 48, 26, 12, 62, 3, 49, 55, 77, 98, 0], "order is for ever"


def test_all_tasks_are_sampled_where_none_or_too_many_are_asked_for():
    for num_tasks in (None, 10, 11):
        assert sorted(sample_indices(GENERATED, "test", num_tasks, seed=0)) == list(range(10))
    assert sample_indices(GENERATED, "test", 0, seed=0) == []


def test_a_sample_of_fewer_than_no_tasks_or_of_an_unknown_split_is_refused():
    with pytest.raises(UserError, match="must not be negative"):
        sample_indices(GENERATED, "test", -1, seed=0)
    with pytest.raises(UserError, match="no split"):
        sample_indices(GENERATED, "dev", 1, seed=0)


# JSON lines


ROWS = [{"q": "1+1", "a": 2}, {"q": "zwölf \u2028 答", "a": None}]
TEXT = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n"


@pytest.mark.parametrize(
    "text", [TEXT, "\n\n" + TEXT + "  \n", TEXT.rstrip("\n"), TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT]
)
def test_json_lines_are_read_plain_or_compressed(tmp_path, text):
    plain, packed = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.xz"
    plain.write_bytes(text.encode())
    packed.write_bytes(lzma.compress(text.encode()))
    assert read_jsonl(plain) == read_jsonl(str(packed)) == ROWS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"q": 1', "not valid JSON"),
        ("[1, 2]", "expected a JSON object, found list"),
        ('"text"', "expected a JSON object, found str"),
        ('{"a": 1}', "the field 'q' is missing"),
        ('{"q": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": 1}\n\n' + line + "\n")
    with pytest.raises(UserError, match=message) as error:
        read_jsonl(path, required=["q"])
    assert str(error.value).startswith(f"{path}:3: ")
    assert "\n" not in str(error.value)


def test_rows_are_converted_and_a_refused_one_is_named(tmp_path):
    def convert(row):
        if row["q"] < 0:
            raise ValueError("q must not be negative")
        return {"q": row["q"] + 1}

    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": 1}\n')
    assert read_jsonl(path, convert=convert) == [{"q": 2}]
    path.write_text('{"q": 1}\n{"q": -1}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl:2: q must not be negative"):
        read_jsonl(path, convert=convert)


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path):
    not_utf8, cut, no_archive = tmp_path / "latin.jsonl", tmp_path / "cut.jsonl.xz", tmp_path / "none.jsonl.xz"
    not_utf8.write_bytes('{"q": "zwölf"}'.encode("latin-1"))
    cut.write_bytes(lzma.compress(TEXT.encode() * 1000)[:100])
    no_archive.write_bytes(TEXT.encode())
    for path in (tmp_path, not_utf8, cut, no_archive):
        with pytest.raises(UserError, match="cannot be read") as error:
            read_jsonl(path)
        assert str(path) in str(error.value)
    with pytest.raises(UserError, match=r"missing\.jsonl: no such file"):
        read_jsonl(tmp_path / "missing.jsonl")
