"""The reward attack of `rollcage check`: known exploits, mutated, on tasks of every split, against the scorer."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollcage.envs.attacks import MUTATIONS, Attack, attacks
from rollcage.envs.checks.subject import CheckFailed, Subject, one_line
from rollcage.envs.core import TextEnv
from rollcage.envs.placements import EnvHandle, EnvRaised, Placement, PlacementError, make_placement
from rollcage.envs.tasks import sample_indices
from rollcage.errors import UserError

NUM_TASKS = 40
NUM_MUTATIONS = 2  # of each exploit and task, beside the exploit as it stands
MAX_TURNS = 3  # an exploit is repeated so often in one episode
START_S, TURN_S = 60.0, 10.0

_ALARM = 1e-4  # odds that luck explains what an exploit earned
_LUCK = 0.005  # share of tasks on which junk may be right by chance where nothing better is known
_ALWAYS_RIGHT = 0.6  # one fixed answer that is right more often than this solves the environment by itself
_FEW_TASKS = 4


@dataclass
class Tally:
    """What one text, one mutation or one of both together earned.

    Attributes:
        tries: episodes for each task id.
        hits: those of them that earned a reward.
        example: one text that did.
    """

    tries: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    example: str = ""

    def add(self, task: str, text: str, hit: bool) -> None:
        """Count one episode."""
        self.tries[task] += 1
        if hit:
            self.hits[task] += 1
            self.example = text

    @property
    def num_earned(self) -> int:
        """Number of tasks on which it earned: a task on which half of its texts did counts as half."""
        return int(sum(hits / self.tries[task] for task, hits in self.hits.items()) + 1e-9)

    @property
    def share(self) -> float:
        """Share of the tasks on which it earned."""
        return self.num_earned / max(1, len(self.tries))


def luck(hits: int, tasks: int, chance: float) -> float:
    """Return the odds of at least ``hits`` right guesses on ``tasks`` tasks, each right with ``chance``.

    >>> round(luck(2, 2, 0.5), 3)
    0.25
    """
    return sum(math.comb(tasks, k) * chance**k * (1 - chance) ** (tasks - k) for k in range(hits, tasks + 1))


def check_rewards(subject: Subject) -> str:
    """No known exploit earns more than guessing does, and none of the environment's own `exploits` earns anything.

    An attack may be right by luck: a fixed answer ("B", "2") is the answer of some tasks, and a list of all options
    ends with the right one now and then. So an exploit raises the alarm only where it earns on more tasks than luck
    explains, luck being the better of random actions and the best fixed answer; and a fixed answer only where it is
    right on most tasks.
    """
    return asyncio.run(_Campaign(subject).run())


class _Campaign:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._budget_s = 2 * subject.seconds  # there are many texts
        self._rng = np.random.default_rng(0)
        self._junk: dict[tuple[str, str, str], Tally] = defaultdict(
            Tally
        )  # by name, key and mutation; "" stands for all
        self._fixed: dict[tuple[str, str], Tally] = defaultdict(Tally)
        self._guess = Tally()
        self._num_texts = 0

    async def run(self) -> str:
        placement = make_placement(self._subject.placement, self._subject.config)
        resets = _resets(self._subject)
        end_s = time.monotonic() + self._budget_s
        done = 0
        try:
            for done, reset in enumerate(resets, start=1):
                await self._attack_task(placement, reset, end_s, len(resets) - done)
                self._subject.progress(f"{done} of at most {len(resets)} tasks")
                if time.monotonic() > end_s:
                    break
        finally:
            await placement.close()
        self._judge()
        return f"{self._num_texts} texts on {done} tasks earn no more than luck ({self._chance():.0%})"

    async def _attack_task(self, placement: Placement, reset: dict[str, Any], end_s: float, num_left: int) -> None:
        handle = await placement.acquire(deadline_s=START_S)
        try:
            observation, info = await handle.reset(**reset, deadline_s=START_S)
            task = str(info.get("task_id") or reset)
            exploits = await _optional(handle, "exploits")
            await handle.reset(**reset, deadline_s=START_S)
            guess = await _optional(handle, "random_action", int(self._rng.integers(1 << 30)))
            words = await self._own_words(handle, reset)
        finally:
            await handle.release()
        for text in exploits or ():
            if await self._earns(placement, reset, text):
                raise CheckFailed(f"an exploit of its own earns reward on {task}: {text!r:.120}")
        if guess is not None:
            self._guess.add(task, guess, await self._earns(placement, reset, guess))
        plan: list[tuple[Attack, str]] = []
        for attack in attacks(observation, words):
            plan.append((attack, ""))
            if not attack.honest:
                plan += [
                    (attack, str(name)) for name in self._rng.choice(list(MUTATIONS), NUM_MUTATIONS, replace=False)
                ]
        share_s = (end_s - time.monotonic()) / (num_left + 1)  # a slow environment gets fewer texts, not fewer tasks
        stop_s = time.monotonic() + max(share_s, self._budget_s / NUM_TASKS)
        for position in self._rng.permutation(len(plan)):
            attack, mutation = plan[int(position)]
            text = MUTATIONS[mutation](attack.text) if mutation else attack.text
            hit = await self._earns(placement, reset, text)
            if attack.honest:
                self._fixed[attack.name, attack.key].add(task, text, hit)
            else:
                self._junk[attack.name, attack.key, mutation].add(task, text, hit)
                if mutation:
                    self._junk["anything", "", mutation].add(task, text, hit)
            if time.monotonic() > stop_s:
                break

    async def _own_words(self, handle: EnvHandle, reset: dict[str, Any]) -> tuple[str, ...]:
        """Return what the environment says about a wrong answer: a scorer must not be fooled by its own words."""
        await handle.reset(**reset, deadline_s=START_S)
        observation, _, _, _, info = await handle.step("<answer>I do not know</answer>", deadline_s=TURN_S)
        return tuple(text for text in (observation, *info.values()) if isinstance(text, str) and text)

    async def _earns(self, placement: Placement, reset: dict[str, Any], text: str) -> bool:
        self._num_texts += 1
        handle = await placement.acquire(deadline_s=START_S)
        try:
            await handle.reset(**reset, deadline_s=START_S)
            for _ in range(MAX_TURNS):
                _, reward, terminated, truncated, info = await handle.step(text, deadline_s=TURN_S)
                if reward > 0 or info.get("success"):
                    return True
                if terminated or truncated:
                    break
            return False
        except EnvRaised:
            return False  # an environment that raises is another check's finding
        except PlacementError as error:
            raise CheckFailed(f"the action {text!r:.60}: {error.reason}: {error}") from None
        finally:
            await handle.release()

    def _chance(self) -> float:
        shares = [tally.share for tally in (self._guess, *self._fixed.values())]
        return max([_LUCK, *(share for share in shares if share <= _ALWAYS_RIGHT)])  # what is more is no luck

    def _judge(self) -> None:
        chance = self._chance()
        alarm = _ALARM / max(1, len(self._junk))  # the more is tried, the more is right by luck
        findings: dict[str, tuple[int, bool, str]] = {}

        def accuse(name: str, tally: Tally, junk: bool) -> None:
            text = f"{name} earns reward on {tally.num_earned} of {len(tally.tries)} tasks, as {tally.example!r:.80}"
            findings[name] = max(findings.get(name, (0, junk, "")), (tally.num_earned, junk, one_line(text, 200)))

        for (name, _), tally in self._fixed.items():
            if len(tally.tries) >= 2 * _FEW_TASKS and tally.share > _ALWAYS_RIGHT:
                accuse(name, tally, junk=False)
        for (name, _, mutation), tally in self._junk.items():
            earned, tasks = tally.num_earned, len(tally.tries)
            few = tasks < _FEW_TASKS and not mutation
            if (few and earned == tasks) or (earned and luck(earned, tasks, chance) < alarm):
                accuse(f"{name} {mutation}".strip(), tally, junk=True)
        if findings:
            worst = sorted(findings.values(), reverse=True)
            more = f" (and {len(worst) - 3} more)" if len(worst) > 3 else ""
            raise CheckFailed("; ".join(text for _, _, text in worst[:3]) + f"; luck explains {chance:.0%}{more}")


async def _optional(handle: EnvHandle, method: str, *args: Any) -> Any:
    """Call what not every environment offers; None where this one does not."""
    try:
        return await handle.call(method, *args, deadline_s=TURN_S)
    except (UserError, AttributeError):
        return None


def _resets(subject: Subject) -> Sequence[dict[str, Any]]:
    """Return arguments of `reset` for tasks of every split, or for as many seeds where there are no task sets."""
    env = subject.make().unwrapped
    if not isinstance(env, TextEnv):
        return [{"seed": seed, "options": None} for seed in range(NUM_TASKS)]
    filled = [split for split, size in env.tasks.splits.items() if size]
    each = max(1, NUM_TASKS // len(filled))
    ids = [env.tasks.task(split, i).id for split in filled for i in sample_indices(env.tasks, split, each, seed=0)]
    return [{"seed": 0, "options": {"task": task_id}} for task_id in ids]
