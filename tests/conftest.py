"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path | None:
    """The folder of real data sets beside the repository, or None: then tests use small data of their own."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None
