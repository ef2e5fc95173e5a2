"""The presets of `rollcage train`: complete configurations, each a starting point whose fields can be overridden."""

from __future__ import annotations

from dataclasses import replace

from rollcage.trainer.config import EnvChoice, EvalConfig, SamplingConfig, TrainConfig
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.rollout.config import RolloutConfig

PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "countdown-small": (
        "the small policy on Countdown: minutes on two CPU cores",
        TrainConfig(
            model="small",
            env=EnvChoice("rollcage/Countdown-v0"),
            rollout=RolloutConfig(num_groups=32, group_size=8, num_slots=128, async_ratio=1.0),
            sampling=SamplingConfig(max_new_tokens=160),
            engine=EngineConfig(max_batch_size=128, max_context_tokens=320, parked_prefixes=0, dtype="auto"),
            learner=LearnerConfig(
                loss="tis",
                advantage="dr_grpo",
                aggregation="seq-mean-token-sum-norm",
                max_length=160,
                # A search that goes on to the limit says little of its tokens: punishing them all ends in gibberish.
                mask_cut=True,
                lr=2e-4,
                warmup_steps=5,
                micro_batch_tokens=8192,
                compute_dtype="auto",
            ),
            eval=EvalConfig(num_tasks=2048, dataset="countdown"),
            num_updates=40,
            max_train_s=290.0,
        ),
    ),
    "frozenlake-small": (
        "a small policy on FrozenLake, move by move: eight minutes on two CPU cores",
        TrainConfig(
            model="small-frozenlake",
            env=EnvChoice("rollcage/FrozenLake-v0"),
            rollout=RolloutConfig(num_groups=32, group_size=8, num_slots=128, async_ratio=1.0),
            sampling=SamplingConfig(max_new_tokens=16),
            engine=EngineConfig(max_batch_size=128, max_context_tokens=576, parked_prefixes=128, dtype="auto"),
            learner=LearnerConfig(
                loss="tis",
                advantage="dr_grpo",
                aggregation="seq-mean-token-sum-norm",
                max_length=32,
                lr=3e-4,
                warmup_steps=5,
                micro_batch_tokens=8192,
                compute_dtype="auto",
            ),
            eval=EvalConfig(num_tasks=2048),
            num_updates=300,
            max_train_s=450.0,
        ),
    ),
    "countdown-smollm2": (
        "SmolLM2-135M-Instruct on Countdown with several attempts: a few updates on a CPU, for real on a GPU",
        TrainConfig(
            model="smollm2",
            env=EnvChoice("rollcage/Countdown-v0", {"max_attempts": 2, "format_reward": 0.1}),
            rollout=RolloutConfig(num_groups=2, group_size=4, num_slots=8),
            sampling=SamplingConfig(max_new_tokens=64),
            engine=EngineConfig(max_batch_size=8, max_context_tokens=512, parked_prefixes=8),
            learner=LearnerConfig(lr=1e-5, micro_batch_tokens=1024),
            eval=EvalConfig(num_tasks=0),
            num_updates=4,
        ),
    ),
    "frozenlake-smollm2": (
        "SmolLM2-135M-Instruct on FrozenLake, turn by turn",
        TrainConfig(
            model="smollm2",
            env=EnvChoice("rollcage/FrozenLake-v0", {"max_turns": 4}),
            rollout=RolloutConfig(num_groups=2, group_size=4, num_slots=8),
            sampling=SamplingConfig(max_new_tokens=24),
            engine=EngineConfig(max_batch_size=8, max_context_tokens=1024, parked_prefixes=8),
            learner=LearnerConfig(lr=1e-5, micro_batch_tokens=1024),
            eval=EvalConfig(num_tasks=0),
            num_updates=4,
        ),
    ),
    "alfworld-smollm2": (
        "SmolLM2-135M-Instruct on small ALFWorld games of our own, in worker processes",
        TrainConfig(
            model="smollm2",
            env=EnvChoice(
                "rollcage/ALFWorld-v0",
                {"dataset": "sample", "show_admissible": True, "progress_reward": 0.5, "max_turns": 4},
                placement="process",
                restart="restore",
            ),
            rollout=RolloutConfig(num_groups=2, group_size=4, num_slots=8),
            sampling=SamplingConfig(max_new_tokens=16),
            engine=EngineConfig(max_batch_size=8, max_context_tokens=1024, parked_prefixes=8),
            learner=LearnerConfig(loss="tis", lr=1e-5, micro_batch_tokens=1024),
            eval=EvalConfig(num_tasks=0),
            num_updates=4,
        ),
    ),
    "swemini-smollm2": (
        "SmolLM2-135M-Instruct on issues in small repositories, each episode in a sandbox of its own: needs Docker",
        TrainConfig(
            model="smollm2",
            env=EnvChoice(
                "rollcage/SWEMini-v0",
                {"max_turns": 3, "max_output_chars": 400},
                placement="sandbox",
                restart="restore",
                # So small a model writes code blocks more often than calls in JSON, and those are calls too.
                system="You are an agent that works with a shell. Every message of yours is one bash code block and "
                "nothing else:\n```bash\nls\n```",
            ),
            rollout=RolloutConfig(num_groups=2, group_size=4, num_slots=8, env_deadline_s=180.0),
            sampling=SamplingConfig(max_new_tokens=48, temperature=0.7),
            engine=EngineConfig(max_batch_size=8, max_context_tokens=1024, parked_prefixes=8),
            learner=LearnerConfig(loss="tis", lr=1e-5, micro_batch_tokens=1024),
            eval=EvalConfig(num_tasks=0),
            num_updates=4,
        ),
    ),
}


def _with_critics(critic: CriticConfig) -> TrainConfig:
    """Return countdown-small with the advantages of critics, and nothing else changed but the entropy bonus."""
    small = PRESETS["countdown-small"][1]
    return replace(small, learner=replace(small.learner, advantage="gae", entropy_coef=1e-3, critic=critic))


PRESETS |= {
    "countdown-ppo": (
        "countdown-small as PPO: one critic of the policy's size gives each token its own advantage",
        _with_critics(CriticConfig(num_critics=1, lr=1e-3, warmup_steps=10, epochs=2, num_mini_batches=16)),
    ),
    "countdown-asyppo": (
        "countdown-small as AsyPPO: two mini-critics, a fifth of the policy's size each, and masks where they agree",
        _with_critics(CriticConfig(model="small-critic", lr=3e-3, warmup_steps=10, epochs=2, num_mini_batches=16)),
    ),
}
