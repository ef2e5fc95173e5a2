"""The policy that is a model in a folder: sampled by the local engine, token in, token out."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from rollcage.envs.placements.base import EnvHandle
from rollcage.trainer.engines.local import LocalEngine, LocalEngineConfig
from rollcage.trainer.models import find_model, load_tokenizer
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Sampling


class ModelPolicy:
    """A causal language model on this machine; see `Policy`.

    Args:
        name: what the user calls it.
        path: model folder, checkpoint or GGUF file.
        sampling: how it draws its messages.
        concurrency: requests that run at once; None for 32.

    Raises:
        UserError: there is no model, or its tokenizer has no chat template.
    """

    def __init__(self, name: str, path: Path, sampling: Sampling, *, concurrency: int | None = None) -> None:
        self.name, self.identity = name, f"{path.resolve()} {_state(find_model(path))} {sampling}"
        self.concurrency = concurrency or 32
        self._sampling = sampling
        self._chat = ChatFormat(load_tokenizer(path))
        engine = LocalEngine(
            LocalEngineConfig(
                str(path),
                max_batch_size=self.concurrency,
                max_context_tokens=max(2048, 2 * sampling.max_new_tokens),
                parked_prefixes=self.concurrency,
            )
        )
        self._router = Router([engine])

    async def start(self) -> None:
        """Load the model."""
        await self._router.start()

    def agent(self, handle: EnvHandle, *, name: str, seed: int) -> Agent:
        """See `Policy`."""
        return PolicyAgent(self._router, self._chat, self._sampling, name=name, seed=seed)

    async def close(self) -> None:
        """End the engine."""
        await self._router.close()


def _state(model: Path) -> str:
    """Return a short word that changes when the files of a model do."""
    files = sorted(path for path in model.iterdir() if path.is_file()) if model.is_dir() else [model]
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return blake2b(repr(stats).encode(), digest_size=6).hexdigest()
