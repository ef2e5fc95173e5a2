"""The reference page of all metrics: ``python -m rollcage.monitor.metrics.page > monitor/metrics.md``."""

from __future__ import annotations

import sys

from rollcage.monitor.metrics.catalogue import GROUPS
from rollcage.monitor.metrics.metric import OTHER, Metric

_HEAD = f"""# Metrics

What `/metrics` of `rollcage train`, `eval`, `engine`, `monitor`, `sandbox serve`, `bench suite` and `bench soak` tells
Prometheus. This page is made from the code (`python -m rollcage.monitor.metrics.page`). A metric is shown once it was
told for the first time, beside the process's own (`process_cpu_seconds_total`, `process_resident_memory_bytes`, ...).
*Recorded as* is its name in the run folder, where it has one. Labels without listed values take at most so many; later
ones are "{OTHER}".
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for group, metrics in GROUPS.items():
        parts += [f"\n## {group}\n\n| metric | kind | what it is | labels | recorded as |\n|---|---|---|---|---|\n"]
        parts += [_row(metric) for metric in metrics]
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = "; ".join(
        f"`{name}`: {', '.join(label.values) if label.values else f'{label.help} (at most {label.most})'}"
        for name, label in metric.labels.items()
    )
    text = metric.help
    if metric.buckets:
        text += f" Buckets to {', '.join(f'{bucket:g}' for bucket in metric.buckets)}."
    source = metric.source if metric.source.startswith("(") else f"`{metric.source}`"
    return f"| `{metric.name}` | {metric.kind} | {text} | {labels} | {source} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
