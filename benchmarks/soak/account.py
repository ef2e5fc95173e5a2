"""What a run that was attacked has kept of what is promised, read from its own records."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.monitor.store.segments import START, Streams
from rollcage.monitor.store.summary import parse

FATES = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
GAP = "learner/logprob_gap_mean"
MAX_GAP = 0.5
"""Mean distance of sampler's and trainer's log-probabilities, in nats: that of other tokens is far above."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise: what it is, whether it held, and the figures that say so."""

    promise: str
    held: bool
    told: str


def take_account(
    run: Path, *, async_ratio: float, resumed_from: Sequence[str | None], leftovers: Sequence[str], attacked: bool
) -> list[Finding]:
    """Return what became of each guarantee.

    Args:
        run: the run folder.
        async_ratio: the run's.
        resumed_from: the newest complete checkpoint at each start of the trainer, None where there was none.
        leftovers: what outlived the run, in words.
        attacked: whether anything was done to it, such that some samples must have failed or been cancelled.
    """
    rows, told = read_metrics(run), read_rows(run, "metrics")
    last = rows[-1]
    gap = max((row[GAP] for row in told if GAP in row), default=math.inf)  # an update without gradient has none
    splits = sum(row["rollout/splits"] for row in rows)
    bound = math.ceil(async_ratio)
    stalest = max(row["rollout/staleness_max"] for row in told)
    open_accounts = [
        row["policy_version"] for row in told if row["account/started"] != sum(row[f"account/{fate}"] for fate in FATES)
    ]
    counts = ", ".join(f"{last[f'account/{fate}']:.0f} {fate.replace('_', ' ')}" for fate in FATES)
    reasons = _failures(run)
    lost = last["account/failed"] + last["account/cancelled"]
    starts = [row["resumed_from"] for row in read_rows(run, "events") if row["event"] == "start"]
    names = [Path(start).name if start else None for start in starts]
    versions = [int(row["policy_version"]) for row in rows]
    partial = [path.name for path in (run / "checkpoints").glob(".partial-*")]
    return [
        Finding(
            "token in, token out",
            gap < MAX_GAP,
            f"log-probability gap at most {gap:.3f} nats in the mean of a batch; {splits:.0f} splits",
        ),
        Finding(
            "freshness", stalest <= bound, f"the stalest sample was {stalest:.0f} versions old, of {bound} allowed"
        ),
        Finding(
            "conservation",
            not open_accounts,
            f"{last['account/started']:.0f} started = {counts}"
            + (
                f"; not closed at versions {open_accounts[:5]}"
                if open_accounts
                else f", at each of {len(told)} updates"
            ),
        ),
        Finding(
            "isolation",
            bool(reasons) or not attacked or lost > 0,
            f"{len(rows)} updates beside failures: "
            + (", ".join(f"{n} {why}" for why, n in reasons.items()) or "none"),
        ),
        Finding(
            "resume",
            _is_one_by_one(versions) and _follow(names, resumed_from),
            f"versions 1 to {versions[-1]}, each trained; {len(names) - 1} resumes, each from the newest checkpoint",
        ),
        Finding(
            "cleanliness",
            not leftovers and not partial,
            "nothing outlived it" if not leftovers and not partial else "; ".join([*leftovers[:5], *partial[:5]]),
        ),
        _replayed(run),
    ]


def _failures(run: Path) -> Counter[str]:
    reasons = Counter[str]()
    for _, line in Streams(run).lines("trajectories", START):  # one by one: hours of episodes fill the memory
        row = parse(line)
        if row and (failure := row.get("failure")):
            reasons[f"{failure['kind']}/{failure['reason']}"] += 1
    return reasons


def _is_one_by_one(versions: Sequence[int]) -> bool:
    return list(versions) == list(range(1, len(versions) + 1))


def _follow(names: Sequence[str | None], expected: Sequence[str | None]) -> bool:
    """Whether the run says of its starts what they should be; one that was killed before it spoke is left out."""
    rest = iter(expected)
    return all(any(name == other for other in rest) for name in names)


def _replayed(run: Path, call: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> Finding:
    """Play recorded episodes again, those that ended as they should."""
    command = [sys.executable, "-m", "rollcage", "replay", str(run)]
    done = call(command, capture_output=True, text=True, timeout=3600.0)
    said = (done.stdout + done.stderr).strip().splitlines()
    return Finding("determinism", done.returncode == 0, said[-1] if said else "replay said nothing")
