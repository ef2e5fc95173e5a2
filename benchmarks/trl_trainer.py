"""TRL's GRPOTrainer on the work of ``rollcage bench trl``: ``python -m rollcage.benchmarks.trl_trainer JSON``."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rollcage.envs import TextEnv, make
from rollcage.errors import require
from rollcage.trainer.config import model_path
from rollcage.trainer.models import load_model, load_tokenizer
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.tasks import TaskOrder

ENV_ID, SPLIT = "rollcage/Countdown-v0", "train"


@dataclass(frozen=True)
class Work:
    """What both trainers do.

    Attributes:
        groups, group_size: tasks of a batch, and rollouts of each.
        tokens: most tokens of a rollout.
        warm_up, updates: updates before the clock starts, and those that count.
        seed: of tasks and sampling.
        lr: learning rate.
    """

    groups: int = 32
    group_size: int = 8
    tokens: int = 40
    warm_up: int = 1
    updates: int = 5
    seed: int = 0
    lr: float = 2e-4


@dataclass(frozen=True)
class Setting:
    """What TRL leaves to its user, where speed is concerned.

    Attributes:
        micro_batch: rollouts of one forward and backward pass.
        continuous: transformers' continuous batching in place of batched ``generate``.
        bf16: mixed precision.
        threads: of torch; 0: as many as there are cores.
    """

    micro_batch: int = 256
    continuous: bool = False
    bf16: bool = False
    threads: int = 0


def train(work: Work, setting: Setting) -> dict[str, Any]:
    """Train; returns trajectories per second after the warm-up, mean reward, and the share of generation."""
    require("trl", "trl")
    import datasets
    import transformers
    import trl

    if setting.threads:
        torch.set_num_threads(setting.threads)
    env = make(ENV_ID, split=SPLIT).unwrapped
    assert isinstance(env, TextEnv)
    path = model_path("small")
    tokenizer = load_tokenizer(path)
    chat, order = ChatFormat(tokenizer), TaskOrder(env.tasks, SPLIT, work.seed)
    rows = []
    for group in range(work.groups * (work.warm_up + work.updates)):
        task = order.task_id(group)
        observation, _ = env.reset(seed=group, options={"task": task})
        ids = chat.first(observation)
        prompt = tokenizer.decode(ids)
        assert (
            tokenizer(prompt, add_special_tokens=False)["input_ids"] == ids
        )  # the same prompts as ours, token by token
        rows.append({"prompt": prompt, "task": task})

    rewards: list[float] = []

    def judge(prompts: list[str], completions: list[str], task: list[str], **unused: Any) -> list[float]:
        got = []
        for completion, task_id in zip(completions, task, strict=True):
            env.reset(options={"task": task_id})
            got.append(float(env.step(completion)[1]))
        rewards.append(sum(got) / len(got))
        return got

    ends_s: list[float] = []
    generation_s: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *arguments: Any, **unused: Any) -> None:
            ends_s.append(time.perf_counter())

    batch = work.groups * work.group_size
    with tempfile.TemporaryDirectory() as scratch:
        config = trl.GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=setting.bf16,
            per_device_train_batch_size=setting.micro_batch,
            gradient_accumulation_steps=batch // setting.micro_batch,
            num_generations=work.group_size,
            max_completion_length=work.tokens,
            max_steps=work.warm_up + work.updates,
            learning_rate=work.lr,
            lr_scheduler_type="constant",
            temperature=1.0,
            top_k=0,
            beta=0.0,
            loss_type="dr_grpo",
            scale_rewards="none",
            use_transformers_continuous_batching=setting.continuous,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=work.seed,
        )
        trainer = trl.GRPOTrainer(
            model=load_model(path),
            reward_funcs=judge,
            args=config,
            # with a name of its own, else a hash of everything is taken, which fails with some versions of pyarrow
            train_dataset=datasets.Dataset(
                datasets.table.InMemoryTable.from_pylist(rows), fingerprint=f"countdown-{work.seed}"
            ),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        generate = trainer._generate_single_turn

        def timed(*arguments: Any, **named: Any) -> Any:
            start_s = time.perf_counter()
            result = generate(*arguments, **named)
            generation_s.append(time.perf_counter() - start_s)
            return result

        trainer._generate_single_turn = timed
        trainer.train()
    seconds = ends_s[-1] - ends_s[work.warm_up - 1]
    return {
        "trajectories_per_s": batch * work.updates / seconds,
        "reward": sum(rewards[work.warm_up :]) / max(len(rewards) - work.warm_up, 1),
        "generation_share": sum(generation_s[work.warm_up :]) / seconds,
        "version": trl.__version__,
    }


def main(argv: Sequence[str]) -> int:
    """Train as the JSON says and end stdout with a line of JSON."""
    given = json.loads(argv[0])
    result = train(Work(**given["work"]), Setting(**given["setting"]))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def as_argument(work: Work, setting: Setting) -> str:
    """Return what `main` wants."""
    return json.dumps({"work": asdict(work), "setting": asdict(setting)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
