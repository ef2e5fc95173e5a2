"""Judging a patch: applied to a fresh copy of the repository, in a sandbox that its author has never touched."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple, Protocol

from rollcage.envs.swe.patches import protected, touched, whole
from rollcage.errors import RollcageError
from rollcage.sandbox.errors import SandboxUnavailable
from rollcage.sandbox.sync import SyncSandbox
from rollcage.sandbox.types import ExecResult

_MAX_LOG_BYTES = 1 << 20


class NotJudged(RollcageError):
    """The tests never ran, for a reason that has nothing to do with the patch: an infrastructure failure."""


class NotStarted(NotJudged):
    """The test run did not start: its place is broken, or the patch breaks it. Which, a run without the patch tells."""


class TestsLost(NotJudged):
    """The sandbox died while the tests ran: it failed, or the patch killed it. Which, a second try tells."""


class Verdict(NamedTuple):
    """What came of a patch.

    Attributes:
        status: "resolved", "unresolved", or "patch_apply_failed" (then no test ran).
        fail_to_pass: share of the tests that shall pass now which do, 0 to 1.
        pass_to_pass: share of the tests that passed before which still do.
        tests: test -> how it ended; one that did not run is missing.
        ignored: paths that the patch changes and that do not count.
        log: what the tests printed.
    """

    status: str
    fail_to_pass: float = 0.0
    pass_to_pass: float = 0.0
    tests: Mapping[str, str] = {}
    ignored: tuple[str, ...] = ()
    log: str = ""

    @property
    def resolved(self) -> bool:
        """Whether every test that shall pass does."""
        return self.status == "resolved"


class Harness(Protocol):
    """How one family of tasks is set up and tested."""

    def prepare(self, box: SyncSandbox, row: Mapping[str, Any]) -> str:
        """Bring the sandbox's work folder to where work begins; returns that commit: a patch is what comes after it.

        Raises:
            NotJudged: it cannot be done.
        """
        ...

    def protected(self, row: Mapping[str, Any]) -> Sequence[str]:
        """Return patterns of paths at which a patch's changes do not count."""
        ...

    def run_tests(self, box: SyncSandbox, row: Mapping[str, Any], *, timeout_s: float) -> tuple[dict[str, str], str]:
        """Put the hidden tests in place and run them; returns test -> status ("passed" is the good one), and the log.

        Raises:
            NotJudged: the run never started (NotStarted: for a reason that may lie in the patch).
        """
        ...


def judge(harness: Harness, box: SyncSandbox, row: Mapping[str, Any], patch: bytes, *, timeout_s: float) -> Verdict:
    """Judge a patch in a fresh sandbox.

    Args:
        harness: of the row's family.
        box: nobody has used it.
        row: the task in SWE-bench's format.
        patch: unified diff against the base commit; b"" is a patch too.
        timeout_s: for the tests; those that have not ended by then have not passed.

    Raises:
        NotJudged: the sandbox could not be set up, or the tests never started (TestsLost: or it died under them).
        SandboxError: it failed.
    """
    harness.prepare(box, row)
    patterns = harness.protected(row)
    paths = touched(patch)
    ignored = protected(paths, patterns)
    if patch.strip() and len(ignored) < max(1, len(paths)):
        excluded = [f"--exclude={pattern}" for pattern in patterns]
        applied = box.exec(("git", "apply", "--whitespace=nowarn", *excluded, "-"), stdin=whole(patch))
        if not applied.ok:
            return Verdict("patch_apply_failed", ignored=tuple(ignored), log=applied.stderr_text)
    try:
        tests, log = harness.run_tests(box, row, timeout_s=timeout_s)
    except SandboxUnavailable as error:
        raise TestsLost(f"{row['instance_id']}: {error}") from error
    mended, kept = _share(tests, row["FAIL_TO_PASS"]), _share(tests, row["PASS_TO_PASS"])
    status = "resolved" if mended == kept == 1.0 else "unresolved"
    return Verdict(status, mended, kept, tests, tuple(ignored), log)


def apply_tests(box: SyncSandbox, row: Mapping[str, Any], *, only_try: bool = False) -> None:
    """Put a row's hidden tests in place, or only see whether they fit; raises NotJudged where they do not."""
    options = ["--check"] if only_try else []
    done = box.exec(("git", "apply", "--whitespace=nowarn", *options, "-"), stdin=whole(row["test_patch"].encode()))
    if not done.ok and row["test_patch"].strip():
        raise NotJudged(f"{row['instance_id']}: its test patch does not apply: {_last_line(done)}")


def run_unittest(box: SyncSandbox, tests: Sequence[str], *, timeout_s: float) -> tuple[dict[str, str], str]:
    """Run tests of the standard library's kind; see `Harness.run_tests` and `rollcage.envs.swe.runner`."""
    nonce = secrets.token_hex(16)
    job = json.dumps({"nonce": nonce, "tests": list(tests)}).encode()
    command = ("python3", "-I", "-B", "-c", _runner())
    result = box.exec(command, stdin=job, timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES)
    records = [json.loads(line[len(nonce) :]) for line in result.stdout_text.splitlines() if line.startswith(nonce)]
    if ["started"] not in records:
        raise NotJudged(f"the test run did not start: {_last_line(result)}")
    found: dict[str, str] = {}
    for record in records:
        if len(record) == 2:
            test, status = record
            found[test] = status if found.get(test, "passed") == "passed" else found[test]
    return found, result.stderr_text


def _share(found: Mapping[str, str], tests: Sequence[str]) -> float:
    return sum(found.get(test) == "passed" for test in tests) / len(tests) if tests else 1.0


def _last_line(result: ExecResult) -> str:
    lines = result.stderr_text.strip().splitlines()
    return lines[-1] if lines else f"exit code {result.exit_code}"


@lru_cache(maxsize=1)
def _runner() -> str:
    return resources.files(__package__).joinpath("runner.py").read_text(encoding="utf-8")


def judge_again(judge_once: Callable[[bytes], Verdict], patch: bytes) -> Verdict:
    """Judge a patch; where its tests do not start or are lost, find out by another try whose doing that is.

    Args:
        judge_once: judges one patch, each time in a fresh sandbox; b"" is the repository as it was.
        patch: what is judged.

    Raises:
        NotJudged: it is not the patch's doing.
    """
    try:
        return judge_once(patch)
    except TestsLost:
        try:
            return judge_once(patch)
        except TestsLost as error:  # twice, in fresh sandboxes, is the patch's doing
            return Verdict("unresolved", log=str(error))
    except NotStarted as error:
        if not patch.strip() or not _starts(judge_once):
            raise
        return Verdict("unresolved", log=str(error))


def _starts(judge_once: Callable[[bytes], Verdict]) -> bool:
    """Whether the tests start where nothing was changed."""
    try:
        judge_once(b"")
    except NotJudged:
        return False
    return True
