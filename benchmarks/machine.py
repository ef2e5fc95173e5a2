"""The machine that a figure was taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def describe() -> str:
    """Return processor, cores, memory, kernel, Python, and the load of the last minute."""
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{cpu_name()}, {os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}; "
        f"Python {platform.python_version()}; load {os.getloadavg()[0]:.2f}"
    )
