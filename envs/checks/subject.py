"""What a check is given, and how it says what it found."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from rollcage.envs.core import TextEnv
from rollcage.envs.placements.base import EnvConfig
from rollcage.envs.registration import make
from rollcage.errors import RollcageError


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
    """

    config: EnvConfig
    placement: str

    def make(self) -> gymnasium.Env[str, str]:
        """Build a fresh instance."""
        return make(self.config.env_id, **self.config.kwargs)

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
