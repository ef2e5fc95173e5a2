"""TextEnv: the base class of every text environment. An author writes ``begin`` and ``advance``; the rest is here."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from rollcage.envs.spaces import UnicodeText
from rollcage.envs.tasks import Task, TaskSet, check_split
from rollcage.errors import UserError, did_you_mean

_NO_INFO: Mapping[str, Any] = {}


class Turn(NamedTuple):
    """What an environment answers to one action.

    Attributes:
        observation: the environment's newest message (never the whole conversation).
        reward: this turn's reward.
        terminated: the episode is over because the task is solved, failed or given up.
        success: the task is solved; only ever true together with ``terminated``.
        info: extra keys for ``info`` (JSON-able), the same keys every turn.
        failure: ends the episode without a verdict: "task", "model" or "infra", as in `TextEnv`; it is truncated then.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    info: Mapping[str, Any] = _NO_INFO
    failure: str | None = None


class TextEnv(gymnasium.Env[str, str]):
    """A task posed in text, answered in text: an ordinary Gymnasium environment.

    A subclass implements `begin` (pose the task, return the first observation) and `advance` (take an action, return a
    `Turn`). It may implement `expert` (the next action of a solver) and `random_action`. All that it has to remember
    within an episode goes into ``self.state`` (anything that pickles); then `snapshot` and `restore` work by
    themselves. What is random comes from ``self.np_random``, which they include. Files are no part of them: a class
    that writes some sets ``metadata["checkpoint_files"]``, and in placement `sandbox` a restored episode has them.

    ## Info
    ``task_id`` (str), ``success`` (bool), ``failure`` (None, or "task": the task itself is unusable, "model": the
    policy could give no action, "infra": the place where the environment runs failed), and the environment's own keys.

    Args:
        tasks: the tasks.
        split: the split that `reset` draws from.
        max_turns: the episode is truncated after so many turns; None for no limit.
        render_mode: None or "ansi" (`render` returns the newest observation).

    Raises:
        UserError: unknown split, unknown task id, unknown key in ``options``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "placement": "inline"}  # noqa: RUF012
    tools: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Tools a policy may call, each {"name", "description", "parameters": JSON schema}, for chat templates."""

    option_keys: ClassVar[tuple[str, ...]] = ("task",)
    """The keys that ``reset(options=...)`` accepts."""

    def __init__(
        self,
        tasks: TaskSet,
        *,
        split: str = "train",
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if max_turns is not None and (not isinstance(max_turns, int) or max_turns < 1):
            raise UserError(f"max_turns must be an integer of at least 1, or None, not {max_turns!r}.")
        if render_mode not in (None, "ansi"):
            raise UserError(f"render_mode must be None or 'ansi', not {render_mode!r}.")
        self._split_size = check_split(tasks, split)
        if self._split_size == 0:
            raise UserError(f"task set {tasks.name!r}: split {split!r} is empty.")
        self.tasks, self.split, self.max_turns, self.render_mode = tasks, split, max_turns, render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.task: Task = Task("")
        self.state: Any = None
        self.num_turns = 0
        self._running = False
        self._observation = ""

    # What an author writes

    def begin(self, task: Task) -> str:
        """Pose ``task``: set ``self.state`` and return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement begin(task) -> str")

    def advance(self, action: str) -> Turn:
        """Take one action (any string at all) and return what follows; must not raise, whatever the text."""
        raise NotImplementedError(f"{type(self).__name__} must implement advance(action) -> Turn")

    def expert(self) -> str:
        """Return the next action of a solver for the current state; only where the environment offers one."""
        raise UserError(f"{type(self).__name__} offers no expert policy.")

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random well-formed action; only where the environment offers one."""
        raise UserError(f"{type(self).__name__} offers no random policy.")

    def exploits(self) -> Sequence[str]:
        """Return actions that must never earn reward on the current task: `rollcage check` tries them all."""
        return ()

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Return the task for `reset`: the one ``options`` names, else a random one of the split."""
        if "task" in options:
            task_id = options["task"]
            if not isinstance(task_id, str):
                raise UserError(f"the reset option 'task' must be a task id (text), not {task_id!r}.")
            return self.tasks.by_id(task_id)
        return self.tasks.task(self.split, int(self.np_random.random() * self._split_size))

    def reset_info(self) -> Mapping[str, Any]:
        """Return the environment's own keys of the first ``info``."""
        return _NO_INFO

    # What Gymnasium calls

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode. ``options={"task": id}`` picks the task; else the seeded generator draws one.

        Raises:
            UserError: unknown option, or unknown task id; no episode is running then.
        """
        if seed is not None:
            super().reset(seed=seed)
        self._running = False
        if options:
            for key in options:
                if key not in self.option_keys:
                    hint = did_you_mean(str(key), self.option_keys)
                    raise UserError(f"unknown reset option {key!r} (known: {', '.join(self.option_keys)}).{hint}")
        self.task = self.choose_task(options or _NO_INFO)
        self.num_turns = 0
        self._observation = observation = self.begin(self.task)
        self._running = True
        return observation, {"task_id": self.task.id, "success": False, "failure": None, **self.reset_info()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action; see the class for ``info``.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            UserError: ``action`` is not a string.
        """
        if not self._running:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is running.")
        if not isinstance(action, str):
            raise UserError(f"an action must be a string, not {type(action).__name__}.")
        self.num_turns += 1
        observation, reward, terminated, success, extra, failure = self.advance(action)
        truncated = not terminated and (
            failure is not None or (self.max_turns is not None and self.num_turns >= self.max_turns)
        )
        if terminated or truncated:
            self._running = False
        self._observation = observation
        info = {"task_id": self.task.id, "success": success, "failure": failure, **extra}
        return observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """Return the newest observation in mode "ansi"."""
        return self._observation if self.render_mode == "ansi" else None

    def snapshot(self) -> bytes:
        """Return the whole state of the episode, for `restore` in this or another instance of the same environment."""
        generator = self.np_random.bit_generator.state
        return pickle.dumps((self.task, self.num_turns, self.state, self._running, self._observation, generator))

    def restore(self, snapshot: bytes) -> None:
        """Go back to `snapshot`. Only for bytes that `snapshot` made in a place you trust: they are a pickle."""
        self.task, self.num_turns, self.state, self._running, self._observation, generator = pickle.loads(snapshot)
        self.np_random.bit_generator.state = generator
