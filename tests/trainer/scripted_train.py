"""`rollcage train` whose policy is a script that resolves SWEMini's issues, and whose learner only counts.

python tests/trainer/scripted_train.py train swemini-smollm2 --model small ...   (or: train --resume RUN)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rollcage.__main__ import main
from rollcage.envs import TextEnv, make
from rollcage.envs.tools import write_call
from rollcage.trainer import run
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.engines.scripted import ScriptedEngine
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.tasks import TaskOrder
from rollcage.trainer.types import Request


def scripted_engine(config: EngineConfig, replica: int = 0, *, log: Path | None = None) -> ScriptedEngine:
    """Apply the issue's patch, then hand it in; every other member hands in nothing."""
    env = make("rollcage/SWEMini-v0").unwrapped
    assert isinstance(env, TextEnv)
    order = TaskOrder(env.tasks, "train", seed=0)
    chat = ChatFormat(load_tokenizer(small_policy_path()), tools=env.tools)

    def script(request: Request, policy_version: int) -> list[int]:
        group, member = map(int, request.id.partition("/")[0].split("."))
        patch = env.tasks.by_id(order.task_id(group)).data["patch"]
        mend = write_call("bash", command=f"git apply <<'END'\n{patch}END")
        said = mend if request.id.endswith("/0") and member % 2 == 0 else write_call("submit")
        return [*chat.encode(said), min(chat.stop_ids)]

    return ScriptedEngine(script, max_context_tokens=100_000)


def scripted_learner(config: Any, *, checkpoint: Path | None, log_folder: Path) -> ScriptedLearner:
    learner = ScriptedLearner(train_s=0.2)
    if checkpoint is not None:
        learner.num_updates = int(checkpoint.name.removeprefix("step-"))
    return learner


if __name__ == "__main__":
    EngineConfig.make = scripted_engine  # type: ignore[method-assign, assignment]
    run.DeepSpeedLearner = scripted_learner  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[1:]))
