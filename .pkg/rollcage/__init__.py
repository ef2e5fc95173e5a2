"""Rollcage: agentic environments, sandboxes and asynchronous reinforcement learning for language-model agents.

Importing this package registers the environments ``rollcage/Name-v0`` with Gymnasium, and does nothing else: no torch,
no Docker client and no web framework is loaded.

    >>> import gymnasium, rollcage
    >>> env = gymnasium.make("rollcage/Countdown-v0")
"""

from rollcage.envs.registration import register_builtin_envs

__version__ = "0.1.0"
__all__ = ["__version__"]

register_builtin_envs()
