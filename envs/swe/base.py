"""What every software engineering environment is: an issue, an agent's sandbox, tools, and a judge at the end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rollcage.envs.core import Turn
from rollcage.envs.swe.exploits import EXPLOITS
from rollcage.envs.swe.grading import Harness, NotJudged, Verdict, judge, judge_again
from rollcage.envs.swe.patches import TAKE, whole
from rollcage.envs.swe.sandboxed import SandboxedEnv
from rollcage.envs.tasks import Task, TaskSet
from rollcage.envs.tools import (
    BASH,
    EDIT,
    PYTHON,
    SUBMIT,
    VIEW,
    Malformed,
    Tool,
    Toolbox,
    ToolCall,
    example,
    parse_calls,
    usage,
    write_call,
)
from rollcage.envs.tools.toolbox import MAX_COMMAND_BYTES
from rollcage.errors import RollcageError, UserError, did_you_mean
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.sync import SyncSandbox
from rollcage.sandbox.types import SandboxSpec

_MAX_PATCH_BYTES = 16 << 20
_GOLD = "/tmp/gold.patch"
_RESTARTS = ("fail", "restore")
_MAX_RESTARTS = 3


class Work(NamedTuple):
    """Where an episode stands.

    Attributes:
        patch: what the work tree adds to the base commit, as of the last snapshot; None: nothing has been done yet.
        num_malformed_calls: so far.
        num_restarts: sandboxes lost so far, after which the episode went on.
    """

    patch: bytes | None = None
    num_malformed_calls: int = 0
    num_restarts: int = 0


class SWEEnv(SandboxedEnv):
    """An issue to resolve in a repository; see `rollcage.envs.swe.env.SWEMiniEnv` for what users are told.

    The agent's sandbox is made at the first tool call of an episode. It is no part of `snapshot` and of pickles: these
    hold the work tree's changes, from which a new sandbox goes on.

    Args:
        tasks: rows in SWE-bench's format.
        harness: how they are set up and tested.
        spec: of the agent's sandbox and of the judge's.
        endpoints, command_timeout_s, test_timeout_s, max_output_chars, restart: see the subclass.
        settings: of `TextEnv`.
    """

    metadata: dict[str, Any] = {**SandboxedEnv.metadata, "step_s": 60.0}  # noqa: RUF012
    tools: ClassVar[tuple[Tool, ...]] = (BASH, PYTHON, VIEW, EDIT, SUBMIT)
    state: Work

    def __init__(
        self,
        tasks: TaskSet,
        harness: Harness,
        spec: SandboxSpec,
        *,
        endpoints: str | Sequence[str],
        command_timeout_s: float,
        test_timeout_s: float,
        max_output_chars: int,
        restart: str,
        **settings: Any,
    ) -> None:
        for name, value in (("command_timeout_s", command_timeout_s), ("test_timeout_s", test_timeout_s)):
            if not isinstance(value, int | float) or not 0 < value <= 86_400:
                raise UserError(f"{name} must be a number of seconds above 0, not {value!r}.")
        if not isinstance(max_output_chars, int) or max_output_chars < 200:
            raise UserError(f"max_output_chars must be an integer of at least 200, not {max_output_chars!r}.")
        if restart not in _RESTARTS:
            hint = did_you_mean(str(restart), _RESTARTS)
            raise UserError(f"unknown restart policy {restart!r} (known: {', '.join(_RESTARTS)}).{hint}")
        super().__init__(tasks, spec, endpoints=endpoints, **settings)
        self.state = Work()
        self.restart = restart
        self.command_timeout_s, self.test_timeout_s = float(command_timeout_s), float(test_timeout_s)
        self.max_output_chars = max_output_chars
        self.verdict: Verdict | None = None
        """Of the last episode that was handed in: the tests one by one, and what they printed."""
        self._harness = harness
        self._start = ""

    def begin(self, task: Task) -> str:
        """See `TextEnv.begin`."""
        self._drop_box()
        self._ready(task)
        self.state, self.verdict = Work(), None
        return (
            f"You are in {self._spec.workdir}, a git repository with an issue. Resolve it: change the code such that"
            " hidden tests of the issue pass and the other tests still do. Then hand it in. Changes to the tests"
            " themselves do not count.\n\n"
            f"Each message holds one or more tool calls, which are carried out in their order:\n{usage(self.tools)}\n\n"
            f"A call looks like this:\n{example(self.tools)}\n\n"
            f"The issue:\n\n{task.data['problem_statement'].strip()}\n"
        )

    def reset_info(self) -> Mapping[str, Any]:
        """See `TextEnv.reset_info`."""
        return self._own_info("open")

    def advance(self, action: str) -> Turn:
        """See `TextEnv.advance`."""
        calls = parse_calls(action, self.tools)
        if not calls:
            calls = [Malformed("the message holds no tool call")]
        is_second_try = False
        while True:
            before = self.state
            try:
                turn = self._carry_out(calls)
                if self.restart == "restore":
                    self._checkpoint()
                return turn
            except (SandboxError, NotJudged) as error:
                self._drop_box()
                lost = isinstance(error, SandboxError) and self.restart == "restore"
                if not lost or is_second_try or before.num_restarts == _MAX_RESTARTS:
                    text = "The sandbox has failed; this episode does not count."
                    return Turn(text, info=self._own_info("failed", error=error), failure="infra")
                is_second_try, self.state = True, before._replace(num_restarts=before.num_restarts + 1)

    def _carry_out(self, calls: Sequence[ToolCall | Malformed]) -> Turn:
        answers: list[str] = []
        toolbox: Toolbox | None = None
        for position, call in enumerate(calls):
            if isinstance(call, Malformed):
                answers.append(self._refuse(call, num_left=len(calls) - position - 1))
                break
            if call.name == SUBMIT["name"]:
                return self._hand_in()
            if toolbox is None:
                box = self._open_box()
                toolbox = Toolbox(box, timeout_s=self.command_timeout_s, max_output_chars=self.max_output_chars)
            answers.append(toolbox.call(call))
        return Turn("\n\n".join(answers), info=self._own_info("open"))

    def gold(self) -> str:
        """Return the action that takes all changes back, applies the official patch and hands it in."""
        row = self.task.data
        start = shlex.quote(self._start) if self._box is not None else "HEAD"
        patch = whole(row["patch"].encode()).decode()
        apply = "git apply -R" if row.get("patch_is_bug") else "git apply"
        command = f"git reset -q --hard {start} && git clean -qfd && {apply}"
        if len(patch.encode()) < MAX_COMMAND_BYTES // 2:
            return write_call("bash", command=f"{command} <<'ROLLCAGE'\n{patch}ROLLCAGE") + write_call("submit")
        calls = [("bash", {"command": f"rm -f {_GOLD}"}), ("edit", {"path": _GOLD, "old": "", "new": patch})]
        calls += [("bash", {"command": f"{command} {_GOLD}"}), ("submit", {})]
        return "".join(write_call(name, **arguments) for name, arguments in calls)

    def empty(self) -> str:
        """Return the action that hands in nothing."""
        return write_call("submit")

    def expert(self) -> str:
        """See `TextEnv.expert`: the official patch."""
        return self.gold()

    def exploits(self) -> Sequence[str]:
        """See `TextEnv.exploits`."""
        return [write_call("bash", command=command) + write_call("submit") for command in EXPLOITS.values()]

    def random_action(self, rng: np.random.Generator) -> str:
        """See `TextEnv.random_action`: a look around, or the end."""
        looks = ("ls", "git log --oneline", "cat README.md", "git status --short", "ls tests", "wc -l README.md")
        choice = int(rng.integers(len(looks) + 2))
        if choice < len(looks):
            return write_call("bash", command=looks[choice])
        return write_call("view", path="README.md") if choice == len(looks) else write_call("submit")

    def patch(self) -> bytes:
        """Return what the work tree adds to what it was at the start, new files included.

        b"" where it cannot be had: the repository's objects are gone, or it is larger than 16 MiB.

        Raises:
            SandboxError: the sandbox failed.
        """
        if self._box is None:
            return self.state.patch or b""
        command = ("sh", "-c", TAKE, "sh", self._start)
        taken = self._box.exec(command, max_output_bytes=_MAX_PATCH_BYTES, timeout_s=60.0)
        if not taken.ok or taken.truncated:
            return b""
        return taken.stdout

    def snapshot(self) -> bytes:
        """See `TextEnv.snapshot`: the work tree's changes are in it; what is elsewhere in the sandbox is not."""
        self._checkpoint()
        return super().snapshot()

    def restore(self, snapshot: bytes) -> None:
        """See `TextEnv.restore`."""
        self._drop_box()
        super().restore(snapshot)

    def __getstate__(self) -> dict[str, Any]:
        self._checkpoint()
        return super().__getstate__()

    def _checkpoint(self) -> None:
        if self._box is not None:
            self.state = self.state._replace(patch=self.patch())

    def _refuse(self, call: Malformed, *, num_left: int) -> str:
        self.state = self.state._replace(num_malformed_calls=self.state.num_malformed_calls + 1)
        left = f" The {num_left} after it were not carried out." if num_left else ""
        return f"That is no valid tool call: {call.why}.{left} A call looks like this:\n{example(self.tools)}"

    def _hand_in(self) -> Turn:
        patch = self.patch()
        self._drop_box()
        self.verdict = verdict = judge_again(self._judge, patch)
        text = {"resolved": "Resolved.", "unresolved": "Not resolved: tests fail."}.get(
            verdict.status, "Not resolved: the patch could not be applied."
        )
        return Turn(text, float(verdict.resolved), True, verdict.resolved, self._own_info(verdict.status, verdict))

    def _judge(self, patch: bytes) -> Verdict:
        with self._for_now() as box:
            return judge(self._harness, box, self.task.data, patch, timeout_s=self.test_timeout_s)

    def _open_box(self) -> SyncSandbox:
        if self._box is None:
            box = self._create()
            try:
                self._start = self._harness.prepare(box, self.task.data)
                if self.state.patch:
                    applied = box.exec(("git", "apply", "--whitespace=nowarn", "-"), stdin=self.state.patch)
                    if not applied.ok:
                        raise NotJudged(f"{self.task.id}: the snapshot's changes could not be made again")
            except BaseException:
                self._leased().delete(box)
                raise
            self._box = box
        return self._box

    def _own_info(
        self, status: str, verdict: Verdict | None = None, error: RollcageError | None = None
    ) -> dict[str, Any]:
        reason = "not_judged" if isinstance(error, NotJudged) else type(error).__name__
        return {
            "status": status,
            "fail_to_pass": verdict.fail_to_pass if verdict else None,
            "pass_to_pass": verdict.pass_to_pass if verdict else None,
            "ignored_paths": list(verdict.ignored) if verdict else [],
            "num_malformed_calls": self.state.num_malformed_calls,
            "restarted": self.state.num_restarts,
            "failure_reason": reason if error else None,
            "failure_message": str(error) if error else None,
        }
