"""The child processes that compare answers: bounded, replaced when they are lost, and never left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcage.envs.math import symbolic
from rollcage.errors import MissingExtra

GOLD, BOMB = r"\sqrt{2}", r"9^{9^{9}}"
FAST = 0.3


def children() -> list[int]:
    """The processes that compare answers for this process."""
    me = str(os.getpid())
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1] if folder.name.isdigit() else ""
            if parent == me and "symbolic_worker" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_equal_and_different() -> None:
    assert symbolic.compare(r"\sqrt{8}", r"2\sqrt{2}", 5.0) == "equal"
    assert symbolic.compare(r"\sqrt{8}", r"\sqrt{7}", 5.0) == "different"


def test_one_child_serves_many_comparisons() -> None:
    symbolic.compare("x+1", "1+x", 5.0)
    before = children()
    for _ in range(20):
        symbolic.compare("x+1", "1+x", 5.0)
    assert children() == before


def test_a_comparison_past_its_time_is_a_timeout_and_the_next_one_works() -> None:
    assert symbolic.compare(GOLD, BOMB, FAST) == "timeout"
    assert symbolic.compare("x+1", "1+x", 5.0) == "equal"


def test_too_much_memory_fails_the_comparison_only() -> None:
    assert symbolic.compare(GOLD, r"(10^{9})! + 10^{10^{9}}", 1.5) in ("failed", "timeout")
    assert symbolic.compare("x+1", "1+x", 5.0) == "equal"


def test_a_killed_child_is_replaced() -> None:
    symbolic.compare("x+1", "1+x", 5.0)
    for child in children():
        os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_running, children())), 10)
    assert symbolic.compare("x+1", "1+x", 5.0) == "equal"


def test_unreadable_text_is_not_equal_to_itself_and_no_exception() -> None:
    for text in ("\x00", "\ud800", r"\frac{", "}{", "\\" * 99, "$", "x\n\nx"):
        assert symbolic.compare(text, text, 5.0) in ("failed", "different", "equal")


def test_text_cannot_run_commands(tmp_path: Path) -> None:
    for text in (
        f"__import__('os').system('touch {tmp_path}/made')",
        rf"\immediate\write18{{touch {tmp_path}/made}}",
        rf"\input{{{tmp_path}/made}}",
        f"exec(\"open('{tmp_path}/made', 'w')\")",
    ):
        symbolic.compare("x", text, 5.0)
    assert not list(tmp_path.iterdir())


def test_secrets_of_the_environment_stay_with_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    for child in children():
        os.kill(child, signal.SIGKILL)
    symbolic.compare("x+1", "1+x", 5.0)
    assert all(
        b"secret" not in Path(f"/proc/{child}/environ").read_bytes() for child in children() if is_running(child)
    )


def test_threads_compare_at_the_same_time_and_get_their_own_verdicts() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for _ in range(5):
            if symbolic.compare(f"x+{number}", f"{number}+x", 20.0) != "equal":
                wrong.append(number)
            if symbolic.compare(f"x+{number}", f"{number + 1}+x", 20.0) != "different":
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert len(children()) <= symbolic.MAX_CHILDREN


def _compare_in_worker(results: multiprocessing.queues.Queue[str]) -> None:
    results.put(symbolic.compare("x+1", "1+x", 20.0))
    results.put(symbolic.compare(GOLD, BOMB, FAST))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_daemonic_workers_have_children_of_their_own(method: str) -> None:
    symbolic.compare("x+1", "1+x", 5.0)  # the fork copies a process with a child
    context = multiprocessing.get_context(method)
    results = context.Queue()
    worker = context.Process(target=_compare_in_worker, args=(results,), daemon=True)
    worker.start()
    assert [results.get(timeout=60), results.get(timeout=60)] == ["equal", "timeout"]
    worker.join(timeout=10)
    assert worker.exitcode == 0
    assert symbolic.compare("x+1", "1+x", 5.0) == "equal"  # the parent's child still is the parent's


SCRIPT = """
import os, sys, time
from pathlib import Path
from rollcage.envs.math import symbolic
symbolic.compare("x+1", "1+x", 20.0)
for folder in Path("/proc").iterdir():
    if folder.name.isdigit():
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                print(folder.name, flush=True)
        except OSError:
            pass
print("end", flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "what"),
    [
        ("time.sleep(60)", "idle"),
        (f"symbolic.compare(r'{GOLD}', r'{BOMB}', 2.0)", "busy"),
        ("if os.fork() == 0: time.sleep(8); os._exit(0)\ntime.sleep(60)", "idle, with a forked sibling that lives on"),
    ],
)
def test_no_child_outlives_a_killed_parent(then: str, what: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(then=then)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        started = [int(line) for line in iter(parent.stdout.readline, "end\n")]
        assert started
        time.sleep(0.3)
        parent.kill()
        parent.stdout.close()
        limit_s = 6 if "sibling" in what else 15
        assert wait_until(lambda: not any(map(is_running, started)), limit_s), what


def test_a_normal_end_leaves_nothing_and_warns_of_nothing() -> None:
    code = SCRIPT.format(then="")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert not any(is_running(int(line)) for line in run.stdout.split() if line != "end")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError(name='math_verify')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # what the child finds
    monkeypatch.setitem(sys.modules, "math_verify", None)  # what this process finds
    for child in children():
        os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_running, children())), 10)
    with pytest.raises(MissingExtra, match=r"rollcage\[math\]"):
        symbolic.compare("x+1", "1+x", 5.0)
