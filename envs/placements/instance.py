"""One environment instance behind plain data: the same operations in a thread, a worker process or a container."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from rollcage.envs.spaces import UnicodeText
from rollcage.errors import UserError

MAX_OBSERVATION_CHARS = 1 << 24
"""A longer observation is an error of the environment: no model reads 16 million characters."""

MAX_TRACEBACK_CHARS = 8_000


class Instance:
    """An environment whose operations take and return what JSON can hold.

    Args:
        env: what `gymnasium.make` returned.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self.env = env

    def describe(self) -> dict[str, Any]:
        """Return the metadata, the render mode and the length limits of both text spaces.

        Raises:
            UserError: a space is not `UnicodeText`.
        """
        limits = []
        for name in ("observation_space", "action_space"):
            space = getattr(self.env, name)
            if not isinstance(space, UnicodeText):
                raise UserError(
                    f"{name} is {space}; a worker process serves text environments only: use UnicodeText, or inline."
                )
            limits.append(space.max_length)
        metadata = {key: value for key, value in self.env.metadata.items() if key != "autoreset_mode"}
        return {"metadata": metadata, "render_mode": self.env.render_mode, "max_lengths": limits}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        _check_text(observation)
        return observation, info

    def step(self, *, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        _check_text(observation)
        return observation, float(reward), bool(terminated), bool(truncated), info

    def call(self, *, method: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``method`` of the environment (or return it, where it is data), wrappers included.

        ``random_action`` takes a seed instead of a generator; snapshots are base64 text.

        Raises:
            UserError: the environment does not offer it.
        """
        try:
            member = self.env.get_wrapper_attr(method)
        except AttributeError:
            raise UserError(f"{self.env.unwrapped!r} offers no {method}.") from None
        if method == "random_action" and args and not isinstance(args[0], np.random.Generator):
            args = [np.random.default_rng(args[0]), *args[1:]]
        elif method == "restore" and args:
            args = [base64.b64decode(args[0]), *args[1:]]
        result = member(*args, **kwargs) if callable(member) else member
        return base64.b64encode(result).decode() if isinstance(result, bytes) else result

    def checkpoint(self) -> str | None:
        """Return a snapshot as base64 text; None where the environment cannot make one now."""
        try:
            snapshot: str = self.call(method="snapshot", args=[], kwargs={})
            return snapshot
        except Exception:  # noqa: BLE001  (an author's own code; the step before it went well, and counts)
            return None

    def set(self, *, name: str, value: Any) -> None:
        """Set an attribute of the environment."""
        self.env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _check_text(observation: object) -> None:
    if not isinstance(observation, str):
        raise TypeError(f"an observation must be a string, not {type(observation).__name__}")
    if len(observation) > MAX_OBSERVATION_CHARS:
        raise ValueError(
            f"an observation of {len(observation)} characters is over the limit of {MAX_OBSERVATION_CHARS}"
        )


def describe_error(operation: str, error: BaseException) -> tuple[str, str]:
    """Return the kind ("user" or "raised") and the message of what an environment raised in ``operation``.

    Building an environment and calling an optional method can be wrong use, which a user must see as such; what is
    raised within an episode is always that episode's failure.
    """
    if isinstance(error, UserError) and operation in ("make", "call"):
        return "user", str(error)
    return "raised", "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARS:]
