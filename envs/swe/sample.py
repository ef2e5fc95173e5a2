"""Rows of our own suite for rollcage/SWEBench-v0: they take the official way, and need neither data nor network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcage.envs.swe.suite import make_row

SPLITS: Mapping[str, tuple[str, ...]] = {"train": ("slugs", "fields"), "test": ("spans", "orders")}
OWN = "mini/"
"""Owner of the repositories that come along."""
_SPEC = {"python": "3.11", "test_cmd": "python -m unittest -v", "log_parser": "django/django"}


def sample_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows by split."""
    return {split: [_official(make_row(name)) for name in names] for split, names in SPLITS.items()}


def _official(row: dict[str, Any]) -> dict[str, Any]:
    tests = {kind: [_as_printed(test) for test in row[kind]] for kind in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return {**row, **tests, "spec": _SPEC}


def _as_printed(test: str) -> str:
    """Return a test's name as ``unittest -v`` prints it."""
    path, case, name = test.split("::")
    return f"{name} ({path.removesuffix('.py').replace('/', '.')}.{case}.{name})"
