"""What is simulated: a workload, a cluster that it runs on, and the real loop over both in virtual time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any

from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.simulated import SimulatedEngine, Speed
from rollcage.trainer.garbage import rare_collections
from rollcage.trainer.loop import Parts, Progress, train
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.simulation.draws import Draws, Lognormal, uniform
from rollcage.trainer.simulation.environment import EnvModel, SimulatedPlacement
from rollcage.trainer.simulation.learner import SimulatedLearner
from rollcage.trainer.simulation.text import silent_chat
from rollcage.trainer.types import Request, Sampling, Trajectory

_NORMAL = NormalDist()
_LIMIT_S = 1e9
"""Virtual seconds after which a run is taken to be stuck: 30 years."""


@dataclass(frozen=True)
class Workload:
    """What is trained on.

    Attributes:
        lengths: tokens of a message.
        env: the environment or verifier.
        task_share: share of the variance of (Gaussian ranks of) lengths that members of a group have in common: 0,
            every length is independent; 1, all responses to one prompt are equally long.
        max_new_tokens: most tokens of a message.
        observation_tokens: tokens of an environment's message: what prompts are made of, beside the messages before.
    """

    lengths: Draws = field(default_factory=lambda: Lognormal(1000))
    env: EnvModel = field(default_factory=EnvModel)
    task_share: float = 0.0
    max_new_tokens: int = 1 << 40
    observation_tokens: float = 1.0

    def length(self, seed: int) -> Callable[[Request], float]:
        """Return what `SimulatedEngine` asks: the length of the response to a request."""
        lengths, own, common = self.lengths, math.sqrt(1 - self.task_share), math.sqrt(self.task_share)

        def length(request: Request) -> float:
            share = uniform(request.seed)
            if common:
                task = _NORMAL.inv_cdf(uniform(key_seed(seed, "length", request.group)))
                share = _NORMAL.cdf(common * task + own * _NORMAL.inv_cdf(share))
            return lengths.quantile(min(max(share, 1e-15), 1 - 1e-15))

        return length


@dataclass(frozen=True)
class Cluster:
    """What it runs on.

    Attributes:
        num_replicas: engine replicas.
        num_slots: requests that one replica runs at once.
        speed: of one replica.
        sample_s: seconds of training for a sample, all ranks and epochs together.
        update_s: seconds of an update beside that.
        publish_s: seconds until new weights are there to be taken (taking them: ``speed.publish_s``).
        slow_replicas: share of the replicas that are slow, rounded down.
        slow_factor: how many times as long they take for a token.
    """

    num_replicas: int = 1
    num_slots: int = 64
    speed: Speed = field(default_factory=lambda: Speed(0.01))
    sample_s: float = 0.0
    update_s: float = 0.0
    publish_s: float = 0.0
    slow_replicas: float = 0.0
    slow_factor: float = 3.0

    @property
    def num_workers(self) -> int:
        """K: requests that run at once on all replicas together."""
        return self.num_replicas * self.num_slots

    @property
    def full_token_s(self) -> float:
        """Seconds between two tokens of a request while all slots of its replica are taken."""
        return self.speed.token_s + self.speed.load_token_s * (self.num_slots - 1)

    def engines(self, length: Callable[[Request], float], tokens_per_id: int) -> list[SimulatedEngine]:
        """Return the replicas, the slow ones first."""
        num_slow = int(self.slow_replicas * self.num_replicas)
        speeds = [self.speed.slower(self.slow_factor)] * num_slow + [self.speed] * (self.num_replicas - num_slow)
        return [
            SimulatedEngine(length, speed, max_batch_size=self.num_slots, tokens_per_id=tokens_per_id)
            for speed in speeds
        ]


@dataclass(frozen=True)
class Prediction:
    """What a simulated run did, from the end of its warm-up to its last update.

    Attributes:
        num_updates: updates measured.
        update_s: mean virtual seconds from one update's end to the next one's.
        samples_per_s: trained samples per virtual second.
        tokens_per_s: tokens of ended generations per virtual second.
        rollout_busy: share of the slots' time in which they ran a request.
        learner_busy: share of the time in which the learner trained or published.
        staleness, staleness_max: versions, over the trained samples.
        wasted: share of the samples that ended, in any column, and were not trained on.
        episode_s: mean virtual seconds of a trained episode.
        account: of the whole run.
        num_episodes: started in the whole run.
        cpu_s: processor seconds of the whole run: the cost of orchestration, and of simulating it.
    """

    num_updates: int
    update_s: float
    samples_per_s: float
    tokens_per_s: float
    rollout_busy: float
    learner_busy: float
    staleness: float
    staleness_max: float
    wasted: float
    episode_s: float
    account: dict[str, Any]
    num_episodes: int
    cpu_s: float


def simulate(
    workload: Workload,
    cluster: Cluster,
    config: RolloutConfig,
    *,
    num_updates: int = 8,
    warmup: int | None = None,
    seed: int = 0,
    tokens_per_id: int | None = None,
    recorder: Recorder | None = None,
    record: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Prediction:
    """Run the trainer's own loop on simulated parts in virtual time.

    Args:
        workload: what is trained on.
        cluster: what it runs on.
        config: how samples are made, as in `rollcage train`.
        num_updates: measured ones.
        warmup: updates before them; None: enough for the pipeline to fill, ceil(alpha) + 1 but not over 4 (none where
            alpha is 0).
        seed: of all draws. Configurations that are compared see the same lengths, latencies and rewards.
        tokens_per_id: see `SimulatedEngine`; None: a fiftieth of the mean length.
        recorder: hears of metrics and spans, in virtual seconds.
        record: called with every finished episode.

    Raises:
        RollcageError: the simulated run cannot go on.
    """
    if warmup is None:
        warmup = min(math.ceil(config.async_ratio) + 1, 4) if config.async_ratio else 0
    per_id = tokens_per_id or max(1, round(workload.lengths.mean / 50))
    engines = cluster.engines(workload.length(seed), per_id)
    progress = Progress()
    rows: list[dict[str, float]] = []

    async def main() -> None:
        router = Router(engines, recorder=recorder, replicate=config.replicate, interrupt=config.interrupt)
        chat = silent_chat(max(1, round(workload.observation_tokens / per_id)))
        sampling = Sampling(workload.max_new_tokens)

        def new_agent(group: int, member: int, seed: int) -> PolicyAgent:
            return PolicyAgent(router, chat, sampling, name=f"{group}.{member}", group=str(group), seed=seed)

        async def after_update(metrics: dict[str, float]) -> None:
            rows.append(metrics | _meters(engines))

        def on_training(is_training: bool) -> None:
            for engine in engines:
                engine.contend(is_training)

        learner = SimulatedLearner(
            sample_s=cluster.sample_s,
            update_s=cluster.update_s,
            publish_s=cluster.publish_s,
            on_training=on_training,
        )
        parts = Parts(learner, router, SimulatedPlacement(workload.env), str, new_agent, record)
        await train(
            config,
            parts,
            progress,
            recorder or NullRecorder(),
            num_updates=warmup + num_updates,
            seed=seed,
            after_update=after_update,
        )

    start = time.process_time()
    with rare_collections():
        run_virtual(main, limit_s=_LIMIT_S)
    return _predict(rows, warmup, cluster, progress, time.process_time() - start)


def _meters(engines: list[SimulatedEngine]) -> dict[str, float]:
    return {
        "busy_slot_s": sum(engine.busy_slot_s for engine in engines),
        "tokens": float(sum(engine.num_tokens for engine in engines)),
    }


def _predict(
    rows: list[dict[str, float]], warmup: int, cluster: Cluster, progress: Progress, cpu_s: float
) -> Prediction:
    measured, last = rows[warmup:], rows[-1]
    first = rows[warmup - 1] if warmup else dict.fromkeys(last, 0.0)
    seconds = last["time/elapsed_s"] - first["time/elapsed_s"]
    weights = [row["rollout/num_samples"] for row in measured]

    def mean(name: str) -> float:
        return sum(row[name] * weight for row, weight in zip(measured, weights, strict=True)) / sum(weights)

    def gained(name: str) -> float:
        return last[name] - first[name]

    ended = gained("account/started") - gained("account/in_flight")
    return Prediction(
        num_updates=len(measured),
        update_s=seconds / len(measured),
        samples_per_s=gained("account/trained") / seconds,
        tokens_per_s=gained("tokens") / seconds,
        rollout_busy=gained("busy_slot_s") / (seconds * cluster.num_workers),
        learner_busy=1 - fmean(row["time/wait_s"] for row in measured) * len(measured) / seconds,
        staleness=mean("rollout/staleness"),
        staleness_max=max(row["rollout/staleness_max"] for row in measured),
        wasted=1 - gained("account/trained") / max(ended, 1.0),
        episode_s=mean("rollout/episode_s"),
        account=progress.account.to_json(),
        num_episodes=progress.account.started,
        cpu_s=cpu_s,
    )
