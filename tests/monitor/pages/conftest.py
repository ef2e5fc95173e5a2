"""A server over runs that are made for the tests, and a real Chromium that looks at its pages."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.monitor.pages.recorded_run import write_run
from tests.monitor.pages.site import FLAGS, Site

from rollcage.monitor.server.serving import Background, Listen

EXPECTED = ("status of 40", "status of 50", "net::ERR_")
"""What Chromium writes of answers that say what is wrong, and of servers that have ended; the pages tell the reader."""


# Not for the session: as long as playwright is open, its event loop runs in this thread, and no other test's can.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium from the system; where there is none, the tests fail and say how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "these tests look at the pages with Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


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
        yield Site(server.address)


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
