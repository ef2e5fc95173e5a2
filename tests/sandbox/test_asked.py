"""Wrong arguments: refused at once, by name, the same from every driver and over HTTP; and nothing is left of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollcage.sandbox import BadRequest, BadSpec, Manager, Probe, RestartPolicy, SandboxSpec, open_default
from rollcage.sandbox.asked import checked_spec
from rollcage.sandbox.drivers.fake import FakeDriver

BAD_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"image": ""}, "image is empty"),
    ({"image": None}, "image must be a string"),
    ({"ttl_s": -1}, "ttl_s must be a number of seconds, or 0"),
    ({"ttl_s": float("nan")}, "ttl_s must be a number"),
    ({"ttl_s": "5"}, "ttl_s must be a number"),
    ({"start_timeout_s": 0}, "start_timeout_s must be above 0"),
    ({"cpus": True}, "cpus must be a number"),
    ({"memory_bytes": 1e9}, "memory_bytes must be a whole number"),
    ({"num_pids": True}, "num_pids must be a whole number"),
    ({"command": "sleep 5"}, "command must be a tuple of strings"),
    ({"network": "example.com:80"}, "network must be a tuple of strings"),
    ({"ports": ("80",)}, "ports must be a tuple of numbers"),
    ({"env": {"A": 1}}, "env must give a string for each name"),
    ({"labels": {"x": 1}}, "labels must give a string for each name"),
    ({"restart": "bogus"}, "restart must be one of 'fail', 'restart', 'restore'"),
    ({"probe": Probe(interval_s=0.0)}, "probe: interval_s must be"),
    ({"probe": Probe(timeout_s=float("inf"))}, "probe: timeout_s must be"),
    ({"probe": Probe(num_failures=0)}, "probe: num_failures must be from 1"),
    ({"probe": Probe(num_failures=4, num_recent=3)}, "probe: num_failures must be from 1"),
    ({"probe": Probe(command=1)}, "probe: command must be a string"),  # type: ignore[arg-type]
    ({"probe": 3.0}, "probe must be a Probe"),
]
BAD_COMMANDS: list[tuple[Any, dict[str, Any], str]] = [
    (5, {}, "command must be a string, or strings"),
    (["echo", 5], {}, "command must be a string, or strings"),
    ("true", {"timeout_s": -1}, "timeout_s must be a number of seconds above 0"),
    ("true", {"timeout_s": float("nan")}, "timeout_s must be"),
    ("true", {"timeout_s": None}, "timeout_s must be"),
    ("true", {"env": {"A": 1}}, "env must give a string for each name"),
    ("true", {"env": "A=1"}, "env a mapping"),
    ("true", {"cwd": 1}, "cwd must be a string"),
    ("true", {"stdin": "text"}, "stdin must be bytes, not str"),
    ("true", {"max_output_bytes": -1}, "max_output_bytes must be"),
]


@pytest.mark.parametrize(("fields", "says"), BAD_SPECS)
def test_a_field_that_is_none_of_its_kind_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        checked_spec(SandboxSpec(**fields))


def test_what_may_be_written_in_two_ways_means_the_same() -> None:
    given: Any = {"restart": "restore", "command": ["sleep", "9"], "network": ["model=10.0.0.5:80"], "ports": [80]}
    spec = checked_spec(SandboxSpec(**given))
    assert spec.restart is RestartPolicy.RESTORE
    assert spec == SandboxSpec(
        restart=RestartPolicy.RESTORE, command=("sleep", "9"), network=("model=10.0.0.5:80",), ports=(80,)
    )


def test_a_refused_creation_asks_no_host_and_leaves_no_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = FakeDriver()
        async with Manager({"here": host}, tmp_path) as manager:
            for given in (SandboxSpec(ttl_s=-1), SandboxSpec(image=""), "rollcage-base"):
                with pytest.raises(BadSpec):
                    await manager.create(given)  # type: ignore[arg-type]
            assert (await manager.list_sandboxes(), host.containers) == ([], {})

    asyncio.run(scenario())


def test_a_command_that_cannot_be_one_is_refused_and_the_sandbox_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Manager({"here": FakeDriver()}, tmp_path) as manager:
            sandbox = await manager.create(SandboxSpec())
            for command, options, says in BAD_COMMANDS:
                with pytest.raises(BadRequest, match=says):
                    await sandbox.exec(command, **options)
            shell = await sandbox.session()
            with pytest.raises(BadRequest, match="a shell's command must be a string"):
                await shell.run(["echo", "hi"])  # type: ignore[arg-type]
            with pytest.raises(BadRequest, match="timeout_s must be"):
                await shell.run("true", timeout_s=0)
            await shell.close()
            assert (await sandbox.exec("echo on")).stdout == b"on\n"

    asyncio.run(scenario())


def test_paths_on_this_machine_may_be_strings(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "a").write_bytes(b"hello")
        async with await open_default(str(tmp_path / "state"), "process:") as sandboxes:
            sandbox = await sandboxes.create(SandboxSpec())
            await sandbox.put(str(tmp_path / "a"), "b")
            await sandbox.get("b", str(tmp_path / "c"))
            await sandbox.delete()
        assert (tmp_path / "c").read_bytes() == b"hello"

    asyncio.run(scenario())
