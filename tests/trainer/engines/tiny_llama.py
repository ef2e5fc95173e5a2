"""A tiny random Llama for tests of engines: its requests, samples, and what a plain forward pass says of them."""

import asyncio
from collections.abc import Awaitable, Callable

import torch
import transformers

from rollcage.trainer.learner.batch import make_batch
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner
from rollcage.trainer.types import Generation, Group, Request, Sampling, Segment, Trajectory, TurnRecord

VOCAB = 64
CONTEXT = 512


def make_model(seed: int = 0) -> transformers.PreTrainedModel:
    """A random model whose distributions are far from uniform; its embeddings are tied, as many small models' are."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def weights_of(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def plain_logprobs(
    model: transformers.PreTrainedModel, request_: Request, generation: Generation, temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of the sampled tokens by one plain forward pass over the whole sequence."""
    ids = torch.tensor([[*request_.prompt_ids, *generation.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(request_.prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, ids[0, len(request_.prompt_ids) :, None])[:, 0].tolist()


def request(id_: str, length: int = 5, max_new_tokens: int = 12, **fields: object) -> Request:
    """A request whose prompt and seed follow from its id and length."""
    prompt = [(sum(map(ord, id_)) * 31 + position * 17) % VOCAB for position in range(length)]
    sampling = fields.pop("sampling", Sampling(max_new_tokens))
    return Request(id_, prompt, sampling, seed=sum(map(ord, id_)), **fields)  # type: ignore[arg-type]


async def sample(generate: Callable[[Request], Awaitable[Generation]], version: int) -> list[Group]:
    """Two groups of four members, a turn each, with rewards that differ."""
    requests = [request(f"v{version}m{member}", max_new_tokens=24, group="g") for member in range(8)]
    groups = []
    for index, generation in enumerate(await asyncio.gather(*map(generate, requests))):
        prompt = list(requests[index].prompt_ids)
        end = len(prompt) + len(generation.token_ids)
        segment = Segment(
            [*prompt, *generation.token_ids],
            [0] * len(prompt) + [1] * len(generation.token_ids),
            [0.0] * len(prompt) + generation.logprobs,
            [-1] * len(prompt) + generation.policy_versions,
        )
        turn = TurnRecord("", "", float(sum(generation.token_ids) % 2), 0, len(prompt), end, "length")
        trajectory = Trajectory((index // 4, index % 4), "task", 0, turns=[turn], segments=[segment])
        groups.append(Group(index // 4, "task", [trajectory], version))
    return groups


async def gap(learner: DeepSpeedLearner, groups: list[Group]) -> float:
    """Mean |old - behav| of their sampled tokens."""
    batch = make_batch(groups)
    differences = abs(await learner.logprobs(batch) - batch.rollout_logprobs)
    return float(differences[batch.loss_mask].mean())
