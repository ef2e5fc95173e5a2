"""A good environment, and broken ones that need a process of their own to be found out."""

from __future__ import annotations

import os
import re
from typing import Any

import gymnasium
import numpy as np

from rollcage.envs import RowTasks, Task, TextEnv, Turn, UnicodeText, register

SUMS = [{"a": a, "b": b} for a in range(1, 13) for b in range(1, 13)]
TASKS = RowTasks("sums", {"train": SUMS[::2], "test": SUMS[1::2]})


class SumEnv(TextEnv):
    """Adds two numbers.

    ## Description
    Three attempts, each with feedback.
    """

    tools = (
        {
            "name": "calculator",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
        },
    )

    def __init__(self, tasks: Any = TASKS, *, max_turns: int = 3, **kwargs: Any) -> None:
        super().__init__(tasks, max_turns=max_turns, **kwargs)

    def begin(self, task: Task) -> str:
        self.state = {"wrong": 0}
        return f"What is {task.data['a']} + {task.data['b']}? Answer in <answer> </answer> tags."

    def right(self, action: str) -> bool:
        answers = re.findall(r"<answer>([^<]*)</answer>", action)
        return bool(answers) and answers[-1].strip() == self.solution()

    def solution(self) -> str:
        return str(self.task.data["a"] + self.task.data["b"])

    def advance(self, action: str) -> Turn:
        if self.right(action):
            return Turn("Right.", 1.0, True, True, {"wrong": self.state["wrong"]})
        self.state["wrong"] += 1
        return Turn(f"Wrong, {self.state['wrong']} so far.", info={"wrong": self.state["wrong"]})

    def reset_info(self) -> dict[str, Any]:
        return {"wrong": 0}

    def expert(self) -> str:
        return f"<answer>{self.solution()}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        return f"<answer>{rng.integers(2, 25)}</answer>"

    def exploits(self) -> list[str]:
        return [f"<answer>{self.task.data['a']} + {self.task.data['b']}</answer>"]


class ProcessDependent(SumEnv):
    """Says something else in each process, as code that relies on the order of a set does."""

    def advance(self, action: str) -> Turn:
        turn = super().advance(action)
        return turn._replace(observation=f"{turn.observation} {os.getpid()}")


class Evaluating(SumEnv):
    """Computes the answer with `eval`."""

    def right(self, action: str) -> bool:
        try:
            return bool(eval(re.sub("</?answer>", "", action)) == int(self.solution()))  # noqa: S307
        except Exception:
            return False


class PlainEnv(gymnasium.Env[str, str]):
    """Not a TextEnv: an ordinary Gymnasium environment with text spaces and the suite's info."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space, self.action_space = UnicodeText(), UnicodeText()
        self.number: int | None = None

    def _info(self, success: bool = False) -> dict[str, Any]:
        return {"task_id": f"plain/{self.number}", "success": success, "failure": None}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(10, 1_000_000))
        return f"Say {self.number} backwards.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.number is None:
            raise gymnasium.error.ResetNeeded("reset first")
        if not isinstance(action, str):
            raise TypeError("text please")
        success = action == str(self.number)[::-1]
        info = self._info(success)
        self.number = None
        return "Over.", float(success), True, False, info


register("zoo/Sum-v0", SumEnv)
register("zoo/ProcessDependent-v0", ProcessDependent)
register("zoo/Evaluating-v0", Evaluating)
register("zoo/Plain-v0", PlainEnv)
