"""The client is the manager, seen over HTTP: one suite of promises over both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sandbox.conformance import PROMISES, Promise
from tests.sandbox.places import PLACES, opened


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_sandboxes_keep_the_promise(place: str, promise: Promise, tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "files").mkdir()
        async with asyncio.timeout(60.0), opened(place, tmp_path / "state") as sandboxes:
            await promise(sandboxes, tmp_path / "files")

    asyncio.run(main())
