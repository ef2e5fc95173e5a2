"""One episode: an agent and an environment take turns until the end, and whatever happens becomes a `Trajectory`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rollcage.envs.placements.base import EnvHandle, PlacementError
from rollcage.errors import RollcageError
from rollcage.trainer.engines.base import ContextFull, EngineError
from rollcage.trainer.rollout.shared_timer import SharedTimer
from rollcage.trainer.types import Failure, FailureKind, Segment, Trajectory, TurnRecord

MAX_REWARD = 1e18
"""A reward must be smaller than this, so that its square is finite in float32."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each wait of an episode may take.

    Attributes:
        env_s: seconds for one reset or step of the environment.
        turn_s: seconds for one message of the agent, waiting for a free engine slot included.
        episode_s: seconds for the whole episode.
    """

    env_s: float = 60.0
    turn_s: float = 120.0
    episode_s: float = 600.0

    def allowing(self, env_s: float) -> Deadlines:
        """Return these, but at least ``env_s`` for the environment, and an episode longer by one such reset and step.

        ``env_s`` is what an environment declares; see `declared_s`.
        """
        more_s = max(0.0, env_s - self.env_s)
        return replace(self, env_s=self.env_s + more_s, episode_s=self.episode_s + 2 * more_s)


class Timers:
    """The timers that the episodes of one event loop share: equal deadlines take one timer for all.

    Args:
        deadlines: how long a turn and an episode may take.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self.turn, self.episode = SharedTimer(deadlines.turn_s), SharedTimer(deadlines.episode_s)


def declared_s(metadata: Mapping[str, Any]) -> float:
    """Return the seconds that one reset or step may take by an environment's metadata ("reset_s", "step_s"); else 0."""
    return max(float(metadata.get(key, 0.0)) for key in ("reset_s", "step_s"))


@dataclass(frozen=True, slots=True)
class Message:
    """What an agent says in one turn.

    Attributes:
        text: what the environment reads.
        finish_reason: why it ended ("stop", "length", "abort").
        segment, start, end: where its tokens stand in the agent's segments; 0, 0, 0 for agents without tokens.
    """

    text: str
    finish_reason: str = "stop"
    segment: int = 0
    start: int = 0
    end: int = 0


class AgentFailed(RollcageError):
    """The agent can give no action. ``kind`` and ``reason`` say why, as in `Failure`."""

    def __init__(self, kind: FailureKind, reason: str, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.reason = reason


class Agent(Protocol):
    """Plays one episode; made anew for each.

    Attributes:
        segments: token record of the conversation; stays empty for agents without tokens.
        policy_version: version that would sample the next token; 0 for agents without one.
    """

    @property
    def segments(self) -> list[Segment]:
        """Token record so far."""
        ...

    @property
    def policy_version(self) -> int:
        """Version that would sample the next token."""
        ...

    async def act(self, observation: str) -> Message:
        """Answer the environment's newest message; the agent itself remembers the earlier ones.

        Raises:
            AgentFailed, EngineError.
        """
        ...


async def run_episode(
    handle: EnvHandle,
    agent: Agent,
    *,
    sample_id: tuple[int, int],
    task_id: str,
    seed: int,
    deadlines: Deadlines,
    options: dict[str, Any] | None = None,
    timers: Timers | None = None,
) -> Trajectory:
    """Play one episode to its end; never raises for what an environment, engine or agent does wrong.

    Args:
        handle: the environment instance.
        agent: who plays.
        sample_id: (group, member) for the record.
        task_id: the task, passed as ``options["task"]``.
        seed: of the environment's reset.
        deadlines: of every wait.
        options: further reset options.
        timers: of ``deadlines``, shared with other episodes; None: its own.
    """
    timers = timers or Timers(deadlines)
    clock = asyncio.get_running_loop().time
    trajectory = Trajectory(sample_id, task_id, seed, start_s=clock())
    try:
        with timers.episode.begin() as whole:
            await _play(handle, agent, trajectory, deadlines, timers, {**(options or {}), "task": task_id})
    except PlacementError as error:
        trajectory.failure = Failure("infra", error.reason, str(error))
    except ContextFull as error:
        if trajectory.turns:
            trajectory.truncated = True  # the conversation has outgrown the model: the rewards so far stand
            trajectory.info["truncated_by"] = error.reason
        else:
            trajectory.failure = Failure("model", error.reason, str(error))
    except EngineError as error:
        trajectory.failure = Failure("infra", error.reason, str(error))
    except AgentFailed as error:
        trajectory.failure = Failure(error.kind, error.reason, str(error))
    except TimeoutError:
        what, limit_s = ("episode", deadlines.episode_s) if whole.expired else ("turn", deadlines.turn_s)
        trajectory.failure = Failure("infra", f"{what}_timeout", f"the {what} took longer than {limit_s:g} s")
    trajectory.segments = agent.segments
    newest = [max(segment.policy_versions) for segment in agent.segments if segment.policy_versions]
    trajectory.end_version = max([trajectory.start_version, *newest])
    trajectory.end_s = clock()
    return trajectory


async def _play(
    handle: EnvHandle,
    agent: Agent,
    trajectory: Trajectory,
    deadlines: Deadlines,
    timers: Timers,
    options: dict[str, Any],
) -> None:
    clock = asyncio.get_running_loop().time
    observation, info = await handle.reset(seed=trajectory.seed, options=options, deadline_s=deadlines.env_s)
    trajectory.prompt = observation
    trajectory.start_version = agent.policy_version
    while not (trajectory.terminated or trajectory.truncated):
        asked_s = clock()
        # no timer that the episode's own is sure to come before
        is_bounded = asked_s + deadlines.turn_s < trajectory.start_s + deadlines.episode_s
        with timers.turn.begin() if is_bounded else nullcontext():
            message = await agent.act(observation)
        acted_s = clock()
        observation, reward, trajectory.terminated, trajectory.truncated, info = await handle.step(
            message.text, deadline_s=deadlines.env_s
        )
        if not abs(reward) < MAX_REWARD:  # it would poison every mean and gradient that it enters
            raise PlacementError(f"the environment gave the reward {reward}")
        span = (message.segment, message.start, message.end)
        times_s = (acted_s - asked_s, clock() - acted_s)
        trajectory.turns.append(
            TurnRecord(message.text, observation, float(reward), *span, message.finish_reason, *times_s)
        )
    trajectory.success = bool(info.get("success", False))
    trajectory.info = {key: value for key, value in info.items() if key not in ("task_id", "success", "failure")}
    if info.get("failure"):
        reason = str(info.get("failure_reason") or "env_reported")
        full = str(info.get("failure_message") or f"the environment reported: {reason}")
        trajectory.failure = Failure(info["failure"], reason, full)
