"""What a check is given, and how it says what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gymnasium

from rollcage.envs.core import TextEnv
from rollcage.envs.placements.base import EnvConfig
from rollcage.envs.registration import make
from rollcage.errors import RollcageError

SECONDS = 20.0
"""So long a check goes on with new episodes, where nobody says otherwise."""
_LEAST_EPISODES = 2


class CheckFailed(RollcageError):
    """The environment breaks a promise; the message says which, and how to see it."""


class NotOffered(RollcageError):
    """The environment does not offer what a check is about, which is fine."""


@dataclass(frozen=True)
class Subject:
    """The environment under test.

    Attributes:
        config: which environment.
        placement: where untrusted actions are tried: "process" where it can be built there, else "inline".
        seconds: so long a check goes on with new episodes.
        progress: called with how far a check has come.
    """

    config: EnvConfig
    placement: str
    seconds: float = SECONDS
    progress: Callable[[str], None] = lambda line: None

    def make(self) -> gymnasium.Env[str, str]:
        """Build a fresh instance."""
        return make(self.config.env_id, **self.config.kwargs)

    def seeds(self, count: int) -> Iterator[int]:
        """Yield the seeds 0, 1, ... of so many episodes; fewer, but two, where they take more time than there is."""
        begun = time.monotonic()
        for seed in range(count):
            if seed >= _LEAST_EPISODES and time.monotonic() - begun > self.seconds:
                return
            self.progress(f"{seed} of at most {count} episodes")
            yield seed

    def text_env(self) -> TextEnv:
        """Build a fresh instance of a `TextEnv`; raises `NotOffered` for another kind of environment."""
        env = self.make().unwrapped
        if not isinstance(env, TextEnv):
            raise NotOffered("not a TextEnv")
        return env


def one_line(text: str, limit: int = 600) -> str:
    """Return ``text`` as one printable line."""
    line = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= limit else line[: limit - 3] + "..."
