"""How rollcage/SWEBench-v0's tasks are set up and tested: the official images' layout, scripts, parsers and grading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from typing import Any

from rollcage.envs.swe import official
from rollcage.envs.swe.build import COMMIT_ALL
from rollcage.envs.swe.git_objects import DATE
from rollcage.envs.swe.grading import NotJudged, NotStarted, apply_tests
from rollcage.envs.swe.patches import PROTECTED, protected, touched, whole
from rollcage.envs.swe.sources import CUT
from rollcage.sandbox.sync import SyncSandbox

_MAX_LOG_BYTES = 64 << 20
_STANDS = 'git rev-parse HEAD && (git rev-parse -q --verify "$1^{commit}" || git rev-parse HEAD)'
_SET_UP_S = 600.0
_RUN = "cat >/tmp/evaluate.sh && exec bash /tmp/evaluate.sh </dev/null 2>&1"
_CUT_HERE = f"""{COMMIT_ALL}
old=$(mktemp -d) new=$(mktemp -d)
head=$(git rev-parse HEAD)
if [ "$2" = alone ]; then
  export GIT_AUTHOR_DATE='{DATE}' GIT_COMMITTER_DATE='{DATE}'
  head=$(git -c user.name=Rollcage -c user.email=rollcage@localhost commit-tree -m Base "HEAD^{{tree}}")
  git update-ref HEAD "$head"
fi
mv .git "$old/git"
sh -c "$1" cut "$old/git" "$head" "$new/git" || {{ mv "$old/git" .git; exit 1; }}
mv "$new/git" .git
git reset -q
rm -rf "$old" "$new"
"""
"""Makes the repository anew, of what lies before its work tree's commit, or of that commit alone."""


class BenchHarness:
    """See `Harness`.

    Attributes:
        is_ours: whether the image was built here: then its repository ends with the base commit already.
        test_s: how long the official script took at the last judgement, in seconds.
    """

    is_ours = True
    test_s = 0.0

    def prepare(self, box: SyncSandbox, row: Mapping[str, Any]) -> str:
        """See `Harness.prepare`."""
        has_bug = bool(row.get("patch_is_bug"))
        if has_bug:  # which the commits before it do not have
            made = box.exec(("git", "apply", "--whitespace=nowarn", "-"), stdin=whole(row["patch"].encode()))
            if not made.ok:
                raise NotJudged(f"{row['instance_id']}: its bug does not apply: {made.stderr_text.strip()}")
        if has_bug or not self.is_ours:
            command = ("bash", "-ec", _CUT_HERE, "bash", CUT, "alone" if has_bug else "")
            cut = box.exec(command, timeout_s=_SET_UP_S)
            if not cut.ok:
                raise NotJudged(f"{row['instance_id']}: its repository could not be cut: {cut.stderr_text.strip()}")
        return self._commits(box, row)[0]

    def protected(self, row: Mapping[str, Any]) -> Sequence[str]:
        """See `Harness.protected`: the files of the hidden tests too; but never what the official patch changes."""
        wanted = touched(row["patch"].encode())
        patterns = (*PROTECTED, *map(escape, official.test_files(row)))
        return [pattern for pattern in patterns if not protected(wanted, [pattern])]

    def run_tests(self, box: SyncSandbox, row: Mapping[str, Any], *, timeout_s: float) -> tuple[dict[str, str], str]:
        """See `Harness.run_tests`: the official script, its log read by the official parser and graded officially."""
        _, base = self._commits(box, row)
        apply_tests(box, row, only_try=True)
        script = official.evaluation_script(row, base).encode()
        env = {} if self.is_ours else {"PIP_NO_INDEX": "1"}  # there is no network: do not wait for one
        done = box.exec(("sh", "-c", _RUN), stdin=script, env=env, timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES)
        log, self.test_s = done.stdout_text, done.duration_s
        if not official.started(log):
            last = (log.strip().splitlines() or [f"exit code {done.exit_code}"])[-1]
            raise NotStarted(f"{row['instance_id']}: its tests did not start: {last}")
        return official.grade(row, log).tests, log

    def _commits(self, box: SyncSandbox, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the commit at which work begins, and the base commit (the same, where the row's is not there)."""
        found = box.exec(("sh", "-c", _STANDS, "sh", row["base_commit"]))
        commits = found.stdout_text.split()
        if not found.ok or len(commits) != 2:
            raise NotJudged(f"{row['instance_id']}: {official.FOLDER} holds no repository: {found.stderr_text.strip()}")
        return commits[0], commits[1]
