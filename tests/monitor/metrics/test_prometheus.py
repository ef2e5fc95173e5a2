"""The Prometheus recorder: what it shows of what it is told, with bounded labels."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollcage.monitor.metrics.metric import OTHER
from rollcage.monitor.metrics.prometheus import PrometheusRecorder
from rollcage.recorder import Recorder


def shown(recorder: PrometheusRecorder) -> dict[tuple[str, ...], float]:
    """Return (sample, label values in order) -> value."""
    text, content_type = recorder.exposition()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_is_told_is_shown_under_its_public_name(tmp_path: Path) -> None:
    prometheus = PrometheusRecorder(tmp_path, strict=True)
    recorder: Recorder = prometheus
    recorder.counter("sampled_tokens", 5, engine="0")
    recorder.counter("sampled_tokens", 7, engine="0")
    recorder.gauge("running_episodes", 3, at_s=17.0)
    recorder.gauge("sampled_tokens", 12, at_s=17.0)  # of the timeline: the counter has it already
    recorder.histogram("publish_seconds", 0.02)
    recorder.metrics({"rollout/reward": 0.5, "learner/lr": 1e-4, "account/started": 40}, policy_version=3)
    recorder.metrics({"rollout/reward": 0.6, "account/started": 70}, policy_version=4)
    recorder.event("sample_failed", kind="infra", reason="env_timeout", message="")
    recorder.span("engine 3", "decode", 1.0, 3.5)
    recorder.span("engine 4", "decode", 1.0, 2.0)
    turns = [{"start": 5, "end": 25}]
    recorder.trajectory({"env_id": "E", "success": True, "turns": turns, "start_s": 1.0, "end_s": 3.0})
    found = shown(prometheus)
    assert found["rollcage_sampled_tokens_total", "0"] == 12
    assert found["rollcage_running_episodes",] == 3
    assert (found["rollcage_publish_seconds_bucket", "0.01"], found["rollcage_publish_seconds_bucket", "0.025"]) == (
        0,
        1,
    )
    assert (found["rollcage_rollout_reward",], found["rollcage_learner_learning_rate",]) == (0.6, 1e-4)
    assert (found["rollcage_samples_started_total",], found["rollcage_policy_version",]) == (70, 4)
    assert found["rollcage_sample_failures_total", "infra", "env_timeout"] == 1
    assert found["rollcage_events_total", "sample_failed"] == 1
    assert found["rollcage_busy_seconds_total", "decode", "engine"] == 3.5
    assert found["rollcage_episodes_total", "E", "success"] == 1
    assert found["rollcage_trajectory_tokens_sum", "E"] == 20
    assert 0 < found["rollcage_disk_free_bytes",] < found["rollcage_disk_size_bytes",]
    assert found["process_resident_memory_bytes",] > 0


def test_a_resumed_run_goes_on_with_its_totals() -> None:
    recorder = PrometheusRecorder(strict=True)
    for started in (500, 520, 510, 530):  # an account that was set back to a checkpoint
        recorder.metrics({"account/started": started}, policy_version=1)
    assert shown(recorder)["rollcage_samples_started_total",] == 530


def test_labels_stay_bounded() -> None:
    recorder = PrometheusRecorder()
    for number in range(1000):
        recorder.event("sample_failed", kind=f"kind{number}", reason=f"reason{number}")
        recorder.trajectory({"env_id": f"env{number}"})
    found = shown(recorder)
    reasons = {name for name in found if name[0] == "rollcage_sample_failures_total"}
    assert len(reasons) == 33  # 32 reasons, and the others
    assert found["rollcage_sample_failures_total", OTHER, OTHER] == 1000 - 32
    assert found["rollcage_episodes_total", OTHER, "no_success"] == 1000 - 16


def test_unknown_names_are_caught_in_tests_and_counted_in_life() -> None:
    strict, recorder = PrometheusRecorder(strict=True), PrometheusRecorder()
    for told in (
        lambda it: it.counter("sampled_token", engine="0"),
        lambda it: it.counter("sampled_tokens"),  # without its label
        lambda it: it.gauge("requests", 1, engine="0", finish_reason="stop"),  # a counter
        lambda it: it.metrics({"learner/entropie": 1.0}, policy_version=1),
    ):
        with pytest.raises(KeyError, match="catalogue"):
            told(strict)
        told(recorder)
    with pytest.raises(KeyError, match="never 'length!'"):
        strict.counter("requests", engine="0", finish_reason="length!")
    assert shown(recorder)["rollcage_unknown_metrics_total",] == 4
