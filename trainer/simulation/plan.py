"""What to choose for a cluster: asynchronous ratio, redundancy and split of the GPUs, searched in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.model import Cluster, Prediction, Workload, simulate

ALPHAS = (0.0, 0.5, 1.0, 2.0, 4.0)
EXTRA_SHARES = (0.0, 1 / 16, 1 / 8)
NO_LIMIT_S = 1e8
"""A deadline that nothing meets."""
_WORTH = 0.02
"""A higher ratio or more redundancy must gain so much throughput: both cost freshness or samples."""


@dataclass(frozen=True)
class Resources:
    """GPUs to be split between rollout and training.

    Attributes:
        num_gpus: all of them.
        gpus_per_replica: GPUs that one engine replica takes.
        num_slots: requests that a replica runs at once.
        speed: of a replica.
        train_gpu_s: GPU-seconds of training for a sample, all epochs together; GPUs are taken to share it evenly.
        update_s: seconds of an update beside that.
        publish_s: seconds until new weights are there to be taken.
        slow_replicas, slow_factor: see `Cluster`.
    """

    num_gpus: int = 16
    gpus_per_replica: int = 1
    num_slots: int = 64
    speed: Speed = field(default_factory=lambda: Speed(0.025))
    train_gpu_s: float = 1.0
    update_s: float = 0.0
    publish_s: float = 0.0
    slow_replicas: float = 0.0
    slow_factor: float = 3.0

    def split(self, train_gpus: int) -> Cluster:
        """Return the cluster in which ``train_gpus`` train and the others sample; 0: all do both, in turns."""
        return Cluster(
            num_replicas=(self.num_gpus - train_gpus) // self.gpus_per_replica,
            num_slots=self.num_slots,
            speed=self.speed,
            sample_s=self.train_gpu_s / (train_gpus or self.num_gpus),
            update_s=self.update_s,
            publish_s=self.publish_s,
            slow_replicas=self.slow_replicas,
            slow_factor=self.slow_factor,
        )

    @property
    def splits(self) -> range:
        """Numbers of training GPUs that leave a replica."""
        return range(1, self.num_gpus - self.gpus_per_replica + 1)


@dataclass(frozen=True)
class Choice:
    """One configuration and what it would do.

    Attributes:
        train_gpus: GPUs that only train; 0: all GPUs sample and train in turns; None: the cluster is given.
        config: the rest.
        prediction: what it would do.
    """

    train_gpus: int | None
    config: RolloutConfig
    prediction: Prediction

    @property
    def samples_per_s(self) -> float:
        """Trained samples per second."""
        return self.prediction.samples_per_s


@dataclass(frozen=True)
class Recommendation:
    """What to choose, and why.

    Attributes:
        best: the choice.
        baseline: the plain synchronous trainer, all GPUs sampling and training in turns.
        tried: everything that was simulated, in order.
        reasons: sentences.
    """

    best: Choice
    baseline: Choice
    tried: list[Choice]
    reasons: list[str]


def asynchronous(
    workload: Workload, cluster: Cluster, *, num_groups: int, group_size: int, async_ratio: float, extra_groups: int = 0
) -> RolloutConfig:
    """Return a configuration that keeps the workers of ``cluster`` busy: more episodes where environments take time."""
    capacity = math.ceil((1 + async_ratio) * num_groups + extra_groups) * group_size
    act_s = cluster.speed.first_token_s + workload.lengths.mean * cluster.full_token_s
    waiting = 1 + workload.env.turn_s.mean / max(act_s, 1e-9)
    return RolloutConfig(
        num_groups=num_groups,
        group_size=group_size,
        async_ratio=async_ratio,
        extra_groups=extra_groups,
        num_slots=max(group_size, min(capacity, math.ceil(1.25 * cluster.num_workers * waiting))),
        env_deadline_s=NO_LIMIT_S,
        turn_deadline_s=NO_LIMIT_S,
        episode_deadline_s=NO_LIMIT_S,
    )


def synchronous(*, num_groups: int, group_size: int) -> RolloutConfig:
    """Return the baseline: a whole batch in turn lockstep, a task's rollouts on one replica, then training."""
    return RolloutConfig(
        num_groups=num_groups,
        group_size=group_size,
        async_ratio=0.0,
        num_slots=num_groups * group_size,
        mode="sync",
        replicate=False,
        env_deadline_s=NO_LIMIT_S,
        turn_deadline_s=NO_LIMIT_S,
        episode_deadline_s=NO_LIMIT_S,
    )


class Search:
    """Simulates choices for one workload and remembers them.

    Args:
        workload: what is trained on.
        resources: GPUs to split, or a cluster as it is.
        num_groups, group_size: of a batch.
        change: applied to every configuration: deadlines, filters and the like.
        num_updates, seed: of each simulation.
        watch: called with every choice once it was simulated.
    """

    def __init__(
        self,
        workload: Workload,
        resources: Resources | Cluster,
        *,
        num_groups: int,
        group_size: int,
        change: Callable[[RolloutConfig], RolloutConfig] = lambda config: config,
        num_updates: int = 4,
        seed: int = 0,
        watch: Callable[[Choice], None] = lambda choice: None,
    ) -> None:
        self._workload, self._resources = workload, resources
        self._num_groups, self._group_size, self._change = num_groups, group_size, change
        self._num_updates, self._seed, self._watch = num_updates, seed, watch
        self.tried: dict[tuple[int | None, float, int], Choice] = {}

    def cluster(self, train_gpus: int | None) -> Cluster:
        """Return the cluster with this split."""
        resources = self._resources
        return resources if isinstance(resources, Cluster) else resources.split(train_gpus or 0)

    def baseline(self) -> Choice:
        """Return what the synchronous trainer would do on all GPUs."""
        train_gpus = None if isinstance(self._resources, Cluster) else 0
        config = self._change(synchronous(num_groups=self._num_groups, group_size=self._group_size))
        return Choice(train_gpus, config, self._simulate(self.cluster(train_gpus), config))

    def try_out(self, train_gpus: int | None, async_ratio: float, extra_groups: int) -> Choice:
        """Return what one choice would do."""
        key = (train_gpus, async_ratio, extra_groups)
        if key not in self.tried:
            cluster = self.cluster(train_gpus)
            config = self._change(
                asynchronous(
                    self._workload,
                    cluster,
                    num_groups=self._num_groups,
                    group_size=self._group_size,
                    async_ratio=async_ratio,
                    extra_groups=extra_groups,
                )
            )
            self.tried[key] = Choice(train_gpus, config, self._simulate(cluster, config))
            self._watch(self.tried[key])
        return self.tried[key]

    def recommend(
        self, *, alphas: Iterable[float] = ALPHAS, extra_shares: Iterable[float] = EXTRA_SHARES
    ) -> Recommendation:
        """Search the split, then the least ratio and the least redundancy that are worth it, then the split again."""
        baseline = self.baseline()
        extras = sorted({math.ceil(share * self._num_groups) for share in extra_shares})
        split = self._best_split(async_ratio=2.0, extra_groups=0)
        by_alpha = [self.try_out(split, alpha, 0) for alpha in sorted(alphas)]
        if split is not None:
            by_alpha.append(self.try_out(0, 0.0, 0))  # without overlap nothing speaks against using all GPUs for both
        choice = _least_worthwhile(sorted(by_alpha, key=lambda choice: choice.config.async_ratio))
        by_extra = [self.try_out(choice.train_gpus, choice.config.async_ratio, extra) for extra in extras]
        choice = _least_worthwhile(by_extra)
        if choice.train_gpus:
            best = self._best_split(
                async_ratio=choice.config.async_ratio, extra_groups=choice.config.extra_groups, near=choice.train_gpus
            )
            choice = self.try_out(best, choice.config.async_ratio, choice.config.extra_groups)
        reasons = list(self._reasons(choice, baseline, by_alpha, by_extra))
        return Recommendation(choice, baseline, list(self.tried.values()), reasons)

    def _simulate(self, cluster: Cluster, config: RolloutConfig) -> Prediction:
        per_id = max(1, round(self._workload.lengths.mean / 8))
        return simulate(
            self._workload, cluster, config, num_updates=self._num_updates, seed=self._seed, tokens_per_id=per_id
        )

    def _best_split(self, *, async_ratio: float, extra_groups: int, near: int | None = None) -> int | None:
        """Climb from ``near``, or from where rollout and training take equally long, to the best split."""
        resources = self._resources
        if isinstance(resources, Cluster):
            return None
        if near is None:
            speed = resources.speed
            turn_s = self._workload.lengths.mean * resources.split(1).full_token_s + speed.first_token_s
            rollout_gpu_s = self._workload.env.turns.mean * turn_s * resources.gpus_per_replica / resources.num_slots
            share = resources.train_gpu_s / max(resources.train_gpu_s + rollout_gpu_s, 1e-12)
            near = min(max(round(share * resources.num_gpus), resources.splits[0]), resources.splits[-1])

        def speed_of(train_gpus: int) -> float:
            return self.try_out(train_gpus, async_ratio, extra_groups).samples_per_s

        step = max(1, resources.num_gpus // 16)
        while step:
            for neighbour in (near - step, near + step):
                while neighbour in resources.splits and speed_of(neighbour) > speed_of(near):
                    near, neighbour = neighbour, 2 * neighbour - near
            step //= 4
        return near

    def _reasons(self, best: Choice, baseline: Choice, by_alpha: list[Choice], by_extra: list[Choice]) -> Iterable[str]:
        prediction, config = best.prediction, best.config
        yield (
            f"{best.samples_per_s:.4g} samples a second, {best.samples_per_s / baseline.samples_per_s:.2f} times the "
            f"synchronous trainer's {baseline.samples_per_s:.4g}."
        )
        if best.train_gpus:
            assert isinstance(self._resources, Resources)
            rollout_gpus = self._resources.num_gpus - best.train_gpus
            yield (
                f"{best.train_gpus} GPUs train and {rollout_gpus} sample: the learner is then busy "
                f"{prediction.learner_busy:.0%} of the time and the slots {prediction.rollout_busy:.0%}; one GPU "
                "more or less for training gives no more."
            )
        elif best.train_gpus == 0:
            yield "All GPUs sample and train in turns: overlap would gain less than it takes from either."
        yield (
            f"async_ratio {config.async_ratio:g}: "
            + ", ".join(
                f"{choice.config.async_ratio:g} gives {choice.samples_per_s:.4g}/s" for choice in _unique(by_alpha)
            )
            + f"; the least that comes within {_WORTH:.0%} of the best is taken, since older samples teach less."
        )
        yield (
            f"extra_groups {config.extra_groups}: "
            + ", ".join(
                f"{c.config.extra_groups} gives {c.samples_per_s:.4g}/s and wastes {c.prediction.wasted:.0%}"
                for c in by_extra
            )
            + "; slow tasks are trained on less often with more."
        )
        if prediction.learner_busy > 0.9:
            yield "The learner is the bottleneck: more training GPUs or cheaper updates help, more replicas do not."
        elif prediction.rollout_busy > 0.9:
            yield "The slots are the bottleneck: more or faster replicas help."
        else:
            yield "Neither learner nor slots are full: the longest episodes are the bottleneck."


def _least_worthwhile(choices: list[Choice]) -> Choice:
    """Return the first choice that comes close to the best one."""
    best = max(choice.samples_per_s for choice in choices)
    return next(choice for choice in choices if choice.samples_per_s >= (1 - _WORTH) * best)


def _unique(choices: Iterable[Choice]) -> list[Choice]:
    """Return the best choice for every ratio."""
    best: dict[float, Choice] = {}
    for choice in choices:
        known = best.get(choice.config.async_ratio)
        if known is None or choice.samples_per_s > known.samples_per_s:
            best[choice.config.async_ratio] = choice
    return list(best.values())
