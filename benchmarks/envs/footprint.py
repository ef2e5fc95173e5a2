"""How much memory one more environment takes, in each place where environments run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from rollcage.envs import make
from rollcage.envs.placements import EnvConfig, PlacementError, ProcessPlacement, SandboxPlacement
from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.types import SandboxSpec

DEADLINE_S = 120.0
MEMORY = "cat /sys/fs/cgroup/memory.current 2>/dev/null || cat /sys/fs/cgroup/memory/memory.usage_in_bytes"
"""What a container's control group counts, run inside: its processes' own memory, and the files that it has read."""


def proportional_bytes(pid: int | str = "self") -> int:
    """Return what a process has of the machine's memory, shared pages divided among those who share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no Pss")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_own_process(measure: Callable[[], int]) -> int:
    """Return what ``measure`` returns in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure).result(DEADLINE_S)


def inline_bytes(env_id: str, kwargs: Mapping[str, Any], task_ids: Sequence[str]) -> int:
    """Return what each environment after the first one adds to a process, each of them in an episode."""
    envs = []
    for task_id in task_ids:
        envs.append(make(env_id, **kwargs))
        envs[-1].reset(options={"task": task_id})
        if len(envs) == 1:
            first = resident_bytes()
    return max(0, resident_bytes() - first) // (len(task_ids) - 1)


async def process_bytes(env_id: str, kwargs: Mapping[str, Any], task_ids: Sequence[str]) -> int:
    """Return what the worker of an environment takes: the median of so many at once, each in an episode."""
    before = set(_children())
    async with AsyncExitStack() as stack:
        placement = ProcessPlacement(EnvConfig(env_id, kwargs))
        stack.push_async_callback(placement.close)
        for task_id in task_ids:
            handle = await placement.acquire(deadline_s=DEADLINE_S)
            await handle.reset(options={"task": task_id}, deadline_s=DEADLINE_S)
        return int(median(proportional_bytes(pid) for pid in _children() if pid not in before))


async def sandbox_bytes(
    sandboxes: Sandboxes, image: str, env_id: str, kwargs: Mapping[str, Any], task_ids: Sequence[str]
) -> int:
    """Return what the container of an environment takes, as `process_bytes`."""
    async with AsyncExitStack() as stack:
        placement = SandboxPlacement(EnvConfig(env_id, kwargs), spec=SandboxSpec(image=image), sandboxes=sandboxes)
        stack.push_async_callback(placement.close)
        for task_id in task_ids:
            handle = await placement.acquire(deadline_s=DEADLINE_S)
            await handle.reset(options={"task": task_id}, deadline_s=DEADLINE_S)
        taken = []
        for info in await sandboxes.list_sandboxes():
            told = await (await sandboxes.attach(info.id)).exec(MEMORY)
            if not told.ok:
                raise PlacementError(f"the sandbox does not tell its memory: {told.stderr_text.strip()}")
            taken.append(int(told.stdout))
        return int(median(taken))


def _children() -> list[str]:
    found = Path("/proc/self/task").glob("*/children")
    return [pid for path in found for pid in path.read_text(encoding="ascii").split()]


def inline_footprint(env_id: str, kwargs: Mapping[str, Any], task_ids: Sequence[str]) -> int:
    """Return `inline_bytes` as a fresh process finds it."""
    return in_own_process(partial(inline_bytes, env_id, dict(kwargs), list(task_ids)))
