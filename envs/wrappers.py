"""Wrappers for text environments: a turn limit that tells, the conversation so far, statistics of episodes.

Each is an ordinary `gymnasium.Wrapper`: it stands in ``env.spec``, can be pickled, and passes `snapshot` and `restore`
on together with what it remembers itself. `rollcage.envs.recording.Recording` writes episodes down.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from rollcage.errors import UserError

_Reset = tuple[str, dict[str, Any]]
_Step = tuple[str, Any, bool, bool, dict[str, Any]]


class TextWrapper(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """A wrapper that remembers something within an episode, in ``self.episode`` (anything that pickles).

    Args:
        env: a text environment, wrapped or not.
        **arguments: the other arguments of the subclass, for ``env.spec``.
    """

    def __init__(self, env: gymnasium.Env[str, str], **arguments: Any) -> None:
        RecordConstructorArgs.__init__(self, **arguments)
        gymnasium.Wrapper.__init__(self, env)
        self.episode: Any = None

    def snapshot(self) -> bytes:
        """Return the state of the episode, here and in the environment below."""
        return pickle.dumps((self.episode, self.env.get_wrapper_attr("snapshot")()))

    def restore(self, snapshot: bytes) -> None:
        """Go back to `snapshot`. Only for bytes that `snapshot` made in a place you trust: they are a pickle."""
        self.episode, below = pickle.loads(snapshot)
        self.env.get_wrapper_attr("restore")(below)


class TurnLimit(TextWrapper):
    """Truncates an episode after ``max_turns`` turns, and ends each observation with how many are left.

    >>> import gymnasium, rollcage
    >>> env = TurnLimit(gymnasium.make("rollcage/FrozenLake-v0"), max_turns=3)
    >>> env.reset(seed=0)[0].splitlines()[-1]
    '(3 turns left)'
    """

    def __init__(self, env: gymnasium.Env[str, str], max_turns: int) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns must be at least 1, not {max_turns}.")
        super().__init__(env, max_turns=max_turns)
        self.max_turns = max_turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> _Reset:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.episode = 0
        return self._tell(observation), info

    def step(self, action: str) -> _Step:
        """See `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.episode += 1
        truncated = truncated or (not terminated and self.episode >= self.max_turns)
        if not (terminated or truncated):
            observation = self._tell(observation)
        return observation, reward, terminated, truncated, info

    def _tell(self, observation: str) -> str:
        left = self.max_turns - self.episode
        return f"{observation}\n({left} turn{'s' * (left != 1)} left)"


class History(TextWrapper):
    """Makes each observation the whole conversation so far, for policies that keep none themselves.

    Messages are separated by an empty line and begin with their role, "User:" (the environment) or "Assistant:" (the
    policy). `messages` holds them as a list of {"role", "content"}.

    Args:
        env: a text environment, wrapped or not.
        last_turns: keep the first message, which poses the task, and so many of the newest turns; None keeps all.
    """

    def __init__(self, env: gymnasium.Env[str, str], last_turns: int | None = None) -> None:
        if last_turns is not None and last_turns < 1:
            raise UserError(f"last_turns must be at least 1, or None for all, not {last_turns}.")
        super().__init__(env, last_turns=last_turns)
        self.last_turns = last_turns

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the observation shows, as {"role": "user" or "assistant", "content": text}."""
        first, rest = self.episode[:1], self.episode[1:]
        if self.last_turns is not None:
            rest = rest[-2 * self.last_turns :]
        return [{"role": role, "content": content} for role, content in (*first, *rest)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> _Reset:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.episode = [("user", observation)]
        return self._conversation(), info

    def step(self, action: str) -> _Step:
        """See `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.episode += [("assistant", action), ("user", observation)]
        return self._conversation(), reward, terminated, truncated, info

    def _conversation(self) -> str:
        return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in self.messages)


class EpisodeStatistics(TextWrapper):
    """Counts episodes, and adds ``info["episode"]`` at the end of each: return_, length, duration_s, success.

    An episode whose info names a failure says nothing about the policy: it is counted in ``num_failed`` and left out
    of ``success_rate``. An episode that is reset before its end is not counted at all.

    Args:
        env: a text environment, wrapped or not.
        window: ``success_rate`` and ``mean_return`` are those of so many newest scored episodes.

    Attributes:
        num_scored: episodes that ended without a failure.
        num_failed: episodes that ended with one.
    """

    def __init__(self, env: gymnasium.Env[str, str], window: int = 100) -> None:
        if window < 1:
            raise UserError(f"window must be at least 1, not {window}.")
        super().__init__(env, window=window)
        self.num_scored = self.num_failed = 0
        self._successes: deque[bool] = deque(maxlen=window)
        self._returns: deque[float] = deque(maxlen=window)

    @property
    def success_rate(self) -> float | None:
        """Share of successes among the newest scored episodes; None where there is none yet."""
        return sum(self._successes) / len(self._successes) if self._successes else None

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest scored episodes; None where there is none yet."""
        return sum(self._returns) / len(self._returns) if self._returns else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> _Reset:
        """See `gymnasium.Env.reset`."""
        result = self.env.reset(seed=seed, options=options)
        self.episode = (0.0, 0, time.perf_counter())
        return result

    def step(self, action: str) -> _Step:
        """See `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return_, length, start_s = self.episode
        self.episode = return_, length, _ = return_ + float(reward), length + 1, start_s
        if terminated or truncated:
            success = bool(info.get("success", False))
            if info.get("failure") is None:
                self.num_scored += 1
                self._successes.append(success)
                self._returns.append(return_)
            else:
                self.num_failed += 1
            duration_s = time.perf_counter() - start_s
            statistics = {"return_": return_, "length": length, "duration_s": duration_s, "success": success}
            info = {**info, "episode": statistics}
        return observation, reward, terminated, truncated, info
