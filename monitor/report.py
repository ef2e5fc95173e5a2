"""The report of a run: curves, timeline, evaluations and transcripts in one folder that anyone can open."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.errors import require
from rollcage.monitor.sample_shares import shares_table
from rollcage.monitor.shares_read import shares_of
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.downsample import MOST

Rows = Sequence[Mapping[str, Any]]
Floats = npt.NDArray[np.float64]

_ELAPSED = "time/elapsed_s"
_MAX_POINTS = 4000
"""Of each line: more than a picture has columns."""
_ACCOUNT = ("started", "trained", "filtered", "stale", "failed", "cancelled", "in_flight")

_PANELS = (
    ("reward and success of the rollouts", (("rollout/reward", "reward"), ("rollout/success", "success"))),
    ("staleness (versions)", (("rollout/staleness", "mean"), ("rollout/staleness_max", "max"))),
    ("sampled tokens an episode", (("rollout/sampled_tokens", "mean"),)),
    ("entropy (nats a token)", (("learner/entropy", "mean"),)),
    ("sampler against trainer: |log-probability gap|", (("learner/logprob_gap_mean", "mean"),)),
    ("gradient norm", (("learner/grad_norm", "before clipping"),)),
    (
        "critics: explained variance of the returns",
        (
            ("learner/critic_mean_explained_variance", "their mean"),
            ("learner/critic_explained_variance_after", "after their update"),
        ),
    ),
    (
        "critics: share of tokens masked",
        (
            ("learner/critic_advantage_masked", "no advantage: they agree"),
            ("learner/critic_entropy_masked", "no entropy bonus: they disagree"),
        ),
    ),
    (
        "critics: disagreement (standard deviation of their values)",
        (("learner/critic_disagreement_mean", "mean"), ("learner/critic_disagreement_max", "max")),
    ),
    (
        "attention rhythm: credit of tokens",
        (("learner/rhythm_share_amplified", "share amplified"), ("learner/rhythm_gamma_mean", "mean factor")),
    ),
    ("attention rhythm: WAAD (tokens)", (("learner/rhythm_waad_mean", "mean"),)),
    ("attention rhythm: FAI", (("learner/rhythm_fai_mean", "mean"),)),
)
_NUM_ALWAYS = 6
"""Panels of every run; the others are shown where the run has their numbers."""


def write_report(run: str | Path, *, command: str) -> Path:
    """Write ``RUN/report`` and return it.

    ``curves.png``, ``timeline.png``, ``transcripts.md``, and ``README.md`` that shows them all.

    Args:
        run: a run folder with at least one update.
        command: the command that reproduces the run.

    Raises:
        MissingExtra: matplotlib is not installed.
        UserError: ``run`` is not a run folder.
    """
    require("matplotlib", "train").use("Agg")
    folder = Path(run) / "report"
    with RunReader(run) as reader:
        evaluations = reader.evaluations()
        folder.mkdir(exist_ok=True)
        _plot_curves(folder / "curves.png", reader, evaluations)
        _plot_timeline(folder / "timeline.png", reader)
        (folder / "transcripts.md").write_text(_transcripts(evaluations), encoding="utf-8")
        (folder / "README.md").write_text(_page(Path(run), reader, evaluations, command), encoding="utf-8")
    return folder


def _plot_curves(path: Path, reader: RunReader, evaluations: Rows) -> None:
    from matplotlib import pyplot as plt

    versions, elapsed = reader.series([_ELAPSED], max_points=MOST)[_ELAPSED]
    known = set(reader.metric_names())
    panels = [
        (title, lines)
        for index, (title, lines) in enumerate(_PANELS)
        if index < _NUM_ALWAYS or any(name in known for name, _ in lines)
    ]
    curves = reader.series([name for _, lines in panels for name, _ in lines], max_points=_MAX_POINTS)
    num_rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(num_rows, 2, figsize=(12, 10 * num_rows / 3), constrained_layout=True)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, lines) in zip(axes.flat, panels, strict=False):
        for name, label in [line for line in lines if line[0] in known] or lines:
            at, values = curves[name]
            at_s = np.interp(at, versions, elapsed) if len(versions) else at
            axis.plot(at_s, values, label=label, linewidth=1.2)
        axis.set_title(title)
        axis.set_xlabel("seconds of training")
        axis.grid(alpha=0.3)
    for row in evaluations:
        if row["success_rate"] is None:
            continue
        end_s = elapsed[-1] if row["when"] == "after" and len(elapsed) else 0.0
        low, high = row["success_ci95"]
        rate = row["success_rate"]
        axes.flat[0].errorbar(
            end_s, rate, yerr=[[rate - low], [high - rate]], fmt="o", capsize=4, label=f"{row['when']}, {row['name']}"
        )
    for axis in axes.flat[: len(panels)]:
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_timeline(path: Path, reader: RunReader) -> None:
    """Draw what learner and engines did at the same moments."""
    from matplotlib import pyplot as plt

    spans, (at_s, rates) = reader.busy("learner"), _token_rates(reader)
    running_s, running = reader.gauges(["running_episodes"], max_points=_MAX_POINTS).get("running_episodes", ((), ()))
    start_s = min((float(mine["start_s"][0]) for mine in spans.values()), default=0.0)
    figure, (learner, engine, slots) = plt.subplots(
        3, 1, figsize=(12, 6), sharex=True, constrained_layout=True, height_ratios=[1, 2, 2]
    )
    for name, colour in (("train", "tab:blue"), ("publish", "tab:red"), ("wait", "lightgrey")):
        mine = spans.get(name, ())
        bars = [(span["start_s"] - start_s, span["end_s"] - span["start_s"]) for span in mine]
        learner.broken_barh(bars, (0, 1), facecolors=colour, label=name)
    learner.set_yticks([])
    learner.set_title("learner")
    learner.legend(loc="upper right", ncols=3, fontsize=8)
    engine.step(at_s - start_s, rates, where="pre", linewidth=1)
    engine.set_title("engines: sampled tokens per second")
    slots.step(np.subtract(running_s, start_s), running, where="pre", linewidth=1)
    slots.set_title("running episodes")
    slots.set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _token_rates(reader: RunReader) -> tuple[Floats, Floats]:
    """Return (moments [N], tokens sampled per second since the one before [N])."""
    none = np.empty(0)
    at_s, num_tokens = reader.gauges(["sampled_tokens"], max_points=MOST).get("sampled_tokens", (none, none))
    took_s = np.diff(at_s)
    later = took_s > 0
    num = np.maximum(0.0, np.diff(num_tokens))  # a resumed run counts from 0 again
    return at_s[1:][later], num[later] / took_s[later]


def shares(reader: RunReader) -> dict[str, float]:
    """Return the learner's shares of time (train, wait, publish), and the share of overlap.

    The latter is, of the moments in which it trained, the share in which tokens were being sampled too.
    """
    spans, (at_s, rates) = reader.busy("learner"), _token_rates(reader)
    spent_s = {name: float(mine["busy_s"].sum()) for name, mine in spans.items()}
    total_s = sum(spent_s.values()) or 1.0
    result = {name: spent_s.get(name, 0.0) / total_s for name in ("train", "wait", "publish")}
    during = np.empty(0)
    if "train" in spans:
        training = spans["train"]
        last = np.searchsorted(training["start_s"], at_s, side="right") - 1
        during = rates[(last >= 0) & (at_s <= training["end_s"][last])]
    return {**result, "overlap": float(np.mean(during > 0)) if len(during) else 0.0}


def _transcripts(evaluations: Rows) -> str:
    """Return the same tasks, before and after, one under the other."""
    pages = ["# The same tasks before and after training\n"]
    tasks: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in evaluations:
        for sample in row.get("samples", ()):
            tasks.setdefault((row["name"], sample["task_id"]), []).append({"when": row["when"], **sample})
    for (name, task_id), samples in tasks.items():
        pages.append(f"## {name}: {task_id}\n\n{_quote(samples[0]['prompt'])}\n")
        for sample in samples:
            end = "no score" if sample["failure"] else "right" if sample["success"] else "wrong"
            pages.append(f"**{sample['when']}** ({end}, reward {sample['return']:g})\n")
            for turn in sample["turns"]:
                pages.append(_quote(turn["action"]) + "\n")
                if turn["observation"] and len(sample["turns"]) > 1:
                    pages.append(f"environment:\n\n{_quote(turn['observation'])}\n")
    return "\n".join(pages)


def _quote(text: str) -> str:
    clean = html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=False)
    return "\n".join(f"> {line}  " for line in clean.splitlines() or [""])


def _page(run: Path, reader: RunReader, evaluations: Rows, command: str) -> str:
    num_updates, last = _last_row(reader)
    time = shares(reader)
    lines = [f"# Run {run.name}", ""]
    if evaluations:
        lines += [
            "| evaluation | tasks | scored | success | 95 % interval | mean reward | failures |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in evaluations:
        failures = ", ".join(f"{kind} {count}" for kind, count in row["failures"].items()) or "none"
        rates = "nothing was scored | | "
        if row["success_rate"] is not None:
            low, high = row["success_ci95"]
            rates = f"{row['success_rate']:.1%} | {low:.1%} to {high:.1%} | {row['mean_reward']:.3f}"
        lines.append(
            f"| {row['when']}, {row['name']} | {row['num_tasks']} | {row['num_scored']} | {rates} | {failures} |"
        )
    gains = _gains(evaluations)
    lines += ["", *(f"**{name}: {gain:+.1f} points.**  " for name, gain in gains.items()), ""]
    lines += [
        f"{num_updates} updates in {last.get(_ELAPSED, 0.0):.0f} s of training. The learner trained "
        f"{100 * time['train']:.0f} % of the time, waited for samples {100 * time['wait']:.0f} %, published "
        f"{100 * time['publish']:.1f} %. In {100 * time['overlap']:.0f} % of the moments in which it trained, "
        "the engines were sampling too.",
        "",
        "Samples: "
        + ", ".join(f"{name} {last[f'account/{name}']:.0f}" for name in _ACCOUNT if f"account/{name}" in last)
        + ".",
        "An episode that failed (an environment, engine or deadline gave up) has no reward: it is a failure, not a 0.",
        "",
        *_extras(last),
        *shares_table(shares_of(reader)),
        "![curves](curves.png)",
        "",
        "![timeline](timeline.png)",
        "",
        "[Transcripts before and after](transcripts.md)",
        "",
        "Again, with the same seed:",
        "",
        f"    {command}",
        "",
    ]
    return "\n".join(lines)


def _last_row(reader: RunReader) -> tuple[int, dict[str, float]]:
    """Return (number of updates, the statistics of the last one)."""
    found = {name: points for name, points in reader.series(max_points=4).items() if len(points[0])}
    newest = max((int(versions[-1]) for versions, _ in found.values()), default=0)
    return newest, {name: float(values[-1]) for name, (versions, values) in found.items() if versions[-1] == newest}


def _extras(last: Mapping[str, Any]) -> list[str]:
    """Return a line each on critics and attention credit, of the last update, where the run had them."""
    told = []
    for what, parts in (
        (
            "Critics",
            (
                ("critic_mean_explained_variance", "explained variance {:.2f}"),
                ("critic_disagreement_mean", "disagreement {:.3g}"),
                ("critic_advantage_masked", "advantages masked {:.0%}"),
                ("critic_entropy_masked", "entropy bonuses masked {:.0%}"),
            ),
        ),
        (
            "Attention rhythm",
            (
                ("rhythm_share_amplified", "tokens amplified {:.0%}"),
                ("rhythm_gamma_mean", "mean factor {:.2f}"),
                ("rhythm_share_of_step", "{:.0%} of the step's time"),
            ),
        ),
    ):
        found = [words.format(last[f"learner/{name}"]) for name, words in parts if f"learner/{name}" in last]
        if found:
            told += [f"{what}, at the last update: {', '.join(found)}.", ""]
    return told


def _gains(evaluations: Rows) -> dict[str, float]:
    """Return points of success gained, by evaluation."""
    scored = [row for row in evaluations if row["success_rate"] is not None]
    before = {row["name"]: row["success_rate"] for row in scored if row["when"] == "before"}
    after = {row["name"]: row["success_rate"] for row in scored if row["when"] == "after"}
    return {name: 100 * (after[name] - before[name]) for name in after if name in before}
