"""How throughput grows with the workers, and what the orchestration of one episode costs with many in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rollcage.benchmarks.throughput.bounds import bound
from rollcage.benchmarks.throughput.figures import Effort, Figure, run
from rollcage.benchmarks.throughput.settings import RLVR, SLOTS, config, engines_only, resources
from rollcage.trainer.simulation.draws import Lognormal
from rollcage.trainer.simulation.model import simulate
from rollcage.trainer.simulation.plan import asynchronous

_LIMIT_TOKENS = 8000
_LIMITED = replace(RLVR, lengths=Lognormal(1000, longest=_LIMIT_TOKENS))


def scaling_8x(effort: Effort) -> Figure:
    """The same batch on eight times the GPUs, and batches that grow with them, to 10,000 workers (slots)."""
    gpus = (3, 6, 12, 24, 48) if effort.full else (3, 24)
    rows = [_row(num_gpus, 256, 16, effort, limited=False) for num_gpus in gpus]
    by_gpus = {row["gpus"]: row["samples_per_s"] for row in rows}
    if effort.full:
        # two samples of a batch for every worker, and a limit on the length: else the one longest of so many decides
        for num_workers in (128, 1024, 10_000):
            rows.append(_row(round(1.5 * num_workers / SLOTS), num_workers // 4, 8, effort, limited=True))
    return Figure(
        "scaling_8x",
        "Scaling",
        "one batch of 256 x 16, async_ratio 2, on 24 GPUs against 3 (a third of them train)",
        by_gpus[24] / by_gpus[3],
        7.6,
        "7.6x on eight times the GPUs",
        rows,
    )


def _row(num_gpus: int, num_groups: int, group_size: int, effort: Effort, *, limited: bool) -> dict[str, Any]:
    workload = _LIMITED if limited else RLVR
    gpus = resources(workload, num_gpus)
    cluster = gpus.split(round(num_gpus / 3))
    size = {"num_groups": num_groups, "group_size": group_size}
    updates = 2 if limited else effort.updates
    prediction = run(workload, cluster, asynchronous(workload, cluster, async_ratio=2.0, **size), updates)
    bound_s = bound(workload, gpus, **size, async_ratio=2.0, num_updates=updates)
    return {
        "gpus": num_gpus,
        "workers": cluster.num_workers,
        "batch": f"{num_groups} x {group_size}",
        "longest_tokens": _LIMIT_TOKENS if limited else "no limit",
        "samples_per_s": prediction.samples_per_s,
        "samples_per_s_per_gpu": prediction.samples_per_s / num_gpus,
        "slots_busy": prediction.rollout_busy,
        "learner_busy": prediction.learner_busy,
        "of_bound": prediction.update_s / bound_s,
        "cpu_us_per_episode": 1e6 * prediction.cpu_s / prediction.num_episodes,
    }


def orchestration(effort: Effort) -> Figure:
    """Processor time for one episode of one turn, by how many are in flight.

    Lengths have a limit: else the longest of 100,000 is three times that of 1,000, and all are padded to it.
    """
    rows = []
    for num_in_flight in (100, 1000, 10_000, 100_000) if effort.full else (100, 1000, 10_000):
        chosen = config(num_in_flight // 4, 4)
        cluster = engines_only(-(-num_in_flight // SLOTS))
        num_updates = max(1, 4000 // num_in_flight)
        prediction = simulate(_LIMITED, cluster, chosen, num_updates=num_updates, tokens_per_id=200)
        rows.append(
            {
                "in_flight": num_in_flight,
                "episodes": prediction.num_episodes,
                "cpu_us_per_episode": 1e6 * prediction.cpu_s / prediction.num_episodes,
            }
        )
    growth = rows[-1]["cpu_us_per_episode"] / rows[0]["cpu_us_per_episode"]
    return Figure(
        "orchestration_growth",
        "Orchestration",
        f"processor time of an episode with {rows[-1]['in_flight']:,} in flight over that with 100; what the simulated "
        "engine, environment and learner take themselves is in it",
        growth,
        rows=rows,
    )


SCALING: dict[str, Callable[[Effort], Figure]] = {
    "scaling_8x": scaling_8x,
    "orchestration_growth": orchestration,
}
