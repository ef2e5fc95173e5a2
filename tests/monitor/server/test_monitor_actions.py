"""What can be done from the page: a run that trains is paused and goes on, hosts are drained, sandboxes end."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.pages.recorded_run import write_config
from tests.monitor.server.browser import Browser, serving
from tests.sandbox.service.service_process import delete_all, running

from rollcage.monitor.endpoint import Endpoint
from rollcage.monitor.run_folder import RunFolder
from rollcage.sandbox.sync import SyncSandboxes
from rollcage.sandbox.types import SandboxSpec


def test_a_run_that_trains_is_paused_and_resumed_through_the_dashboard(tmp_path: Path) -> None:
    """The actions as the training process offers them, on a loop that trains."""
    from tests.trainer.scripted_run import ScriptedRun

    from rollcage.trainer.rollout.config import RolloutConfig
    from rollcage.trainer.run_actions import RunActions

    folder = tmp_path / "live"
    write_config(folder, seed=0, num_updates=10)
    rows = RunFolder(folder)
    seen: list[Any] = []

    async def beside(run: ScriptedRun) -> None:
        import fcntl

        with (folder / "lock").open("a") as held, serving(tmp_path) as asks:
            fcntl.flock(held, fcntl.LOCK_EX)
            rows.event("start", resumed_from=None)
            with Endpoint(None, actions=RunActions(run.pause, rows).actions(), folder=folder):
                for name in ("pause", "resume"):
                    for _ in range(2):
                        answer = await asyncio.to_thread(asks.act, f"/api/runs/live/actions/{name}")
                        seen.append((answer.status, answer.json["done"], run.pause.is_on))
                    seen.append((await asyncio.to_thread(asks.run, "live", "status"))["state"])
                    time.sleep(0.55)  # answers are shared for half a second
                seen.append((await asyncio.to_thread(asks.act, "/api/runs/live/actions/explode")).status)

    config = RolloutConfig(num_groups=4, group_size=4, num_slots=16)
    run = ScriptedRun(config, beside=beside)
    asyncio.run(run._main(1))
    rows.close()
    assert seen == [
        (200, True, True), (200, False, True), "paused",
        (200, True, False), (200, False, False), "running",
        404,
    ]  # fmt: skip
    assert run.progress.policy_version == 1


def test_a_run_that_has_ended_or_says_nothing_cannot_be_told_anything(tmp_path: Path) -> None:
    write_config(tmp_path / "over", seed=0, num_updates=1)
    (tmp_path / "over" / "control.json").write_text(json.dumps({"address": "http://127.0.0.1:9", "token": "t"}))
    with serving(tmp_path) as asks:
        answer = asks.act("/api/runs/over/actions/pause")
        assert answer.status == 409
        assert "only one that runs" in answer.json["error"]["message"]
        assert asks.act("/api/runs/nothing/actions/pause").status == 404
        status = asks.run("over", "status")
        assert (status["can_act"], status["actions"]) == (False, [])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, SyncSandboxes]]:
    """A monitor, and the sandboxes of a service that it finds (without containers: on plain processes)."""
    folder = tmp_path_factory.mktemp("sandboxes")
    with running(folder) as service:
        token = json.loads((folder / "service.json").read_text())["token"]
        with SyncSandboxes(folder=folder) as sandboxes:
            with serving(folder, find_sandboxes=lambda: (service.address, token)) as asks:
                yield asks, sandboxes
    delete_all(folder)


def test_a_fleet_is_shown_by_host_and_state_with_events_and_output(fleet: tuple[Browser, SyncSandboxes]) -> None:
    asks, sandboxes = fleet
    spec = SandboxSpec(command=("sh", "-c", "echo its last words; sleep 1000"), env={"API_KEY": "hush"}, ttl_s=100)
    it = sandboxes.create(spec, key="shown")
    shown = asks.get("/api/sandboxes")
    (host,) = shown["hosts"]
    assert shown["by_host"][host["name"]]["READY"] == shown["by_state"]["READY"] >= 1
    (brief,) = [each for each in shown["sandboxes"] if each["id"] == it.id]
    assert (brief["state"], brief["key"], brief["generation"]) == ("READY", "shown", 1)
    one = asks.get(f"/api/sandboxes/{it.id}")
    assert one["sandbox"]["env"] == {"API_KEY": "***"}
    assert [event["kind"] for event in one["events"]][:1] == ["created"]
    assert asks.get(f"/api/sandboxes/{it.id}/logs")["text"] == "its last words\n"
    assert asks.get(f"/api/sandboxes/events?after={one['events'][0]['number']}")["events"]


def test_a_host_is_drained_and_sandboxes_are_restarted_and_deleted(fleet: tuple[Browser, SyncSandboxes]) -> None:
    asks, sandboxes = fleet
    it = sandboxes.create(SandboxSpec(ttl_s=100))
    it.exec("sleep 1000 & echo $! > pid")
    answer = asks.act(f"/api/sandboxes/{it.id}/restart")
    assert answer.status == 200, answer
    assert answer.json["sandbox"]["generation"] == 2
    assert not sandboxes.attach(it.id).exec("kill -0 $(cat pid)").ok  # nothing of the former life runs
    assert asks.act(f"/api/sandboxes/{it.id}/delete").status == 200
    assert it.id not in {info.id for info in sandboxes.list_sandboxes()}
    assert asks.get(f"/api/sandboxes/{it.id}/events")["events"][-1]["kind"] == "deleted"

    (host,) = (each.name for each in sandboxes.hosts())
    for on, condition in ((True, "drained"), (False, "open")):
        assert asks.act(f"/api/sandboxes/hosts/{host}/drain", {"on": on}).status == 200
        assert asks.get("/api/sandboxes")["hosts"][0]["condition"] == condition
    assert asks.act("/api/sandboxes/hosts/nobody/drain", {"on": True}).status == 400
    assert asks.act(f"/api/sandboxes/hosts/{host}/drain", {"on": "perhaps"}).status == 400
    assert asks.act("/api/sandboxes/..%2f..%2fhosts/delete").status == 405  # no such route


def test_without_a_service_the_page_is_told_how_to_start_one(tmp_path: Path) -> None:
    with serving(tmp_path, find_sandboxes=lambda: None) as asks:
        answer = asks.ask("GET", "/api/sandboxes")
        assert answer.status == 502
        assert "rollcage sandbox serve" in answer.json["error"]["message"]
    with serving(tmp_path, find_sandboxes=lambda: ("http://127.0.0.1:9", "t")) as asks:
        assert "does not answer" in asks.ask("GET", "/api/sandboxes").json["error"]["message"]
