"""Where the environments of a vector environment run: in the caller's thread, or in one worker process each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, SupportsFloat

import gymnasium
import numpy as np

from rollcage.envs.placements.base import EnvConfig, EnvDied, EnvTimeout, PlacementError
from rollcage.envs.placements.worker_process import WorkerProcess, ask_all, make_request, request
from rollcage.envs.registration import make
from rollcage.envs.spaces import UnicodeText
from rollcage.errors import UserError

_CLOSE_S = 5.0

Reset = tuple[str, dict[str, Any]]
Steps = tuple[list[str], list[SupportsFloat], list[bool], list[bool], list[dict[str, Any]]]


class Backend(Protocol):
    """The environments of one vector environment, wherever they run.

    Attributes:
        num_envs: how many.
        observation_space, action_space: of one environment.
        metadata, render_mode: as in Gymnasium.
    """

    num_envs: int
    observation_space: gymnasium.Space[str]
    action_space: gymnasium.Space[str]
    metadata: Mapping[str, Any]
    render_mode: str | None

    def reset(self, seeds: Mapping[int, int | None], options: Sequence[dict[str, Any] | None]) -> dict[int, Reset]:
        """Reset the environments that are keys of ``seeds``; raises where one cannot be reset."""
        ...

    def advance(self, actions: Sequence[str], resets: Sequence[bool]) -> Steps:
        """Step every environment, or reset it where ``resets`` says so (reward 0, not terminated, not truncated).

        Returns observations, rewards, terminations, truncations and infos, a list [num_envs] of each.
        """
        ...

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Call the method ``name`` of every environment, or get the attribute."""
        ...

    def set(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every environment, to one value each."""
        ...

    def close(self) -> None:
        """Close every environment; idempotent."""
        ...


class InlineEnvs:
    """Environments that step one after the other in the caller's thread; no deadline can hold there."""

    def __init__(self, config: EnvConfig, num_envs: int, deadline_s: float) -> None:
        self._envs: list[gymnasium.Env[str, str]] = []
        try:
            for _ in range(num_envs):
                self._envs.append(make(config.env_id, **config.kwargs))
        except BaseException:
            self.close()
            raise
        first = self._envs[0]
        self.num_envs, self.render_mode = num_envs, first.render_mode
        self.metadata: Mapping[str, Any] = first.metadata
        self.observation_space: gymnasium.Space[str] = first.observation_space
        self.action_space: gymnasium.Space[str] = first.action_space

    def reset(self, seeds: Mapping[int, int | None], options: Sequence[dict[str, Any] | None]) -> dict[int, Reset]:
        """See `Backend.reset`."""
        return {i: self._envs[i].reset(seed=seed, options=options[i]) for i, seed in seeds.items()}

    def advance(self, actions: Sequence[str], resets: Sequence[bool]) -> Steps:
        """See `Backend.advance`."""
        steps: Steps = ([], [], [], [], [])
        observations, rewards, terminations, truncations, infos = steps
        for env, action, reset in zip(self._envs, actions, resets, strict=True):
            if reset:
                observation, info = env.reset()
                reward, terminated, truncated = 0.0, False, False
            else:
                observation, reward, terminated, truncated, info = env.step(action)  # type: ignore[assignment]
            observations.append(observation)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            infos.append(info)
        return steps

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """See `Backend.call`."""
        members = [env.get_wrapper_attr(name) for env in self._envs]
        return tuple(member(*args, **kwargs) if callable(member) else member for member in members)

    def set(self, name: str, values: Sequence[Any]) -> None:
        """See `Backend.set`."""
        for env, value in zip(self._envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """See `Backend.close`."""
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()


class RemoteEnvs(ABC):
    """Environments that step at once, each in a place of its own that is replaced when it fails.

    Args:
        num_envs: how many.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._seeds: list[int | None] = [None] * num_envs
        self._num_replaced = [0] * num_envs
        self._next_seed: dict[int, int] = {}
        self._task_ids = [""] * num_envs
        try:
            described = self._results(dict.fromkeys(range(num_envs), ("describe", {})))[0]
        except BaseException:
            self.close()
            raise
        self.metadata: Mapping[str, Any] = described["metadata"]
        self.render_mode: str | None = described["render_mode"]
        limits = described["max_lengths"]
        self.observation_space: gymnasium.Space[str] = UnicodeText(limits[0])
        self.action_space: gymnasium.Space[str] = UnicodeText(limits[1])

    @abstractmethod
    def _ask(self, requests: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[int, Any]:
        """Send each environment its request; returns results, and `PlacementError` or raised `UserError` as they come.

        A replacement is built first, within a deadline of its own; where it cannot be built the `UserError` is raised.
        """

    @abstractmethod
    def _renew(self, i: int) -> None:
        """Give up the place of an environment: it is built anew when it is next asked."""

    @abstractmethod
    def close(self) -> None:
        """See `Backend.close`."""

    def reset(self, seeds: Mapping[int, int | None], options: Sequence[dict[str, Any] | None]) -> dict[int, Reset]:
        """See `Backend.reset`; an environment that fails to reset is replaced and gets a second chance."""
        for i, seed in seeds.items():
            self._seeds[i] = seed
        requests = {i: ("reset", {"seed": seed, "options": options[i]}) for i, seed in seeds.items()}
        outcomes = self._ask(requests)
        failed = {i: requests[i] for i, outcome in outcomes.items() if isinstance(outcome, PlacementError)}
        for i in failed:
            self._replace(i)
        outcomes.update(self._results(failed))
        self._next_seed = {i: seed for i, seed in self._next_seed.items() if i not in seeds}
        for i, (_, info) in outcomes.items():
            self._task_ids[i] = info.get("task_id", "")
        return {i: (outcomes[i][0], outcomes[i][1]) for i in seeds}

    def advance(self, actions: Sequence[str], resets: Sequence[bool]) -> Steps:
        """See `Backend.advance`; a failure is a turn with reward 0, truncated, and failure "infra" in its info."""
        requests: dict[int, tuple[str, dict[str, Any]]] = {}
        for i, (action, reset) in enumerate(zip(actions, resets, strict=True)):
            if reset:
                requests[i] = ("reset", {"seed": self._next_seed.pop(i, None), "options": None})
            else:
                requests[i] = ("step", {"action": action})
        outcomes = self._ask(requests)
        steps: list[tuple[str, float, bool, bool, dict[str, Any]]] = []
        for i, reset in enumerate(resets):
            outcome = outcomes[i]
            if isinstance(outcome, PlacementError):
                self._replace(i)
                steps.append(("", 0.0, False, True, self._failure(i, outcome)))
            elif reset:
                self._task_ids[i] = outcome[1].get("task_id", "")
                steps.append((outcome[0], 0.0, False, False, outcome[1]))
            else:
                steps.append(outcome)
        observations, rewards, terminations, truncations, infos = map(list, zip(*steps, strict=True))
        return observations, rewards, terminations, truncations, infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """See `Backend.call`; arguments and results are JSON-able."""
        request_ = ("call", {"method": name, "args": list(args), "kwargs": kwargs})
        results = self._results(dict.fromkeys(range(self.num_envs), request_))
        return tuple(results[i] for i in range(self.num_envs))

    def set(self, name: str, values: Sequence[Any]) -> None:
        """See `Backend.set`."""
        self._results({i: ("set", {"name": name, "value": value}) for i, value in enumerate(values)})

    def _results(self, requests: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[int, Any]:
        """As `_ask`, but raises the first error."""
        outcomes = self._ask(requests)
        for i, outcome in outcomes.items():
            if isinstance(outcome, PlacementError | UserError):
                if isinstance(outcome, EnvDied | EnvTimeout):
                    self._replace(i)
                raise outcome
        return outcomes

    def _replace(self, i: int) -> None:
        self._renew(i)
        self._num_replaced[i] += 1
        seed = self._seeds[i]
        if seed is not None:  # the lost generator's state is lost: go on from a seed that the same run would get again
            self._next_seed[i] = int(np.random.SeedSequence([seed, self._num_replaced[i]]).generate_state(1)[0])

    def _failure(self, i: int, error: PlacementError) -> dict[str, Any]:
        return {
            "task_id": self._task_ids[i],
            "success": False,
            "failure": "infra",
            "failure_reason": error.reason,
            "failure_message": str(error),
        }


class ProcessEnvs(RemoteEnvs):
    """Environments in worker processes."""

    def __init__(self, config: EnvConfig, num_envs: int, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._make_args = make_request(config)
        self._workers = [WorkerProcess() for _ in range(num_envs)]
        self._built = [False] * num_envs
        super().__init__(num_envs)

    def close(self) -> None:
        """See `Backend.close`."""
        workers, self._workers = self._workers, []
        live = [worker for worker, built in zip(workers, self._built, strict=False) if built]
        ask_all(live, [request("close", {}, _CLOSE_S)] * len(live), _CLOSE_S)
        for worker in workers:
            worker.end()

    def _ask(self, requests: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[int, Any]:
        """See `RemoteEnvs._ask`."""
        outcomes: dict[int, Any] = {}
        new = [i for i in requests if not self._built[i]]
        frames = [request("make", self._make_args, self._deadline_s)] * len(new)
        for i, made in zip(new, ask_all([self._workers[i] for i in new], frames, self._deadline_s), strict=True):
            if isinstance(made, UserError):
                raise made
            if made is not None:
                outcomes[i] = made
            self._built[i] = made is None
        frames = []
        ready = [i for i in requests if i not in outcomes]
        for i in list(ready):
            operation, args = requests[i]
            try:
                frames.append(request(operation, args, self._deadline_s))
            except PlacementError as error:
                outcomes[i] = error
                ready.remove(i)
        answers = ask_all([self._workers[i] for i in ready], frames, self._deadline_s)
        return {**outcomes, **dict(zip(ready, answers, strict=True))}

    def _renew(self, i: int) -> None:
        self._workers[i].end()
        self._workers[i] = WorkerProcess()  # it starts while the others work
        self._built[i] = False
