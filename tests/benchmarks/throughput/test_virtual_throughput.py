"""The virtual figures: computed anew, against baselines that a simple count confirms, and reported as they are."""

import json
from pathlib import Path

import pytest

from rollcage.benchmarks.throughput.bounds import bound
from rollcage.benchmarks.throughput.cli import compute, format_page, main, summary
from rollcage.benchmarks.throughput.figures import Effort
from rollcage.benchmarks.throughput.settings import RLVR, agentic, config, engines_only, resources
from rollcage.errors import UserError
from rollcage.trainer.simulation.draws import Constant, Gaussian
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Workload, simulate
from rollcage.trainer.simulation.plan import asynchronous, synchronous

QUICK = Effort(updates=1)


def test_lockstep_waits_for_the_slowest_turn_and_queueing_only_for_the_slowest_episode() -> None:
    workload = Workload(Constant(100), EnvModel(turns=Constant(5), turn_s=Gaussian(10, 3)))
    size = {"num_groups": 8, "group_size": 8}
    lockstep, free = (
        simulate(workload, engines_only(4), chosen, num_updates=3)
        for chosen in (config(8, 8, mode="sync"), config(8, 8))
    )
    # the largest of 64 Gaussians lies 2.3 deviations out: of a turn's latency, or of the sum of five
    assert lockstep.update_s == pytest.approx(5 * (2.5 + 10 + 2.3 * 3), rel=0.05)
    assert free.update_s == pytest.approx(5 * (2.5 + 10) + 2.3 * 3 * 5**0.5, rel=0.05)
    assert size == {"num_groups": lockstep.account["trained"] // 24, "group_size": 8}


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 2.0])
def test_an_update_takes_no_longer_than_the_bound(async_ratio: float) -> None:
    gpus = resources(RLVR, 6)
    cluster = gpus.split(2 if async_ratio else 0)
    size = {"num_groups": 32, "group_size": 8}
    chosen = asynchronous(RLVR, cluster, async_ratio=async_ratio, **size)
    update_s = simulate(RLVR, cluster, chosen, num_updates=4).update_s
    assert update_s <= 1.05 * bound(RLVR, gpus, **size, async_ratio=async_ratio, num_updates=4)


def test_the_split_of_the_baseline_trains_on_all_gpus() -> None:
    gpus = resources(agentic(1, 1), 12)
    assert gpus.split(0).sample_s == pytest.approx(gpus.split(4).sample_s / 3)
    assert gpus.split(0).num_replicas == 12
    assert gpus.split(4).num_replicas == 8
    assert synchronous(num_groups=4, group_size=2).mode == "sync"


def test_figures_are_ratios_of_what_was_just_simulated() -> None:
    figures = compute(["queue_scheduling", "prompt_replication"], QUICK, num_processes=1)
    queue, replication = figures.values()
    for row in queue.rows:
        assert row["ratio"] == row["sync_s"] / row["queue_s"]
    assert queue.value == queue.rows[-1]["sync_s"] / queue.rows[-1]["queue_16_extra_s"] > 1.5
    assert replication.value == max(row["bound_s"] / row["replicated_s"] for row in replication.rows) > 1.3
    line = summary(figures)
    assert set(line["reaches_goal"]) == {"queue_scheduling", "prompt_replication"}
    page = format_page(figures, command="rollcage bench throughput", seconds=1.0)
    assert f"**{queue.value:.2f}**" in page
    assert "128 x 8" in page


def test_the_command_ends_with_one_json_line_and_keeps_what_it_is_asked_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--virtual", "--json", "--only", "prompt_replication", "--jobs", "1", "--output", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["prompt_replication"] > 1
    assert {path.name for path in tmp_path.iterdir()} == {"throughput.md", "throughput.json", "throughput.png"}
    assert json.loads((tmp_path / "throughput.json").read_text(encoding="utf-8"))[0]["name"] == "prompt_replication"


@pytest.mark.parametrize(("arguments", "message"), [("", "--virtual"), ("--virtual --only queue", "queue_scheduling")])
def test_what_cannot_be_measured_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(arguments.split())
