"""The catalogue of metrics: conventions, and that whatever the code tells is in it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcage.monitor.metrics.catalogue import BY_SOURCE, EVENTS, METRICS, NOT_TOLD, statistic
from rollcage.monitor.metrics.metric import Metric
from rollcage.monitor.metrics.page import page
from rollcage.trainer.learner.losses import LOSSES, LossInputs
from rollcage.trainer.learner.statistics import Totals, summarize

ROOT = Path(__file__).resolve().parents[3]
TELLING = ("counter", "gauge", "histogram", "event")


def test_names_follow_prometheuss_conventions() -> None:
    assert [fault for metric in METRICS.values() for fault in metric.faults()] == []


def test_a_name_that_breaks_them_is_found() -> None:
    assert len(Metric("Tokens_ms", "counter", "tokens", "x", buckets=(2, 1)).faults()) == 5


def test_the_reference_page_is_current() -> None:
    again = "python -m rollcage.monitor.metrics.page > monitor/metrics.md"
    assert (ROOT / "monitor" / "metrics.md").read_text() == page(), f"make it again: {again}"


def told() -> Iterator[tuple[str, str, set[str], str]]:
    """Yield (kind, name, labels, place) of every call on a recorder in the code; parts that vary are ``*``."""
    for folder in ("envs", "sandbox", "trainer", "monitor", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in TELLING
                    and "recorder" in ast.unparse(node.func.value)
                    and node.args
                ):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    labels = {keyword.arg or "*" for keyword in node.keywords} - {"value", "at_s"}
                    for name in _texts(node.args[0]):
                        yield node.func.attr, name, labels, place


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
    return []


def test_everything_that_the_code_tells_is_declared() -> None:
    calls = list(told())
    assert len(calls) > 30, "the search finds the calls no more"
    for kind, name, labels, place in calls:
        if kind == "event":
            assert name in EVENTS, f"{place}: event {name!r} is not in monitor/metrics"
            continue
        begin = name.partition("*")[0]
        declared = [
            metric
            for source, metric in BY_SOURCE.items()
            if source == name or ("*" in name and source.startswith(begin))
        ]
        if kind == "gauge" and name in NOT_TOLD:
            continue
        assert any((metric.kind, set(metric.labels)) == (kind, labels) for metric in declared), (
            f"{place}: {kind} {name!r} with labels {sorted(labels)} is not in monitor/metrics"
        )


def test_the_loops_statistics_are_declared() -> None:
    text = ast.walk(ast.parse((ROOT / "trainer" / "loop.py").read_text()))
    names = {
        node.value
        for node in text
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.split("/")[0] in ("rollout", "time", "account")
        and " " not in node.value
        and "/" in node.value
    }
    assert len(names) > 20
    assert names <= BY_SOURCE.keys()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_learners_statistics_are_declared(loss: str) -> None:
    """What each loss reports of a batch, and what the learner makes of it."""
    logprobs = torch.tensor([[-1.0, -0.5, -2.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() - 0.1,
        rollout_logprobs=logprobs.detach() - 0.2,
        advantages=torch.tensor([[1.0, -1.0, 0.0]]),
        loss_mask=mask,
        outcomes=torch.tensor([1.0]),
    )
    _, statistics = LOSSES[loss](inputs)
    totals = Totals()
    totals.add(
        logprobs=logprobs.detach(),
        old_logprobs=inputs.old_logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        entropy=torch.ones(1, 3),
        loss_mask=mask,
        loss_statistics=statistics,
    )
    assert {f"learner/{name}" for name in summarize([totals])} <= BY_SOURCE.keys()


def test_what_critics_and_credit_report_is_declared() -> None:
    """Every key like critic_..., rhythm_... or ref_kl that is written in the learner."""
    found = set()
    for path in (ROOT / "trainer" / "learner").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            keys = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
            for key in keys:
                found |= {
                    text for text in (_texts(key) if key else ()) if text.startswith(("critic_", "rhythm_", "ref_"))
                }
    found -= {"ref_logprobs", "rhythm_heads"}  # no statistics
    assert len(found) > 12
    for name in found:
        wanted = [
            f"learner/{name.replace('*', value)}" for value in (("0",) if "critic_*" in name else ("waad", "fai"))
        ]
        assert all(map(statistic, wanted)), f"{name} is not in monitor/metrics"
    assert statistic("learner/critic_x_loss") is None
