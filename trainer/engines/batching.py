"""The running batch of the local engine: synchronous, one model, sequences that come and go."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rollcage.trainer.engines.base import EngineError, Weights
from rollcage.trainer.engines.sampling import request_uniforms, sample
from rollcage.trainer.engines.slots import SlotCache
from rollcage.trainer.types import Generation, Request

FinishReason = Literal["stop", "length", "abort"]

PREFILL_TOKENS = 8192
"""Most tokens, padding included, of one prefill forward pass: bounds its memory."""


@dataclass(slots=True, eq=False)
class Row:
    """One running sequence.

    Attributes:
        request: what was asked for.
        limit: most tokens it may sample: max_new_tokens or what the context leaves.
        uniforms: [limit] what decides its draws.
        token_ids, logprobs: sampled so far.
        versions: (index of a token, policy version from there on), one for each version that sampled.
        slot: where its keys and values are.
        last_token: the next forward pass's input.
        saw_earlier_weights: some of its keys and values are not the present weights'.
    """

    request: Request
    limit: int
    uniforms: list[float]
    last_token: int
    slot: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    saw_earlier_weights: bool = False

    def generation(self, finish_reason: FinishReason) -> Generation:
        """Return what it has made."""
        ends = [start for start, _ in self.versions[1:]] + [len(self.token_ids)]
        versions = [
            version for (start, version), end in zip(self.versions, ends, strict=False) for _ in range(start, end)
        ]
        return Generation(self.token_ids, self.logprobs, versions, finish_reason)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A new sequence, and the parking slot that holds its first ``num_kept`` tokens."""

    row: Row
    parking_slot: int
    num_kept: int

    @property
    def num_new(self) -> int:
        """Tokens whose keys and values are to be computed."""
        return len(self.row.request.prompt_ids) - 1 - self.num_kept


class SlotBatch:
    """Sequences in the slots 0 to n - 1, decoded together one token a step.

    A new sequence's prompt but for its last token is prefilled into its slot; the last one is the input of its first
    step, so that sampling happens in one place. Prompts that are prefilled together share a forward pass. A prompt
    that a running sequence has as well (a sibling of its group), or that goes on where an earlier turn of its
    trajectory ended, copies those keys and values instead. When a sequence ends, the last one moves into its slot.
    """

    def __init__(self, model: Any, *, num_slots: int, num_parked: int, max_context_tokens: int) -> None:
        """Room for ``num_slots`` running sequences and the prefixes of ``num_parked`` finished ones."""
        self.rows: list[Row] = []
        self.num_slots = num_slots
        self.policy_version = 0
        self._model = model
        self._device = model.device
        self._dtype = model.dtype
        self.max_context_tokens = max_context_tokens
        self.vocab_size = model.get_input_embeddings().num_embeddings
        self._cache = SlotCache(num_slots + num_parked, max_context_tokens)
        self._columns = torch.arange(max_context_tokens + 1, device=self._device)
        self._free_parking = list(range(num_slots, num_slots + num_parked))
        # trajectory -> its parking slot and the tokens whose keys and values are there; least recently used first
        self._parked: OrderedDict[str, tuple[int, list[int]]] = OrderedDict()
        # prompt -> a running sequence that holds it, as the present weights see it
        self._by_prompt: dict[tuple[int, ...], Row] = {}
        self._filters: tuple[torch.Tensor | None, ...] | None = None

    def admit(self, requests: Sequence[Request]) -> list[Row]:
        """Let ``requests`` join before the next step; there must be free slots for them. Returns their rows."""
        if not requests:
            return []
        self._filters = None
        rows: list[Row] = []
        fresh: list[_Prefill] = []
        copies: list[tuple[Row, Row]] = []  # (sequence that holds the prompt, sequence)
        for request in requests:
            limit = min(request.sampling.max_new_tokens, self.max_context_tokens - len(request.prompt_ids))
            row = Row(request, limit, request_uniforms(request.seed, limit), request.prompt_ids[-1])
            rows.append(row)
            slot, tokens = self._unpark(request.affinity)
            twin = self._by_prompt.setdefault(tuple(request.prompt_ids), row)
            if twin is row:
                fresh.append(_Prefill(row, slot, _common_prefix(tokens, request.prompt_ids[:-1])))
            else:
                copies.append((twin, row))
        fresh.sort(key=lambda item: item.num_new)  # neighbours need little padding
        for item in fresh:
            self._place(item.row)
            if item.num_kept:
                self._cache.copy([item.parking_slot], [item.row.slot], item.num_kept)
        for chunk in _chunks([item for item in fresh if item.num_new]):
            self._prefill(chunk)
        for twin, row in copies:
            self._place(row)
            self._cache.copy([twin.slot], [row.slot], len(row.request.prompt_ids) - 1)
        return rows

    def step(self) -> list[tuple[Row, FinishReason | EngineError]]:
        """Sample one token of every sequence; those that end leave the batch and are returned."""
        rows = self.rows
        if self._filters is None:
            self._filters = self._sampling_tensors()
        columns = [len(row.request.prompt_ids) + len(row.token_ids) - 1 for row in rows]
        packed = torch.tensor(
            [[row.last_token for row in rows], columns, [row.uniforms[len(row.token_ids)] for row in rows]],
            dtype=torch.float64,
        ).to(self._device)
        inputs = packed[:2].long()
        logits = self._forward(self._model, 0, inputs[0][:, None], inputs[1][:, None], max(columns) + 1).logits
        tokens, logprobs = sample(logits[:, -1], packed[2], *self._filters)
        sampled = torch.stack([tokens.double(), logprobs.double()]).tolist()
        finished: list[tuple[Row, FinishReason | EngineError]] = []
        for row, token, logprob in zip(rows, map(int, sampled[0]), sampled[1], strict=True):
            if not math.isfinite(logprob):
                finished.append((row, EngineError("the model's logits are not finite: its weights have diverged")))
                continue
            if not row.versions or row.versions[-1][1] != self.policy_version:
                row.versions.append((len(row.token_ids), self.policy_version))
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            row.last_token = token
            if token in row.request.stop_ids:
                finished.append((row, "stop"))
            elif len(row.token_ids) >= row.limit:
                finished.append((row, "length"))
        for row, reason in finished:  # before any of them is copied
            if isinstance(reason, EngineError):
                self._cache.clear(row.slot)
        for row, reason in finished:
            if row.request.affinity and not row.saw_earlier_weights and not isinstance(reason, EngineError):
                self._park(row)
            self.remove(row)
        return finished

    def remove(self, row: Row) -> None:
        """Take a sequence out; the last one moves into its slot."""
        self._filters = None
        prompt = tuple(row.request.prompt_ids)
        if self._by_prompt.get(prompt) is row:
            del self._by_prompt[prompt]
        last = self.rows.pop()
        if last is not row:
            self._cache.copy([last.slot], [row.slot], len(last.request.prompt_ids) + len(last.token_ids))
            last.slot = row.slot
            self.rows[row.slot] = last
        row.slot = -1

    def load(self, weights: Weights, policy_version: int) -> None:
        """Copy ``weights`` into the model: the next step samples with them.

        Running sequences keep their keys and values; nothing computed by earlier weights goes to new ones.

        Raises:
            EngineError: names or shapes are not the model's; nothing has been changed then.
        """
        own = self._model.state_dict()
        for name, tensor in weights.items():
            if name not in own:
                raise EngineError(f"publish: the model has no weight {name!r}")
            if own[name].shape != tensor.shape:
                raise EngineError(f"publish: {name!r} is {list(tensor.shape)}, the model's {list(own[name].shape)}")
        given = {own[name].data_ptr() for name in weights}
        missing = [name for name, weight in self._model.named_parameters() if weight.data_ptr() not in given]
        if missing:
            raise EngineError(f"publish: {len(missing)} weights are missing ({missing[0]!r}, ...)")
        for name, tensor in weights.items():
            own[name].copy_(tensor)
        self.policy_version = policy_version
        self._by_prompt.clear()
        for row in self.rows:
            row.saw_earlier_weights = True
        for affinity in list(self._parked):
            self._unpark(affinity)

    def _forward(self, module: Any, first: int, tokens: torch.Tensor, columns: torch.Tensor, length: int) -> Any:
        """Run the model on new ``tokens`` [B, Q] of the slots from ``first``, at ``columns`` [B, Q]."""
        self._cache.aim(first, columns, length)
        seen = self._columns[:length] <= columns[:, None, :, None]
        hidden = torch.zeros((), dtype=self._dtype, device=self._device).masked_fill(~seen, -math.inf)
        return module(
            input_ids=tokens,
            position_ids=columns.clamp(max=self.max_context_tokens - 1),
            attention_mask=hidden,
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": 1} if module is self._model else {}),
        )

    def _prefill(self, chunk: list[_Prefill]) -> None:
        """Compute the keys and values of prompts, from the kept columns on and without the last token."""
        longest = chunk[-1].num_new
        padding = self.max_context_tokens  # the column behind the last: never read
        tokens, columns = [], []
        for item in chunk:
            end = len(item.row.request.prompt_ids) - 1
            pad = longest - item.num_new
            tokens.append([*item.row.request.prompt_ids[item.num_kept : end], *[0] * pad])
            columns.append([*range(item.num_kept, end), *[padding] * pad])
        length = max(len(item.row.request.prompt_ids) for item in chunk) - 1
        # no logits are needed: the body without the head
        self._forward(
            self._model.base_model,
            chunk[0].row.slot,
            torch.tensor(tokens, device=self._device),
            torch.tensor(columns, device=self._device),
            length,
        )

    def _place(self, row: Row) -> None:
        row.slot = len(self.rows)
        self.rows.append(row)

    def _park(self, row: Row) -> None:
        """Keep the keys and values of a finished turn: all tokens but the last, which was never an input."""
        self._unpark(row.request.affinity)
        if not self._free_parking:
            if not self._parked:
                return
            self._unpark(next(iter(self._parked)))
        slot = self._free_parking.pop()
        tokens = [*row.request.prompt_ids, *row.token_ids[:-1]]
        self._cache.copy([row.slot], [slot], len(tokens))
        self._parked[row.request.affinity] = (slot, tokens)

    def _unpark(self, affinity: str) -> tuple[int, list[int]]:
        """Give up what is parked for a trajectory; its slot stays as it is until the next `_park`."""
        slot, tokens = self._parked.pop(affinity, (-1, []))
        if slot >= 0:
            self._free_parking.append(slot)
        return slot, tokens

    def _sampling_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Return temperature, top_p and top_k of the rows, None where all are at their defaults."""
        samplings = [row.request.sampling for row in self.rows]
        temperature = top_p = top_k = None
        if any(sampling.temperature != 1 for sampling in samplings):
            temperature = torch.tensor([sampling.temperature for sampling in samplings], device=self._device)
        if any(sampling.top_p < 1 or sampling.top_k > 0 for sampling in samplings):
            top_p = torch.tensor([sampling.top_p for sampling in samplings], device=self._device)
            top_k = torch.tensor([sampling.top_k for sampling in samplings], device=self._device)
        return temperature, top_p, top_k


def _chunks(items: list[_Prefill]) -> Iterator[list[_Prefill]]:
    """Cut the prompts, sorted by number of new tokens, into forward passes with little padding and bounded size."""
    chunk: list[_Prefill] = []
    for item in items:
        too_long = item.num_new * (len(chunk) + 1) > PREFILL_TOKENS
        if chunk and (too_long or item.num_new > 2 * chunk[0].num_new + 16):
            yield chunk
            chunk = []
        chunk.append(item)
    if chunk:
        yield chunk


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many first tokens are equal."""
    num = min(len(left), len(right))
    if list(left[:num]) == list(right[:num]):
        return num
    return next(index for index in range(num) if left[index] != right[index])
