"""The pages in use: address, keyboard, theme, phone, errors, actions."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.monitor.pages.recorded_run import TRACEBACK
from tests.monitor.pages.site import Site, until

from rollcage.monitor.server.serving import Background, Listen

RUN = "countdown-0"
PAGES = ("runs", "run", "compare", "training", "pipeline", "environments", "sandboxes", "trajectories")


def annotated(site: Site) -> list[str]:
    """Return the keys of the two attempts at the task whose first one has the trainer's values."""
    found = site.run(RUN, "/trajectories", task_id="train/annotated", descending="false")
    return [it["key"] for it in found["trajectories"]]


def test_a_traceback_is_one_click_away(page: Page, site: Site) -> None:
    site.open(page, "environments", run=RUN)
    failures = page.locator(".failures details")
    expect(failures).to_have_count(5)
    expect(failures.first).to_contain_text("bad_task 5 times")
    page.locator("summary", has_text="env_raised").click()
    expect(page.get_by_label("traceback")).to_have_text(TRACEBACK)


def test_filters_and_their_address(page: Page, site: Site) -> None:
    site.open(page, "trajectories", run=RUN)
    page.get_by_label("Failure").select_option("infra")
    expect(page.locator("caption")).to_have_text("6 episodes")
    page.keyboard.press("/")
    page.keyboard.type("train/")
    expect(page.locator("#text")).to_be_focused()
    until(page, "location.hash.includes('text=train')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)  # somebody else opens the link
    expect(page.locator("caption")).to_have_text("6 episodes")
    expect(page.locator("#text")).to_have_value("train/")
    page.locator("#text").fill("no such words")
    expect(page.locator(".empty")).to_contain_text("Loosen the filters")
    page.get_by_role("button", name="show all").click()
    expect(page.locator("caption")).to_have_text("78 episodes")


def test_one_episode_token_by_token_beside_another_attempt(page: Page, site: Site) -> None:
    first, second = annotated(site)
    site.open(page, "episode", run=RUN, key=first)
    record = site.run(RUN, f"/trajectories/{first}")
    notes, turns = record["trajectory"]["annotations"], record["trajectory"]["turns"]
    for name, title in (("advantages", "advantage"), ("waad", "WAAD"), ("policy_versions", "policy version")):
        page.locator("#colour").select_option(name)
        until(page, "(title) => document.querySelector('.tokens')?.ariaLabel.endsWith(title)", title)
        blocks = page.evaluate("[...document.querySelectorAll('.tokens')].map((it) => it.model)")
        source = notes[name][0] if name in notes else record["trajectory"]["segments"][0][name]
        assert [it["values"] for it in blocks] == [source[turn["start"] : turn["end"]] for turn in turns]
    gap = page.locator("#colour")
    gap.select_option("logprob_gap")
    until(page, "document.querySelector('.tokens')?.ariaLabel.endsWith('gap')")
    values = page.evaluate("document.querySelector('.tokens').model.values")
    start = turns[0]["start"]
    sampler = record["trajectory"]["segments"][0]["rollout_logprobs"]
    assert values == pytest.approx([notes["old_logprobs"][0][start + it] - sampler[start + it] for it in range(9)])
    expect(page.locator(".tokens").first).to_have_text("<answer>3*(9-2)</answer>")
    figures = page.evaluate("[...document.querySelectorAll('figure')].map((it) => it.model)")
    for name, title in (("waad", "WAAD"), ("fai", "FAI")):
        drawn = [it["lines"][0]["y"] for it in figures if it["title"] == title]
        assert drawn == [notes[name][0][turn["start"] : turn["end"]] for turn in turns]
    expect(page.locator(".copy code")).to_have_text(record["replay"])
    expect(page.locator(".facts")).to_contain_text(str(record["trajectory"]["seed"]))
    page.get_by_label("Attempt beside it").select_option(second)
    expect(page.locator("article")).to_have_count(2)
    page.keyboard.press("n")
    until(page, "(key) => location.hash.includes(`key=${key}`)", second)


def test_keyboard_alone_opens_a_run_and_lists_the_shortcuts(page: Page, site: Site) -> None:
    site.open(page, "runs")
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    until(page, "location.hash.startsWith('#/run?run=')")
    page.keyboard.press("2")
    until(page, "location.hash.startsWith('#/training?run=')")
    expect(page.locator("figure.chart svg").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("runs, training, pipeline")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("figure.chart svg").first.focus()
    values = site.run(page.url.rpartition("=")[2], "/series", names="rollout/reward")["series"]["rollout/reward"][
        "value"
    ]
    page.keyboard.press("Home")
    expect(page.locator("figure.chart .readout").first).to_have_text(f"1: {values[0]:.4g}")
    page.keyboard.press("ArrowRight")
    expect(page.locator("figure.chart .readout").first).to_contain_text("2: ")


def test_on_a_phone_no_page_scrolls_sideways_and_all_that_can_be_used_has_a_name(browser: Browser, site: Site) -> None:
    with browser.new_context(viewport={"width": 375, "height": 800}, is_mobile=True) as context:
        tab = context.new_page()
        site.open(tab, "runs")
        for name in (*PAGES, "episode"):
            site.go(tab, name, run=RUN, runs=RUN, key=annotated(site)[0])
            assert tab.evaluate("document.documentElement.scrollWidth") == 375, name
            nameless = tab.evaluate(
                """() => [...document.querySelectorAll('button, a, input, select, svg[role], canvas, [role=region]')]
                .filter((it) => !(it.ariaLabel || it.textContent.trim() || it.labels?.length))
                .map((it) => it.outerHTML)"""
            )
            assert nameless == []
            assert tab.evaluate("[...document.querySelector('.view').childNodes].every((it) => it.nodeType === 1)"), (
                name
            )
            assert tab.locator("h1").count() == 1
            ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((it) => it.id)")
            assert sorted(ids) == sorted(set(ids))


def test_light_and_dark(page: Page, site: Site) -> None:
    page.emulate_media(color_scheme="dark")
    site.open(page, "training", run=RUN)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.keyboard.press("t")
    light = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == light  # the reader's choice stays


def test_the_token_leaves_the_address_and_bad_ones_are_asked_for(page: Page, runs: Path) -> None:
    with Background(runs, Listen(token="a-token-of-the-user")) as server:
        site = Site(server.address)
        site.open(page, "runs")
        assert "token" not in page.url
        expect(page.locator("caption")).to_contain_text("Runs in")
        page.evaluate("sessionStorage.clear()")
        page.reload()
        expect(page.locator("h1")).to_have_text("This monitor needs its token")
        page.get_by_label("Token").fill("a-token-of-the-user")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("caption")).to_contain_text("Runs in")


def test_errors_and_empty_states_say_what_to_do(page: Page, site: Site, tmp_path: Path) -> None:
    site.open(page, "training", run="no-such-run")
    expect(page.locator(".failure")).to_contain_text("there is no such run")
    site.open(page, "sandboxes")
    expect(page.locator(".empty")).to_contain_text("rollcage sandbox serve")
    expect(page.get_by_role("heading", name="All sandboxes")).to_be_hidden()
    (tmp_path / "empty").mkdir()
    with Background(tmp_path / "empty", Listen()) as server:
        for name in ("runs", "training"):
            Site(server.address).open(page, name)
            expect(page.locator("main")).to_contain_text("rollcage train countdown-small")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".failure")).to_contain_text("The monitor does not answer")


class SandboxService(BaseHTTPRequestHandler):
    """Answers what the sandbox service answers for one host and one sandbox, and notes what it is told to do."""

    told: list[tuple[str, str, Any]]

    def do_GET(self) -> None:
        sandbox = {
            "id": "abc", "key": "swe-1", "owner": "run", "host": "local", "state": "FAILED", "generation": 2,
            "created_at": 1.0, "started_at": 2.0, "expires_at": 0, "num_restarts": 1, "message": "out of memory",
            "exit_code": 137, "oom_killed": True, "spec": {"image": "base", "cpus": 1, "memory_bytes": 2**29,
            "restart": "restart", "probe": {"interval_s": 3}, "env": {"API_KEY": "hidden-word"}},
        }  # fmt: skip
        event = {"number": 1, "time": 2.0, "sandbox_id": "abc", "kind": "died", "data": {"exit_code": 137}}
        host = {
            "name": "local", "endpoint": "unix:", "condition": "open", "num_sandboxes": 1, "reserved_cpus": 1,
            "reserved_memory_bytes": 2**29, "num_cpus": 4, "memory_bytes": 2**33, "load": 0.5, "free_disk_bytes": 2**34,
        }  # fmt: skip
        path = self.path.partition("?")[0]
        answers: dict[str, Any] = {
            "/v1/hosts": [host], "/v1/sandboxes": [sandbox], "/v1/sandboxes/abc": sandbox,
            "/v1/sandboxes/abc/events": [event], "/v1/sandboxes/abc/logs": "last words <b>bold</b>",
        }  # fmt: skip
        self.reply(answers[path])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.told.append(("POST", self.path, json.loads(body or b"null")))
        self.reply({})

    def do_DELETE(self) -> None:
        self.told.append(("DELETE", self.path, None))
        self.reply({})

    def reply(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fleet(runs: Path) -> Iterator[tuple[Site, list[tuple[str, str, Any]]]]:
    told: list[tuple[str, str, Any]] = []
    service = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (SandboxService,), {"told": told}))
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{service.server_port}"
    try:
        with Background(runs, Listen(), find_sandboxes=lambda: (address, "its-token")) as server:
            yield Site(server.address), told
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def test_sandboxes_are_shown_and_acted_on_after_a_question(page: Page, fleet: Any) -> None:
    site, told = fleet
    site.open(page, "sandboxes", id="abc")
    expect(page.locator(".fleet tbody tr")).to_contain_text("1 failed")
    expect(page.locator(".one")).to_contain_text("out of memory")
    expect(page.get_by_label("last output")).to_have_text("last words <b>bold</b>")
    assert "hidden-word" not in page.content()
    page.get_by_role("button", name="Drain local").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert told == []
    page.get_by_role("button", name="Drain local").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("status").last).to_contain_text("Drain: done")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    until(page, "location.hash === '#/sandboxes'")
    assert told == [("POST", "/v1/hosts/local/drain", {"on": True}), ("DELETE", "/v1/sandboxes/abc", None)]


def test_without_the_token_there_are_no_actions(page: Page, fleet: Any) -> None:
    site, _ = fleet
    site.open(page, "sandboxes", token=False, id="abc")
    for name in ("Drain local", "Restart", "Delete"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
