"""The files for Prometheus and Grafana: what promtool says of them, and that they ask for metrics that there are."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rollcage.monitor.metrics.catalogue import METRICS

MONITOR = Path(__file__).resolve().parents[3] / "monitor"
PROMETHEUS, DASHBOARD = MONITOR / "prometheus", MONITOR / "grafana" / "rollcage.json"


def promtool(*arguments: str | Path, folder: Path = PROMETHEUS) -> str:
    beside = Path(sys.executable).parent / "promtool"  # where the Makefile puts it
    program = shutil.which("promtool") or (str(beside) if beside.exists() else None)
    if program is None:
        pytest.fail("promtool is not here: install Prometheus, or run the tests with  make test")
    done = subprocess.run([program, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_in(expression: str) -> set[str]:
    """Return the catalogue's names in an expression; those of a histogram's parts as the histogram's."""
    found = set()
    for name in re.findall(r"\brollcage_\w+", expression):
        part = re.sub(r"_(bucket|sum|count)$", "", name)
        found.add(part if METRICS.get(part) and METRICS[part].kind == "histogram" else name)
    return found


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_configuration_is_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_the_alerts_tests_can_fail(tmp_path: Path) -> None:
    for name in ("alerts.yml", "alerts_test.yml"):
        shutil.copy(PROMETHEUS / name, tmp_path)
    (tmp_path / "alerts.yml").write_text(
        (PROMETHEUS / "alerts.yml").read_text().replace("[15m])) > 5", "[15m])) > 500")
    )
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", "alerts_test.yml", folder=tmp_path)


def test_every_alert_is_tested_says_what_to_try_and_asks_for_metrics_that_there_are() -> None:
    tests = (PROMETHEUS / "alerts_test.yml").read_text()
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert tests.count(rule["alert"]) >= 2, f"{rule['alert']}: one test that it fires, one that it does not"
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["try"]
            assert metrics_in(rule["expr"]) <= METRICS.keys(), rule["alert"]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    asked = set().union(*map(metrics_in, expressions()))
    assert asked <= METRICS.keys()
    assert len(asked) > 30


def test_the_dashboards_expressions_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, expression in enumerate(expressions())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")
