"""The ten tasks of rollcage/SWEMini-v0, made of the texts in ``mini`` in SWE-bench's row format, always the same.

A text holds a small repository before its bug is mended, an issue, the mending, and the tests that come with it::

    @@ title          one line, for the README
    @@ issue          what the agent reads
    @@ file PATH      a file
    @@ tests PATH     a test file, as it stands in the repository
    @@ more PATH      what the hidden tests add at its end
    @@ fix PATH       replacements in a file: <<<< old ==== new >>>>, each of which stands there once

What the hidden tests add must fail before the mending (FAIL_TO_PASS); all other tests pass before and after it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from rollcage.envs.swe.git_objects import commit_id

SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("fields", "numerals", "paragraphs", "recent", "settings", "slugs"),
    "test": ("orders", "releases", "shares", "spans"),
}
_SECTION = re.compile(r"^@@ (\w+) ?(\S*)\n", re.MULTILINE)
_REPLACEMENT = re.compile(r"^<<<<\n(.*?)^====\n(.*?)^>>>>\n", re.MULTILINE | re.DOTALL)


@lru_cache(maxsize=1)
def mini_rows() -> Mapping[str, tuple[Mapping[str, Any], ...]]:
    """Return the rows by split."""
    return {split: tuple(map(make_row, names)) for split, names in SPLITS.items()}


def mini_files(name: str) -> dict[str, bytes]:
    """Return the repository of a task at its base commit: path -> bytes."""
    return {path: text.encode() for path, text in Source(name).base.items()}


def make_row(name: str) -> dict[str, Any]:
    """Return one task in SWE-bench's format."""
    source = Source(name)
    before, after = _test_ids(source.tests), _test_ids({**source.tests, **source.hidden})
    return {
        "instance_id": f"mini__{name}-1",
        "repo": f"mini/{name}",
        "version": "1.0",
        "base_commit": commit_id({path: text.encode() for path, text in source.base.items()}),
        "created_at": "2025-01-01T00:00:00Z",
        "problem_statement": source.issue,
        "hints_text": "",
        "patch": diff(source.base, source.mended),
        "test_patch": diff(source.base, {**source.base, **source.hidden}),
        "FAIL_TO_PASS": [test for test in after if test not in before],
        "PASS_TO_PASS": before,
    }


class Source:
    """What one of the texts holds.

    Attributes:
        issue: the problem statement.
        base: path -> text at the base commit, tests included.
        mended: the same after the mending.
        tests: the test files in ``base``.
        hidden: the test files as they are when a patch is judged.
    """

    def __init__(self, name: str) -> None:
        text = resources.files(__package__).joinpath("mini", f"{name}.txt").read_text(encoding="utf-8")
        _, *parts = _SECTION.split(text)
        self.issue, title = "", ""
        self.base, self.tests, self.hidden = {".gitignore": "__pycache__/\n"}, dict[str, str](), dict[str, str]()
        fixes: dict[str, str] = {}
        for kind, path, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if kind == "title":
                title = body.strip()
            elif kind == "issue":
                self.issue = body
            elif kind == "file":
                self.base[path] = body
            elif kind == "tests":
                self.tests[path] = body
            elif kind == "more":
                self.hidden[path] = self.tests[path] + body
            elif kind == "fix":
                fixes[path] = body
            else:
                raise ValueError(f"{name}: unknown section {kind!r}")
        self.base["README.md"] = f"# {name}\n\n{title}\n\nTests: `python3 -m unittest discover -s tests -t .`\n"
        self.base |= {"tests/__init__.py": "", **self.tests}
        self.mended = {**self.base, **{path: _replaced(name, self.base[path], fixes[path]) for path in fixes}}


def _replaced(name: str, text: str, fix: str) -> str:
    for old, new in _REPLACEMENT.findall(fix):
        if text.count(old) != 1:
            raise ValueError(f"{name}: a text to replace stands {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the patch from one set of files to another one of the same paths, as git writes it."""
    parts = []
    for path in sorted(path for path in after if before[path] != after[path]):
        lines = before[path].splitlines(keepends=True), after[path].splitlines(keepends=True)
        parts.append(
            f"diff --git a/{path} b/{path}\n" + "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))
        )
    return "".join(parts)


def _test_ids(files: Mapping[str, str]) -> list[str]:
    """Return the ids of all tests: "tests/test_x.py::Class::test_name"."""
    return [
        f"{path}::{case.name}::{test.name}"
        for path, text in files.items()
        for case in ast.parse(text).body
        if isinstance(case, ast.ClassDef)
        for test in case.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
    ]
