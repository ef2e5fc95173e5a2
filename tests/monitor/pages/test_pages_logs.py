"""The pages of a run on a cluster: its nodes on the timeline, and the log of every actor a click away."""

from pathlib import Path

from playwright.sync_api import Page, expect
from tests.monitor.clustered_run import LAST_WORDS, write_clustered_run
from tests.monitor.pages.site import Site

from rollcage.monitor.server.serving import Background, Listen


def test_each_actor_has_a_node_and_a_log_and_each_node_a_track(page: Page, tmp_path: Path) -> None:
    write_clustered_run(tmp_path / "run")
    with Background(tmp_path, Listen(), find_sandboxes=lambda: None) as server:
        site = Site(server.address)
        site.open(page, "run", run="run")
        row = page.locator("[data-key='row-engine 10']")
        expect(row).to_contain_text("10.0.0.3")
        page.get_by_role("button", name="log of engine 10").click()
        log = page.get_by_label("end of engine10.log")
        expect(log).to_have_text(f"line one of engine10.log\n--api-key *** said\n{LAST_WORDS} 1\n")
        assert "log=engine10.log" in page.url, "which can be sent to somebody"
        page.get_by_role("button", name="log of engine 10").click()
        expect(log).to_have_count(0)
        site.go(page, "pipeline", run="run")
        tracks = page.evaluate(
            "[...document.querySelectorAll('figure.timeline')][0].model.tracks.map(({name}) => name)"
        )
        wanted = {"learner on 10.0.0.2", "engine 0 on 10.0.0.2", "node 10.0.0.2 load", "node 10.0.0.3 load"}
        assert wanted <= set(tracks)
