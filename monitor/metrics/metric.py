"""What a metric is: its name and meaning, its labels with bounded values, its buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

OTHER = "other"
"""The value of a label that is none of those declared, or one too many."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label: its values, or how many there may be.

    Attributes:
        help: what it says.
        values: all that there are; empty where they are not known beforehand.
        most: how many different ones are told apart where ``values`` is empty; later ones become `OTHER`.
    """

    help: str
    values: tuple[str, ...] = ()
    most: int = 64


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as Prometheus shows it: ``rollcage_..._seconds``, counters ``..._total``.
        kind: what it is.
        help: one sentence.
        source: what a recorder is told: the name of a counter, gauge or histogram, of a training statistic
            ("rollout/reward"), or where `PrometheusRecorder` takes it from, in brackets.
        labels: by name.
        buckets: upper bounds of a histogram, ascending.
    """

    name: str
    kind: Kind
    help: str
    source: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    def faults(self) -> list[str]:
        """Return what breaks Prometheus's conventions."""
        found = []
        if not self.name.startswith("rollcage_") or self.name != self.name.lower():
            found.append("names begin with rollcage_ and are lower case")
        if (self.kind == "counter") != self.name.endswith("_total"):
            found.append("counters, and only they, end with _total")
        if (self.kind == "histogram") != bool(self.buckets) or tuple(sorted(self.buckets)) != self.buckets:
            found.append("histograms, and only they, have buckets, ascending")
        if not self.help.endswith("."):
            found.append("the help text is a sentence")
        if any(unit in self.name for unit in ("_ms", "_minutes", "_kb", "_percent")):
            found.append("base units: seconds, bytes, ratios from 0 to 1")
        return [f"{self.name}: {fault}" for fault in found]
