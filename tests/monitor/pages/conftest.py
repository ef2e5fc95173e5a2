"""A server over runs that are made for the tests, and a real Chromium that looks at its pages."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.monitor.pages.recorded_run import write_run
from tests.monitor.pages.site import FLAGS, Site

from rollcage.monitor.server.serving import Background, Listen

EXPECTED = ("status of 40", "status of 50", "net::ERR_")
"""What Chromium writes of answers that say what is wrong, and of servers that have ended; the pages tell the reader."""


_open: dict[str, Browser] = {}
_to_close = ExitStack()


@pytest.fixture
def browser() -> Browser:
    """Chromium from the system, one for all tests here; where there is none, they fail and say how to get it."""
    if not _open:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert found, "these tests look at the pages with Chromium: apt-get install chromium"
        playwright = _to_close.enter_context(sync_playwright())
        _open["browser"] = playwright.chromium.launch(executable_path=found, args=FLAGS)
        _to_close.callback(_open["browser"].close)
        _to_close.callback(_open.clear)
    return _open["browser"]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close it before the first test elsewhere: as long as playwright is open, its event loop runs in this thread."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _to_close.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one run; the first has failures of every kind and hostile text."""
    folder = tmp_path_factory.mktemp("pages") / "runs"
    for seed in range(3):
        write_run(folder / f"countdown-{seed}", seed=seed)
    return folder


@pytest.fixture(scope="session")
def site(runs: Path) -> Iterator[Site]:
    with Background(runs, Listen(), find_sandboxes=lambda: None) as server:
        site = Site(server.address)
        while any(run["is_partial"] for run in site.get("/runs")["runs"]):
            time.sleep(0.1)  # on a crowded machine
        yield site


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab; whatever the browser complains of fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        expect.set_options(timeout=20_000)
        complaints: list[str] = []
        tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        yield tab
        assert [it for it in complaints if not any(word in it for word in EXPECTED)] == []
