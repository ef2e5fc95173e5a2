"""Environments for the placement tests: each does one thing that a placement must survive."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rollcage.envs import RowTasks, Task, TextEnv, Turn, register

TASKS = RowTasks("moods", {"train": [{"word": word} for word in ("ada", "bell", "curie")]})


class MoodyEnv(TextEnv):
    """Does what the action says: echo, print, raise, hang, crash; anything else is echoed."""

    def __init__(self, *, start_s: float = 0.0, close_s: float = 0.0, **kwargs: Any) -> None:
        time.sleep(start_s)
        self.close_s = close_s
        super().__init__(TASKS, **kwargs)

    def begin(self, task: Task) -> str:
        self.state = {"word": task.data["word"], "draws": []}
        return f"Say {task.data['word']}."

    def advance(self, action: str) -> Turn:
        verb, _, rest = action.partition(" ")
        handler = getattr(self, f"do_{verb}", None)
        if verb.isidentifier() and handler is not None:
            action = handler(rest)
        self.state["draws"].append(int(self.np_random.integers(1000)))
        right = action == self.state["word"]
        info = {
            "draw": np.int64(self.state["draws"][-1]),
            "share": np.float32(0.5),
            "pair": (1, 2),
            "row": np.arange(2),
        }
        return Turn(action, np.float64(right), right, right, info)

    def expert(self) -> str:
        return str(self.state["word"])

    def random_action(self, rng: np.random.Generator) -> str:
        return str(rng.choice(["ada", "bell", "curie"]))

    def close(self) -> None:
        time.sleep(self.close_s)

    def do_print(self, rest: str) -> str:
        sys.stdout.write(f"noise {rest}\n")
        os.write(1, b"\x00more noise\n")
        subprocess.run(["echo", "noise of a child"], check=True)
        return rest

    def do_stdin(self, rest: str) -> str:
        return repr(sys.stdin.read())

    def do_raise(self, rest: str) -> str:
        raise RuntimeError(rest)

    def do_quit(self, rest: str) -> str:
        sys.exit(3)

    def do_sleep(self, rest: str) -> str:
        time.sleep(float(rest))
        return rest

    def do_lock(self, rest: str) -> str:
        """Hang in C code that never gives up the interpreter's lock."""
        re.match(r"(a+)+$", "a" * 64 + "b")
        return rest

    def do_exit(self, rest: str) -> str:
        os._exit(int(rest))

    def do_kill(self, rest: str) -> str:
        os.kill(os.getpid(), signal.Signals[rest])
        time.sleep(60)
        return rest

    def do_segfault(self, rest: str) -> str:
        return str(ctypes.string_at(0))

    def do_child(self, rest: str) -> str:
        """Start a process of its own that outlives the action."""
        return str(subprocess.Popen(["sleep", rest]).pid)

    def do_pid(self, rest: str) -> str:
        return str(os.getpid())

    def do_giant(self, rest: str) -> str:
        return "x" * int(rest)

    def do_garbage(self, rest: str) -> str:
        """Write to the worker's own pipe, as a library that looks for descriptors might."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                    os.write(int(name), b"garbage" * 10)
            except OSError:
                pass
        return rest


class ScribeEnv(TextEnv):
    """Writes to files: every action is a line of one; the observation is all files, and the turn."""

    metadata = {**TextEnv.metadata, "checkpoint_files": True}  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(TASKS, **kwargs)

    def begin(self, task: Task) -> str:
        self.state = 0
        for folder in (Path("notes"), Path("/tmp/notes")):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        return "Write."

    def advance(self, action: str) -> Turn:
        """Write in two places; "slow" takes its time between them."""
        self.state += 1
        for folder in ("notes", "/tmp/notes"):
            time.sleep(2.5 if action == "slow" and folder != "notes" else 0.0)
            with Path(folder, action).open("a", encoding="utf-8") as file:
                file.write(f"{self.state} ")
        written = sorted(path for folder in ("notes", "/tmp/notes") for path in Path(folder).iterdir())
        return Turn("\n".join(f"{path}: {path.read_text()}" for path in written))


register("zoo/Moody-v0", MoodyEnv)
register("zoo/Scribe-v0", ScribeEnv)
