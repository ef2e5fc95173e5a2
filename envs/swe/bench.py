"""rollcage/SWEBench-v0: SWE-bench's issues in real repositories, judged officially."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, ClassVar

from rollcage.envs.data import Data, default_split
from rollcage.envs.swe.base import SWEEnv
from rollcage.envs.swe.bench_harness import BenchHarness
from rollcage.envs.swe.datasets import swe_tasks
from rollcage.envs.swe.images import Images, close_all
from rollcage.envs.swe.official import FOLDER, specification
from rollcage.envs.tasks import Task
from rollcage.errors import UserError
from rollcage.sandbox.sync import SyncSandbox
from rollcage.sandbox.types import SandboxSpec

_SLACK_S = 900.0
"""Beside its tests a last step makes two sandboxes, waits for places for them, and takes and applies a patch."""


class SWEBenchEnv(SWEEnv):
    """Resolve a real issue in a real repository.

    ## Description
    SWE-bench: issues of open-source Python projects, each with its repository as it was, the patch that was accepted,
    and the tests that came with it. How a repository is installed and tested, how the tests' log is read, and how it is
    graded is the official package's (``swebench``, extra ``swe``). The agent works in a sandbox without network and
    hands in its work tree; the patch is applied in a fresh sandbox that the agent has never touched, and the official
    script runs the tests there. It needs Docker.

    ## Action Space
    `UnicodeText`: a message with tool calls, in any of the formats of `rollcage.envs.tools.formats`, carried out in
    their order, 8 at most. Tools: ``bash``, ``python``, ``view``, ``edit``, ``submit``. A message without a call, or
    with a malformed one, is answered with what is wrong; calls after a malformed one are not carried out.

    ## Observation Space
    `UnicodeText`. First the tools and the issue; then what the calls returned: output and exit code, without its middle
    where it is longer than ``max_output_chars``.

    ## Rewards
    1 when the instance is resolved, else 0: every test of FAIL_TO_PASS and of PASS_TO_PASS passes (or fails as
    expected, as in the official grading). Stricter than that, a test that is skipped or is not heard of has not passed.
    Changes to the files of the hidden tests, and to files that say how tests run (conftest.py, pytest.ini,
    sitecustomize.py, .pth files), do not count, unless the official patch changes them too.

    ## Episode End
    Terminated by ``submit``; truncated after ``max_turns``, without a verdict. Where a sandbox fails or a test run
    never starts, the episode is truncated with ``failure`` "infra": it says nothing about the agent.

    ## Info
    - ``status``: "open"; at the end "resolved", "unresolved", "patch_apply_failed" or "failed".
    - ``fail_to_pass``: share of FAIL_TO_PASS that passes, 0 to 1; None before the end.
    - ``pass_to_pass``: share of PASS_TO_PASS that still passes.
    - ``ignored_paths``: what the patch changes and does not count.
    - ``num_malformed_calls``: messages so far with a malformed call, or without any.
    - ``restarted``: sandboxes that were lost on the way and replaced.
    - ``failure_reason``, ``failure_message``: what failed, where ``failure`` is "infra".
    - ``image``: what the sandboxes are made of.

    ## Tasks
    SWE-bench Lite (split test, 300 instances), Verified, the full set, or your own rows in the same format; rows of
    SWE-smith, whose ``patch`` makes the bug, too. Rows of repositories that the official table does not have carry a
    ``spec`` of their own: {"python", "pip_packages", "pre_install", "install", "test_cmd", "log_parser": a repository
    of the table whose logs look alike}. Rows of SWE-bench Multimodal are refused. Instances in the ``quarantine``
    (their official patch does not resolve them here; ``rollcage swebench check`` finds out) are left out and listed in
    ``tasks.quarantined``.

    ## Images
    The official image of an instance (or the row's ``image_name``), where a host has it or can pull it; else one that
    ``rollcage swebench build INSTANCE --mirror PATH_OR_URL`` has built, without a registry; else, with ``mirror``, it
    is built at the reset. The repository inside ends with the base commit: nothing that came later is in it.

    ## Policies
    ``gold`` (also ``expert``) hands in the official patch, ``empty`` nothing: ``rollcage eval rollcage/SWEBench-v0
    --policy gold --output DIR`` (call it again after a kill: it goes on). ``random_action`` looks around, or hands in
    nothing.

    ## Limits
    Tests run in the same process as the code that they test, and the official parsers believe what is printed: code
    that prints what a passing test prints can deceive them. Sandboxes have no network: instances whose tests need one
    (most of psf/requests) do not resolve. Own images need the Python of a base image (3.9, 3.11 and 3.13 without a
    registry) and wheels, or sources that build without a compiler; specifications with conda's environment.yml or
    system packages need the official image. Instances from a source distribution have its files, not the commit's.

    ## Arguments
    - ``dataset``: "lite", "verified" or "full"; `rollcage.envs.data` says where its files are looked for. Or "sample":
      four rows of our own suite that take the same way, and need neither data nor network.
    - ``data``: your own rows instead: a file (.jsonl, .jsonl.xz, .json, .parquet), a folder of files, or {split: file
      or folder}.
    - ``data_dir``: the only folder in which ``dataset`` is looked for.
    - ``split``: None for "train" where the data have it, else for the split that they have.
    - ``quarantine``: file of {"instance_id", "reason"}, one a line; None for the one that `rollcage swebench check`
      writes; "" for none.
    - ``endpoints``: Docker daemons; empty: this user's sandbox service where one runs, else the daemon that the docker
      command uses.
    - ``mirror``: path or URL of a git repository that images are built from where there is none; "{repo}" in it stands
      for "owner/name".
    - ``keep_images``: so many of the images that were pulled or built at a reset stay; the ones unused for longest go.
    - ``memory_mib``, ``disk_mib``, ``cpus``: limits of a sandbox. A manager promises no more memory than its host has:
      further sandboxes wait.
    - ``command_timeout_s``: for the commands of one message together.
    - ``test_timeout_s``: for the official script; tests that have not ended by then have not passed.
    - ``max_output_chars``: longest output of one call that the agent sees, at least 200.
    - ``restart``: "fail": an episode whose sandbox is lost ends as an infrastructure failure; "restore": it goes on in
      a new one, from the work tree as it was after the turn before (three times at most).
    - ``max_turns``: turns until truncation; None for no limit.
    - ``render_mode``: None or "ansi".

    Raises:
        UserError: there are no such data; at a `reset`: there is no Docker, or no image, and what to do.
        MissingExtra: at the first `reset`, where the extra ``swe`` is not installed.

    ## Version History
    - v0: first version.
    """

    _unshared: ClassVar[tuple[str, ...]] = (*SWEEnv._unshared, "_held")
    _start_timeout_s: ClassVar[float] = 600.0

    def __init__(
        self,
        *,
        dataset: str = "lite",
        data: Data | None = None,
        data_dir: str | Path | None = None,
        split: str | None = None,
        quarantine: str | Path | None = None,
        endpoints: str | Sequence[str] = (),
        mirror: str = "",
        keep_images: int = 16,
        memory_mib: int = 2048,
        disk_mib: int = 8192,
        cpus: float = 1.0,
        command_timeout_s: float = 60.0,
        test_timeout_s: float = 1800.0,
        max_output_chars: int = 8_000,
        restart: str = "fail",
        max_turns: int | None = 100,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(keep_images, int) or keep_images < 1:
            raise UserError(f"keep_images must be an integer of at least 1, not {keep_images!r}.")
        tasks = swe_tasks(dataset, data, data_dir, quarantine)
        self._bench = BenchHarness()
        super().__init__(
            tasks,
            self._bench,
            SandboxSpec(
                workdir=FOLDER,
                cpus=cpus,
                memory_bytes=memory_mib << 20,
                disk_bytes=disk_mib << 20,
                ttl_s=24 * 3600.0,
            ),
            endpoints=endpoints,
            command_timeout_s=command_timeout_s,
            test_timeout_s=test_timeout_s,
            max_output_chars=max_output_chars,
            restart=restart,
            split=split or default_split(tasks),
            max_turns=max_turns,
            render_mode=render_mode,
        )
        if any(endpoint.startswith("process:") for endpoint in self._endpoints):
            raise UserError("rollcage/SWEBench-v0 needs Docker: its repositories are in images.")
        self.metadata = {**self.metadata, "step_s": 2 * test_timeout_s + _SLACK_S, "reset_s": 3600.0}
        self._mirror, self._keep_images = mirror, keep_images
        self._held: weakref.finalize[[Iterable[IO[str]]], SWEBenchEnv] | None = None

    @property
    def test_s(self) -> float:
        """How long the official script took when the last patch was judged, in seconds."""
        return self._bench.test_s

    def restore(self, snapshot: bytes) -> None:
        """See `TextEnv.restore`."""
        super().restore(snapshot)
        if self.task.data:
            self._ready(self.task)

    def close(self) -> None:
        """See `SWEEnv.close`."""
        super().close()
        self._let_go()

    def _ready(self, task: Task) -> None:
        from rollcage.sandbox.opening import default_endpoint, parse_endpoint

        specification(task.data)  # what is missing is told now, and not by a step
        endpoints = [parse_endpoint(text)[1] for text in self._endpoints or (default_endpoint(),)]
        images = Images(endpoints, mirror=self._mirror, keep=self._keep_images)
        place, held = images.lend(task.data)
        self._let_go()
        self._held = weakref.finalize(self, close_all, held)  # also where nobody closes the environment
        self._bench.is_ours = place.is_ours
        env = {} if place.is_ours else {"BASH_ENV": "/root/.bashrc"}  # there the official images activate conda's
        self._spec = replace(self._spec, image=place.image, user=place.user, env=env)
        super()._ready(task)

    def _create(self) -> SyncSandbox:
        if self._held is None:  # it came here in a pickle
            self._ready(self.task)
        return super()._create()

    def _image_family(self) -> str:
        return "swebench"

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held()

    def _own_info(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return {**super()._own_info(*arguments, **options), "image": self._spec.image}
