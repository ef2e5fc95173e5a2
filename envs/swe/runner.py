"""Runs the tests of a repository inside its sandbox; only the standard library, given to ``python3 -I -c`` as text.

Reads a job from stdin: {"nonce", "tests": ["tests/test_x.py::Class::test_name"]}. Says on its stdout, one line each,
the nonce and JSON: ["started"], [test, status], ["done"]. What the tests print goes to stderr. Nothing of the
repository is imported before it has started, and test files are read before that, so that what a patch does cannot be
taken for a test run that never was. What a test runs could still look for the nonce in the memory of this process; no
check inside the process can rule that out.
"""

import json
import os
import sys
import types
import unittest
import unittest.case
from collections.abc import Callable
from typing import Any


def fingerprint() -> list[tuple[str, int, int]]:
    """Return what changes where somebody meddles with how tests are judged."""
    found = []
    for owner in (unittest.TestCase, unittest.TestResult, unittest.case):
        for name, value in sorted(vars(owner).items()):
            if callable(value):
                found.append((name, id(value), id(getattr(value, "__code__", None))))
    return found


def run_test(module: types.ModuleType, case_name: str, test_name: str) -> str:
    """Return how one test ends: passed, failed, error, skipped or xfail."""
    result = unittest.TestResult()
    getattr(module, case_name)(test_name).run(result)
    if result.errors:
        return "error"
    if result.failures or result.unexpectedSuccesses:
        return "failed"
    if result.skipped:
        return "skipped"
    if result.expectedFailures or result.testsRun != 1:
        return "xfail"
    return "passed"


def run_file(path: str, source: bytes, tests: list[str], tell: Callable[[Any], None]) -> None:
    """Run the tests of one file."""
    module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
    module.__file__ = path
    before = fingerprint()
    try:
        exec(compile(source, path, "exec"), vars(module))  # noqa: S102
    except BaseException as error:  # noqa: BLE001  (whatever it raises, its tests have not passed)
        sys.stderr.write(f"{path}: {type(error).__name__}: {error}\n")
        return
    for test in tests:
        _, case_name, test_name = test.split("::")
        try:
            status = run_test(module, case_name, test_name)
        except BaseException as error:  # noqa: BLE001  (as above; SystemExit too)
            status = "error"
            sys.stderr.write(f"{test}: {type(error).__name__}: {error}\n")
        tell([test, status if fingerprint() == before else "error"])


def main() -> None:
    """Run a job."""
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    os.dup2(2, 1)
    nonce = job.pop("nonce")

    def tell(record: Any) -> None:
        os.write(out, f"{nonce} {json.dumps(record)}\n".encode())

    files: dict[str, list[str]] = {}
    for test in job["tests"]:
        files.setdefault(test.partition("::")[0], []).append(test)
    sources = {}
    for path in files:
        with open(path, "rb") as file:
            sources[path] = file.read()
    tell(["started"])
    sys.path.insert(0, os.getcwd())
    for path, tests in files.items():
        run_file(path, sources[path], tests, tell)
    tell(["done"])
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
