"""The training loop on scripted parts, in virtual time: every choice of scheduling can be tried in moments."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from rollcage.envs.placements.base import EnvTimeout
from rollcage.recorder import NullRecorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.scripted import Line, Script, ScriptedEngine
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.loop import Parts, Progress, train
from rollcage.trainer.pause import Pause
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Request, Sampling, Trajectory


class NumberChat:
    """A chat format whose messages are numbers: one token each, 0 opens the environment's."""

    stop_ids = frozenset({1})
    continuable = True

    def first(self, observation: str) -> list[int]:
        return [0, len(observation)]

    def next(self, observation: str, last_id: int) -> list[int]:
        return [0, len(observation)]

    def decode(self, token_ids: list[int]) -> str:
        return ".".join(map(str, token_ids))


class World:
    """Placement of environments whose turns, latencies, rewards and faults are functions of task, seed and turn.

    The reward of the last turn is 0 or 1 by the policy's last token, unless ``reward`` says otherwise.
    """

    def __init__(
        self,
        *,
        turns: Callable[[str], int] = lambda task: 1,
        latency_s: Callable[[str, int, int], float] = lambda task, seed, turn: 0.1,
        reward: Callable[[str, int, str], float] = lambda task, seed, action: float(int(action.split(".")[-1]) % 2),
        fault: Callable[[str, int, int], Exception | None] = lambda task, seed, turn: None,
    ) -> None:
        self.turns, self.latency_s, self.reward, self.fault = turns, latency_s, reward, fault
        self.num_acquired = self.num_released = self.num_live = self.most_live = 0

    async def acquire(self, *, deadline_s: float) -> "WorldHandle":
        self.num_acquired += 1
        self.num_live += 1
        self.most_live = max(self.most_live, self.num_live)
        return WorldHandle(self)

    async def close(self) -> None:
        pass


class WorldHandle:
    def __init__(self, world: World) -> None:
        self._world, self._task, self._seed, self._turn = world, "", 0, 0

    async def _spend(self, deadline_s: float) -> None:
        latency_s = self._world.latency_s(self._task, self._seed, self._turn)
        await asyncio.sleep(min(deadline_s, latency_s))
        if latency_s > deadline_s:
            raise EnvTimeout("too slow")
        if (fault := self._world.fault(self._task, self._seed, self._turn)) is not None:
            raise fault

    async def reset(
        self, *, seed: int | None = None, options: Any = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        self._task, self._seed, self._turn = options["task"], seed or 0, 0
        await self._spend(deadline_s)
        return self._task, {"task_id": self._task, "success": False, "failure": None}

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        await self._spend(deadline_s)
        over = self._turn >= self._world.turns(self._task)
        reward = self._world.reward(self._task, self._seed, action) if over else 0.0
        return "more", reward, over, False, {"task_id": self._task, "success": reward > 0.5, "failure": None}

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        raise AssertionError(method)

    async def release(self) -> None:
        self._world.num_released += 1
        self._world.num_live -= 1


class CountingRecorder(NullRecorder):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.events: list[tuple[str, dict[str, Any]]] = []

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        self.counts[name] += int(value)
        if "outcome" in labels:
            self.outcomes[name, labels["upper"], labels["outcome"]] += int(value)

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))


def numbers(request: Request, version: int) -> Line:
    """What the policy says unless a test scripts it: one to six numbers, 0.5 s each, by the request's seed alone."""
    draw = key_seed(request.seed, "number")
    return Line([2 + draw // 7 % 97 + index for index in range(1 + draw % 6)], first_token_s=0.5, token_s=0.5)


class ScriptedRun:
    """One run of the loop and all that it did.

    Attributes:
        batches: what the learner got.
        groups: ids of the groups of each batch.
        metrics: rows, one an update.
        checkpoints: progress after each update, as a checkpoint holds it.
        episodes: in the order in which they ended.
        tasks: in the order in which their groups began.
        served: request id -> replica.
    """

    def __init__(
        self,
        config: RolloutConfig,
        world: World | None = None,
        *,
        script: Script = numbers,
        num_engines: int = 1,
        slots_per_engine: int = 64,
        train_s: float = 1.0,
        learner: type[ScriptedLearner] = ScriptedLearner,
        beside: Callable[["ScriptedRun"], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        assert not list(config.faults()), list(config.faults())
        self.config, self.world, self.train_s = config, world or World(), train_s
        self.progress = Progress()
        self.recorder = CountingRecorder()
        self.batches: list[Batch] = []
        self.groups: list[list[int]] = []
        self.metrics: list[dict[str, float]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.tasks: list[str] = []
        self.episodes: list[Trajectory] = []
        self.served: dict[str, int] = {}
        self._script, self._num_engines, self._slots_per_engine = script, num_engines, slots_per_engine
        self._learner = learner
        self.pause, self._beside = Pause(), beside

    def __call__(self, num_updates: int) -> "ScriptedRun":
        run_virtual(lambda: self._main(num_updates))
        return self

    @property
    def account(self) -> Any:
        return self.progress.account

    def _task_id(self, group_id: int) -> str:
        self.tasks.append(f"task {group_id}")
        return self.tasks[-1]

    def _engine(self, index: int) -> ScriptedEngine:
        def script(request: Request, version: int) -> Any:
            self.served[request.id] = index
            return self._script(request, version)

        return ScriptedEngine(script, max_batch_size=self._slots_per_engine, max_context_tokens=10_000, publish_s=0.05)

    async def _main(self, num_updates: int) -> None:
        config = self.config
        self.engines = [self._engine(index) for index in range(self._num_engines)]
        router = Router(self.engines, recorder=self.recorder, replicate=config.replicate, interrupt=config.interrupt)
        chat: Any = NumberChat()

        def new_agent(group: int, member: int, seed: int) -> PolicyAgent:
            return PolicyAgent(router, chat, Sampling(1000), name=f"{group}.{member}", group=str(group), seed=seed)

        def on_train(batch: Batch) -> None:
            self.batches.append(batch)
            self.groups.append(sorted({int(group) for group in batch.group_ids}))

        async def after_update(metrics: dict[str, float]) -> None:
            self.metrics.append(metrics)
            self.checkpoints.append(self.progress.to_json())
            columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
            assert metrics["account/started"] == sum(metrics[f"account/{column}"] for column in columns)

        beside = asyncio.create_task(self._beside(self)) if self._beside else None
        await train(
            config,
            Parts(
                learner=self._learner(train_s=self.train_s, on_train=on_train),
                router=router,
                placement=self.world,
                task_id=self._task_id,
                new_agent=new_agent,
                record=self.episodes.append,
            ),
            self.progress,
            self.recorder,
            num_updates=num_updates,
            seed=7,
            after_update=after_update,
            pause=self.pause,
        )
        if beside is not None:
            await beside
        await router.close()
        assert self.world.num_live == 0  # every environment was given back, those of cancelled episodes too
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def staleness(self) -> list[list[int]]:
        """Return for each batch the staleness of its groups: of the oldest member."""
        found = []
        for version, batch in enumerate(self.batches):
            oldest: dict[int, int] = {}
            for group, start in zip(batch.group_ids, batch.start_versions, strict=True):
                oldest[int(group)] = max(oldest.get(int(group), 0), version - int(start))
            found.append(list(oldest.values()))
        return found
