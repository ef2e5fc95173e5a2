"""Commands through the agent: results, deadlines, killing, output."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.sandbox.guest.local_guest import find_processes, local_guest, run, wait_until, with_guest

from rollcage.sandbox.errors import GuestLost
from rollcage.sandbox.guest.channel import AgentGuest
from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output


def test_a_command_tells_its_exit_code_and_both_outputs(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        result = await run(guest, "echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.signal, result.timed_out, result.truncated) == (3, None, False, False)
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
        assert (result.num_stdout_bytes, result.num_stderr_bytes) == (4, 4)
        assert 0 < result.duration_s < 5
        assert not result.oom_killed
        assert (await run(guest, "kill -9 $$")).signal == 9

    with_guest(tmp_path, test)


def test_a_program_runs_without_a_shell_and_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        result = await run(guest, ("printf", "%s|", "a b", "$HOME", "", "ü"))
        assert result.stdout_text == "a b|$HOME||ü|"

    with_guest(tmp_path, test)


def test_folder_variables_and_stdin_reach_the_command(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    async def test(guest: AgentGuest) -> None:
        result = await guest.exec(
            ExecRequest("pwd; echo $A; cat", cwd=str(tmp_path / "sub"), env={"A": "1 2"}, stdin=b"in\xff\n")
        )
        assert result.stdout == f"{tmp_path}/sub\n1 2\n".encode() + b"in\xff\n"
        assert (await run(guest, "cat")).stdout == b""

    with_guest(tmp_path, test)


def test_much_stdin_is_streamed_and_a_command_need_not_read_it(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        data = bytes(range(256)) * 4096 * 5
        result = await guest.exec(ExecRequest("wc -c", stdin=data))
        assert result.stdout_text.strip() == str(len(data))
        result = await guest.exec(ExecRequest("head -c 3", stdin=data))
        assert result.stdout == b"\0\1\2"
        result = await guest.exec(ExecRequest("sleep 30", stdin=data, timeout_s=0.3))
        assert result.timed_out
        result = await guest.exec(ExecRequest("exec 0<&-; sleep 0.2; echo done", stdin=data))
        assert result.stdout == b"done\n"

    with_guest(tmp_path, test)


@pytest.mark.parametrize(
    ("request_", "exit_code", "words"),
    [
        (ExecRequest(("/nope",)), 127, "/nope: No such file"),
        (ExecRequest("true", cwd="/nope"), 127, "/nope: No such file"),
        (ExecRequest(("/etc/passwd",)), 126, "/etc/passwd: Permission denied"),
        (ExecRequest(("echo", "a\0b")), 126, "null byte"),
        (ExecRequest(()), 126, "empty"),
        (ExecRequest(("echo", "x" * 3_000_000)), 126, "Argument list too long"),
    ],
)
def test_what_cannot_be_started_is_a_result(tmp_path: Path, request_: ExecRequest, exit_code: int, words: str) -> None:
    async def test(guest: AgentGuest) -> None:
        result = await guest.exec(request_)
        assert result.exit_code == exit_code
        assert words in result.stderr_text
        assert (await run(guest, "echo ok")).stdout == b"ok\n"

    with_guest(tmp_path, test)


def test_odd_text_is_no_error(tmp_path: Path) -> None:
    """Undecodable bytes travel as surrogates, as in `os.fsdecode`; what is no text at all becomes "?"."""

    async def test(guest: AgentGuest) -> None:
        assert (await run(guest, ("printf", "%s", b"\xff".decode(errors="surrogateescape")))).stdout == b"\xff"
        assert (await run(guest, ("printf", "%s", "\ud800"))).stdout == b"?"
        assert (await run(guest, "echo 'a\nb'\n\necho c")).stdout == b"a\nb\nc\n"

    with_guest(tmp_path, test)


def test_S1_a_busy_loop_and_its_background_child_die_at_the_deadline(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        started = time.monotonic()
        result = await run(guest, "sleep 600.01 & while :; do :; done", timeout_s=2.0)
        assert result.timed_out
        assert result.signal == 9
        assert time.monotonic() - started < 4
        assert find_processes("600.01") == []
        assert (await run(guest, "echo ok")).stdout == b"ok\n"

    with_guest(tmp_path, test)


def test_S2_a_background_child_does_not_block(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        started = time.monotonic()
        result = await run(guest, "sleep 30.02 & echo hi")
        assert (result.exit_code, result.stdout) == (0, b"hi\n")
        assert time.monotonic() - started < 1
        await wait_until(lambda: len(find_processes("30.02")) == 1)
        await run(guest, "pkill -f '^sleep 30.02'")

    with_guest(tmp_path, test)


def test_a_pipe_that_a_background_child_holds_never_blocks_the_agent(tmp_path: Path) -> None:
    """Often, for it takes the command's end and its output to be seen in one round of the agent's loop."""

    async def test(guest: AgentGuest) -> None:
        for _ in range(100):
            assert (await run(guest, "sleep 600.21 & echo hi", timeout_s=2)).stdout == b"hi\n"
        await run(guest, "pkill -f '^sleep 600.21'")

    with_guest(tmp_path, test)


def test_a_background_child_that_writes_on_is_not_blocked_and_costs_little(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        command = "(yes | head -c 3000000; echo over >&2; echo over > over) & echo hi"
        assert (await run(guest, command)).stdout.endswith(b"hi\n")
        await wait_until((tmp_path / "over").exists)
        await run(guest, "yes 30.03 &")
        assert (await run(guest, "echo ok")).stdout == b"ok\n"
        await run(guest, "pkill -f '^yes 30.03'")

    with_guest(tmp_path, test)


def test_S3_output_before_the_deadline_is_not_lost(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        result = await run(guest, "echo A; sleep 30", timeout_s=1.0)
        assert result.timed_out
        assert result.stdout == b"A\n"

    with_guest(tmp_path, test)


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 600.04 & sleep 600.04",
        "(setsid sh -c 'sleep 600.04 & sleep 600.04' &); sleep 600.04",
        "env -i setsid sleep 600.04 & sleep 600.04",
        "(env -i setsid sleep 600.04 &) ; sleep 0.1; sleep 600.04",
        "trap '' TERM INT HUP; nohup sleep 600.04 & sleep 600.04",
        'python3 -c \'import os\nfor _ in range(30): os.fork() or os.execlp("sleep", "sleep", "600.04")\nos.wait()\'',
    ],
    ids=["setsid", "double fork", "no environment", "no environment, double fork", "ignores signals", "many"],
)
def test_no_process_of_a_command_survives_its_deadline(tmp_path: Path, command: str) -> None:
    async def test(guest: AgentGuest) -> None:
        assert (await run(guest, command, timeout_s=0.5)).timed_out
        assert find_processes("600.04") == []

    with_guest(tmp_path, test)


def test_a_deadline_kills_neither_other_commands_nor_background_children_of_earlier_ones(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        await run(guest, "setsid sleep 600.05 & env -i setsid sleep 600.05 &")
        other = asyncio.create_task(run(guest, "sleep 1; echo alive"))
        await asyncio.sleep(0.1)
        await wait_until(lambda: len(find_processes("600.05")) == 2)
        assert (await run(guest, "sleep 600", timeout_s=0.2)).timed_out
        assert len(find_processes("600.05")) == 2
        assert (await other).stdout == b"alive\n"
        await run(guest, "pkill -f '^sleep 600.05'")

    with_guest(tmp_path, test)


def test_cancelling_kills_the_command_inside(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        task = asyncio.create_task(run(guest, "setsid sleep 600.06 & sleep 600.06"))
        await wait_until(lambda: len(find_processes("600.06")) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: not find_processes("600.06"))
        assert (await run(guest, "echo ok")).stdout == b"ok\n"

    with_guest(tmp_path, test)


def test_S13_bytes_are_exact_and_text_is_decoded_with_replacement(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        result = await run(guest, r"printf '\377ok'")
        assert result.stdout == b"\xffok"
        assert result.stdout_text == "\ufffdok"
        pieces: list[Output] = []

        async def take(output: Output) -> None:
            pieces.append(output)

        command = r"printf '\303'; sleep 0.2; printf '\274'"
        result = await guest.exec(ExecRequest(command), on_output=take)
        assert [piece.data for piece in pieces] == [b"\xc3", b"\xbc"]
        assert result.stdout_text == "ü"
        result = await guest.exec(ExecRequest("printf 'aüb'", max_output_bytes=3))
        assert result.truncated
        assert result.stdout == b"a\xc3b"
        assert result.stdout_text == "a\ufffdb"

    with_guest(tmp_path, test)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 100])
def test_head_and_tail_are_kept(tmp_path: Path, limit: int) -> None:
    async def test(guest: AgentGuest) -> None:
        whole = b"".join(b"%d\n" % n for n in range(1, 5001))
        result = await guest.exec(ExecRequest("seq 5000", max_output_bytes=limit))
        head, tail = limit - limit // 2, limit // 2
        assert result.stdout == whole[:head] + whole[len(whole) - tail :]
        assert result.truncated
        assert result.num_stdout_bytes == len(whole)
        result = await guest.exec(ExecRequest("seq 5000", max_output_bytes=len(whole)))
        assert result.stdout == whole
        assert not result.truncated

    with_guest(tmp_path, test)


def test_large_outputs_that_are_wanted_come_whole(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        command = "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero | tr '\\0' x >&2"
        result = await guest.exec(ExecRequest(command, max_output_bytes=8 * MIB))
        assert result.stdout == bytes(5_000_000)
        assert result.stderr == b"x" * 3_000_000
        assert not result.truncated

    with_guest(tmp_path, test)


S14 = """
import asyncio, resource, sys
from pathlib import Path
from tests.sandbox.guest.local_guest import local_guest
from rollcage.sandbox.types import ExecRequest

async def main():
    async with local_guest(Path(sys.argv[1])) as guest:
        pid = (await guest.exec(ExecRequest("echo $PPID"))).stdout_text.strip()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await guest.exec(ExecRequest("yes | head -c 1G", max_output_bytes=1 << 20))
        assert result.truncated and result.num_stdout_bytes == 1 << 30, result.num_stdout_bytes
        assert result.stdout == b"y\\n" * (1 << 19)
        agent = [line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM")][0]
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, agent)

asyncio.run(main())
"""


def test_S14_a_flood_of_output_is_cut_inside(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", S14, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown_kib, agent_kib = map(int, done.stdout.split())
    assert grown_kib < 32 * 1024
    assert agent_kib < 48 * 1024


def test_a_slow_reader_slows_the_command_down(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        num_bytes, go_on = 0, asyncio.Event()

        async def take(output: Output) -> None:
            nonlocal num_bytes
            num_bytes += len(output.data)
            await go_on.wait()

        command = "i=0; while [ $i -lt 2000 ]; do head -c 1000 /dev/zero; i=$((i+1)); echo $i > count; done"
        task = asyncio.create_task(guest.exec(ExecRequest(command, max_output_bytes=10), on_output=take))
        before = "0"
        await asyncio.sleep(1.0)
        while (count := (tmp_path / "count").read_text()) != before:
            before = count
            await asyncio.sleep(0.5)
        assert num_bytes <= 64 * 1024  # one piece, which is not taken yet
        assert 100 < int(count) < 1000  # the window and the pipe are full
        assert (await run(guest, "echo ok")).stdout == b"ok\n"
        go_on.set()
        result = await task
        assert num_bytes == result.num_stdout_bytes == 2_000_000

    with_guest(tmp_path, test)


def test_a_reader_that_never_reads_does_not_hold_up_the_deadline(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        async def take(output: Output) -> None:
            await asyncio.sleep(1.5 if output.data.startswith(b"y") and not taken else 0)
            taken.append(output.data)

        taken: list[bytes] = []
        result = await guest.exec(ExecRequest("yes", timeout_s=0.5), on_output=take)
        assert result.timed_out
        assert result.duration_s < 1.4
        assert sum(map(len, taken)) == result.num_stdout_bytes

    with_guest(tmp_path, test)


def test_a_reader_that_fails_ends_the_command(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        async def take(output: Output) -> None:
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            await guest.exec(ExecRequest("echo x; exec sleep 600.07"), on_output=take)
        await wait_until(lambda: not find_processes("600.07"))

    with_guest(tmp_path, test)


def test_fifty_commands_at_once_keep_their_own_output(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        started = time.monotonic()
        results = await asyncio.gather(*(run(guest, f"sleep 0.5; echo {n}; exit {n}") for n in range(50)))
        assert [result.stdout_text for result in results] == [f"{n}\n" for n in range(50)]
        assert [result.exit_code for result in results] == list(range(50))
        assert time.monotonic() - started < 10

    with_guest(tmp_path, test)


def test_no_zombies_and_no_descriptors_pile_up(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        pid = (await run(guest, "echo $PPID")).stdout_text.strip()
        descriptors = Path(f"/proc/{pid}/fd")
        before = len(list(descriptors.iterdir()))
        for _ in range(20):
            await run(guest, "(setsid true &); true & true")
            await run(guest, "sleep 9", timeout_s=0.01)
            await run(guest, ("/nope",))
            await guest.ping(timeout_s=5)
            session = await guest.open_session(env={}, cwd="")
            await session.run("(setsid true &)")
            await session.close()
        children = Path(f"/proc/{pid}/task/{pid}/children")
        await wait_until(lambda: not children.read_text())
        assert len(list(descriptors.iterdir())) == before

    with_guest(tmp_path, test)


def test_when_the_manager_dies_running_commands_die_and_background_children_live_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_guest(tmp_path) as guest:
            await run(guest, "setsid sleep 600.08 &")
            session = await guest.open_session(env={}, cwd="")
            tasks = [
                asyncio.create_task(run(guest, "setsid sleep 600.09 & sleep 600.09")),
                asyncio.create_task(session.run("setsid sleep 600.09 & sleep 600.09")),
            ]
            await wait_until(lambda: len(find_processes("600.09")) == 4)
            guest._duplex._stdin.transport.abort()
            for task in tasks:
                with pytest.raises(GuestLost):
                    await task
            await wait_until(lambda: not find_processes("600.09"))
            assert len(find_processes("600.08")) == 1

    asyncio.run(main())
    subprocess.run(["pkill", "-f", "^sleep 600.08"], check=True)


def test_a_probe_tells_vitals(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        vitals = await guest.ping(timeout_s=5)
        assert vitals.cpu_s > 0
        assert vitals.memory_bytes > 0

    with_guest(tmp_path, test)


def test_results_are_plain_data(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        assert isinstance(await run(guest, "true"), ExecResult)
        assert (await run(guest, "true")).ok

    with_guest(tmp_path, test)
