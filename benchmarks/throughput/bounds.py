"""The bound on an update's time that theory gives, for the very lengths and latencies that a simulation draws."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from statistics import fmean

from rollcage.benchmarks.throughput.settings import SLOTS
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.simulation.draws import draw
from rollcage.trainer.simulation.model import Workload
from rollcage.trainer.simulation.plan import Resources
from rollcage.trainer.types import Request, Sampling


def bound(
    workload: Workload, gpus: Resources, num_groups: int, group_size: int, async_ratio: float, num_updates: int
) -> float:
    """Return the bound on an update's seconds: (N / K) (mu_gen + mu_train) + L_gen / (alpha + 1).

    A worker is a slot, so that training a sample takes ``SLOTS`` times its GPU-seconds of a worker's time. The longest
    episode L_gen includes its environment, mu_gen does not, since waiting for it holds no slot. Both are those of the
    lengths and latencies that a simulation of so many updates draws, its warm-up included.
    """
    num_batches = num_updates + (math.ceil(async_ratio) + 1 if async_ratio else 0)
    generation_s, longest_s = _drawn(workload, gpus.speed.token_s, num_groups, group_size, num_batches)
    work_s = generation_s + gpus.train_gpu_s * SLOTS
    return num_groups * group_size / (gpus.num_gpus * SLOTS) * work_s + longest_s / (async_ratio + 1)


@lru_cache
def _drawn(
    workload: Workload, token_s: float, num_groups: int, group_size: int, num_batches: int
) -> tuple[float, float]:
    """Return the mean seconds of generation, and those of the longest episode, over the first batches."""
    length, num_turns = workload.length(0), round(workload.env.turns.mean)
    generation_s, longest_s = [], 0.0
    for batch in range(num_batches):
        for group, member in product(range(batch * num_groups, (batch + 1) * num_groups), range(group_size)):
            seed = key_seed(0, str(group), group, member, 0)  # as the scheduler seeds the episode
            tokens = latency_s = 0.0
            for turn in range(num_turns):
                tokens += length(Request("", [], _SAMPLING, seed=key_seed(seed, turn), group=str(group)))
                latency_s += draw(workload.env.turn_s, key_seed(seed, "latency", turn))
            generation_s.append(tokens * token_s)
            longest_s = max(longest_s, tokens * token_s + latency_s)
    return fmean(generation_s), longest_s


_SAMPLING = Sampling(1)
