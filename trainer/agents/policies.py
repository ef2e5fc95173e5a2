"""Policies by name: ``expert``, ``random``, ``gold``, ``empty``, ``openai:MODEL@URL``, a model, or a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rollcage.envs.placements.base import EnvHandle
from rollcage.errors import UserError, did_you_mean, require
from rollcage.trainer.agents.chat import ChatAgent
from rollcage.trainer.agents.endpoint import ChatEndpoint
from rollcage.trainer.agents.solvers import Solver, SolverAgent
from rollcage.trainer.checkpoints import newest_checkpoint
from rollcage.trainer.models import find_model
from rollcage.trainer.policies import SMALL_POLICIES, small_policy_path
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.types import Sampling

SOLVERS: tuple[Solver, ...] = ("expert", "random", "gold", "empty")
"""Policies that an environment brings itself, where it offers them."""

MODELS = (*SMALL_POLICIES, "smollm2")
"""Models that come with Rollcage or with a package of their own; see `rollcage.trainer.config.model_path`."""


class Policy(Protocol):
    """Whoever is evaluated: makes an agent for every episode.

    Attributes:
        name: what the user calls it.
        identity: what its actions depend on, as text: a result may be continued only with the same one.
        concurrency: episodes to play at once; may be set before `start`.
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
    """The actions that the environment itself proposes; see `Policy`."""

    def __init__(self, kind: Solver, *, deadline_s: float = 60.0) -> None:
        self.name: str = kind
        self.identity: str = kind
        self.concurrency = 8
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

    def __init__(self, name: str, endpoint: ChatEndpoint, sampling: Sampling, *, system: str = "") -> None:
        self.name, self.identity = name, f"openai:{endpoint.model}@{endpoint.url} {sampling} {system!r}"
        self.concurrency = 16
        self._endpoint, self._sampling, self._system = endpoint, sampling, system

    async def start(self) -> None:
        """See `ChatEndpoint.start`."""
        await self._endpoint.start()

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """See `Policy`."""
        return ChatAgent(self._endpoint, self._sampling, system=self._system, seed=seed)

    async def close(self) -> None:
        """See `ChatEndpoint.close`."""
        await self._endpoint.close()


def make_policy(
    name: str,
    sampling: Sampling,
    *,
    system: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    timeout_s: float = 600.0,
) -> Policy:
    """Return the policy that ``name`` means; only a model on this machine loads torch.

    Args:
        name: one of `SOLVERS`, "openai:MODEL@URL", one of `MODELS`, or the path of a model folder, a GGUF file, a
            checkpoint, or a run (then its newest complete checkpoint).
        sampling: how a language model draws its messages.
        system: system message put before every conversation of a language model; "" for none.
        tools: declared by the environment, for the chat template of a model on this machine.
        timeout_s: deadline of one call to an endpoint.

    Raises:
        UserError: it means none, or there is no model; a UserError of `start` says that it cannot be used.
    """
    for kind in SOLVERS:
        if name == kind:
            return SolverPolicy(kind)
    if name.startswith("openai:"):
        match = re.fullmatch(r"openai:(.+?)@(https?://.+)", name)
        if match is None:
            raise UserError(f"{name!r}: write openai:MODEL@URL, as in openai:my-model@http://localhost:8000/v1")
        model, url = match.groups()
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        return EndpointPolicy(name, ChatEndpoint(url, model, api_key=key, timeout_s=timeout_s), sampling, system=system)
    if name not in MODELS:
        if not Path(name).exists():
            known = f"{', '.join((*SOLVERS, *MODELS))}, openai:MODEL@URL, or the path of a model, a checkpoint or a run"
            raise UserError(f"no policy {name!r}: it must be {known}.{did_you_mean(name, (*SOLVERS, *MODELS))}")
        find_model(find_checkpoint(Path(name)))  # what is no model is told before torch is loaded
    require("torch", "train")
    require("transformers", "train")
    from rollcage.trainer.agents.model import ModelPolicy
    from rollcage.trainer.config import model_path

    path = Path(model_path(name)) if name in MODELS else find_checkpoint(Path(name))
    return ModelPolicy(name, path, sampling, system=system, tools=tools)


def generation_config(name: str) -> dict[str, Any]:
    """Return what a local model's ``generation_config.json`` says of how it wants to be sampled; {} for other policies.

    Raises:
        UserError: the file is damaged.
    """
    path = small_policy_path(name) if name in SMALL_POLICIES else Path(name)
    if name in (*SOLVERS, "smollm2") or not path.exists():
        return {}
    file = find_model(find_checkpoint(path)) / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); mend it, or remove it.") from None
    return settings


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
