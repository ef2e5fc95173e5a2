"""``rollcage top``: the essentials of one run in a terminal, for people on ssh."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollcage.monitor.alerts.judged import judge
from rollcage.monitor.failures import failures, sample_failures
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.secrets import masked

CURVES = (
    ("reward", "rollout/reward"),
    ("success", "rollout/success"),
    ("entropy", "learner/entropy"),
    ("KL", "learner/approx_kl_k3"),
    ("gradient norm", "learner/grad_norm"),
    ("staleness", "rollout/staleness"),
    ("sampler/trainer gap", "learner/logprob_gap_mean"),
    ("tokens an episode", "rollout/sampled_tokens"),
)
ACCOUNT = ("started", "trained", "filtered", "stale", "failed", "cancelled", "in_flight")
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {
    "running": "green",
    "finished": "green",
    "paused": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "dead": "red",
}


def show(reader: RunReader, *, once: bool, every_s: float = 1.0, file: TextIO | None = None) -> None:
    """Show a run until it ends or Ctrl-C, or once.

    Args:
        reader: of the run.
        once: show it once and return.
        every_s: seconds between two looks.
        file: where to; None is standard output.
    """
    console = Console(file=file, highlight=False, markup=False)
    if once:
        console.print(view(reader))
        return
    with Live(view(reader), console=console, auto_refresh=False) as live:
        while True:
            goes_on = reader.status()["state"] in ("running", "paused")
            live.update(view(reader), refresh=True)
            if not goes_on:
                return
            time.sleep(every_s)


def view(reader: RunReader) -> Group:
    """Return what is shown of a run."""
    status = reader.status()
    return Group(_head(reader, status), _curves(reader), _account(reader, status), _alerts(reader), _failures(reader))


def sparkline(values: Any, width: int = 24) -> str:
    """Return values as a line of bars, between their least and their greatest.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    if len(known) == 0:
        return ""
    if len(known) > width:
        known = np.array([part.mean() for part in np.array_split(known, width)])
    low, high = float(known.min()), float(known.max())
    steps = np.zeros(len(known)) if high == low else (known - low) / (high - low) * (len(_BARS) - 1)
    return "".join(_BARS[round(step)] for step in steps)


def duration(seconds: float | None) -> str:
    """Return seconds for people.

    >>> duration(3725), duration(59), duration(None)
    ('1:02:05', '0:59', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _head(reader: RunReader, status: Mapping[str, Any]) -> Panel:
    made, wanted = status["policy_version"], max(status["num_updates"], 1)
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(str(status["state"]), style=_STYLES.get(status["state"], "")),
        ProgressBar(total=wanted, completed=min(made, wanted), width=30),
        Text(f"update {made} of {wanted}"),
        Text(f"{duration(status['train_s'])} trained, {duration(status['eta_s'])} left"),
    )
    parts: list[Any] = [line]
    if status["error"]:
        parts.append(Text(_clean(str(masked(status["error"]))), style="red"))
    return Panel(Group(*parts), title=Text(_clean(reader.path.name)), title_align="left")


def _curves(reader: RunReader) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("statistic", "now", "course", "least", "greatest"):
        table.add_column(name, justify="right" if name in ("now", "least", "greatest") else "left")
    for label, (_, values) in zip(
        [label for label, _ in CURVES], reader.series([name for _, name in CURVES], 500).values(), strict=True
    ):
        finite = values[np.isfinite(values)]
        if len(finite):
            least, greatest = f"{finite.min():.4g}", f"{finite.max():.4g}"
            table.add_row(label, f"{values[-1]:.4g}", sparkline(values), least, greatest)
    return table


def _account(reader: RunReader, status: Mapping[str, Any]) -> Text:
    found = reader.series([f"account/{column}" for column in ACCOUNT], 4)
    last = {column: values[-1] for column, (_, values) in zip(ACCOUNT, found.values(), strict=True) if len(values)}
    counts = ", ".join(f"{column.replace('_', ' ')} {value:.0f}" for column, value in last.items())
    gauges = {
        name: values[-1]
        for name, (_, values) in reader.gauges(["running_episodes", "complete_groups"], 4).items()
        if len(values)
    }
    now = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in gauges.items())
    return Text(f"\nsamples: {counts or 'none yet'}" + (f"\nnow: {now}" if now else ""))


def _alerts(reader: RunReader) -> Text:
    firing = [rule for rule in judge(reader)["rules"] if rule["state"] == "firing"]
    text = Text()
    for rule in firing:
        style = "bold red" if rule["severity"] == "critical" else "yellow"
        text.append(f"\n{rule['title']}: {_clean(str(rule['message']))}", style=style)
    return text if firing else Text("\nno alert", style="dim")


def _failures(reader: RunReader) -> Text:
    text = Text()
    for group in failures(sample_failures(reader))[:5]:
        message = _clean(str(masked(group["messages"][0]["message"])))[:100]
        text.append(f"\nfailed {group['count']} x {group['kind']}/{group['reason']}: {message}", style="red")
    return text


def _clean(text: str) -> str:
    """Return text that cannot command a terminal."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
