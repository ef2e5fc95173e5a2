"""The environment suite. An environment is one class (`TextEnv`) and one `register` call."""

from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.registration import find_spec, make, register
from rollcage.envs.spaces import UnicodeText
from rollcage.envs.tasks import GeneratedTasks, RowTasks, Task, TaskSet, read_jsonl, sample_indices

__all__ = [
    "GeneratedTasks",
    "RowTasks",
    "Task",
    "TaskSet",
    "TextEnv",
    "Turn",
    "UnicodeText",
    "find_spec",
    "make",
    "read_jsonl",
    "register",
    "sample_indices",
]
