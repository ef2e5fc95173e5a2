"""Makes a small policy from nothing: ``python -m rollcage.trainer.policies.make_small --out DIR``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rollcage.trainer.policies.games import GAMES, Game
from rollcage.trainer.policies.pretrain import PretrainConfig, build_model, pretrain
from rollcage.trainer.policies.tokenizer import build_tokenizer
from rollcage.trainer.progress import ProgressLine

DESCRIPTION = """Make a small policy: build the tokenizer, write demonstrations of its game, teach a model on them,
and save it as a folder in transformers' format. Takes about 20 minutes on one quiet CPU core."""
EXAMPLE = """example:
  python -m rollcage.trainer.policies.make_small --out small
  rollcage eval rollcage/Countdown-v0 --policy small --num-tasks 512
  python -m rollcage.trainer.policies.make_small --policy small-frozenlake --out lake --threads 2"""

CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# Rollcage's policy "{name}"

A causal language model (Llama architecture, {layers} layers of {heads} heads, {num_parameters:,} parameters) that plays
`{game.env_id}`. It was made from nothing, by

    python -m rollcage.trainer.policies.make_small --policy {name} --out DIR {arguments}

in {minutes:.0f} minutes with PyTorch {torch_version}, to a loss of {loss:.3f} nats per token. All of its training data
was generated on tasks of the environment's split "train": {num_demonstrations:,} {game.lesson}

On {num_tasks:,} tasks of the split "validation":

| temperature | success | tokens per message |
| --- | --- | --- |
| 1 | {sampled[0]:.1%} | {sampled[1]:.1f} |
| 0 | {greedy[0]:.1%} | {greedy[1]:.1f} |

It knows one form of task, {game.scope}, and nothing else: no language, no other prompt.
Licence: Apache-2.0.
"""


def success(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, game: Game, num_tasks: int, temperature: float
) -> tuple[float, float]:
    """Return the success rate on the first ``num_tasks`` validation tasks, and the mean tokens of a message."""
    envs = [game.env(split="validation") for _ in range(num_tasks)]
    conversations: list[list[dict[str, Any]]] = []
    for index, env in enumerate(envs):
        observation, _ = env.reset(options={"task": env.tasks.task("validation", index).id})
        conversations.append([{"role": "user", "content": observation}])
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    model.eval()
    live, num_solved, num_messages, num_tokens = list(range(num_tasks)), 0, 0, 0
    while live:  # all episodes that are not over take a turn
        inputs = tokenizer.apply_chat_template(
            [conversations[index] for index in live],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            output = model.generate(**inputs, **sampling, max_new_tokens=game.max_new_tokens)
        output = output[:, inputs["input_ids"].shape[1] :]
        num_messages += len(live)
        num_tokens += int((output != tokenizer.pad_token_id).sum())
        messages = tokenizer.batch_decode(output, skip_special_tokens=True)
        going_on = []
        for index, message in zip(live, messages, strict=True):
            observation, _, terminated, truncated, info = envs[index].step(message)
            num_solved += info["success"]
            if not (terminated or truncated):
                conversations[index] += (
                    {"role": "assistant", "content": message},
                    {"role": "user", "content": observation},
                )
                going_on.append(index)
        live = going_on
    return num_solved / num_tasks, num_tokens / num_messages


def make(name: str, out: Path, seed: int, steps: int, num_eval_tasks: int) -> None:
    """Make policy ``name`` and save it in ``out``; see the module."""
    torch.manual_seed(seed)
    started = time.monotonic()
    game = GAMES[name]
    tokenizer = build_tokenizer(text for texts in islice(game.demonstrations(seed), 4000) for text in texts)
    model = build_model(tokenizer, game.num_layers, game.width)
    config = PretrainConfig(steps, seed=seed)
    losses: list[float] = []
    with ProgressLine(steps, "steps") as progress:
        for loss in pretrain(model, tokenizer, game.demonstrations(seed), config):
            losses.append(loss)
            progress.update(len(losses), loss=loss)
    minutes = (time.monotonic() - started) / 60
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=game.max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    saved = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32)  # what the rounding to bfloat16 left
    card = CARD.format(
        name=name,
        game=game,
        num_parameters=saved.num_parameters(),
        layers=saved.config.num_hidden_layers,
        heads=saved.config.num_attention_heads,
        arguments=f"--seed {seed} --steps {steps} --threads {torch.get_num_threads()}",
        minutes=minutes,
        torch_version=torch.__version__,
        loss=sum(losses[-50:]) / len(losses[-50:]),
        num_demonstrations=steps * config.batch_size,
        num_tasks=num_eval_tasks,
        sampled=success(saved, tokenizer, game, num_eval_tasks, 1.0),
        greedy=success(saved, tokenizer, game, num_eval_tasks, 0.0),
    )
    (out / "README.md").write_text(card, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and make a policy."""
    parser = argparse.ArgumentParser(
        prog="python -m rollcage.trainer.policies.make_small",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write; made where it is missing")
    parser.add_argument("--policy", choices=list(GAMES), default="small", help="which one (default: small, Countdown)")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes another policy (default: 0)")
    defaults = ", ".join(f"{game.steps} for {name}" for name, game in GAMES.items())
    parser.add_argument("--steps", type=int, help=f"optimiser steps (default: {defaults})")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; the same number makes the same weights (default: 1)"
    )
    parser.add_argument("--num-eval-tasks", type=int, default=1024, help="tasks to measure it on (default: 1024)")
    arguments = parser.parse_args(argv)
    steps = GAMES[arguments.policy].steps if arguments.steps is None else arguments.steps
    if min(steps, arguments.threads, arguments.num_eval_tasks) < 1:
        parser.error("--steps, --threads and --num-eval-tasks must be at least 1")
    torch.set_num_threads(arguments.threads)
    make(arguments.policy, arguments.out, arguments.seed, steps, arguments.num_eval_tasks)
    sys.stdout.write(f"{arguments.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
