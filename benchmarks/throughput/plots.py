"""The plots of the throughput figures, on one sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage.benchmarks.throughput.figures import Figure
from rollcage.errors import require

_BARS = {
    "queue_scheduling": (("batch",), ("ratio", "ratio_16_extra")),
    "prompt_replication": (("batch",), ("ratio",)),
    "env_async": (("latency_mean_s", "latency_std_s"), ("ratio",)),
    "redundancy": (("run", "environments"), ("ratio",)),
    "rlvr_end_to_end": (("gpus", "mode", "async_ratio"), ("ratio",)),
    "agentic_end_to_end": (("latency_mean_std_s", "mode", "async_ratio"), ("ratio",)),
}
"""Figure -> columns that name a bar, columns that are drawn."""


def plot(path: Path, figures: Mapping[str, Figure]) -> None:
    """Draw ratios by setting, with the goal as a line; scaling and orchestration over their sizes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "train").use("Agg")
    from matplotlib import pyplot as plt

    sheet, axes = plt.subplots(4, 2, figsize=(13, 17), constrained_layout=True)
    for axis, (name, figure) in zip(axes.flat, figures.items(), strict=False):
        axis.set_title(figure.title)
        if name in _BARS:
            _bars(axis, figure, *_BARS[name])
        elif name == "scaling_8x":
            _scaling(axis, figure.rows)
        else:
            points = [(row["in_flight"], row["cpu_us_per_episode"]) for row in figure.rows]
            axis.loglog(*zip(*points, strict=True), "o-")
            axis.set_xlabel("episodes in flight")
            axis.set_ylabel("microseconds an episode")
            axis.set_ylim(10, 10_000)
        axis.grid(alpha=0.3)
    sheet.savefig(path, dpi=80)
    plt.close(sheet)


def _bars(axis: Any, figure: Figure, names: Sequence[str], values: Sequence[str]) -> None:
    labels = [", ".join(str(row[name]) for name in names) for row in figure.rows]
    for offset, value in enumerate(values):
        positions = [index + 0.4 * offset for index in range(len(labels))]
        axis.barh(positions, [row[value] for row in figure.rows], height=0.35, label=value)
    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.invert_yaxis()
    if figure.goal is not None:
        axis.axvline(figure.goal, color="black", linestyle="--", linewidth=1, label="goal")
    axis.set_xlabel("times as fast as the baseline")
    axis.legend(fontsize=8)


def _scaling(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for title in dict.fromkeys(row["longest_tokens"] for row in rows):
        points = [(row["gpus"], row["samples_per_s"]) for row in rows if row["longest_tokens"] == title]
        first = points[0]
        label = "one batch" if title == "no limit" else "batch grows with the workers"
        axis.loglog(*zip(*points, strict=True), "o-", label=label)
        axis.loglog([x for x, _ in points], [first[1] * x / first[0] for x, _ in points], "k:", linewidth=1)
    axis.set_xlabel("GPUs (dotted: in proportion)")
    axis.set_ylabel("samples a second")
    axis.legend(fontsize=8)
