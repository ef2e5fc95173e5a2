"""The official package, loaded alone: its table, its scripts, its parsers and its grading."""

import subprocess
import sys

import pytest

from rollcage.envs.swe import official
from rollcage.envs.swe.sample import sample_rows
from rollcage.errors import MissingExtra, UserError

SPANS = sample_rows()["test"][0]
OFFICIAL = {
    **SPANS,
    "repo": "pallets/flask",
    "version": "2.3",
    "FAIL_TO_PASS": ["t.py::new", "t.py::other"],
    "PASS_TO_PASS": ["t.py::old"],
}
del OFFICIAL["spec"]


def log(*lines):
    return "\n".join(
        ["+ git status", "+ : '>>>>> Start Test Output'", *lines, "+ : '>>>>> End Test Output'", "+ git checkout"]
    )


def test_it_is_loaded_alone_and_whoever_imports_it_gets_it_whole():
    program = (
        "import sys, types; mine = types.ModuleType('dotenv'); sys.modules['dotenv'] = mine\n"
        "from rollcage.envs.swe import official\n"
        "assert official.requirements_paths('pallets/flask') == ['requirements/dev.txt']\n"
        "left = [name for name in sys.modules if name.partition('.')[0] in ('swebench', 'datasets', 'docker')]\n"
        "assert left == [] and sys.modules['dotenv'] is mine, left"
    )
    subprocess.run((sys.executable, "-c", program), check=True, timeout=60)


def test_the_table_knows_how_repositories_are_installed_and_tested():
    spec = official.specification(OFFICIAL)
    assert (spec["python"], spec["test_cmd"]) == ("3.11", "pytest -rA")
    script = official.evaluation_script(OFFICIAL, "0123abc")
    for line in ("conda activate testbed", "python -m pip install -e .", "git checkout 0123abc tests/test_spans.py"):
        assert f"\n{line}\n" in script
    assert "\npytest -rA tests/test_spans.py\n" in script
    assert official.test_files(OFFICIAL) == ["tests/test_spans.py"]


def test_a_row_may_bring_its_own_specification():
    assert "\npython -m unittest -v tests/test_spans.py\n" in official.evaluation_script(SPANS, "0123abc")
    other = {**SPANS, "spec": {**SPANS["spec"], "test_cmd": "true"}}
    assert "\ntrue tests/test_spans.py\n" in official.evaluation_script(other, "0123abc")
    assert "\npython -m unittest -v" in official.evaluation_script(SPANS, "0123abc"), "each its own"
    with pytest.raises(UserError, match="name a repository of the official table"):
        official.evaluation_script({**SPANS, "spec": {**SPANS["spec"], "log_parser": "who/knows"}}, "0123abc")
    with pytest.raises(UserError, match=r"has no specification of pallets/flask 0\.1"):
        official.specification({**OFFICIAL, "version": "0.1"})


def test_logs_are_read_and_graded_officially():
    done = log("PASSED t.py::new", "XFAIL t.py::other", "PASSED t.py::old", "FAILED t.py::more - assert 1 == 2")
    graded = official.grade(OFFICIAL, done)
    assert graded.is_resolved, "an expected failure counts, and tests that nobody asked for do not"
    assert graded.tests == {
        "t.py::new": "passed",
        "t.py::other": "passed",
        "t.py::old": "passed",
        "t.py::more": "failed",
    }
    graded = official.grade(OFFICIAL, log("PASSED t.py::new", "FAILED t.py::other - x", "ERROR t.py::old"))
    assert not graded.is_resolved
    assert graded.tests == {"t.py::new": "passed", "t.py::other": "failed", "t.py::old": "error"}


def test_skipped_tests_have_not_passed_whatever_the_official_grading_says_e12():
    graded = official.grade(OFFICIAL, log("SKIPPED t.py::new", "SKIPPED t.py::other", "PASSED t.py::old"))
    assert graded.is_resolved, "officially they are not looked at: this is why ours has to"
    assert [graded.tests[test] for test in OFFICIAL["FAIL_TO_PASS"]] == ["skipped", "skipped"]


def test_a_log_of_any_bytes_is_read_and_one_without_tests_has_none():
    assert official.grade(OFFICIAL, log("\ufffd\x00\u2028", "PASSED t.py::old")).tests == {"t.py::old": "passed"}
    graded = official.grade(OFFICIAL, log())
    assert (graded.is_resolved, graded.tests) == (False, {})
    assert official.started(log())
    assert not official.started("+ git status\nPASSED t.py::old")


def test_without_the_package_or_with_another_one_says_what_to_install(monkeypatch):
    monkeypatch.setattr(official, "_loaded", {})
    monkeypatch.setattr(official, "version", lambda name: "5.0.2")
    with pytest.raises(UserError, match=r"no table of specifications: run  pip install 'swebench>=4\.1,<5'"):
        official.specification(OFFICIAL)
    monkeypatch.setattr(official, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'rollcage\[swe\]'"):
        official.specification(OFFICIAL)
