"""A critic: the body of a language model with a scalar head, which reads the value before each trainable token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollcage.trainer.learner.token_logprobs import use_float32_attention_on_cpu


class ScalarHead(nn.Module):
    """One number from a hidden state, computed in float32: differences between critics would drown in bfloat16.

    It begins at 0, so that nothing is claimed before anything is learned, and so that all critics begin alike.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return functional.linear(hidden.float(), self.weight.float()[None], self.bias.float())[:, 0]


class TokenValues(nn.Module):
    """``body`` with a forward pass from token ids to the value *before* each trainable token.

    It is read from the hidden state of the token before it, as the policy's prediction is. Padding stands on the right
    and the body is causal: no attention mask is needed (see `TokenLogprobs`).

    Args:
        body: a ``transformers`` decoder without its output layer.
        compute_dtype: number type of the body's matrix products, where it is not that of its weights.
    """

    def __init__(self, body: Any, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body, self.head = body, ScalarHead(body.config.get_text_config().hidden_size)
        self._compute_dtype = compute_dtype
        if torch.bfloat16 in (compute_dtype, body.dtype) and body.config._attn_implementation == "sdpa":
            use_float32_attention_on_cpu(body)

    def forward(self, token_ids: Tensor, loss_mask: Tensor) -> Tensor:
        """Return float32 [N], in row order; token_ids int64 [b, t], loss_mask bool [b, t], whose column 0 is off."""
        mixed = self._compute_dtype != torch.float32
        with torch.autocast(token_ids.device.type, self._compute_dtype, enabled=mixed, cache_enabled=False):
            hidden = self.body(input_ids=token_ids[:, :-1], use_cache=False).last_hidden_state
        values: Tensor = self.head(hidden[loss_mask[:, 1:]])
        return values
