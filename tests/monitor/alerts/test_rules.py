"""The rules on recorded rows of every kind of failure: each fires at its own, once, and none at a run that learns."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rollcage.monitor.alerts.hysteresis import Hysteresis
from rollcage.monitor.alerts.rules import RULES
from rollcage.monitor.alerts.window import MAX_ROWS, NUM_FIRST, Row, Window

Rows = list[dict[str, float]]


def healthy(num: int = 60, seed: int = 0) -> Rows:
    """Return the rows of a run that learns."""
    draw = random.Random(seed)
    return [
        {
            "time": 1000.0 + 10 * update,
            "time/elapsed_s": 10.0 * update,
            "rollout/reward": 0.2 + 0.01 * update + draw.uniform(-0.05, 0.05),
            "rollout/mixed_groups": draw.uniform(0.3, 0.7),
            "rollout/cut_by_length": draw.uniform(0.0, 0.1),
            "learner/loss": draw.gauss(0, 0.01),
            "learner/grad_norm": draw.uniform(0.1, 0.5),
            "learner/entropy": 1.0 - 0.008 * update,
            "learner/approx_kl_k3": draw.uniform(0.0, 0.01),
            "learner/logprob_gap_mean": draw.uniform(0.0, 0.01),
            "account/started": 100.0 * (update + 1),
            "account/stale": 2.0 * update,
            "failed/infra": 1.0 * update,
            "failed/model": 1.0 * update,
            "failed/task": 0.0,
            "engine_deaths": 0.0,
            "restarts": 1.0 * update,
        }
        for update in range(num)
    ]


def ill(change: Callable[[int, dict[str, float]], None], begin: int = 40, num: int = 60) -> Rows:
    """Return rows of a run that something befalls at update ``begin``."""
    rows = healthy(num)
    for update in range(begin, num):
        change(update - begin, rows[update])
    return rows


def told(rows: Rows, **of_last: Any) -> list[tuple[str, bool]]:
    """Return what is told over a run, in order: rule, and whether it begins to fire."""
    states, first = Hysteresis(), rows[:NUM_FIRST]
    changes = []
    for end in range(1, len(rows) + 1):
        window: list[Row] = list(rows[max(0, end - MAX_ROWS) : end])
        changes += states.look(Window(window, first, **(of_last if end == len(rows) else {})))
    return [(change.rule.name, change.is_firing) for change in changes]


def put(name: str, value: float) -> Callable[[int, dict[str, float]], None]:
    return lambda since, row: row.__setitem__(name, value)


def grow(name: str, each: float) -> Callable[[int, dict[str, float]], None]:
    return lambda since, row: row.__setitem__(name, row[name] + each * since)


BEFALLS = {
    "entropy_collapse": put("learner/entropy", 0.01),
    "reward_collapse": put("rollout/reward", 0.05),
    "kl_blow_up": put("learner/approx_kl_k3", 0.7),
    "stale_share": grow("account/stale", 60.0),
    "failures_infra": grow("failed/infra", 50.0),
    "failures_model": grow("failed/model", 50.0),
    "failures_task": grow("failed/task", 20.0),
    "sandbox_restarts": grow("restarts", 40.0),
    "dead_engine": put("engine_deaths", 1.0),
    "logprob_gap": put("learner/logprob_gap_mean", 0.4),
    "not_finite": put("learner/loss", math.nan),
    "no_variance": put("rollout/mixed_groups", 0.0),
    "cut_by_length": put("rollout/cut_by_length", 0.9),
}


def test_every_rule_is_tried() -> None:
    assert set(BEFALLS) | {"stall", "disk_pressure"} == set(RULES)


@pytest.mark.parametrize("rule", BEFALLS)
def test_a_rule_fires_once_at_its_own_failure_and_at_no_other(rule: str) -> None:
    assert told(ill(BEFALLS[rule])) == [(rule, True)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_fires_in_a_run_that_learns(seed: int) -> None:
    assert told(healthy(seed=seed), waited_s=30.0, free_disk=0.5) == []


@pytest.mark.parametrize("rule", [name for name in BEFALLS if name != "dead_engine"])
def test_it_is_over_once_it_is_over_and_not_before(rule: str) -> None:
    def change(since: int, row: dict[str, float]) -> None:
        if since < 20:
            BEFALLS[rule](since, row)
        elif rule in ("stale_share", "failures_infra", "failures_model", "failures_task", "sandbox_restarts"):
            BEFALLS[rule](20, row)  # what was counted stays counted

    assert told(ill(change, num=100)) == [(rule, True), (rule, False)]


def test_a_run_at_the_edge_does_not_flicker() -> None:
    edge = iter([0.11, 0.09] * 30)
    rows = ill(lambda since, row: row.__setitem__("learner/logprob_gap_mean", next(edge)))
    assert told(rows) == [("logprob_gap", True)]


def test_a_stall_is_measured_in_the_usual_time_of_an_update() -> None:
    assert told(healthy(), waited_s=119.0) == []
    assert told(healthy(), waited_s=121.0) == [("stall", True)]
    slow = [{**row, "time/elapsed_s": 60 * row["time/elapsed_s"]} for row in healthy()]  # ten minutes each
    assert told(slow, waited_s=3600.0) == []
    assert told(slow, waited_s=6001.0) == [("stall", True)]
    assert RULES["stall"].measure(Window(waited_s=None)) is None  # nothing is waited for


def test_before_the_first_update_little_can_be_told() -> None:
    known = {name for name, rule in RULES.items() if rule.measure(Window()) is not None}
    assert known == set()
    assert told([], free_disk=0.01) == []
    assert [it.rule.name for it in Hysteresis().look(Window(free_disk=0.01))] == ["disk_pressure"]
    assert [it.rule.name for it in Hysteresis().look(Window(waited_s=601.0))] == ["stall"]


def test_counts_that_begin_anew_after_a_resume_are_no_negative_shares() -> None:
    rows = healthy()
    for name in ("failed/infra", "failed/model", "restarts"):
        before = rows[50][name]
        for row in rows[50:]:
            row[name] -= before
    assert told(rows) == []
    value = RULES["failures_infra"].measure(Window(rows[-MAX_ROWS:]))
    assert value is not None
    assert 0 <= value < 0.05


def test_the_advice_names_fields_that_there_are() -> None:
    from rollcage.monitor import doctor
    from rollcage.trainer.config import TrainConfig

    texts = [text for rule in RULES.values() for text in rule.advice] + [
        Path(doctor.__file__).read_text(encoding="utf-8")
    ]
    named = {
        found for text in texts for found in re.findall(r"\b(?:learner|rollout|engine|sampling|eval)\.[a-z_]+", text)
    }
    assert len(named) > 10
    types = get_type_hints(TrainConfig)
    for name in named:
        part, _, field = name.partition(".")
        assert field in get_type_hints(types[part]), name
