"""`rollcage bench sandbox`: what is asked of each contender, and what the report says of the answers."""

import asyncio
import ctypes
from typing import Any

import pytest

from rollcage.benchmarks.sandbox.contender import Measure, Run
from rollcage.benchmarks.sandbox.speed import main, report
from rollcage.errors import UserError


class Scripted:
    """A contender without Docker: boxes are numbers; the third one fails, and ``sleep 600`` outlives its time."""

    version = "1"

    def __init__(self) -> None:
        self.num_created = 0
        self.open_boxes: set[int] = set()
        self.max_open = self.num_starting = self.max_starting = 0
        self.left: list[asyncio.subprocess.Process] = []

    async def open(self) -> None: ...

    async def create(self) -> int:
        self.num_starting += 1
        self.max_starting = max(self.max_starting, self.num_starting)
        await asyncio.sleep(0.01)
        self.num_starting -= 1
        self.num_created += 1
        if self.num_created == 3:
            raise RuntimeError("no third one")
        self.open_boxes.add(self.num_created)
        self.max_open = max(self.max_open, len(self.open_boxes))
        return self.num_created

    async def run(self, box: int, command: str, timeout_s: float) -> str:
        assert box in self.open_boxes
        if command.startswith("yes"):
            return "y\n" * (int(command.split()[-1]) // 2)
        if "sleep 600" in command:
            words = command.split(";")[1].split()
            self.left.append(await asyncio.create_subprocess_exec(*words))
            raise TimeoutError
        return "hi\n"

    async def session(self, box: int) -> Run | None:
        return None

    async def delete(self, box: int) -> None:
        self.open_boxes.remove(box)

    async def close(self) -> None: ...


def measured() -> tuple[Scripted, dict[str, Any]]:
    who = Scripted()

    async def ask() -> dict[str, Any]:
        measure = Measure(who)
        found: dict[str, Any] = {"begin": await measure.begin()}
        found["many"] = await measure.many(20, 4, 10.0)
        found |= {"cold": await measure.cold(2), "exec": await measure.exec(3), "session": await measure.session(3)}
        ctypes.CDLL(None).malloc_trim(0)  # else the output finds room in what earlier tests have freed
        found["output"] = await measure.output(64 * 10**6)
        found |= {"background": await measure.background(1.0), "timeout": await measure.timeout(1.0)}
        await measure.end()
        for process in who.left:
            process.kill()
            await process.wait()
        return found

    return who, asyncio.run(ask())


def test_each_question_is_answered_by_what_happened_and_nothing_is_left():
    who, found = measured()
    assert found["begin"] == {"version": "1", "has_session": False}
    assert (found["many"]["num_ready"], found["many"]["num_failed"]) == (19, 1)
    assert who.max_starting == 4
    assert who.max_open == 20  # all stay until the end, and the one that was there before
    assert [len(found[kind]) for kind in ("cold", "exec", "session")] == [2, 3, 0]
    assert min(found["cold"]) >= 0.01 > max(found["exec"])
    assert 60 < found["output"]["grown_mib"] < 400
    assert found["output"]["outcome"] == "64 MB came"
    assert found["background"]["outcome"] == r"'hi\n'"
    assert (found["timeout"]["outcome"], found["timeout"]["num_survivors"]) == ("TimeoutError", 1)
    assert who.open_boxes == set()


def test_the_report_says_how_it_was_measured_and_who_could_not_take_part():
    _, found = measured()
    how = {
        "command": "rollcage bench sandbox",
        "image": "base",
        "turns": 2,
        "many": 20,
        "megabytes": 64,
        "python": "3.11",
        "cpu": "a CPU, 2 cores",
        "memory_gib": 24.0,
        "kernel": "6",
        "docker": "20.10",
        "load_before": 0.5,
        "load_after": 1.5,
    }
    text = report({"how": how, "measured": {"scripted": found, "other": {"error": "begin: it cannot"}}})
    assert "Docker 20.10" in text
    assert "load 0.50 before and 1.50 after" in text
    assert "other could not be measured: begin: it cannot" in text
    row = next(line for line in text.splitlines() if line.startswith("| scripted") and "ready" in line)
    assert "19 ready, 1 failed" in row
    assert "64 MB came" in row
    assert "1 survive" in row
    assert "A command in a shell" in text


def test_a_rivals_python_that_is_not_there_is_told_before_anything_starts(tmp_path: Any):
    with pytest.raises(UserError, match="requirements"):
        main(["--rivals", str(tmp_path / "python")])
