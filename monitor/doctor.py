"""What went wrong with a run, in plain words, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rollcage.monitor.alerts.judged import judge
from rollcage.monitor.alerts.rules import RULES
from rollcage.monitor.failures import failures, sample_failures
from rollcage.monitor.sample_shares import numbers
from rollcage.monitor.shares_read import shares_of
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.secrets import masked

_ORDER = {"critical": 0, "warning": 1, "info": 2}
_OUT_OF_MEMORY = re.compile(
    r"out of memory|\boom\b|oom[_-]?kill|memory ran out|memoryerror|cannot allocate|std::bad_alloc", re.IGNORECASE
)
MIN_SAMPLES = 50
"""Fewer in a bucket say nothing about who starves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        rule: its name.
        severity: "critical" where it makes the run useless or ended it.
        title: for people.
        what: what is seen, with numbers.
        why: what it means.
        advice: what to try, the first thing first.
    """

    rule: str
    severity: Literal["critical", "warning", "info"]
    title: str
    what: str
    why: str
    advice: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; the advice as ``try``."""
        fields = asdict(self)
        fields["try"] = list(fields.pop("advice"))
        return fields


def diagnose(reader: RunReader) -> dict[str, Any]:
    """Return ``verdict`` (one sentence), ``healthy`` (nothing critical) and ``findings``, the worst first."""
    status = reader.status()
    events = sample_failures(reader)
    found = [
        *_end(reader, status),
        *_memory(reader, events),
        *_alerts(reader),
        *_failures(reader, events),
        *_starved(reader),
        *_waiting(reader),
        *_gain(reader),
    ]
    found.sort(key=lambda finding: _ORDER[finding.severity])
    worst = [finding for finding in found if finding.severity == "critical"]
    told: dict[str, Any] = masked(
        {
            "verdict": _verdict(status, found, worst),
            "healthy": not worst,
            "findings": [finding.to_json() for finding in found],
        }
    )
    return told


def in_words(diagnosis: Mapping[str, Any]) -> str:
    """Return a diagnosis as text for a terminal; nothing that a model wrote can command it."""
    lines = [diagnosis["verdict"], ""]
    for finding in diagnosis["findings"]:
        lines += [f"[{finding['severity']}] {finding['title']}: {finding['what']}", f"    {finding['why']}"]
        lines += [f"    - {advice}" for advice in finding["try"]] + [""]
    return "".join(_printable(line) + "\n" for line in lines)


def _verdict(status: Mapping[str, Any], found: list[Finding], worst: list[Finding]) -> str:
    state = {
        "stopped": "was stopped",
        "dead": "ended without a word",
        "failed": "has failed",
        "unknown": "cannot be told to run or not",
    }
    of, made = status["num_updates"], status["policy_version"]
    run = f"The run {state.get(status['state'], 'is ' + status['state'])}, {made} of {of} updates made"
    if worst:
        return f"{run}: {worst[0].title.lower()}" + (f", and {len(found) - 1} more." if len(found) > 1 else ".")
    warnings = [finding for finding in found if finding.severity == "warning"]
    if warnings:
        rest = f", and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        return f"{run}. Nothing is broken; worth a look: {warnings[0].title.lower()}{rest}."
    return f"{run}. Nothing wrong was found."


def _end(reader: RunReader, status: Mapping[str, Any]) -> Iterator[Finding]:
    resume = f"rollcage train --resume {reader.path}"
    if status["state"] == "failed":
        error = str(status["error"] or "no reason was written")
        advice = ["Mend what the message says.", f"{resume}  goes on from the last checkpoint."]
        yield Finding("failed", "critical", "The run has failed", error, "It ended before its last update.", (*advice,))
    elif status["state"] == "dead":
        yield Finding(
            "dead",
            "critical",
            "The run ended without a word",
            f"no process has it any more, and it made {status['policy_version']} of {status['num_updates']} updates",
            "Its process was killed: by somebody, by a reboot, or by the system because memory ran out.",
            (
                f"{resume}  goes on from the last checkpoint.",
                "dmesg | grep -i 'out of memory'  tells whether it was memory.",
                "RUN/logs may hold the last words of engines and ranks.",
            ),
        )
    elif status["state"] == "stopped":
        yield Finding(
            "stopped",
            "warning",
            "The run was stopped",
            f"somebody ended it after {status['policy_version']} of {status['num_updates']} updates",
            "Ctrl-C or SIGTERM: it closed everything and left.",
            (f"{resume}  goes on from the last checkpoint.",),
        )
    elif status["policy_version"] == 0 and status["state"] != "running":
        yield Finding("no_update", "warning", "No update was made", "there are no training statistics", "It is empty.")


def _memory(reader: RunReader, events: list[dict[str, Any]]) -> Iterator[Finding]:
    others = reader.events(limit=200, kinds=("engine_died", "failed"))[1]
    told = [(str(it.get("reason", "")), str(it.get("message") or it.get("error") or "")) for it in (*events, *others)]
    hits = [message or reason for reason, message in told if _OUT_OF_MEMORY.search(f"{reason} {message}")]
    if hits:
        yield Finding(
            "out_of_memory",
            "critical",
            "Memory ran out",
            f"{len(hits)} failures say so; the newest: {_short(hits[-1])}",
            "An environment, an engine or a learner rank needs more memory than it may have.",
            (
                "Engines: lower engine.max_batch_size or engine.max_context_tokens.",
                "Learner: lower learner.micro_batch_tokens, or shard more.",
                "Environments: lower rollout.num_slots, or give their sandboxes more memory.",
            ),
        )


def _alerts(reader: RunReader) -> Iterator[Finding]:
    judged = judge(reader)
    times: dict[str, int] = {}
    for alert in judged["history"]:
        if alert.get("state") == "firing":
            times[str(alert.get("rule"))] = times.get(str(alert.get("rule")), 0) + 1
    last = {str(alert.get("rule")): alert for alert in judged["history"]}
    for state in judged["rules"]:
        rule = RULES[state["rule"]]
        if state["state"] == "firing":
            told = str(last.get(rule.name, {}).get("message") or state["message"])
            yield Finding(rule.name, rule.severity, rule.title, told, rule.why, rule.advice)
        elif times.get(rule.name):
            often = "once" if times[rule.name] == 1 else f"{times[rule.name]} times"
            told = f"it fired {often} and is over now"
            yield Finding(rule.name, "info", rule.title, told, rule.why, rule.advice)


def _failures(reader: RunReader, events: list[dict[str, Any]]) -> Iterator[Finding]:
    if not events:
        return
    series = reader.series(["account/started"], max_points=4)["account/started"][1]
    started = max(float(series[-1]) if len(series) else 0.0, float(len(events)))
    for group in failures(events)[:5]:
        share, message = group["count"] / started, group["messages"][0]
        most = f": {_short(message['message'])} ({message['count']} times)" if message["message"] else ""
        yield Finding(
            f"failures {group['kind']}/{group['reason']}",
            "warning" if share >= 0.05 else "info",
            f"Samples fail: {group['kind']}, {group['reason']}",
            f"{group['count']} of {started:.0f} samples ({share:.1%}); most frequent{most}",
            _KINDS.get(group["kind"], "They have no reward, and are not trained on."),
            _REASONS.get(group["reason"], ("The environments page shows each with its traceback.",)),
        )


_KINDS = {
    "infra": "The infrastructure failed, not the policy: such samples have no reward and are not trained on.",
    "model": "What the model did could not be played on: such samples have no reward and are not trained on.",
    "task": "The task itself is broken: no attempt at it can be scored.",
}
_REASONS = {
    "env_timeout": ("Raise rollout.env_deadline_s if the environment is only slow.", "Find out what it waits for."),
    "episode_timeout": ("Raise rollout.episode_deadline_s, or lower the environment's max_turns.",),
    "turn_timeout": ("Raise rollout.turn_deadline_s, add engines (num_engines), or lower rollout.num_slots.",),
    "env_died": ("Look for its last words in the message.", "Placement process or sandbox keeps others alive."),
    "env_oom": ("Give its sandbox more memory.",),
    "env_raised": ("The traceback names the line: rollcage check ENV_ID tries the environment without training.",),
    "engine_died": ("RUN/logs has its last words; rollcage train --resume RUN brings all engines back.",),
    "engine_error": ("RUN/logs has the engines' own messages.",),
    "context_full": ("Raise engine.max_context_tokens, or lower the environment's max_turns.",),
}


def _starved(reader: RunReader) -> Iterator[Finding]:
    """Find the slow, long or hard tasks that are sampled and hardly ever trained on."""
    for dimension, buckets in shares_of(reader).items():
        totals = numbers(dimension, buckets)
        trained = {upper: outcomes["trained"] for upper, outcomes in buckets.items()}
        whole = sum(trained.values()) / max(sum(totals.values()), 1e-9)
        for upper, number in totals.items():
            share = trained.get(upper, 0) / number if number else 0.0
            if number >= MIN_SAMPLES and whole > 0.2 and share < whole / 3:
                what = dimension.replace("_s", " (s)").replace("_tokens", " (tokens)")
                yield Finding(
                    f"starved {dimension} {upper}",
                    "warning",
                    f"Some tasks starve: {what} up to {upper}",
                    f"{share:.0%} of their {number:.0f} samples are trained on, of all samples {whole:.0%}",
                    "What is slow, long or hard is sampled and then lost, so that the policy hardly learns from it.",
                    (
                        "Raise rollout.step_deadline_s, or give more time (rollout.async_ratio).",
                        "Cancel fewer late ones: lower rollout.extra_members or rollout.extra_groups.",
                    )
                    if dimension != "difficulty"
                    else ("Raise rollout.group_size, or let rollout.group_filter keep more of them.",),
                )


def _waiting(reader: RunReader) -> Iterator[Finding]:
    seconds = {
        name: float(values.sum())
        for name, (_, values) in reader.series(["time/wait_s", "time/train_s", "time/publish_s"], 1_000_000).items()
    }
    total = sum(seconds.values())
    if total <= 0:
        return
    wait, train = seconds["time/wait_s"] / total, seconds["time/train_s"] / total
    if wait > 0.5:
        yield Finding(
            "learner_waits",
            "info",
            "The learner waits for samples",
            f"{wait:.0%} of its time",
            "Sampling is the bottleneck.",
            (
                "More engines (num_engines), more slots (rollout.num_slots), or a higher rollout.async_ratio.",
                "rollcage simulate plan  proposes a split.",
            ),
        )
    elif train > 0.9:
        yield Finding(
            "engines_wait",
            "info",
            "Training is the bottleneck",
            f"the learner trains {train:.0%} of the time",
            "The engines could sample more than is trained on.",
            ("More learner ranks, larger learner.micro_batch_tokens, or fewer engines.",),
        )


def _gain(reader: RunReader) -> Iterator[Finding]:
    rates: dict[tuple[str, str], dict[str, Any]] = {}
    for row in reader.evaluations():
        if row.get("success_rate") is not None and row.get("success_ci95"):
            rates[str(row.get("when")), str(row.get("name"))] = row
    for (when, name), after in rates.items():
        before = rates.get(("before", name))
        if when != "after" or before is None:
            continue
        gain = after["success_rate"] - before["success_rate"]
        told = f"{name}: success {before['success_rate']:.1%} before, {after['success_rate']:.1%} after"
        if after["success_ci95"][1] < before["success_ci95"][0]:
            yield Finding(
                "worse",
                "critical",
                "Training has made it worse",
                told,
                "The intervals do not overlap.",
                ("Lower learner.lr.", "Look for the update at which the reward fell."),
            )
        elif after["success_ci95"][0] <= before["success_ci95"][1]:
            yield Finding(
                "no_gain",
                "warning",
                "No gain that could be told from chance",
                f"{told} ({100 * gain:+.1f} points)",
                "The intervals overlap.",
                ("Train longer, or on more tasks at a time.", "Evaluate on more tasks (eval.num_tasks)."),
            )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def _printable(text: str) -> str:
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
