"""The checks of `rollcage check`, one function each: it returns what it tried, or raises `CheckFailed`."""

from collections.abc import Callable, Mapping

from rollcage.envs.checks.content import check_expert, check_tasks, check_tools
from rollcage.envs.checks.contract import (
    check_gibberish,
    check_gymnasium,
    check_info,
    check_make,
    check_order,
    check_outcome,
    check_spaces,
    check_speed,
)
from rollcage.envs.checks.repeat import check_determinism, check_pickling, check_seeding, check_snapshot
from rollcage.envs.checks.rewards import check_rewards
from rollcage.envs.checks.subject import CheckFailed, NotOffered, Subject

__all__ = ["CHECKS", "CheckFailed", "NotOffered", "Subject"]

CHECKS: Mapping[str, Callable[[Subject], str]] = {
    "make": check_make,
    "gymnasium": check_gymnasium,
    "spaces": check_spaces,
    "determinism": check_determinism,
    "seeding": check_seeding,
    "gibberish": check_gibberish,
    "info": check_info,
    "outcome": check_outcome,
    "order": check_order,
    "pickling": check_pickling,
    "snapshot": check_snapshot,
    "speed": check_speed,
    "tasks": check_tasks,
    "tools": check_tools,
    "expert": check_expert,
    "rewards": check_rewards,
}
