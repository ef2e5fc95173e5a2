"""Rows in SWE-bench's format: our own suite's, and publishers' files."""

import json
import subprocess
import sys
import types

import pytest

from rollcage.envs.swe.datasets import swe_tasks
from rollcage.envs.swe.official import test_files as files_of_tests
from rollcage.envs.swe.rows import FIELDS, as_tasks, read_rows
from rollcage.envs.swe.suite import SPLITS, Source, make_row, mini_files, mini_rows
from rollcage.errors import UserError


def test_the_suite_is_ten_rows_of_the_official_fields_the_same_every_time():
    rows = [row for split in mini_rows().values() for row in split]
    assert len(rows) == 10
    for row in rows:
        assert set(FIELDS) <= row.keys()
        assert row["FAIL_TO_PASS"]
        assert row["PASS_TO_PASS"]
        assert json.loads(json.dumps(row)) == row == make_row(row["repo"].partition("/")[2])
    tasks = as_tasks("mini", mini_rows())
    assert {split: len(names) for split, names in SPLITS.items()} == tasks.splits == {"train": 6, "test": 4}
    assert tasks.by_id("test/mini__spans-1").data["repo"] == "mini/spans"


@pytest.mark.parametrize("name", [name for names in SPLITS.values() for name in names])
def test_patches_are_what_git_makes_of_them(name, tmp_path):
    row, source = make_row(name), Source(name)
    for path, data in mini_files(name).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)
    for patch in (row["patch"], row["test_patch"]):
        subprocess.run(("git", "apply", "-"), cwd=tmp_path, input=patch.encode(), check=True)
    for path, text in {**source.mended, **source.hidden}.items():
        assert (tmp_path / path).read_text() == text
    hidden = [test.rpartition("::")[2] for test in row["FAIL_TO_PASS"]]
    assert not [test for test in hidden for data in mini_files(name).values() if test.encode() in data]


def test_publishers_files_are_read_lists_in_strings_too(tmp_path):
    row = make_row("spans")
    as_text = {**row, "FAIL_TO_PASS": json.dumps(row["FAIL_TO_PASS"])}
    (tmp_path / "a.jsonl").write_text(json.dumps(as_text) + "\n")
    (tmp_path / "b.json").write_text(json.dumps([make_row("slugs")]))
    assert read_rows(tmp_path) == [row, make_row("slugs")]
    assert read_rows(tmp_path / "b.json") == [make_row("slugs")]


def test_the_official_lite_rows_are_read(shared_data):
    if shared_data is None:
        return  # the test above reads the same format
    rows = read_rows(shared_data / "swebench" / "lite.jsonl.xz")
    assert len(rows) == 300
    assert all(isinstance(row["PASS_TO_PASS"], list) for row in rows)
    assert swe_tasks(data=shared_data / "swebench").splits == swe_tasks("lite", data_dir=shared_data).splits


def test_parquet_files_are_read_where_pyarrow_is_and_else_say_so(tmp_path, monkeypatch):
    row = make_row("spans")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match="run  pip install pyarrow"):
        read_rows(tmp_path / "rows.parquet")
    table = types.SimpleNamespace(to_pylist=lambda: [row])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", types.SimpleNamespace(read_table=lambda path: table))
    assert read_rows(tmp_path / "rows.parquet") == read_rows(tmp_path) == [row]
    (tmp_path / "rows.parquet").rename(tmp_path / "train-00000-of-00001.parquet")
    assert swe_tasks("lite", tmp_path).splits == {"train": 1}


def test_rows_of_swe_smith_have_a_patch_that_makes_the_bug(tmp_path):
    row = {key: make_row("spans")[key] for key in ("instance_id", "patch", "PASS_TO_PASS")}
    row |= {"repo": "swesmith/a__b.0123abcd", "FAIL_TO_PASS": ["t/test_a.py::test_b"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (read,) = read_rows(tmp_path)
    assert (read["patch_is_bug"], read["base_commit"], read["test_patch"]) == (True, "HEAD", "")
    assert read["spec"]["test_cmd"] == "python -m pytest -rA t/test_a.py tests/test_spans.py"
    assert files_of_tests(read) == ["t/test_a.py", "tests/test_spans.py"]


def test_published_sets_are_found_and_a_row_that_stands_twice_is_one(tmp_path):
    row = make_row("spans")
    (tmp_path / "swebench").mkdir()
    (tmp_path / "swebench" / "verified.jsonl").write_text(json.dumps(row))
    assert swe_tasks("verified", data_dir=tmp_path).by_id("test/mini__spans-1").data["repo"] == "mini/spans"
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (tmp_path / "b.json").write_text(json.dumps([row]))
    assert swe_tasks(data={"test": tmp_path / "a.jsonl"}).splits == {"test": 1}
    assert swe_tasks(data=tmp_path / "b.json").licence == ""
    (tmp_path / "swebench").rename(tmp_path.parent / "elsewhere")
    assert swe_tasks(data=tmp_path).splits == {"test": 1}
    (tmp_path / "b.json").write_text(json.dumps([{**row, "hints_text": "other"}]))
    with pytest.raises(UserError, match="mini__spans-1 stands twice, and differs"):
        swe_tasks(data=tmp_path)
    (tmp_path / "b.json").write_text(json.dumps({"table": {"of": "specifications"}}))
    (tmp_path / "notes.jsonl").write_text(json.dumps({"instance_id": row["instance_id"], "note": "none"}))
    assert swe_tasks(data=tmp_path).splits == {"test": 1}, "what publishers put beside rows is left alone"
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UserError, match="no file of this folder holds rows"):
        swe_tasks(data=tmp_path)
    with pytest.raises(UserError, match="Did you mean 'verified'"):
        swe_tasks("verifed", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"repo": "x"}]', "the field 'instance_id' is missing"),
        ("{}", "expected a JSON list"),
        ("[", "cannot be read"),
        (json.dumps([{**make_row("spans"), "FAIL_TO_PASS": 3}]), "FAIL_TO_PASS must be a list"),
        (json.dumps([{**make_row("spans"), "patch": None}]), "patch must be text"),
        (json.dumps([{**make_row("spans"), "instance_id": "a/../b"}]), "'a/../b' is no instance_id"),
        (json.dumps([{**make_row("spans"), "base_commit": "--exec=x"}]), "'--exec=x' is no base_commit"),
        (json.dumps([{**make_row("spans"), "image_assets": '{"x": ["http://a/b.png"]}'}]), "SWE-bench Multimodal"),
        (json.dumps([{**make_row("spans"), "spec": {"install": "x"}}]), "at least 'test_cmd'"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, words):
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(UserError) as raised:
        read_rows(tmp_path / "rows.json")
    assert words in str(raised.value)
    assert "rows.json" in str(raised.value)
    assert "\n" not in str(raised.value)
    (tmp_path / "rows.json").unlink()
    with pytest.raises(UserError, match="no rows"):
        read_rows(tmp_path)
