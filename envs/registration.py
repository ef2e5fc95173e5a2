"""Registration of environments with Gymnasium, and finding them again with "did you mean"."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rollcage.errors import UserError, did_you_mean

_VECTOR = "rollcage.envs.vector"
_BUILTIN = {
    "rollcage/ALFWorld-v0": "rollcage.envs.alfworld.env:ALFWorldEnv",
    "rollcage/Countdown-v0": "rollcage.envs.countdown.env:CountdownEnv",
    "rollcage/FrozenLake-v0": "rollcage.envs.frozen_lake.env:FrozenLakeEnv",
    "rollcage/Math-v0": "rollcage.envs.math.env:MathEnv",
    "rollcage/QA-v0": "rollcage.envs.qa.env:QAEnv",
    "rollcage/SWEBench-v0": "rollcage.envs.swe.bench:SWEBenchEnv",
    "rollcage/SWEMini-v0": "rollcage.envs.swe.env:SWEMiniEnv",
    "rollcage/Sokoban-v0": "rollcage.envs.sokoban.env:SokobanEnv",
}


def register(env_id: str, entry_point: str | Callable[..., gymnasium.Env[str, str]], **kwargs: Any) -> None:
    """Register a text environment under ``env_id`` for `gymnasium.make`, `gymnasium.make_vec` and every command.

    The environment checks its own call order and limits its own turns, so Gymnasium's per-step wrappers are left out.

    Args:
        env_id: ``namespace/Name-v0``.
        entry_point: the class, or "module:Class" (imported at the first `make`).
        **kwargs: default arguments of the class.
    """
    if not isinstance(entry_point, str):
        module, name = entry_point.__module__, getattr(entry_point, "__qualname__", "")
        # A name instead of the object lets worker processes build the same environment.
        if module != "__main__" and "<" not in name and getattr(sys.modules.get(module), name, None) is entry_point:
            entry_point = f"{module}:{name}"
    gymnasium.register(
        env_id,
        entry_point,
        order_enforce=False,
        disable_env_checker=True,
        kwargs=kwargs,
        vector_entry_point=f"{_VECTOR}:{env_id}",
    )


def register_builtin_envs() -> None:
    """Register the environments that ship with Rollcage; calling it again changes nothing."""
    for env_id, entry_point in _BUILTIN.items():
        if env_id not in gymnasium.registry:
            register(env_id, entry_point)


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec of ``env_id``; "module:namespace/Name-v0" imports ``module`` first, as in `gymnasium.make`.

    Raises:
        UserError: unknown id (with the nearest known one), or a module that cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except Exception as error:  # a user's module may fail in any way when it is imported
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(f"{env_id!r}: cannot import the module {module!r} ({reason}).") from error
    spec = gymnasium.registry.get(name)
    if spec is None:
        known = [key for key in gymnasium.registry if "/" in key]
        hint = did_you_mean(name, known) or "  `rollcage envs` lists them; your own: 'module:namespace/Name-v0'."
        raise UserError(f"no environment {name!r} is registered.{hint}")
    return spec


def class_metadata(env_id: str) -> Mapping[str, Any]:
    """Return ``metadata`` of the class behind ``env_id``, without building an environment.

    Where the class cannot be loaded it is empty: `make` says why.

    Raises:
        UserError: see `find_spec`.
    """
    entry_point = find_spec(env_id).entry_point
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ImportError, AttributeError):
        return {}
    metadata: Mapping[str, Any] = getattr(creator, "metadata", {})
    return metadata


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    """`gymnasium.make` with errors that name the id and the argument that was wrong.

    Raises:
        UserError: unknown id, unknown or wrong argument, or an entry point that is not there.
    """
    spec = find_spec(env_id)
    try:
        env: gymnasium.Env[str, str] = gymnasium.make(spec, **kwargs)
    except TypeError as error:
        raise UserError(f"{env_id}: {error}") from error
    except ModuleNotFoundError as error:
        raise UserError(f"{env_id}: {error}: its class must stand in a module on sys.path of this process.") from error
    return env
