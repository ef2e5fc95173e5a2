"""What one more environment takes in memory, and what an episode takes beyond its tests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.sandbox.real_engine import Real

from rollcage.__main__ import main
from rollcage.benchmarks.envs.footprint import inline_footprint, process_bytes, sandbox_bytes
from rollcage.sandbox.types import MIB

ENV_ID = "rollcage/Countdown-v0"
TASK_IDS = [f"train/{index}" for index in range(3)]


def test_one_more_environment_takes_least_inline(
    docker_endpoint: str, env_image: str, manager_id: str, tmp_path: Path
) -> None:
    real = Real(docker_endpoint, env_image, "", tmp_path / "manager", manager_id)

    async def main() -> tuple[int, int]:
        async with real.managed() as manager:
            there = await sandbox_bytes(manager, env_image, ENV_ID, {}, TASK_IDS)
            assert await manager.list_sandboxes() == []
            return await process_bytes(ENV_ID, {}, TASK_IDS), there

    in_process, in_sandbox = asyncio.run(main())
    inline = inline_footprint(ENV_ID, {}, TASK_IDS)
    assert 0 <= inline < 2 * MIB
    assert 5 * MIB < in_process < 200 * MIB
    assert 5 * MIB < in_sandbox < 200 * MIB


def test_an_episodes_time_is_told_apart_from_its_tests(
    docker_endpoint: str, base_image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "swe", "--tasks", "1", "--endpoint", docker_endpoint, "--output", str(tmp_path)]) == 0
    [row] = json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"]
    parts = row["reset_s"] + row["working_s"] + row["judging_s"]
    assert row["episode_s"] == pytest.approx(parts)
    assert row["overhead_s"] == pytest.approx(parts - row["tests_s"])
    assert 0 < row["tests_s"] < row["judging_s"]
    assert 0 < row["prepare_s"] < row["overhead_s"]
    assert 0 < row["agent_bytes"] < 512 * MIB
    assert "| beyond the tests |" in (tmp_path / "swe.md").read_text(encoding="utf-8")
