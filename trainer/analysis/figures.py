"""The figures: WAAD and FAI along a text with its two maps, and the couplings beside chance. No text of the model's."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from rollcage.errors import require
from rollcage.trainer.analysis.couplings import NAMES, PAPER
from rollcage.trainer.analysis.measure import Rhythm
from rollcage.trainer.analysis.resampling import Floats, Lift


def text_figure(rhythm: Rhythm, maps: tuple[Floats, Floats]) -> bytes:
    """Return a PNG of one text: its curves with preplan tokens and anchors, the mean local and the mean global map.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "train").use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import PowerNorm

    curves = rhythm.curves
    figure, axes = plt.subplot_mosaic(
        [["waad", "local", "global"], ["fai", "local", "global"]], figsize=(16, 5), width_ratios=[1.7, 1, 1]
    )
    for name, values, marked, title, colour in (
        ("waad", curves.waad, rhythm.preplan, "WAAD of the local heads (tokens); preplan tokens", "tab:orange"),
        ("fai", curves.fai, rhythm.anchors, "FAI of the global heads; anchors", "tab:blue"),
    ):
        axes[name].plot(curves.positions, values, linewidth=1, color=colour)
        axes[name].plot(curves.positions[marked], values[marked], ".", markersize=4, color="black")
        axes[name].set_title(title, fontsize=10)
        axes[name].grid(alpha=0.3)
    axes["fai"].set_xlabel("token")
    axes["fai"].sharex(axes["waad"])
    start = float(curves.positions[0]) - 0.5
    for name, values in zip(("local", "global"), maps, strict=True):
        # most of a map is close to 0: the root of a root lets it be seen
        axes[name].imshow(values, norm=PowerNorm(0.25, 0, 1), cmap="magma", interpolation="nearest")
        axes[name].axhline(start, color="white", linewidth=0.6, linestyle=":")
        axes[name].set_title(f"mean attention map, {name} heads", fontsize=10)
        axes[name].set_xlabel("attended token")
        axes[name].set_ylabel("attending token")
    figure.tight_layout()
    return _png(figure)


def couplings_figure(lifts: Mapping[str, Lift]) -> bytes:
    """Return a PNG of the couplings as lifts over chance, with their intervals and the span that the paper reports.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "train").use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 2.4))
    axis.axvspan(100 * PAPER[0], 100 * PAPER[1], color="tab:green", alpha=0.15, label="the paper's, of its definitions")
    axis.axvline(0, color="grey", linewidth=1)
    for row, result in enumerate(lifts.values()):
        if result.ci95 is not None:
            axis.plot([100 * bound for bound in result.ci95], [row, row], color="tab:blue")
        axis.plot(100 * result.lift, row, "o", color="tab:blue")
    axis.set_yticks(np.arange(len(lifts)), [NAMES[name] for name in lifts])
    axis.set_ylim(len(lifts) - 0.5, -0.5)
    axis.set_xlabel("% over chance, with the 95 % interval over texts")
    axis.legend(fontsize=8)
    figure.tight_layout()
    return _png(figure)


def _png(figure: object) -> bytes:
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=90)  # type: ignore[attr-defined]
    plt.close(figure)
    return buffer.getvalue()
