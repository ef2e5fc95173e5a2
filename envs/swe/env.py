"""rollcage/SWEMini-v0: issues in ten small repositories."""

from __future__ import annotations

from collections.abc import Sequence

from rollcage.envs.swe.base import SWEEnv
from rollcage.envs.swe.mini_harness import MiniHarness
from rollcage.envs.swe.rows import as_tasks
from rollcage.envs.swe.suite import mini_rows
from rollcage.sandbox.images import BASE_IMAGE
from rollcage.sandbox.types import SandboxSpec


class SWEMiniEnv(SWEEnv):
    """Resolve an issue in a small repository.

    ## Description
    Ten Python repositories of our own with a bug, an issue, tests and an official patch, in SWE-bench's row format:
    software engineering that takes seconds. The agent works in a sandbox of the sandbox manager, with no network, and
    hands in its work tree. The patch is then applied to a fresh copy in a sandbox that the agent has never touched, and
    the hidden tests decide. It needs Docker and the image rollcage-base (``rollcage sandbox doctor`` says what is
    missing).

    ## Action Space
    `UnicodeText`: a message with tool calls, in any of the formats of `rollcage.envs.tools.formats` (JSON in
    ``<tool_call>`` tags, a fenced ``bash`` block, and others), carried out in their order, 8 at most. Tools: ``bash``,
    ``python``, ``view``, ``edit``, ``submit``. A message without a call, or with a malformed one, is answered with what
    is wrong; calls after a malformed one are not carried out.

    ## Observation Space
    `UnicodeText`. First the tools and the issue; then what the calls returned: output and exit code, without its middle
    where it is longer than ``max_output_chars``.

    ## Rewards
    1 when every test of FAIL_TO_PASS and of PASS_TO_PASS passes, else 0. Tests that are skipped or do not run have not
    passed. Changes to ``tests`` and to files that say how tests run (conftest.py, sitecustomize.py, .pth files) do not
    count.

    ## Episode End
    Terminated by ``submit``; truncated after ``max_turns``, without a verdict. Where a sandbox fails or a test run
    never starts, the episode is truncated with ``failure`` "infra": it says nothing about the agent.

    ## Info
    - ``status``: "open"; at the end "resolved", "unresolved", "patch_apply_failed" or "failed".
    - ``fail_to_pass``: share of the tests for the issue that pass, 0 to 1; None before the end.
    - ``pass_to_pass``: share of the other tests that still pass.
    - ``ignored_paths``: what the patch changes and does not count.
    - ``num_malformed_calls``: messages so far with a malformed call, or without any.
    - ``restarted``: sandboxes lost so far, after which the episode went on in a new one.
    - ``failure_reason``, ``failure_message``: what failed, where ``failure`` is "infra": in a word, and in full.

    ## Tasks
    Splits train (6) and test (4), made by `rollcage.envs.swe.suite`, the same on every machine. The whole history of a
    repository is its base commit.

    ## Policies
    ``gold`` (also ``expert``) hands in the official patch, ``empty`` nothing: ``rollcage eval rollcage/SWEMini-v0
    --policy gold``. ``random_action`` looks around, or hands in nothing.

    ## Placement
    Every episode has sandboxes of its own, made where the class runs: placement ``sandbox`` therefore runs the class in
    threads of this process, from where it reaches the sandbox manager. Worker processes (``process``) have a manager
    each.

    ## Limits
    Tests run in the same process as the code that they test, as everywhere in SWE-bench: code that looks for the test
    runner in its own memory, or that returns objects equal to everything, can deceive them. A snapshot holds the
    changes in the work tree, not what lies elsewhere in the sandbox or what .gitignore names, and no processes.

    ## Arguments
    - ``split``: "train" or "test".
    - ``endpoints``: Docker daemons; empty: this user's sandbox service where one runs, else the daemon that the docker
      command uses. "process:" needs no Docker and isolates nothing: for policies that you trust.
    - ``image``: the sandboxes' image; it must have Python and git.
    - ``memory_mib``: memory limit of a sandbox.
    - ``command_timeout_s``: for the commands of one message together.
    - ``test_timeout_s``: for the tests; those that have not ended by then have not passed.
    - ``max_output_chars``: longest output of one call that the agent sees, at least 200.
    - ``restart``: what becomes of an episode whose sandbox is lost: "fail": it ends as an infrastructure failure;
      "restore": it goes on in a new one, from the work tree as it was after the turn before (three times at most).
    - ``max_turns``: turns until truncation; None for no limit.
    - ``render_mode``: None or "ansi".

    Raises:
        UserError: at the first `reset`, where there is no Docker or no image; the message says what to do.

    ## Version History
    - v0: first version.
    """

    def __init__(
        self,
        *,
        split: str = "train",
        endpoints: str | Sequence[str] = (),
        image: str = BASE_IMAGE,
        memory_mib: int = 512,
        command_timeout_s: float = 20.0,
        test_timeout_s: float = 20.0,
        max_output_chars: int = 8_000,
        restart: str = "fail",
        max_turns: int | None = 30,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            as_tasks("swe-mini", mini_rows(), licence="Apache-2.0"),
            MiniHarness(),
            SandboxSpec(image=image, workdir="/work/repo", memory_bytes=memory_mib << 20, ttl_s=4 * 3600.0),
            endpoints=endpoints,
            command_timeout_s=command_timeout_s,
            test_timeout_s=test_timeout_s,
            max_output_chars=max_output_chars,
            restart=restart,
            split=split,
            max_turns=max_turns,
            render_mode=render_mode,
        )
