"""Checks of what every caller relies on: Gymnasium's contract, text spaces, stable info, outcomes, order, time."""

from __future__ import annotations

import asyncio
import math
import time
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from rollcage.envs.attacks import GIBBERISH
from rollcage.envs.checks.play import MAX_TURNS, NUM_SEEDS, actor, episode
from rollcage.envs.checks.subject import CheckFailed, Subject
from rollcage.envs.core import TextEnv
from rollcage.envs.placements import PlacementError, make_placement
from rollcage.envs.placements.frames import encode
from rollcage.errors import UserError

STEP_S, RESET_S, START_S = 2.0, 20.0, 60.0

_FAILURES = (None, "task", "model", "infra")


def check_make(subject: Subject) -> str:
    """It can be built by id, and closed twice."""
    env = subject.make()
    env.close()
    env.close()
    kind = "a TextEnv" if isinstance(env.unwrapped, TextEnv) else "a plain Gymnasium environment"
    where = (
        "in worker processes too" if subject.placement == "process" else "inline only: no other process can build it"
    )
    return f"{kind}, {where}"


def check_gymnasium(subject: Subject) -> str:
    """Gymnasium's own `check_env` passes without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(subject.make().unwrapped)
    return "gymnasium's check_env, warnings as failures"


def check_spaces(subject: Subject) -> str:
    """Both spaces hold any text, and every observation is text."""
    env = subject.make()
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        for text in (*GIBBERISH, space.sample()):
            if text not in space:
                raise CheckFailed(f"{name} refuses {text!r:.60}; use rollcage.envs.UnicodeText, which holds any text")
    for seed in subject.seeds(3):
        for entry in episode(env, seed)[0]:
            if not isinstance(entry[0], str):
                raise CheckFailed(f"an observation is {type(entry[0]).__name__}, not text")
    return f"any text of {len(GIBBERISH)} kinds in both, observations are text"


def check_gibberish(subject: Subject) -> str:
    """No text at all makes it raise or hang."""

    async def run() -> None:
        placement = make_placement(subject.placement, subject.config)
        try:
            for text in GIBBERISH:
                handle = await placement.acquire(deadline_s=START_S)
                await handle.reset(seed=0, deadline_s=RESET_S)
                try:
                    for _ in range(2):
                        _, _, terminated, truncated, _ = await handle.step(text, deadline_s=RESET_S)
                        if terminated or truncated:
                            break
                except PlacementError as error:
                    last = str(error).strip().splitlines()[-1]
                    raise CheckFailed(
                        f"the action {text!r:.40} ({len(text)} characters): {error.reason}: {last}"
                    ) from None
                finally:
                    await handle.release()
        finally:
            await placement.close()

    asyncio.run(run())
    return f"{len(GIBBERISH)} texts: empty, 1 MiB, NUL, lone surrogates, all scripts"


def check_info(subject: Subject) -> str:
    """Info has the keys task_id, success and failure, and always the same keys of the same types, JSON-able."""
    env = subject.make()
    shapes: dict[str, dict[str, type]] = {}
    for seed in subject.seeds(NUM_SEEDS):
        rng = np.random.default_rng(seed)
        info, ended, turn = env.reset(seed=seed)[1], False, 0
        _check_info(info, "reset", shapes)
        while not ended and turn < MAX_TURNS:
            _, _, terminated, truncated, info = env.step(actor(env, rng))
            _check_info(info, "step", shapes)
            ended, turn = terminated or truncated, turn + 1
    return f"the keys {', '.join(shapes.get('step', {}))}"


def _check_info(info: Mapping[str, Any], when: str, shapes: dict[str, dict[str, type]]) -> None:
    if not isinstance(info.get("task_id"), str):
        raise CheckFailed(f"{when}: info['task_id'] must be text, not {info.get('task_id')!r}")
    if not isinstance(info.get("success"), bool):
        raise CheckFailed(f"{when}: info['success'] must be a bool, not {info.get('success')!r}")
    if info.get("failure", "missing") not in _FAILURES:
        raise CheckFailed(f"{when}: info['failure'] must be one of {_FAILURES}, not {info.get('failure', 'missing')!r}")
    try:
        encode(info)
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"{when}: info is not JSON-able: {error}") from None
    known = shapes.setdefault(when, {key: type(None) for key in info})
    if known.keys() != info.keys():
        keys = ", ".join(sorted(known.keys() ^ info.keys()))
        raise CheckFailed(f"{when}: the keys of info change from one to the next: {keys}")
    for key, value in info.items():
        if value is not None:
            if known[key] not in (type(None), type(value)):
                names = f"{known[key].__name__} and {type(value).__name__}"
                raise CheckFailed(f"{when}: info[{key!r}] changes its type: {names}")
            known[key] = type(value)


def check_outcome(subject: Subject) -> str:
    """Rewards are finite, success comes with terminated, terminated and truncated are kept apart, max_turns holds."""
    env = subject.make()
    limit = getattr(env.unwrapped, "max_turns", None)
    played = ended = 0
    for seed in subject.seeds(NUM_SEEDS):
        played += 1
        log, actions = episode(env, seed)
        for _, reward, terminated, truncated, info in log[1:]:
            if not math.isfinite(reward):
                raise CheckFailed(f"seed {seed}: the reward is {reward}")
            if info.get("success") and not terminated:
                raise CheckFailed(f"seed {seed}: success without terminated")
            if terminated and truncated:
                raise CheckFailed(f"seed {seed}: terminated and truncated at once; truncated is for time limits alone")
        if limit is not None and len(actions) > limit:
            raise CheckFailed(f"seed {seed}: {len(actions)} turns, but max_turns is {limit}")
        ended += log[-1][2] or log[-1][3]
    return f"{played} episodes, {ended} of them to their end"


def check_order(subject: Subject) -> str:
    """Steps out of order raise `ResetNeeded`, and an action that is no text is refused."""
    env = subject.make()
    _must_refuse(env, "hello", "step() before the first reset()", gymnasium.error.ResetNeeded)
    ended = False
    for seed in subject.seeds(NUM_SEEDS):
        log, _ = episode(env, seed)
        if log[-1][2] or log[-1][3]:
            _must_refuse(env, "hello", "step() after the end of an episode", gymnasium.error.ResetNeeded)
            ended = True
            break
    env.reset(seed=0)
    _must_refuse(env, 3, "an action that is a number", UserError, TypeError)
    return "before reset, after the end, not text" if ended else f"before reset, not text; no end in {MAX_TURNS} turns"


def _must_refuse(env: gymnasium.Env[str, str], action: Any, what: str, *errors: type[Exception]) -> None:
    try:
        env.step(action)
    except errors:
        return
    except Exception as error:  # noqa: BLE001  (whatever else it raises is the finding)
        raise CheckFailed(f"{what} raises {type(error).__name__}, not {errors[0].__name__}") from None
    raise CheckFailed(f"{what} raises nothing; it must raise {errors[0].__name__}")


def check_speed(subject: Subject) -> str:
    """Steps and resets take a bounded time."""
    env = subject.make()
    slowest = {"reset": 0.0, "step": 0.0}
    for seed in subject.seeds(4):
        rng, turn, ended = np.random.default_rng(seed), 0, False
        start = time.perf_counter()
        env.reset(seed=seed)
        slowest["reset"] = max(slowest["reset"], time.perf_counter() - start)
        while not ended and turn < MAX_TURNS:
            action = actor(env, rng)
            start = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            slowest["step"] = max(slowest["step"], time.perf_counter() - start)
            ended, turn = terminated or truncated, turn + 1
    # An environment whose steps start containers says in its metadata what they may take.
    for name, limit_s in (("reset", RESET_S), ("step", float(env.metadata.get("step_s", STEP_S)))):
        if slowest[name] > limit_s:
            raise CheckFailed(f"a {name} took {slowest[name]:.1f} s; the limit is {limit_s:g} s")
    return f"slowest reset {slowest['reset'] * 1e3:.3g} ms, step {slowest['step'] * 1e3:.3g} ms"
