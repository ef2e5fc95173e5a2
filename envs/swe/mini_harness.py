"""How rollcage/SWEMini-v0's tasks are set up and tested: small repositories, the standard library's tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from rollcage.envs.swe.git_objects import AUTHOR, DATE, MESSAGE
from rollcage.envs.swe.grading import NotJudged, apply_tests, run_unittest
from rollcage.envs.swe.patches import PROTECTED
from rollcage.envs.swe.suite import mini_files
from rollcage.sandbox.sync import SyncSandbox

_PREPARE = f"""set -e
tar -xf -
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME='{AUTHOR.partition(" <")[0]}' GIT_AUTHOR_EMAIL='{AUTHOR.partition("<")[2][:-1]}'
export GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME" GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL"
export GIT_AUTHOR_DATE='{DATE}' GIT_COMMITTER_DATE='{DATE}'
git init -q -b main
git add -A
git commit -q -m '{MESSAGE}'
git rev-parse HEAD
"""


class MiniHarness:
    """See `Harness`. The whole history is the base commit: there is nothing after it that an agent could find."""

    def prepare(self, box: SyncSandbox, row: Mapping[str, Any]) -> str:
        """See `Harness.prepare`."""
        files = mini_files(row["repo"].partition("/")[2])
        done = box.exec(_PREPARE, stdin=_packed(files))
        if not done.ok or done.stdout_text.strip() != row["base_commit"]:
            why = (done.stderr_text.strip().splitlines() or [f"its commit is {done.stdout_text.strip()}"])[-1]
            raise NotJudged(f"{row['instance_id']}: the repository could not be made: {why}")
        return str(row["base_commit"])

    def protected(self, row: Mapping[str, Any]) -> Sequence[str]:
        """See `Harness.protected`: the tests too."""
        return (*PROTECTED, "tests", "tests/*")

    def run_tests(self, box: SyncSandbox, row: Mapping[str, Any], *, timeout_s: float) -> tuple[dict[str, str], str]:
        """See `Harness.run_tests`."""
        apply_tests(box, row)
        return run_unittest(box, [*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]], timeout_s=timeout_s)


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
