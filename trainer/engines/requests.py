"""What every engine asks of a request before it lets it in."""

from __future__ import annotations

from rollcage.trainer.engines.base import ContextFull, EngineError
from rollcage.trainer.types import Request


def check_request(request: Request, *, max_context_tokens: int, vocab_size: int | None = None) -> None:
    """Refuse a request that cannot be served, before it can disturb those that can.

    Args:
        request: its ``prompt_ids`` a list of int.
        max_context_tokens: longest prompt plus response.
        vocab_size: ids from here on are unknown; None does not check.

    Raises:
        ContextFull: the prompt leaves no room for a single token.
        EngineError: empty prompt, unknown token ids, or sampling parameters out of range.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if len(prompt) >= max_context_tokens:
        raise ContextFull(f"the prompt has {len(prompt)} tokens, the context {max_context_tokens}")
    if not prompt:
        raise EngineError("the prompt is empty")
    if min(prompt) < 0 or (vocab_size is not None and max(prompt) >= vocab_size):
        raise EngineError(f"the prompt has token ids from {min(prompt)} to {max(prompt)}, the model {vocab_size}")
    if sampling.max_new_tokens < 1:
        raise EngineError(f"max_new_tokens is {sampling.max_new_tokens}: it must be at least 1")
    if not 0 <= sampling.temperature < float("inf"):
        raise EngineError(f"temperature is {sampling.temperature}: it must be 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"top_p is {sampling.top_p}: it must be above 0 and at most 1")
    if sampling.top_k < 0:
        raise EngineError(f"top_k is {sampling.top_k}: it must be 0 (off) or more")
