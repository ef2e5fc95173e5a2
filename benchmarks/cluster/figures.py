"""The figures of ``bench cluster``: what orchestration costs, how long publishing takes, how throughput grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rollcage.benchmarks.cluster.raylets import Raylets
from rollcage.benchmarks.cluster.rounds import Round, play, rollout
from rollcage.benchmarks.cluster.scripted import ScriptedConfig
from rollcage.benchmarks.throughput.slow_countdown import ENV_ID
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.trainer.cluster.cluster import RayCluster
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.engine import RayEngine
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.draws import Constant, Gaussian
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload, simulate

GOAL = 3.8
"""Times as many episodes a second on four raylets as on one."""
_WARM_UP = 2
"""Updates until all environments have long started: their processes take seconds to."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        num_slots: episodes at once where orchestration is measured.
        num_updates: measured updates of each round.
        repetitions: publications of each kind.
        model_mib: sizes of models that are published.
        replicas: that they are published to.
        num_raylets: with environments, at most.
        envs_per_raylet: of them, each of which waits ``latency_s`` for a reset and for a step.
    """

    num_slots: int = 16
    num_updates: int = 6
    repetitions: int = 5
    model_mib: tuple[int, ...] = (4, 32, 128)
    replicas: tuple[int, ...] = (1, 2, 4)
    num_raylets: int = 4
    envs_per_raylet: int = 4
    latency_s: float = 0.5


@dataclass(frozen=True)
class Table:
    """One figure.

    Attributes:
        title: what it is.
        text: how it was taken, and what it says.
        head, rows: of the table.
        ratio: the figure in one number; 0 where there is none.
    """

    title: str
    text: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]] = ()
    ratio: float = 0.0


def overhead(sizes: Sizes) -> Table:
    """What the loop costs for one episode: all in one process, environments in processes, all on a cluster."""
    env, config = EnvConfig("rollcage/Countdown-v0"), rollout(sizes.num_slots, num_groups=16)
    measured: dict[str, tuple[Round, float]] = {}
    for kind in ("inline", "process"):

        async def here(kind: str = kind) -> Round:
            placement = make_placement(kind, env, num_workers=sizes.num_slots)
            engines = [ScriptedConfig().make() for _ in range(2)]
            return await play(engines, placement, env, config, num_updates=sizes.num_updates)

        measured[f"one machine, environments {kind}"] = asyncio.run(here()), 0.0
    with Raylets(4) as raylets:
        raylets.add(4, "env")

        async def there() -> tuple[Round, float]:
            cluster = await RayCluster.connect(raylets.address, RayConfig(), num_engines=2, num_ranks=0)
            try:
                engines = cluster.engines(ScriptedConfig(), 2)
                placement = await cluster.place("ray", env, num_workers=sizes.num_slots, restart="fail")
                done = await play(engines, placement, env, config, num_updates=sizes.num_updates)
                num_bytes = sum(engine.num_bytes for engine in engines if isinstance(engine, RayEngine))
                return done, num_bytes / done.num_started
            finally:
                await cluster.close()

        measured["two raylets: engines and environments in actors"] = asyncio.run(there())
    base = measured["one machine, environments inline"][0]
    rows = [
        (
            name,
            f"{done.num_episodes}",
            f"{1e3 * done.cpu_s / done.num_episodes:.2f}",
            f"{1e3 * (done.cpu_s / done.num_episodes - base.cpu_s / base.num_episodes):+.2f}",
            f"{done.episodes_per_s:.0f}",
            f"{num_bytes:.0f}" if num_bytes else "",
        )
        for name, (done, num_bytes) in measured.items()
    ]
    return Table(
        "Orchestration of an episode",
        f"One turn of Countdown and a message of 64 tokens, which take microseconds; {sizes.num_slots} episodes "
        "at once, batches of 16 x 4, no training. CPU is that of the driving process, which in the first row plays "
        "engine and environment too. Bytes: of the arrays between loop and engines, prompt and answer.",
        ("", "episodes", "CPU ms an episode", "beside one machine", "episodes/s", "bytes a sample"),
        rows,
    )


def publishing(sizes: Sizes) -> Table:
    """How long new weights take from the learner's memory to all replicas, which copy them."""
    import torch

    num_engines = max(sizes.replicas)
    rows: list[tuple[str, ...]] = []

    async def measure(raylets: Raylets) -> None:
        config = RayConfig(engine_cpus=1.0)
        cluster = await RayCluster.connect(raylets.address, config, num_engines=num_engines, num_ranks=0)
        engines = cluster.engines(ScriptedConfig(), num_engines)
        version = 0
        try:
            await asyncio.gather(*(engine.start() for engine in engines))
            for mib in sizes.model_mib:
                weights = {f"layer{index}": torch.rand(mib, 1 << 16) for index in range(4)}  # 4 x 4 bytes x 64 Ki
                for num in sizes.replicas:
                    seconds, num_bytes = [], 0
                    for _ in range(sizes.repetitions + 1):
                        version, before, begin_s = version + 1, cluster.weights.num_bytes, time.perf_counter()
                        await asyncio.gather(*(engine.publish(weights, version) for engine in engines[:num]))
                        seconds.append(time.perf_counter() - begin_s)
                        num_bytes = cluster.weights.num_bytes - before
                    taken = seconds[1:]  # the first one also makes the replicas' own memory
                    rows.append(
                        (
                            f"{mib} MiB",
                            f"{num}",
                            f"{1e3 * median(taken):.0f} ({1e3 * min(taken):.0f} to {1e3 * max(taken):.0f})",
                            f"{num_bytes / 2**20:.0f} MiB",
                        )
                    )
        finally:
            await asyncio.gather(*(engine.close() for engine in engines))
            await cluster.close()

    with Raylets(num_engines / 2) as raylets:
        raylets.add(num_engines / 2, "engines")
        asyncio.run(measure(raylets))
    return Table(
        "Publishing",
        "From the driver's memory through the object store to replicas on two raylets of this machine, each of which "
        f"copies them; median of {sizes.repetitions}, least and most in brackets. Put into the store: once a version, "
        "however many replicas there are; the other node fetches them once.",
        ("weights", "replicas", "ms", "put into the store"),
        rows,
    )


def scaling(sizes: Sizes) -> Table:
    """Episodes a second with environments that take their time, by the raylets that they are on."""
    mean_s, std_s = sizes.latency_s, sizes.latency_s / 4
    env = EnvConfig(ENV_ID, {"mean_s": mean_s, "std_s": std_s})
    config = RayConfig(
        engine_cpus=1.0, engine_nodes={"kind": "head"}, env_nodes={"kind": "env"}, env_cpus=1 / sizes.envs_per_raylet
    )
    rows, rates = [], []
    predicted: list[float] = []
    with Raylets(2) as raylets:
        for num_raylets in range(1, sizes.num_raylets + 1):
            raylets.add(1, "env")
            num_slots = num_raylets * sizes.envs_per_raylet
            loop = rollout(num_slots, num_groups=num_slots // 2)

            async def measure(num_slots: int = num_slots, loop: RolloutConfig = loop) -> Round:
                cluster = await RayCluster.connect(
                    raylets.address, config, num_engines=1, num_ranks=0, num_envs=num_slots
                )
                try:
                    placement = await cluster.place("ray", env, num_workers=num_slots, restart="fail")
                    engines = cluster.engines(ScriptedConfig(num_tokens=16), 1)
                    return await play(engines, placement, env, loop, num_updates=sizes.num_updates, warm_up=_WARM_UP)
                finally:
                    await cluster.close()

            rates.append(asyncio.run(measure()).episodes_per_s)
            model = EnvModel(reset_s=Gaussian(mean_s, std_s), turn_s=Gaussian(mean_s, std_s))
            prediction = simulate(
                Workload(lengths=Constant(16), env=model),
                Cluster(num_replicas=1, num_slots=1024, speed=Speed(1e-5)),
                loop,
                num_updates=sizes.num_updates,
                warmup=_WARM_UP,
            )
            predicted.append(prediction.samples_per_s)
            rows.append(
                (
                    f"{num_raylets}",
                    f"{num_slots}",
                    f"{rates[-1]:.2f}",
                    f"{rates[-1] / rates[0]:.2f}",
                    f"{predicted[-1]:.2f}",
                    f"{predicted[-1] / predicted[0]:.2f}",
                )
            )
    return Table(
        "Scaling",
        f"Countdown whose reset and step each take N({mean_s:g} s, {std_s:g} s), in actors, "
        f"{sizes.envs_per_raylet} to a raylet; engine and loop elsewhere. Goal: {GOAL} times as many episodes a second "
        f"on four raylets as on one. Beside it what the trainer's loop does in virtual time with such environments.",
        ("raylets", "environments", "episodes/s", "times one raylet's", "predicted episodes/s", "predicted times"),
        rows,
        rates[-1] / rates[0],
    )


FIGURES: dict[str, Callable[[Sizes], Table]] = {"overhead": overhead, "publishing": publishing, "scaling": scaling}
