"""The vector environment behind `gymnasium.make_vec`: text in tuples; inline, or a process or container for each."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rollcage.envs.placements.base import EnvConfig
from rollcage.envs.registration import class_metadata
from rollcage.envs.vector_backends import Backend, InlineEnvs, ProcessEnvs
from rollcage.envs.vector_infos import VectorInfos
from rollcage.errors import UserError, did_you_mean

_Array = npt.NDArray[Any]


def _in_sandboxes(config: EnvConfig, num_envs: int, deadline_s: float) -> Backend:
    from rollcage.envs.vector_sandbox import SandboxEnvs  # which needs the sandbox manager

    return SandboxEnvs(config, num_envs, deadline_s)


_BACKENDS: Mapping[str, Callable[..., Backend]] = {
    "inline": InlineEnvs,
    "process": ProcessEnvs,
    "sandbox": _in_sandboxes,
}


def make_vector_env(
    env_id: str, num_envs: int = 1, *, placement: str | None = None, deadline_s: float = 60.0, **kwargs: Any
) -> TextVectorEnv:
    """Make ``num_envs`` instances of ``env_id`` that step together: what `gymnasium.make_vec` calls.

    `gymnasium.make_vec` hands a vector environment its keyword arguments only (it refuses ``vector_kwargs`` here), so
    ``placement`` and ``deadline_s`` stand beside the arguments of the environment:
    ``gymnasium.make_vec("rollcage/Countdown-v0", num_envs=8, placement="process")``.

    Args:
        env_id: registered id.
        num_envs: number of environments.
        placement: "inline" steps one after the other in this thread, best for environments that answer in
            microseconds; "process" steps all at once, one worker process each; "sandbox" too, a container each. None:
            what the class asks for in ``metadata["placement"]``.
        deadline_s: not inline: a reset or step that takes longer fails, and its environment is replaced. To start a
            process or container may take as long again.
        **kwargs: arguments for `gymnasium.make`.

    Raises:
        UserError: unknown id, placement or argument.
    """
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, not {num_envs}.")
    if placement is None:
        placement = class_metadata(env_id).get("placement", "inline")
    if placement not in _BACKENDS:
        hint = did_you_mean(placement, _BACKENDS)
        raise UserError(f"make_vec knows no placement {placement!r} (known: {', '.join(_BACKENDS)}).{hint}")
    return TextVectorEnv(_BACKENDS[placement](EnvConfig(env_id, kwargs), num_envs, deadline_s))


def __getattr__(name: str) -> Callable[..., TextVectorEnv]:
    """Return the vector entry point of the environment ``name``.

    Gymnasium does not tell a vector entry point for which environment it is called, so each registered id names one
    of its own, "rollcage.envs.vector:namespace/Name-v0": still a string, so that specs remain JSON-able.
    """
    if name in gymnasium.registry:
        return functools.partial(make_vector_env, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{did_you_mean(name, gymnasium.registry)}")


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], npt.NDArray[Any]]):
    """Text environments that step together, as `gymnasium.vector.SyncVectorEnv` would step them (NEXT_STEP autoreset).

    Observations are tuples of ``num_envs`` strings; rewards [num_envs] float64; terminations and truncations
    [num_envs] bool; each key of ``infos`` holds an array [num_envs], with ``_key`` telling which entries are set.

    With placement "process" or "sandbox", an environment that raises, dies or hangs is replaced, and costs its own
    episode only: its turn has reward 0, is truncated, and its info has failure "infra" with ``failure_reason`` and
    ``failure_message``. With "inline" what an environment raises is raised here.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.num_envs = backend.num_envs
        self.metadata = {**backend.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = backend.render_mode
        self.single_observation_space, self.single_action_space = backend.observation_space, backend.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations = [""] * self.num_envs
        self._resets: list[bool] = []

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in every environment.

        Args:
            seed: an int (environment i gets ``seed + i``), one seed for each environment, or None.
            options: for all environments, or a sequence of one for each. ``options["reset_mask"]``, an array
                [num_envs] of bool, picks the environments to reset; the others go on.
        """
        self._check_open()
        n = self.num_envs
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + i for i in range(n)]
        elif len(seed) != n:
            raise ValueError(f"reset needs one seed for each of the {n} environments, not {len(seed)}.")
        else:
            seeds = [None if one is None else int(one) for one in seed]
        chosen = [True] * n
        if isinstance(options, dict) or options is None:
            if options is not None and "reset_mask" in options:
                chosen = _check_reset_mask(options["reset_mask"], n)
                options = {key: value for key, value in options.items() if key != "reset_mask"}
            options = [options] * n
        elif len(options) != n:
            raise ValueError(f"reset needs one options for each of the {n} environments, not {len(options)}.")
        if not self._resets and not all(chosen):
            raise gymnasium.error.ResetNeeded("the first reset must be of all environments: leave reset_mask out.")
        results = self._backend.reset({i: seeds[i] for i in range(n) if chosen[i]}, options)
        self._resets = self._resets or [False] * n
        for i, (observation, _) in results.items():
            self._observations[i], self._resets[i] = observation, False
        if len(results) == n:
            return tuple(self._observations), VectorInfos([results[i][1] for i in range(n)], self._add_info)
        infos: dict[str, Any] = {}
        for i, (_, info) in results.items():
            infos = self._add_info(infos, info, i)
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str]) -> tuple[tuple[str, ...], _Array, _Array, _Array, dict[str, Any]]:
        """Take one action in every environment; one whose episode was over is reset instead."""
        self._check_open()
        if not self._resets:
            raise gymnasium.error.ResetNeeded("call reset() before step().")
        if isinstance(actions, str) or len(actions) != self.num_envs or not _all_text(actions):
            raise UserError(f"step needs a sequence of {self.num_envs} actions (strings), not {str(actions)[:80]!r}.")
        observations, rewards, terminations, truncations, infos = self._backend.advance(actions, self._resets)
        self._observations = observations
        self._resets = [*map(operator.or_, terminations, truncations)]
        return (
            tuple(observations),
            _array(rewards, np.float64),
            _array(terminations, np.bool_),
            _array(truncations, np.bool_),
            VectorInfos(infos, self._add_info),
        )

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("the vector environment has been closed.")

    def render(self) -> tuple[Any, ...] | None:
        """Return what each environment renders."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or get an attribute; one result each.

        In processes and containers arguments and results are JSON-able: ``random_action`` takes a seed, snapshots are
        base64.
        """
        return self._backend.call(name, args, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment: to one value, or to one of a list or tuple each."""
        values = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"set_attr needs {self.num_envs} values, not {len(values)}.")
        self._backend.set(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        self._backend.close()


def _array(values: list[Any], dtype: Any) -> _Array:
    # Converting a list takes four times as long as zeros do, and after a reset there is nothing else.
    return np.array(values, dtype) if any(values) else np.zeros(len(values), dtype)


def _all_text(actions: Sequence[str]) -> bool:
    return {*map(type, actions)} == {str} or all(isinstance(action, str) for action in actions)


def _check_reset_mask(mask: Any, num_envs: int) -> list[bool]:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f"options['reset_mask'] must be a bool array [{num_envs}] with at least one True: {mask!r}.")
    chosen: list[bool] = mask.tolist()
    return chosen
