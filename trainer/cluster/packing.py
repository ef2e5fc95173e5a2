"""What goes between the loop and an engine's actor, as compact arrays: 8 bytes a sampled token, 4 a prompt token."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from rollcage.trainer.types import Generation, Request


class PackedRequest(NamedTuple):
    """A `Request`; ``prompt_ids`` are int32."""

    prompt_ids: bytes
    others: tuple[Any, ...]

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        return len(self.prompt_ids)


class PackedGeneration(NamedTuple):
    """A `Generation`; ids are int32, log-probabilities float32, as engines compute and learners use them.

    Attributes:
        policy_versions: (version, tokens in a row that it sampled).
    """

    token_ids: bytes
    logprobs: bytes
    policy_versions: tuple[tuple[int, int], ...]
    finish_reason: Any

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        return len(self.token_ids) + len(self.logprobs) + 8 * len(self.policy_versions)


def pack_request(request: Request) -> PackedRequest:
    """Return ``request`` packed."""
    others = (request.id, request.sampling, request.seed, request.stop_ids, request.group, request.affinity)
    return PackedRequest(np.asarray(request.prompt_ids, np.int32).tobytes(), others)


def unpack_request(packed: PackedRequest) -> Request:
    """Return what `pack_request` packed."""
    name, *others = packed.others
    return Request(name, np.frombuffer(packed.prompt_ids, np.int32).tolist(), *others)


def pack_generation(generation: Generation) -> PackedGeneration:
    """Return ``generation`` packed."""
    return PackedGeneration(
        np.asarray(generation.token_ids, np.int32).tobytes(),
        np.asarray(generation.logprobs, np.float32).tobytes(),
        tuple((version, len(list(run))) for version, run in groupby(generation.policy_versions)),
        generation.finish_reason,
    )


def unpack_generation(packed: PackedGeneration) -> Generation:
    """Return what `pack_generation` packed."""
    return Generation(
        np.frombuffer(packed.token_ids, np.int32).tolist(),
        np.frombuffer(packed.logprobs, np.float32).tolist(),
        [version for version, num in packed.policy_versions for _ in range(num)],
        packed.finish_reason,
    )
