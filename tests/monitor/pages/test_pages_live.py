"""Pages over a run that writes while they are open: they follow, and stay quick and small."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.monitor.pages.recorded_run import START_S, episode, metrics_of, write_config, write_update
from tests.monitor.pages.site import Site, lines, until

from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.server.serving import Background, Listen
from rollcage.monitor.store import RunReader

POINTS_PER_S = 1000
FIRST_PAINT_S = 1.0
PAGES = ("runs", "run", "training", "pipeline", "environments", "sandboxes", "trajectories", "compare")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[RunFolder]:
    """Lend the recorder of a run that counts as running, as its process holds the lock."""
    write_config(folder, seed=5, num_updates=10_000)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = RunFolder(folder)
        run.event("start", resumed_from=None)
        try:
            yield run
        finally:
            run.close()


def test_curves_and_episodes_appear_while_the_page_is_open(page: Page, tmp_path: Path) -> None:
    with held(tmp_path / "live") as run, Background(tmp_path, Listen()) as server:
        site = Site(server.address)
        site.open(page, "training", run="live")
        expect(page.locator(".empty").first).to_contain_text("has not finished its first update")
        for version in range(1, 4):
            write_update(run, version, seed=5)
        page.wait_for_selector("figure.chart")
        assert lines(page, "Reward")["reward"]["x"] == [1, 2, 3]
        write_update(run, 4, seed=5)
        until(page, "document.querySelector('figure').model.lines[0].x.length === 4")
        assert lines(page, "Reward")["reward"]["y"][3] == pytest.approx(metrics_of(4, 5)["rollout/reward"])
        expect(page.locator(".run-state")).to_contain_text("running")
        expect(page.locator(".run-state")).to_contain_text("4 of 10,000 updates")
        expect(page.locator(".run-state")).to_contain_text("left")
        site.open(page, "trajectories", run="live")
        run.trajectory(episode(77, 4))
        expect(page.locator("caption")).to_have_text("1 episode")
        expect(page.locator("#connection")).to_have_text("live")


def test_a_thousand_points_a_second_leave_the_page_quick_and_small(page: Page, tmp_path: Path) -> None:
    with held(tmp_path / "busy") as run, Background(tmp_path, Listen()) as server:
        write_update(run, 1, seed=5)
        ended = threading.Event()
        written = [0]

        def write() -> None:
            start = time.monotonic()
            while not ended.is_set():
                version = 2 + written[0] // POINTS_PER_S
                write_update(run, version, seed=5)
                for index in range(POINTS_PER_S - 60):
                    run.gauge("pressure", index % 17, at_s=START_S + version + index / POINTS_PER_S)
                written[0] += POINTS_PER_S
                ended.wait(max(0.0, start + written[0] / POINTS_PER_S - time.monotonic()))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            Site(server.address).open(page, "pipeline", run="busy", all=1)
            page.evaluate(
                """() => { window.gaps = []; let last = performance.now();
                const tick = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(tick); };
                requestAnimationFrame(tick); }"""
            )
            nodes = page.evaluate("document.querySelectorAll('*').length")
            page.wait_for_timeout(5000)
            gaps = sorted(page.evaluate("window.gaps"))
            assert page.evaluate("document.querySelectorAll('*').length") < nodes + 150
            assert gaps[int(0.95 * len(gaps))] < 200, gaps[-10:]
            start = time.monotonic()
            page.get_by_role("button", name="zoom in").click()
            until(page, "location.hash.includes('from=')")
            assert time.monotonic() - start < 1.0
        finally:
            ended.set()
            writer.join()
        assert written[0] >= 4 * POINTS_PER_S
        page.get_by_role("button", name="the whole timeline").click()
        reader = RunReader(tmp_path / "busy")
        try:
            last_s = reader.time_range()[1]
            shown = reader.gauges(["pressure"], 1000)["pressure"][1]
        finally:
            reader.close()
        until(page, "(last) => document.querySelector('.timeline').model.last === last", last_s)
        assert lines(page, "pressure")["pressure"]["y"] == shown.tolist()


@pytest.mark.parametrize("name", PAGES)
def test_first_paint_takes_less_than_a_second(page: Page, site: Site, name: str) -> None:
    site.open(page, name, run="countdown-0", runs=["countdown-0", "countdown-1"])
    painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted_ms < 1000 * FIRST_PAINT_S
