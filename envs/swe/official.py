"""The official ``swebench`` package: its table of specifications, its evaluation scripts, log parsers and grading.

The package as a whole imports data set hubs, cloud clients and a Docker client. What decides over tests needs none of
them, so it is loaded alone: beside the package's own modules, with nothing behind the names of the others.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rollcage.errors import MissingExtra, UserError

ENV_NAME = "testbed"
FOLDER = "/testbed"
"""Where the official images have the repository, and the name of their conda environment."""
_HEAVY = ("datasets", "dotenv", "requests")
_lock = threading.Lock()
_loaded: dict[str, Any] = {}


class Graded(NamedTuple):
    """What the official grading makes of a log.

    Attributes:
        is_resolved: by the official rules, which take no notice of tests that were skipped.
        tests: test -> how it ended: "passed" (an expected failure counts as such), "failed", "error", "skipped".
    """

    is_resolved: bool
    tests: dict[str, str]


def specification(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a row's repository is installed and tested: the row's own ``spec``, else the official table's.

    Raises:
        UserError: the table has none, and neither has the row.
        MissingExtra: swebench is not installed.
    """
    modules = _modules()
    if "spec" in row:
        return dict(row["spec"])
    versions = modules["constants"].MAP_REPO_VERSION_TO_SPECS.get(row["repo"], {})
    if row.get("version") not in versions:
        raise UserError(
            f"{row['instance_id']}: swebench {version('swebench')} has no specification of {row['repo']} "
            f'{row.get("version", "")}: give the row its own, as "spec": {{"python", "install", "test_cmd"}}.'
        )
    return dict(versions[row["version"]])


def requirements_paths(repo: str) -> list[str]:
    """Return where a repository may have its requirements file."""
    return list(_modules()["constants"].MAP_REPO_TO_REQS_PATHS.get(repo, ["requirements.txt"]))


def clean_requirements(text: str) -> str:
    """Return requirements with what is no longer on PyPI replaced."""
    cleaned: str = _modules()["python"].clean_requirements(text)
    return cleaned


def evaluation_script(row: Mapping[str, Any], base: str) -> str:
    """Return the official bash script that puts a row's tests in place at commit ``base`` and runs them."""
    return str(_test_spec(row, base).eval_script)


def test_files(row: Mapping[str, Any]) -> list[str]:
    """Return the paths that the test patch changes or makes, and those that a row without one names."""
    patch_set = _modules()["utils"].PatchSet(row["test_patch"])
    named = row.get("spec", {}).get("test_files", [])
    return list(dict.fromkeys([*(name for file in patch_set for name in _names(file)), *named]))


def started(log: str) -> bool:
    """Return whether the evaluation script got as far as the tests."""
    return _modules()["constants"].START_TEST_OUTPUT in log


def grade(row: Mapping[str, Any], log: str) -> Graded:
    """Return what the official grading makes of what the evaluation script has printed."""
    grading, spec = _modules()["grading"], _test_spec(row, row["base_commit"])
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".log") as file:
        file.write(log)
        file.flush()
        statuses, _ = grading.get_logs_eval(spec, file.name)
        prediction = {"instance_id": row["instance_id"], "model_patch": "-", "model_name_or_path": "-"}
        report = grading.get_eval_report(spec, prediction, file.name, include_tests_status=True)[row["instance_id"]]
    tests = {test: str(status).lower() for test, status in statuses.items()}
    for kind in report.get("tests_status", {}).values():
        # Some repositories' tests count as passed where they are not heard of: not here.
        tests |= {test: "passed" for test in kind["success"] if test in tests}
    return Graded(bool(report["resolved"]), tests)


def _names(file: Any) -> list[str]:
    return [name[2:] for name in (file.source_file, file.target_file) if name.startswith(("a/", "b/"))]


def _test_spec(row: Mapping[str, Any], base: str) -> Any:
    modules = _modules()
    spec = specification(row)
    repo, its_version = row["repo"], row.get("version", "")
    constants, parsers = modules["constants"], modules["log_parsers"].MAP_REPO_TO_PARSER
    if "spec" in row:  # told to this copy of the package, as a version of its own
        its_version = "own-" + hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        constants.MAP_REPO_VERSION_TO_SPECS.setdefault(repo, {})[its_version] = spec
        constants.MAP_REPO_TO_EXT.setdefault(repo, "py")
        like = spec.get("log_parser", "pytest-dev/pytest")
        if like not in parsers:
            raise UserError(f"{row['instance_id']}: log_parser {like!r}: name a repository of the official table.")
        parsers.setdefault(repo, parsers[like])
    instance = {**row, "version": its_version}
    script = modules["create_scripts"].make_eval_script_list(instance, spec, ENV_NAME, FOLDER, base, row["test_patch"])
    return modules["test_spec"].TestSpec(
        instance_id=row["instance_id"],
        repo=repo,
        version=its_version,
        repo_script_list=[],
        eval_script_list=script,
        env_script_list=[],
        arch="x86_64",
        FAIL_TO_PASS=list(row["FAIL_TO_PASS"]),
        PASS_TO_PASS=list(row["PASS_TO_PASS"]),
        language=constants.MAP_REPO_TO_EXT[repo],
        docker_specs={},
        namespace=None,
    )


def _modules() -> Mapping[str, Any]:
    with _lock:
        if not _loaded:
            _loaded.update(_load())
    return _loaded


def _load() -> dict[str, Any]:
    found = find_spec("swebench")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("'swebench' is not installed: run  pip install 'rollcage[swe]'  (extra 'swe').")
    if not version("swebench").startswith("4."):
        raise UserError(
            f"swebench {version('swebench')} has no table of specifications: run  pip install 'swebench>=4.1,<5'."
        )
    place = Path(found.submodule_search_locations[0])
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("swebench", *_HEAVY)}
    for name in before:
        del sys.modules[name]
    try:
        for name, folder in (("swebench", place), ("swebench.harness", place / "harness")):
            package = ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
        for name in _HEAVY:
            sys.modules[name] = _Nothing(name)
        harness = "swebench.harness"
        names = {
            "constants": f"{harness}.constants",
            "grading": f"{harness}.grading",
            "log_parsers": f"{harness}.log_parsers",
            "utils": f"{harness}.utils",
            "test_spec": f"{harness}.test_spec.test_spec",
            "python": f"{harness}.test_spec.python",
            "create_scripts": f"{harness}.test_spec.create_scripts",
        }
        return {key: import_module(name) for key, name in names.items()}
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name!r} is not installed: run  pip install 'rollcage[swe]'.") from error
    finally:  # whoever imports the package itself gets it whole
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("swebench", *_HEAVY):
                del sys.modules[name]
        sys.modules.update(before)


class _Nothing(ModuleType):
    """Stands for a module that nobody calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None
