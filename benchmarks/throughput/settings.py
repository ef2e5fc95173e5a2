"""The settings of the virtual figures: what the paper's tables give, and our own choices where they are silent.

Given (arXiv 2510.11345): batch sizes, 16 extra prompts, environment latencies, lockstep as the baseline. Ours:

* Responses are lognormal with sigma 0.94; the median of 1,000 tokens at 25 ms sets the scale of all seconds, and no
  ratio depends on it where nothing else takes time.
* A GPU is one engine replica of 16 slots, at a speed that does not depend on its load: loads that fall towards the end
  of a synchronous batch would make its stragglers faster, and every replica's last tokens too.
* Training a sample takes half of the GPU time that generating it takes on full slots: rollout is two thirds of the
  work, as the paper says of its own runs ("more than 70 %" in some).
* A task's probability of success is uniform on [0, 1], so that of groups of 8 two ninths have no variance.
* An agentic episode has 20 turns of messages with a median of 100 tokens.
"""

from __future__ import annotations

from dataclasses import replace

from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.draws import Constant, Gaussian, Lognormal
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload
from rollcage.trainer.simulation.plan import NO_LIMIT_S, Resources

TOKEN_S = 0.025
SLOTS = 16
TRAIN_SHARE = 1 / 3
"""Share of training in the GPU time that a sample takes altogether."""

RLVR = Workload(Lognormal(1000))


def agentic(mean_s: float, std_s: float, *, fail_slow_rate: float = 0.0) -> Workload:
    """Return an agentic workload whose environment takes so long for each turn."""
    env = EnvModel(turns=Constant(20), turn_s=Gaussian(mean_s, std_s), fail_slow_rate=fail_slow_rate)
    return Workload(Lognormal(100), env)


def rollout_gpu_s(workload: Workload) -> float:
    """Return the GPU-seconds of generating one sample where all slots are taken."""
    return workload.env.turns.mean * workload.lengths.mean * TOKEN_S / SLOTS


def resources(workload: Workload, num_gpus: int, *, train_share: float = TRAIN_SHARE) -> Resources:
    """Return ``num_gpus`` GPUs of the settings above."""
    train_gpu_s = rollout_gpu_s(workload) * train_share / (1 - train_share)
    return Resources(num_gpus, num_slots=SLOTS, speed=Speed(TOKEN_S), train_gpu_s=train_gpu_s)


def engines_only(num_gpus: int) -> Cluster:
    """Return a cluster whose training takes no time: for figures about rollout alone."""
    return Cluster(num_replicas=num_gpus, num_slots=SLOTS, speed=Speed(TOKEN_S))


def config(num_groups: int, group_size: int, **changes: object) -> RolloutConfig:
    """Return queue scheduling with replicated prompts, without asynchrony and redundancy, unless ``changes`` say so."""
    base = RolloutConfig(
        num_groups=num_groups,
        group_size=group_size,
        async_ratio=0.0,
        num_slots=num_groups * group_size,
        env_deadline_s=NO_LIMIT_S,
        turn_deadline_s=NO_LIMIT_S,
        episode_deadline_s=NO_LIMIT_S,
    )
    return replace(base, **changes)  # type: ignore[arg-type]
