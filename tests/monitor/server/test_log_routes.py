"""Every actor of a run, its node, and the end of what it wrote, to those who may see the run and to nobody else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitor.clustered_run import ACTORS, LAST_WORDS, write_clustered_run
from tests.monitor.pages.recorded_run import write_config
from tests.monitor.server.browser import Browser, serving

from rollcage.monitor.server.serving import Listen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("logs") / "runs"
    write_clustered_run(top / "there")
    for name in ("here", "linked"):
        write_config(top / name, seed=0, num_updates=1)
    (top / "here" / "logs").mkdir()
    (top / "here" / "logs" / "learner-rank0.log").write_text("DeepSpeed\n")
    (top / "linked" / "logs").symlink_to("/etc")
    return top


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    with serving(folder) as asks:
        yield asks


def test_every_actor_has_its_newest_place_and_its_log(browser: Browser) -> None:
    actors = browser.run("there", "actors")["actors"]
    names = [row["actor"] for row in actors]
    assert names == ["engine 0", "engine 2", "engine 10", "environment 0", "learner rank 0", "engine0.log.1"]
    found = {row["actor"]: row for row in actors}
    assert [found[actor]["node"] for actor, *_ in ACTORS] == [node for _, node, *_ in ACTORS]
    assert (found["engine 0"]["num_starts"], found["engine 0"]["pid"]) == (2, 41)
    assert found["environment 0"]["file"] == "", "it has written nothing that came here"
    assert found["engine 2"]["file"] == "engine2.log"
    assert found["engine 2"]["size_bytes"] > 0


def test_on_one_machine_the_processes_that_left_a_log_are_listed(browser: Browser) -> None:
    [row] = browser.run("here", "actors")["actors"]
    assert (row["actor"], row["node"], row["file"]) == ("learner-rank0.log", "", "learner-rank0.log")
    assert browser.run("here", "logs/learner-rank0.log")["text"] == "DeepSpeed\n"


def test_a_log_is_shown_from_its_end_in_whole_lines_without_secrets(browser: Browser) -> None:
    log = browser.run("there", "logs/engine10.log")
    assert log["text"] == f"line one of engine10.log\n--api-key *** said\n{LAST_WORDS} 1\n"
    assert log["start"] == 0
    cut = browser.run("there", "logs/engine0.log.1?max_bytes=1000")
    assert cut["text"] == "older \ufffd\n", "no half line, of which nobody knows whether it is a secret"
    assert cut["start"] == cut["size_bytes"] - len("older x\n")
    assert browser.ask("GET", "/api/runs/there/logs/engine0.log?max_bytes=99999999").status == 400


@pytest.mark.parametrize(
    "path",
    ["there/logs/link.log", "there/logs/..%2fconfig.json", "there/logs/%2fetc%2fhostname", "there/logs/none.log"],
)
def test_no_name_leads_out_of_the_folder_of_logs(browser: Browser, path: str) -> None:
    answer = browser.ask("GET", f"/api/runs/{path}")
    assert answer.status == 404
    assert b"no such" in answer.body


def test_a_folder_of_logs_that_is_a_link_shows_nothing(browser: Browser) -> None:
    assert browser.run("linked", "actors")["actors"] == []
    assert browser.ask("GET", "/api/runs/linked/logs/hostname").status == 404


def test_where_reading_needs_the_token_logs_do_too(folder: Path) -> None:
    with serving(folder, listen=Listen(token="a-token-of-ours-1234")) as asks:
        for path in ("/api/runs/there/actors", "/api/runs/there/logs/engine0.log"):
            assert asks.ask("GET", path).status == 401
            assert asks.ask("GET", path, token=asks.token).status == 200
