"""Checks that an episode can be had again: by seed, elsewhere, from a pickle, from a snapshot."""

from __future__ import annotations

import asyncio
import pickle
import random

import numpy as np

from rollcage.envs.checks.contract import RESET_S, START_S
from rollcage.envs.checks.play import NUM_SEEDS, episode, first_difference, go_on, half_way
from rollcage.envs.checks.subject import CheckFailed, NotOffered, Subject
from rollcage.envs.placements import make_placement
from rollcage.envs.placements.frames import plain


def check_determinism(subject: Subject) -> str:
    """The same seed and actions give the same episode: again, in another instance, in another process."""
    env, other = subject.make(), subject.make()
    episodes = []
    for seed in subject.seeds(6):
        log, actions = episode(env, seed)
        episodes.append((seed, log, actions))
        for name, instance in (("played again", env), ("in another instance", other)):
            if (again := episode(instance, seed, actions)[0]) != log:
                raise CheckFailed(f"seed {seed}, {name}, differs at {first_difference(log, again)}")
    if subject.placement != "process":
        return f"{len(episodes)} episodes again and in another instance"

    async def elsewhere() -> None:
        placement = make_placement("process", subject.config)
        try:
            handle = await placement.acquire(deadline_s=START_S)
            for number in subject.seeds(len(episodes)):
                seed, log, actions = episodes[number]
                again = [plain(await handle.reset(seed=seed, deadline_s=RESET_S))]
                again += [plain(await handle.step(action, deadline_s=RESET_S)) for action in actions]
                if again != log:
                    difference = first_difference(log, again)
                    raise CheckFailed(f"seed {seed}, in another process (hash order?), differs at {difference}")
        finally:
            await placement.close()

    asyncio.run(elsewhere())
    return f"{len(episodes)} episodes again, in another instance and in another process"


def check_seeding(subject: Subject) -> str:
    """Seeds lead to different tasks, resets without a seed go on from the last one, no global generator is touched."""
    env = subject.make()
    before = random.getstate(), pickle.dumps(np.random.get_state())
    starts = [env.reset(seed=seed) for seed in range(NUM_SEEDS)]
    for seed in subject.seeds(3):
        episode(env, seed)
    if before != (random.getstate(), pickle.dumps(np.random.get_state())):
        raise CheckFailed("it uses a global random generator (random or numpy.random); use self.np_random")
    tasks = getattr(env.unwrapped, "tasks", None)
    size = tasks.splits[getattr(env.unwrapped, "split")] if tasks is not None else 2  # noqa: B009
    posed = {(observation, info.get("task_id")) for observation, info in starts}
    if size > 1 and len(posed) == 1:
        raise CheckFailed(f"{NUM_SEEDS} seeds all gave the same first observation: {starts[0][0]!r:.80}")
    runs = []
    for _ in range(2):
        env.reset(seed=1)
        later = [env.reset() for _ in range(NUM_SEEDS)]
        runs.append([(observation, info.get("task_id")) for observation, info in later])
    if runs[0] != runs[1]:
        raise CheckFailed("reset(seed=1) and then reset() do not repeat themselves: keep to self.np_random")
    if size > 1 and len(set(runs[0])) == 1 and len(posed) > 1:
        raise CheckFailed("reset() without a seed gives the same task for ever: do not seed it again")
    return f"{len(posed)} different starts from {NUM_SEEDS} seeds, no global generator used"


def check_pickling(subject: Subject) -> str:
    """A copy made with pickle in mid-episode goes on as the original does."""
    env = subject.make()
    for seed in subject.seeds(4):
        rest = half_way(env, seed)
        twin = pickle.loads(pickle.dumps(env))
        ours, theirs = go_on(env, rest), go_on(twin, rest)
        if ours != theirs:
            raise CheckFailed(f"seed {seed}: the pickled copy goes on differently: {first_difference(ours, theirs)}")
    return "in mid-episode"


def check_snapshot(subject: Subject) -> str:
    """`restore` brings `snapshot` back, in the same instance and in another one."""
    env, other = subject.make(), subject.make()
    if not (hasattr(env.unwrapped, "snapshot") and hasattr(env.unwrapped, "restore")):
        raise NotOffered("no snapshot() and restore()")
    for seed in subject.seeds(4):
        rest = half_way(env, seed)
        snapshot = env.get_wrapper_attr("snapshot")()
        log = go_on(env, rest)
        other.reset(seed=seed + 1)
        for name, instance in (
            ("the same instance", env),
            ("another instance", other),
            ("a fresh one", subject.make()),
        ):
            instance.get_wrapper_attr("restore")(snapshot)
            if (again := go_on(instance, rest)) != log:
                raise CheckFailed(f"seed {seed}: restored in {name}, differs at {first_difference(log, again)}")
    return "in mid-episode, in the same and in other instances"
