"""The checker: does an environment keep every promise of the suite? Behind `rollcage check`, for any environment."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollcage.envs.checks import CHECKS, CheckFailed, NotOffered, Subject
from rollcage.envs.checks.subject import SECONDS, one_line
from rollcage.envs.placements.base import EnvConfig
from rollcage.envs.placements.worker_process import make_request
from rollcage.envs.registration import find_spec
from rollcage.errors import UserError, did_you_mean

LIMIT_S = 180.0
"""A check that takes so much longer than it may has failed."""
TELL_S = 5.0
"""So often a slow check says how far it is."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: of the check.
        ok: the promise is kept, or is about something that the environment does not offer.
        detail: what was tried, or what is broken.
        offered: False where there was nothing to check.
    """

    name: str
    ok: bool
    detail: str
    offered: bool = True

    def __str__(self) -> str:
        """Return one line."""
        mark = "FAIL" if not self.ok else "ok" if self.offered else "-"
        return f"{mark:4}  {self.name:12} {self.detail}"


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes:
        env_id: the environment.
        results: one for each check.
    """

    env_id: str
    results: list[CheckResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(result.ok for result in self.results)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [result.name for result in self.results if not result.ok]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        return {"env_id": self.env_id, "ok": self.ok, "results": [asdict(result) for result in self.results]}


def check(
    env_id: str,
    *,
    only: Sequence[str] = (),
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda line: None,
    on_result: Callable[[CheckResult], None] = lambda result: None,
    **kwargs: Any,
) -> Report:
    """Check an environment, yours included; see `rollcage.envs.checks.CHECKS` for what is checked.

    Args:
        env_id: registered id, "module:namespace/Name-v0" included.
        only: names of checks to run; empty for all.
        seconds: so long a check goes on with new episodes (the reward attack: twice as long). Two episodes are always
            played; an environment whose episodes take seconds needs more time to have as many as others.
        progress: called with a line before each check, and now and then in a slow one.
        on_result: called with each result as soon as it is there.
        **kwargs: arguments of the environment.

    Raises:
        UserError: unknown id, check or argument.
    """
    for name in only:
        if name not in CHECKS:
            raise UserError(f"unknown check {name!r} (known: {', '.join(CHECKS)}).{did_you_mean(name, CHECKS)}")
    spec = find_spec(env_id)
    config = EnvConfig(env_id, kwargs)
    try:
        make_request(config)
        placement = "process"
    except UserError:
        placement = "inline"
    report = Report(spec.id)
    for name, function in CHECKS.items():
        if only and name not in only and name != "make":
            continue
        progress(f"{spec.id}: {name} ...")
        subject = Subject(config, placement, seconds, _NowAndThen(progress, f"{spec.id}: {name}"))
        result = run_check(name, function, subject, LIMIT_S + 4 * seconds)
        report.results.append(result)
        on_result(result)
        if name == "make" and not result.ok:
            break  # nothing else can be tried
    return report


class _NowAndThen:
    """Passes a line on where the last one is some seconds ago."""

    def __init__(self, tell: Callable[[str], None], what: str) -> None:
        self._tell, self._what, self._told_at = tell, what, time.monotonic()

    def __call__(self, how: str) -> None:
        if time.monotonic() - self._told_at > TELL_S:
            self._told_at = time.monotonic()
            self._tell(f"{self._what}: {how}")


def run_check(name: str, function: Callable[[Subject], str], subject: Subject, limit_s: float = LIMIT_S) -> CheckResult:
    """Run one check in a thread of its own, so that an environment that hangs fails it instead of stopping all.

    Raises:
        UserError: an argument of the environment is wrong.
    """
    outcome: list[CheckResult | UserError] = []

    def run() -> None:
        try:
            outcome.append(CheckResult(name, True, function(subject)))
        except NotOffered as error:
            outcome.append(CheckResult(name, True, str(error), offered=False))
        except CheckFailed as error:
            outcome.append(CheckResult(name, False, one_line(str(error))))
        except UserError as error:
            outcome.append(error if name == "make" else CheckResult(name, False, one_line(str(error))))
        except BaseException as error:  # noqa: BLE001  (the boundary: anything an environment raises is a finding)
            outcome.append(CheckResult(name, False, one_line(f"{type(error).__name__}: {error}") + _where(error)))

    thread = threading.Thread(target=run, name=f"rollcage-check-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    result = outcome[0] if outcome else CheckResult(name, False, f"did not finish within {limit_s:g} s")
    if isinstance(result, UserError):
        raise result
    return result


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "checker.py" not in frame.filename]
    return f"  ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
