"""Playing episodes for checks: actions of every kind, logs that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rollcage.envs.core import TextEnv
from rollcage.envs.placements.frames import plain
from rollcage.errors import UserError

NUM_SEEDS = 16
MAX_TURNS = 60


def offers(env: gymnasium.Env[str, str], method: str) -> bool:
    """Return whether the environment overrides an optional method of `TextEnv`, or has it without being one."""
    own = getattr(type(env.unwrapped), method, None)
    return own is not None and own is not getattr(TextEnv, method, None)


def actor(env: gymnasium.Env[str, str], rng: np.random.Generator) -> str:
    """Return an action of any kind: an expert's, a random one, gibberish."""
    kinds = ["text"] + [kind for kind in ("expert", "random_action") if offers(env, kind)]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "expert":
        try:
            return str(env.unwrapped.expert())  # type: ignore[attr-defined]
        except UserError:
            return "hello"  # a position from which nothing helps any more has no expert action
    if kind == "random_action":
        return str(env.unwrapped.random_action(rng))  # type: ignore[attr-defined]
    return str(rng.choice(["hello", "<answer>1</answer>", "left", ""]))


def episode(
    env: gymnasium.Env[str, str], seed: int, actions: Sequence[str] | None = None
) -> tuple[list[Any], list[str]]:
    """Play one episode; returns what the environment said (reset, then steps) and the actions taken."""
    rng, taken = np.random.default_rng(seed), []
    log: list[Any] = [as_said(env.reset(seed=seed))]
    for turn in range(MAX_TURNS if actions is None else len(actions)):
        action = actor(env, rng) if actions is None else actions[turn]
        taken.append(action)
        log.append(as_said(env.step(action)))
        if log[-1][2] or log[-1][3]:
            break
    return log, taken


def as_said(entry: Any) -> Any:
    """Return a comparable copy of what the environment returned; what JSON cannot hold is for `check_info` to find."""
    try:
        return plain(entry)
    except (TypeError, ValueError):
        return repr(entry)


def first_difference(log: Sequence[Any], other: Sequence[Any]) -> str:
    """Return where two logs of `episode` part."""
    for turn, (ours, theirs) in enumerate(zip(log, other, strict=False)):
        if ours != theirs:
            return f"{'reset' if turn == 0 else f'turn {turn}'}: {ours!r:.120} against {theirs!r:.120}"
    return f"{len(log) - 1} turns against {len(other) - 1}"


def go_on(env: gymnasium.Env[str, str], actions: Sequence[str]) -> list[Any]:
    """Take ``actions`` until the episode ends; returns what the environment said."""
    log: list[Any] = []
    for action in actions:
        log.append(as_said(env.step(action)))
        if log[-1][2] or log[-1][3]:
            break
    return log


def half_way(env: gymnasium.Env[str, str], seed: int) -> list[str]:
    """Bring ``env`` to the middle of an episode; returns the actions that are left."""
    _, actions = episode(env, seed)
    half = len(actions) // 2
    env.reset(seed=seed)
    go_on(env, actions[:half])
    return actions[half:]
