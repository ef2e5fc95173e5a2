"""The policy that is a model in a folder: sampled by the local engine, token in, token out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from rollcage.envs.placements.base import EnvHandle
from rollcage.trainer.engines.local import LocalEngine, LocalEngineConfig
from rollcage.trainer.models import find_model, load_tokenizer
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Sampling

SMALL_BYTES = 64 << 20
"""A model below this size runs on one thread: its steps are so short that threads cost more than they bring."""


class ModelPolicy:
    """A causal language model on this machine; see `Policy`.

    Args:
        name: what the user calls it.
        path: model folder, checkpoint or GGUF file.
        sampling: how it draws its messages.
        system: system message put before every conversation; "" for none.
        tools: declared tools, for its chat template.

    Raises:
        UserError: there is no model, or its tokenizer has no chat template.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        sampling: Sampling,
        *,
        system: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.name, self.identity = name, f"{path.resolve()} {_state(path)} {sampling} {system!r}"
        self.concurrency = 64
        self._path, self._sampling = path, sampling
        self._chat = ChatFormat(load_tokenizer(path), system=system, tools=tools)
        self._router: Router | None = None

    async def start(self) -> None:
        """Load the model, onto a GPU where there is one."""
        on_gpu = torch.cuda.is_available()
        engine = LocalEngine(
            LocalEngineConfig(
                str(self._path),
                max_batch_size=self.concurrency,
                max_context_tokens=max(2048, 2 * self._sampling.max_new_tokens),
                dtype="auto",
                device="cuda" if on_gpu else "cpu",
                num_threads=1 if _num_bytes(self._path) < SMALL_BYTES else 0,
                parked_prefixes=self.concurrency,
            )
        )
        self._router = Router([engine])
        await self._router.start()

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """See `Policy`."""
        assert self._router is not None, "start() comes first"
        return PolicyAgent(self._router, self._chat, self._sampling, name=name, seed=seed)

    async def close(self) -> None:
        """End the engine."""
        if self._router is not None:
            await self._router.close()


def _files(path: Path) -> list[Path]:
    model = find_model(path)
    return sorted(file for file in model.iterdir() if file.is_file()) if model.is_dir() else [model]


def _num_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def _state(path: Path) -> str:
    """Return a short word that changes when the files of a model do."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in _files(path)]
    return blake2b(repr(stats).encode(), digest_size=6).hexdigest()
