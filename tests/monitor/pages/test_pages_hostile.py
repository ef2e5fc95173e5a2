"""What a model writes is shown as text, all of it, and does nothing."""

from pathlib import Path

from playwright.sync_api import Page, expect
from tests.monitor.pages.recorded_run import HOSTILE
from tests.monitor.pages.site import Site

RUN = "countdown-0"
HARMLESS = """() => window.hacked === undefined
    && !document.querySelector("main script, main img, main style, main b[onmouseover]")"""


def test_hostile_text_does_nothing_on_any_page(page: Page, site: Site) -> None:
    [found] = site.run(RUN, "/trajectories", text="onmouseover")["trajectories"]
    site.open(page, "episode", run=RUN, key=found["key"])
    for name in ("prompt", "message", "explanation of the reward"):
        block = page.get_by_label(name).first
        expect(block).to_contain_text("<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>")
    assert page.evaluate(HARMLESS)
    assert page.evaluate("getComputedStyle(document.querySelector('main')).display") != "none"
    for view in ("trajectories", "environments", "run"):
        site.go(page, view, run=RUN)
        page.wait_for_selector("main table")
        expect(page.locator("main")).to_contain_text("<script>window.hacked")
        assert page.evaluate(HARMLESS)
    assert page.title() == "Run · Rollcage"


def test_characters_that_hide_or_reorder_are_shown_as_codes(page: Page, site: Site) -> None:
    [found] = site.run(RUN, "/trajectories", text="onmouseover")["trajectories"]
    site.open(page, "episode", run=RUN, key=found["key"])
    codes = page.get_by_label("prompt").locator(".code-point").all_text_contents()
    assert codes[:4] == ["ESC", "ESC", "ESC", "0007"]
    assert {"202E", "202C", "200B", "200F", "D83D", "DC00", "0000", "FEFF"} <= set(codes)
    shown = page.get_by_label("prompt").evaluate(
        "(block) => [...block.childNodes].map((it) => it.title ? '' : it.textContent).join('')"
    )
    plain = "".join(it for it in HOSTILE if it.isprintable() and it not in "\u202e\u202c\u200b\u200f\ufeff")
    assert shown == plain


def test_a_line_of_a_million_characters_comes_in_parts(page: Page, site: Site) -> None:
    [found] = site.run(RUN, "/trajectories", text="onmouseover")["trajectories"]
    site.open(page, "episode", run=RUN, key=found["key"])
    reply = page.get_by_label("reply")
    assert reply.evaluate("(block) => block.textContent.length") < 25_000
    more = page.get_by_role("button", name="more characters")
    while more.count():
        more.click()
    assert reply.evaluate("(block) => block.textContent.split('x').length") > 2**20
    assert page.evaluate("document.querySelectorAll('*').length") < 1000


def test_no_secret_is_shown(page: Page, site: Site, runs: Path) -> None:
    assert "very-secret-word" in (runs / RUN / "config.json").read_text()
    site.open(page, "run", run=RUN)
    page.get_by_text("All settings").click()
    expect(page.locator("main")).to_contain_text("api_key")
    assert "very-secret-word" not in page.content()


def test_scripts_and_styles_in_the_document_are_refused(page: Page, site: Site) -> None:
    site.open(page, "runs")
    answer = page.evaluate("fetch('/').then((it) => it.headers.get('content-security-policy'))")
    assert "script-src 'self'" in answer
    assert "unsafe" not in answer
    source = page.evaluate("fetch('/').then((it) => it.text())")
    assert "<style" not in source
    assert " style=" not in source
    assert "<script>" not in source
