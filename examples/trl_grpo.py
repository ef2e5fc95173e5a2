"""Rhythm credit and AsyPPO's mini-critics in somebody else's training loop: TRL's GRPOTrainer, on Countdown.

    pip install --no-deps -r examples/requirements.txt
    python examples/trl_grpo.py --steps 2

TRL samples the responses and scores them; its trainer takes advantages per token as they are. So everything goes into
the one method that returns them. verl and OpenRLHF have such a place as well: the functions know only plain tensors.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import datasets
import gymnasium
import torch
import transformers
import trl

import rollcage  # noqa: F401  registers the environments
from rollcage.trainer.learner.asyppo import disagreement, keep_uncertain, mean_value, response_shares, value_loss
from rollcage.trainer.learner.rhythm.attention import attention_curves
from rollcage.trainer.learner.rhythm.credit import Signals, amplify, credit
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads
from rollcage.trainer.policies import small_policy_path

Inputs = dict[str, Any]


def rhythm_gamma(model: Any, inputs: Inputs) -> torch.Tensor:
    """Return what the advantage of each response token is multiplied by, [B, T of the completions]."""
    token_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    response_mask = attention_mask.bool()
    response_mask[:, : inputs["prompt_ids"].shape[1]] = False
    curves = attention_curves(model, token_ids, attention_mask, response_mask)
    local_heads, global_heads = pick_heads(curves.spans)
    signals = Signals(response_mask, mean_over(curves.waad, local_heads), mean_over(curves.fai, global_heads))
    return credit("coupled", signals)[:, inputs["prompt_ids"].shape[1] :]


class MiniCritics:
    """Two critics, each half as wide as the policy and trained on one half of every prompt's responses."""

    def __init__(self, model: Any, num_critics: int = 2, lr: float = 1e-3) -> None:
        config = type(model.config)(**{**model.config.to_dict(), "num_labels": 1})
        config.hidden_size, config.intermediate_size = config.hidden_size // 2, config.intermediate_size // 2
        config.head_dim = config.hidden_size // config.num_attention_heads
        make = transformers.AutoModelForTokenClassification.from_config
        self.critics = [make(config).to(model.device) for _ in range(num_critics)]
        self.optimiser = torch.optim.Adam([each for critic in self.critics for each in critic.parameters()], lr)

    def advantages(self, inputs: Inputs, returns: torch.Tensor, group_size: int) -> torch.Tensor:
        """Return ``R - mean value`` where the critics disagree, 0 on the fifth where they agree most; then train them.

        Args:
            inputs: TRL's.
            returns: [B]; TRL's advantages, which are the returns of a group, centred and scaled.
            group_size: responses of a prompt, which stand together.
        """
        token_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        loss_mask = inputs["completion_mask"].bool()
        before = slice(inputs["prompt_ids"].shape[1] - 1, -1)  # the value *before* a token knows only what precedes it
        values = torch.stack(
            [critic(token_ids, attention_mask=attention_mask).logits[:, before, 0] for critic in self.critics]
        )
        targets = returns[:, None].expand_as(loss_mask)
        shares = response_shares(torch.arange(len(returns), device=returns.device) // group_size, len(self.critics))
        self.optimiser.zero_grad()
        own = loss_mask & (shares == torch.arange(len(self.critics), device=shares.device)[:, None])[..., None]
        sum(value_loss(each, targets)[mine].mean() for each, mine in zip(values, own, strict=True)).backward()
        self.optimiser.step()
        values = values.detach()
        keep = keep_uncertain(disagreement(values, loss_mask), loss_mask)
        return (targets - mean_value(values)) * keep * loss_mask


class RhythmGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with AsyPPO's advantages and coupled rhythm credit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critics = MiniCritics(self.model)

    def _generate_and_score_completions(self, inputs: list[Inputs]) -> Inputs:
        output: Inputs = super()._generate_and_score_completions(inputs)
        with torch.enable_grad():  # TRL is in no_grad here, and the critics learn
            advantages = self.critics.advantages(output, output["advantages"], self.num_generations)
        model = self.accelerator.unwrap_model(self.model)
        output["advantages"] = amplify(advantages, rhythm_gamma(model, output))
        return output


def countdown_tasks(number: int) -> datasets.Dataset:
    """Return tasks of rollcage/Countdown-v0 as TRL wants them."""
    env = gymnasium.make("rollcage/Countdown-v0")
    rows = []
    for seed in range(number):
        observation, info = env.reset(seed=seed)
        rows.append({"prompt": [{"role": "user", "content": observation}], "task": info["task_id"]})
    return datasets.Dataset.from_list(rows)


def countdown_reward(completions: list[Any], task: list[str], **_: Any) -> list[float]:
    """Score completions in the environment that their tasks are from, and a little for any digit: see it move early."""
    env = gymnasium.make("rollcage/Countdown-v0")
    rewards = []
    for completion, task_id in zip(completions, task, strict=True):
        env.reset(options={"task": task_id})
        text = completion[0]["content"]
        rewards.append(float(env.step(text)[1]) + 0.01 * min(20, sum(char.isdigit() for char in text)))
    return rewards


def make_trainer(steps: int, output_dir: str) -> RhythmGRPOTrainer:
    """Return a trainer of the small policy that ships with Rollcage."""
    path = small_policy_path()
    return RhythmGRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        processing_class=transformers.AutoTokenizer.from_pretrained(path, padding_side="left"),
        reward_funcs=countdown_reward,
        train_dataset=countdown_tasks(8 * steps),
        args=trl.GRPOConfig(
            output_dir=output_dir,
            max_steps=steps,
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=64,
            learning_rate=1e-4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2, help="updates of the policy (2)")
    parser.add_argument("--output", default="runs/trl", help="TRL's output folder (runs/trl)")
    arguments = parser.parse_args()
    result = make_trainer(arguments.steps, arguments.output).train()
    sys.stdout.write(f"{result.global_step} steps, loss {result.training_loss:.4f}\n")
