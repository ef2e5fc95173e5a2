"""Looking at the pages: opening them, and reading what their charts hold."""

import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import urlopen

from playwright.sync_api import Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass(frozen=True)
class Site:
    """A running monitor. ``address`` has the token behind ``#``."""

    address: str

    @property
    def root(self) -> str:
        return self.address.split("/#")[0]

    def open(self, tab: Page, page: str, *, token: bool = True, **state: Any) -> None:
        """Open a page and wait until it stands."""
        query = urlencode(state, doseq=True)
        secret = self.address.partition("#")[2] if token else ""
        fragment = f"#/{page}?{query}" + (f"{'&' if query else ''}{secret}" if secret else "")
        tab.goto("about:blank")
        tab.goto(f"{self.root}/{fragment}")
        tab.wait_for_selector("html[data-ready]")

    def go(self, tab: Page, page: str, **state: Any) -> None:
        """Go to another page in a tab that is open already, as a link does."""
        tab.evaluate("(hash) => { location.hash = hash; }", f"#/{page}?{urlencode(state, doseq=True)}")
        until(tab, "document.documentElement.dataset.ready === location.hash")

    def get(self, path: str, **params: Any) -> Any:
        """Ask the server for JSON, as the pages do."""
        with urlopen(f"{self.root}/api{path}?{urlencode(params, doseq=True)}", timeout=10) as answer:
            return json.load(answer)

    def run(self, run: str, rest: str, **params: Any) -> Any:
        return self.get(f"/runs/{quote(run, safe='')}{rest}", **params)


def until(tab: Page, expression: str, argument: Any = None, *, limit_s: float = 10.0) -> None:
    """Wait until a JavaScript expression is true. (Playwright's own waiting needs ``eval``, which the pages forbid.)"""
    end = time.monotonic() + limit_s
    while not tab.evaluate(expression, argument):
        assert time.monotonic() < end, f"never true: {expression}; the address is {tab.url}"
        tab.wait_for_timeout(50)


def charts(tab: Page) -> dict[str, dict[str, Any]]:
    """Return what the page's charts hold: title -> model."""
    models = tab.evaluate("[...document.querySelectorAll('figure')].map((figure) => figure.model)")
    return {model["title"]: model for model in models if "title" in model}


def lines(tab: Page, title: str) -> dict[str, dict[str, Any]]:
    """Return the lines of one chart by name."""
    return {line["name"]: line for line in charts(tab)[title]["lines"]}
