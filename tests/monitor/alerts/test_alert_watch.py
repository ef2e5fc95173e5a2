"""The rules inside a run: what fires goes to the run's events once, and to a webhook or a command."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.alerts.listener import listening
from tests.monitor.alerts.test_rules import healthy
from tests.monitor.pages.recorded_run import write_config

from rollcage.errors import UserError
from rollcage.monitor.alerts import notify
from rollcage.monitor.alerts.judged import firing, judge
from rollcage.monitor.alerts.notify import Notifier, OnAlert
from rollcage.monitor.alerts.watch import AlertWatch
from rollcage.monitor.recorders.several import Several
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store import RunReader

ALERT = {"rule": "stall", "state": "firing", "severity": "critical", "message": "nothing comes", "value": 12.0}


class WatchedRun:
    """A run folder with the rules beside it, on a clock of its own."""

    def __init__(self, folder: Path, on_alert: OnAlert | None = None) -> None:
        write_config(folder, seed=0, num_updates=100)
        self.now, self.folder = 1000.0, folder
        self.watch = AlertWatch(folder, on_alert, clock=lambda: self.now)
        self.recorder = Several(RunFolder(folder), [self.watch])
        self.watch.listen_for(self.recorder)
        self.recorder.event("start", resumed_from=None)
        self.recorder.event("training", policy_version=0)

    def update(self, version: int, **changed: float) -> None:
        self.now += 10.0
        row = healthy(100)[version] | changed
        for name in ("time", "failed/infra", "failed/model", "failed/task", "engine_deaths", "restarts"):
            del row[name]  # these it counts itself
        self.recorder.metrics(row, policy_version=version)

    def alerts(self) -> list[tuple[str, str]]:
        with RunReader(self.folder) as reader:
            rows = reader.events(limit=100, kinds=("alert",), newest_first=False)[1]
        return [(row["rule"], row["state"]) for row in rows]


def test_what_fires_goes_to_the_events_once_and_once_when_it_is_over(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "run")
    for version in range(1, 20):
        run.update(version)
    assert run.alerts() == []
    for version in range(20, 30):
        run.update(version, **{"learner/approx_kl_k3": 1.0})
    assert run.alerts() == [("kl_blow_up", "firing")]
    for version in range(30, 40):
        run.update(version)
    run.recorder.close()
    assert run.alerts() == [("kl_blow_up", "firing"), ("kl_blow_up", "resolved")]
    with RunReader(run.folder) as reader:
        judged = judge(reader)
    assert len(judged["history"]) == 2
    assert {rule["state"] for rule in judged["rules"]} == {"ok", "unknown"}


def test_a_stall_is_seen_while_nothing_comes_but_not_in_a_pause_or_an_evaluation(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "run")
    for version in range(1, 10):
        run.update(version)

    def quiet(seconds: float) -> None:
        for _ in range(int(seconds)):
            run.now += 1.0
            run.recorder.gauge("running_episodes", 3.0, at_s=run.now)

    run.recorder.event("paused")
    quiet(1000)
    run.recorder.event("resumed")
    run.recorder.event("evaluating", when="after", evaluation="held out")
    quiet(1000)
    assert run.alerts() == []
    run.recorder.event("training", policy_version=9)
    quiet(1000)
    assert run.alerts() == [("stall", "firing")]
    run.update(10)
    run.recorder.close()
    assert run.alerts() == [("stall", "firing"), ("stall", "resolved")]


def test_failures_deaths_and_restarts_are_counted_as_they_are_told(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "run")
    for version in range(1, 15):
        for _ in range(50):
            run.recorder.event("sample_failed", kind="infra", reason="env_died", message="gone")
        run.recorder.trajectory({"info": {"restarted": 40}})
        run.update(version)
    run.recorder.event("engine_died", engine=1, message="gone", num_left=1)
    assert sorted(run.alerts()) == [
        ("dead_engine", "firing"),
        ("failures_infra", "firing"),
        ("sandbox_restarts", "firing"),
    ]
    run.recorder.close()


def test_after_a_resume_only_what_is_told_anew_fires(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "run")
    run.recorder.event("engine_died", engine=1, message="gone", num_left=1)
    with RunReader(run.folder) as reader:
        assert firing(reader) == ["dead_engine"]
        run.recorder.event("start", resumed_from="checkpoints/step-000020")
        assert firing(reader) == []
        assert {rule["state"] for rule in judge(reader)["rules"]} == {"unknown"}
        assert len(judge(reader)["history"]) == 1
    run.recorder.close()


def test_a_run_of_an_earlier_version_without_alerts_is_judged_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_config(folder, seed=0, num_updates=60)
    rows = RunFolder(folder)
    for version, row in enumerate(healthy(60), 1):
        blown = {"learner/approx_kl_k3": 1.0} if version > 50 else {}
        rows.write("metrics", {**row, **blown, "policy_version": version})
    rows.close()
    with RunReader(folder) as reader:
        judged = judge(reader)
    assert [(it["rule"], it["state"], it["time"]) for it in judged["history"]] == [("kl_blow_up", "firing", 1510.0)]
    (firing,) = [rule for rule in judged["rules"] if rule["state"] == "firing"]
    assert (firing["rule"], firing["since"], firing["value"]) == ("kl_blow_up", 1510.0, 1.0)


def told_by(how: OnAlert, *alerts: dict[str, Any]) -> list[str]:
    """Tell of alerts; returns what could not be told."""
    failures: list[str] = []
    notifier = Notifier(how, failures.append)
    for alert in alerts:
        notifier.tell(alert)
    notifier.close()
    notifier.close()
    notifier.tell(ALERT)  # the run has ended: nobody is told
    return failures


def test_a_webhook_is_tried_again_and_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE_S", 0.01)
    with listening(500, 302) as listener:
        assert told_by(OnAlert(webhook=listener.url), ALERT) == []
        assert listener.heard == [ALERT] * 3
    with listening(500, 500) as listener:
        (failure,) = told_by(OnAlert(webhook=listener.url, tries=2), ALERT)
        assert failure == "stall: OSError: the webhook answered 500"
        assert len(listener.heard) == 2
    (failure,) = told_by(OnAlert(webhook=listener.url, tries=1), ALERT)
    assert "refused" in failure
    assert "hush" not in failure


def test_a_command_gets_the_alert_and_no_more_time_than_it_may_have(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert told_by(OnAlert(command=f"cat > {out}; echo $RULE $STATE $SEVERITY >> {out}"), ALERT) == []
    assert out.read_text() == json.dumps(ALERT) + "stall firing critical\n"
    assert told_by(OnAlert(command="exit 3"), ALERT) == ["stall: OSError: the command ended with 3"]
    begin_s = time.monotonic()
    assert told_by(OnAlert(command="sleep 100 & sleep 100", timeout_s=0.3), ALERT) == [
        "stall: TimeoutExpired: took longer than 0.3 s"
    ]
    assert time.monotonic() - begin_s < 10


def test_a_run_tells_its_webhook_and_what_could_not_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as listener:
        run = WatchedRun(tmp_path / "run", OnAlert(webhook=listener.url, command="exit 1"))
        run.recorder.event("engine_died", engine=0, message="gone", num_left=1)
        run.recorder.close()
        (heard,) = listener.heard
    assert (heard["rule"], heard["state"], heard["run"]) == ("dead_engine", "firing", "run")
    with RunReader(run.folder) as reader:
        assert reader.event_kinds() == {"alert": 1, "alert_not_told": 1, "engine_died": 1, "start": 1, "training": 1}


@pytest.mark.parametrize(
    "values", [{"webhook": "file:///etc/passwd"}, {"webhook": "hook"}, {"timeout_s": 0.0}, {"tries": 0}]
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"monitor\.on_alert"):
        OnAlert(**values)
