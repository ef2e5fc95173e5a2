"""How long environments took, from the records of episodes: those played in lockstep waited for each other as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def read_latencies(episodes: Rows, *, lockstep: bool) -> tuple[list[float], list[float]]:
    """Return the seconds of resets, and those of steps.

    Args:
        episodes: records of episodes, each with a turn or more.
        lockstep: they waited for each other after their resets, before each step and after it (mode ``sync``), and the
            recorded seconds hold that wait. See `_in_lockstep`.
    """
    if lockstep:
        return _in_lockstep(episodes)
    resets = [first_asked_s(row) - row["start_s"] for row in episodes]
    return [max(value, 0.0) for value in resets], [turn["env_s"] for row in episodes for turn in row["turns"]]


def first_asked_s(row: Mapping[str, Any]) -> float:
    """Return when an episode asked for its first message: its turns follow each other up to its end."""
    return float(row["end_s"] - sum(turn["act_s"] + turn["env_s"] for turn in row["turns"]))


def _in_lockstep(episodes: Rows) -> tuple[list[float], list[float]]:
    """Return what is left when the wait is taken out.

    A step begins when the last message of its round's turn is there; what ends an episode is not waited after. So the
    last step of every episode is known by itself, and all steps are taken to be like those. Of the resets of a round
    only the longest is known: resets are taken to be spread like steps, at a scale that gives such longest ones.
    """
    steps: list[float] = []
    longest_resets: list[float] = []
    num_members: list[int] = []
    for members in _rounds(episodes):
        begun_s: dict[int, float] = {}
        for row in members:
            at_s = first_asked_s(row)
            for number, turn in enumerate(row["turns"]):
                begun_s[number] = max(begun_s.get(number, 0.0), at_s + turn["act_s"])
                at_s += turn["act_s"] + turn["env_s"]
        over = [row for row in members if _is_over(row)]
        steps += [max(row["end_s"] - begun_s[len(row["turns"]) - 1], 0.0) for row in over]
        longest_resets.append(max(first_asked_s(row) - row["start_s"] for row in members))
        num_members.append(len(members))
    expected = fmean(_longest(steps, number) for number in num_members) if steps else 0.0
    if expected <= 0:
        return [max(value, 0.0) for value in longest_resets], steps or [0.0]
    scale = max(fmean(longest_resets), 0.0) / expected
    return [scale * value for value in steps], steps


def _rounds(episodes: Rows) -> Iterable[list[Mapping[str, Any]]]:
    """Yield the episodes of each round: none of the next begins before all have ended."""
    members: list[Mapping[str, Any]] = []
    over_s = float("-inf")
    for row in sorted(episodes, key=lambda row: float(row["start_s"])):
        if members and row["start_s"] >= over_s:
            yield members
            members = []
        members.append(row)
        over_s = max(over_s, row["end_s"])
    if members:
        yield members


def _is_over(row: Mapping[str, Any]) -> bool:
    """Whether the environment itself ended the episode, with its last step."""
    ended = row["terminated"] or row["truncated"]
    return bool(ended and not row["failure"] and "truncated_by" not in row["info"])


def _longest(values: Sequence[float], num_draws: int) -> float:
    """Return the expected longest of so many draws from ``values``."""
    size = len(values)
    return sum(
        value * (((rank + 1) / size) ** num_draws - (rank / size) ** num_draws)
        for rank, value in enumerate(sorted(values))
    )
