"""What vLLM's own workers do for us: put in weights, shared or broadcast (vLLM's ``worker_extension_cls``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rollcage.trainer.learner.shared_weights import Layout, map_weights


class WeightsReader:
    """Becomes a base class of vLLM's worker; its methods are called on all workers of a replica at once."""

    model_runner: Any
    rank: int
    _group: Any

    def read_shared_weights(self, path: str, layout: Layout) -> None:
        """Load the model's weights, under their names in transformers' format, from memory that another process has.

        Args:
            path: of the other process's descriptor, below ``/proc``.
            layout: where each weight lies.
        """
        descriptor = os.open(path, os.O_RDWR)
        try:
            weights = map_weights(descriptor, layout)
        finally:
            os.close(descriptor)
        self._load(iter(weights.items()))

    def join_weights_group(self, trainer: str, port: int, size: int, backend: str, host: str, timeout_s: float) -> None:
        """Join the group that weights are broadcast in; see `WeightsGroup`. Our rank there follows the trainer's, 0."""
        from rollcage.trainer.engines.weights_group import WeightsGroup, open_store

        store = open_store(trainer, port, timeout_s=timeout_s)
        self._group = WeightsGroup(store, self.rank + 1, size, backend=backend, host=host, timeout_s=timeout_s)

    def receive_weights(self, layout: Layout) -> None:
        """Load the model's weights while they are broadcast in the order of ``layout``."""
        weights = self._group.receive(layout.entries)
        self._load(weights)
        for _ in weights:
            pass  # what the model did not ask for is broadcast all the same

    def _load(self, weights: Iterator[tuple[str, Any]]) -> None:
        self.model_runner.reload_weights(weights_iterator=weights)
        _repack_tied(self.model_runner.get_model())

    def clear_cache(self) -> None:
        """Overwrite all keys and values: what is not finite there would reach later requests, masked or not."""
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else [cache]:
                tensor.zero_()


def _repack_tied(model: Any) -> None:
    """Prepare weights that a layer shares with an earlier one for that layer's kernel again.

    vLLM does so only for the layer that the weights were loaded into: on the CPU, an output layer tied to the
    embeddings would go on with its packed copy of the first ones.
    """
    seen: set[int] = set()
    for layer in model.modules():
        weight, method = getattr(layer, "weight", None), getattr(layer, "quant_method", None)
        if id(weight) in seen and method is not None:
            method.process_weights_after_loading(layer)
        if weight is not None:
            seen.add(id(weight))
