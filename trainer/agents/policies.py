"""Policies by name: ``expert``, ``random``, ``openai:MODEL@URL``, or the path of a model, checkpoint or run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, Protocol

from rollcage.envs.placements.base import EnvHandle
from rollcage.errors import UserError, did_you_mean, require
from rollcage.trainer.agents.chat import ChatAgent
from rollcage.trainer.agents.endpoint import ChatEndpoint
from rollcage.trainer.agents.solvers import SolverAgent
from rollcage.trainer.checkpoints import newest_checkpoint
from rollcage.trainer.models import find_model
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.types import Sampling

SOLVERS: tuple[Literal["expert"], Literal["random"]] = ("expert", "random")
"""Policies that an environment brings itself."""


class Policy(Protocol):
    """Whoever is evaluated: makes an agent for every episode.

    Attributes:
        name: what the user calls it.
        identity: what its actions depend on, as text: a result may be continued only with the same one.
        concurrency: a good number of episodes to play at once.
    """

    name: str
    identity: str
    concurrency: int

    async def start(self) -> None:
        """Load or connect; raises UserError where the policy cannot be used."""
        ...

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """Return the agent of one episode; ``name`` is unique, ``seed`` keys its draws."""
        ...

    async def close(self) -> None:
        """Free everything; idempotent."""
        ...


class SolverPolicy:
    """The environment's own expert or random actions; see `Policy`."""

    concurrency = 8

    def __init__(self, kind: Literal["expert", "random"], *, deadline_s: float = 60.0) -> None:
        self.name: str = kind
        self.identity: str = kind
        self._kind, self._deadline_s = kind, deadline_s

    async def start(self) -> None:
        """Nothing to do."""

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """See `Policy`."""
        return SolverAgent(handle, self._kind, seed=seed, deadline_s=self._deadline_s)

    async def close(self) -> None:
        """Nothing to do."""


class EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint; see `Policy`."""

    def __init__(self, name: str, endpoint: ChatEndpoint, sampling: Sampling, *, concurrency: int) -> None:
        self.name, self.identity = name, f"openai:{endpoint.model}@{endpoint.url} {sampling}"
        self.concurrency = concurrency
        self._endpoint, self._sampling = endpoint, sampling

    async def start(self) -> None:
        """See `ChatEndpoint.start`."""
        await self._endpoint.start()

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """See `Policy`."""
        return ChatAgent(self._endpoint, self._sampling, seed=seed)

    async def close(self) -> None:
        """See `ChatEndpoint.close`."""
        await self._endpoint.close()


def make_policy(name: str, sampling: Sampling, *, timeout_s: float = 600.0, concurrency: int | None = None) -> Policy:
    """Return the policy that ``name`` means; only a local model loads torch, when it starts.

    Args:
        name: "expert", "random", "openai:MODEL@URL", or the path of a model folder, a GGUF file, a checkpoint, or a run
            (then its newest complete checkpoint).
        sampling: how a language model draws its messages.
        timeout_s: deadline of one call to an endpoint.
        concurrency: episodes to play at once; None for the policy's own choice.

    Raises:
        UserError: it means none; a UserError of `start` says that it cannot be used.
    """
    for kind in SOLVERS:
        if name == kind:
            return SolverPolicy(kind)
    if name.startswith("openai:"):
        match = re.fullmatch(r"openai:(.+?)@(https?://.+)", name)
        if match is None:
            raise UserError(f"{name!r}: write openai:MODEL@URL, as in openai:my-model@http://localhost:8000/v1")
        model, url = match.groups()
        concurrency = concurrency or 16
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        endpoint = ChatEndpoint(url, model, api_key=key, timeout_s=timeout_s, concurrency=concurrency)
        return EndpointPolicy(name, endpoint, sampling, concurrency=concurrency)
    path = Path(name)
    if not path.exists():
        known = "expert, random, openai:MODEL@URL, or the path of a model folder, a checkpoint or a run"
        raise UserError(f"no policy {name!r}: it must be {known}.{did_you_mean(name, SOLVERS)}")
    checkpoint = find_checkpoint(path)
    find_model(checkpoint)  # what is no model is known before torch is loaded
    require("torch", "train")
    require("transformers", "train")
    from rollcage.trainer.agents.model import ModelPolicy  # the only one that loads them

    return ModelPolicy(name, checkpoint, sampling, concurrency=concurrency)


def find_checkpoint(path: Path) -> Path:
    """Return ``path`` itself, or the newest complete checkpoint where it is a run folder.

    Raises:
        UserError: the run has no complete checkpoint yet.
    """
    if not (path / "checkpoints").is_dir():
        return path
    checkpoint = newest_checkpoint(path)
    if checkpoint is None:
        raise UserError(f"{path}: the run has no complete checkpoint yet.")
    return checkpoint
