"""Shell sessions through the agent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.sandbox.guest.local_guest import find_processes, wait_until, with_guest

from rollcage.sandbox.errors import GuestLost, SandboxUnavailable
from rollcage.sandbox.guest.base import GuestSession
from rollcage.sandbox.guest.channel import AgentGuest

Test = Callable[[GuestSession], Awaitable[None]]


@pytest.fixture(params=["bash", "sh"])
def in_session(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """Run a test in a session of bash, and in one of sh."""
    shell = request.param

    def run(test: Test) -> None:
        async def main(guest: AgentGuest) -> None:
            env: dict[str, str] = {}
            if shell == "sh":  # a PATH with all programs but bash
                programs = tmp_path / "bin"
                programs.mkdir()
                for name in ["cat", "sleep", "env", "setsid", "nohup", "head", "yes", "touch", "seq", "tr"]:
                    (programs / name).symlink_to(f"/usr/bin/{name}")
                env = {"PATH": str(programs)}
            session = await guest.open_session(env=env, cwd=str(tmp_path))
            assert (await session.run("echo ${BASH_VERSION:+bash}")).stdout == (b"bash\n" if shell == "bash" else b"\n")
            await test(session)
            await session.close()

        with_guest(tmp_path, main)

    return run


def test_folder_variables_functions_and_status_stay(in_session: Callable[[Test], None], tmp_path: Path) -> None:
    async def test(session: GuestSession) -> None:
        assert (await session.run("pwd")).stdout_text == f"{tmp_path}\n"
        await session.run("cd /; a='1  2'; export B=3; f() { echo f $1; }; exec 5>/dev/null")
        result = await session.run('pwd; echo "$a"; env | grep ^B= || :; f x; echo >&5', timeout_s=10)
        assert result.stdout_text.splitlines()[:2] == ["/", "1  2"]
        assert result.stdout_text.endswith("f x\n")
        result = await session.run("(exit 7)")
        assert (result.exit_code, result.ok) == (7, False)
        assert (await session.run("echo $?")).stdout == b"7\n"
        assert (await session.run("echo $?")).stdout == b"0\n"
        assert (await session.run("nosuch")).exit_code == 127

    in_session(test)


def test_any_text_is_a_command(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        assert (await session.run("printf 'no newline'")).stdout == b"no newline"
        assert (await session.run("")).exit_code == 0
        assert (await session.run("# a comment")).exit_code == 0
        assert (await session.run("echo 'it'\\''s' \"q\"; echo $((1+1)) `echo x` \\\\")).stdout == b"it's q\n2 x \\\n"
        assert (await session.run("cat <<'E'\na $b 'c'\nE\necho end")).stdout == b"a $b 'c'\nend\n"
        assert (await session.run("for i in 1 2\ndo\n  echo $i\ndone")).stdout == b"1\n2\n"
        assert (await session.run("echo ü \xff".encode("latin1").decode("utf-8", "surrogateescape"))).ok
        big = "x" * 100_000
        assert (await session.run(f"a='{big}'; echo ${{#a}}")).stdout == b"100000\n"
        result = await session.run("echo a\0b")
        assert result.exit_code == 126
        assert "NUL" in result.stderr_text
        assert (await session.run("echo ok")).stdout == b"ok\n"

    in_session(test)


def test_a_command_that_reads_stdin_finds_it_empty(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        assert (await session.run("cat; read x; echo $?")).stdout == b"1\n"
        assert (await session.run("echo piped | cat")).stdout == b"piped\n"

    in_session(test)


def test_a_background_job_does_not_block_and_its_output_comes_later(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        started = time.monotonic()
        result = await session.run("(sleep 0.5; echo late; touch late) & sleep 600.11 & echo hi")
        assert result.stdout == b"hi\n"
        assert time.monotonic() - started < 0.4
        await session.run("while ! [ -e late ]; do sleep 0.05; done; sleep 0.1")
        assert (await session.run("echo now")).stdout in (b"now\n", b"late\nnow\n")
        assert len(find_processes("600.11")) == 1
        assert (await session.run("kill %2 2>/dev/null || kill $!; wait $!")).exit_code == 143

    in_session(test)


def test_output_of_a_job_between_two_commands_comes_with_the_second(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("(sleep 0.1; echo late; head -c 200000 /dev/zero | tr '\\0' x >&2; touch done) &")
        await asyncio.sleep(0.8)
        result = await session.run("echo now; [ -e done ]")
        assert result.stdout == b"late\nnow\n"
        assert result.exit_code == 0

    in_session(test)


def test_a_deadline_kills_the_command_and_keeps_the_shell(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("a=kept; cd /; sleep 600.12 & (sleep 600.12; :) &")
        await asyncio.sleep(0.1)
        started = time.monotonic()
        result = await session.run("echo A; setsid sleep 600.13 & (sleep 600.13 &); sleep 600.13", timeout_s=0.5)
        assert result.timed_out
        assert result.stdout == b"A\n"
        assert (result.exit_code, result.signal) == (None, 9)
        assert time.monotonic() - started < 1.5
        assert find_processes("600.13") == []
        assert len(find_processes("600.12")) == 2, "jobs of earlier commands live on"
        assert (await session.run("echo $a; pwd")).stdout == b"kept\n/\n"

    in_session(test)
    assert find_processes("600.12") == [], "closing the session ends them"


def test_orphaned_forks_of_the_shell_die_at_the_deadline_and_older_ones_live(
    in_session: Callable[[Test], None], tmp_path: Path
) -> None:
    """Subshells run no program, so they carry the shell's own environment, whichever command made them."""

    async def test(session: GuestSession) -> None:
        def loop(name: str) -> str:
            return f"((while :; do echo >> {name}; read x < pipe; done) &)"

        os.mkfifo(tmp_path / "pipe")
        await session.run(loop("old"))
        assert (await session.run(loop("new") + "; sleep 600", timeout_s=0.5)).timed_out
        alive = (await session.run("cat /proc/[0-9]*/stat 2>/dev/null")).stdout_text
        shell = (await session.run("echo $$")).stdout_text.strip()
        # pid (name) state parent group session: of this session, and not the shell or the cat
        rows = [line.rpartition(")")[2].split() + line.split()[:1] for line in alive.splitlines()]
        left = [row[-1] for row in rows if row[3] == shell and row[-1] != shell and row[0] != "R"]
        assert len(left) == 1, "the old one"
        assert (tmp_path / "old").exists()
        assert (tmp_path / "new").exists()

    in_session(test)


@pytest.mark.parametrize("rest", ["sleep 1; touch after", "while :; do :; done; touch after", "f; touch after"])
def test_what_comes_after_the_deadline_of_a_command_is_not_run(
    in_session: Callable[[Test], None], tmp_path: Path, rest: str
) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("a=lost; f() { sleep 1; sleep 1; }")
        started = time.monotonic()
        result = await session.run("sleep 600.21; " + rest, timeout_s=0.5)
        assert result.timed_out
        assert time.monotonic() - started < 1.4, "at once, and not after a second of grace"
        await asyncio.sleep(0.3)
        assert not (tmp_path / "after").exists()
        assert (await session.run("echo ${a:-gone}")).stdout == b"gone\n"

    in_session(test)
    assert find_processes("600.21") == []


@pytest.mark.parametrize("command", ["while :; do :; done", "while :; do sleep 0.01; done", "exec sleep 600.14"])
def test_a_shell_that_hangs_itself_is_replaced(in_session: Callable[[Test], None], command: str) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("a=lost")
        started = time.monotonic()
        result = await session.run("echo A; " + command, timeout_s=0.5)
        assert result.timed_out
        assert result.stdout == b"A\n"
        assert time.monotonic() - started < 4
        assert (await session.run("echo ${a:-gone}")).stdout == b"gone\n"
        assert find_processes("600.14") == []

    in_session(test)


@pytest.mark.parametrize(
    ("command", "exit_code", "signal", "stdout"),
    [
        ("echo bye; exit 3", 3, None, b"bye\n"),
        ("exec cat /dev/null", 0, None, b""),
        ("exec /nope 2>/dev/null || echo no", 127, None, b""),
        ("kill -9 $$", None, 9, b""),
        ("set -e; echo x; false; echo y", 1, None, b"x\n"),
        ("(sleep 600.15 &) ; exit 4", 4, None, b""),
    ],
)
def test_after_the_end_of_its_shell_a_session_goes_on_with_a_new_one(
    in_session: Callable[[Test], None], tmp_path: Path, command: str, exit_code: int, signal: int, stdout: bytes
) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("a=lost; cd /")
        result = await session.run(command, timeout_s=5)
        if (result.exit_code, result.stdout) != (127, b"no\n"):  # bash may go on after a failed exec; sh must not
            assert (result.exit_code, result.signal, result.stdout) == (exit_code, signal, stdout)
        if not command.startswith("exec /nope"):
            assert (await session.run("echo ${a:-gone}; pwd")).stdout_text == f"gone\n{tmp_path}\n"

    in_session(test)
    assert find_processes("600.15") == []


def test_a_syntax_error_is_a_result(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        # Not "echo $(": after an eval of that, bash 5.2 itself now and then crashes ("free(): invalid next size").
        for command in ("echo (", "'", 'echo "', "if", "}", "cat <<E\nnever ended", "echo `", "f() {"):
            result = await session.run(command, timeout_s=5)
            assert not result.timed_out, command
            assert (await session.run("echo ok")).stdout.endswith(b"ok\n"), command

    in_session(test)


def test_bash_keeps_its_state_after_a_syntax_error(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        session = await guest.open_session(env={}, cwd="")
        await session.run("a=kept")
        assert (await session.run("echo (")).exit_code in (1, 2)
        assert (await session.run("echo $a")).stdout == b"kept\n"
        assert (await session.run("set -ux; trap : DEBUG; echo $a")).stdout == b"kept\n"
        assert (await session.run("echo $a")).stdout == b"kept\n"

    with_guest(tmp_path, test)


def test_a_flood_is_cut_and_the_session_goes_on(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        result = await session.run("yes | head -c 50000000", max_output_bytes=1000)
        assert (len(result.stdout), result.num_stdout_bytes, result.truncated) == (1000, 50_000_000, True)
        assert (await session.run("yes", timeout_s=0.3)).timed_out
        assert (await session.run("echo ok")).stdout == b"ok\n"

    in_session(test)


def test_commands_take_turns(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("n=0")
        results = await asyncio.gather(*(session.run("m=$n; sleep 0.01; n=$((m+1)); echo $n") for _ in range(20)))
        assert [result.stdout_text for result in results] == [f"{n}\n" for n in range(1, 21)]

    in_session(test)


def test_cancelling_kills_the_command_and_keeps_the_shell(in_session: Callable[[Test], None]) -> None:
    async def test(session: GuestSession) -> None:
        await session.run("a=kept")
        task = asyncio.create_task(session.run("sleep 600.16"))
        await wait_until(lambda: len(find_processes("600.16")) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.run("echo $a")).stdout == b"kept\n"
        assert find_processes("600.16") == []

    in_session(test)


def test_a_session_closed_ends_all_of_it(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        session = await guest.open_session(env={"A": "1"}, cwd="/")
        assert (await session.run("echo $A; pwd")).stdout == b"1\n/\n"
        await session.run("sleep 600.17 & setsid nohup sleep 600.17 & (setsid sleep 600.17 &)")
        running = asyncio.create_task(session.run("sleep 600.17"))
        await wait_until(lambda: len(find_processes("600.17")) == 4)
        await session.close()
        await session.close()
        with pytest.raises(SandboxUnavailable):
            await running
        with pytest.raises(SandboxUnavailable):
            await session.run("true")
        assert find_processes("600.17") == []

    with_guest(tmp_path, test)


def test_sessions_know_nothing_of_each_other(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        first, second = await guest.open_session(env={}, cwd=""), await guest.open_session(env={}, cwd="")
        await first.run("a=1; cd /; sleep 600.18 &")
        slow = asyncio.create_task(first.run("sleep 0.5; echo slow"))
        assert (await second.run("echo ${a:-none}; pwd")).stdout_text == f"none\n{tmp_path}\n"
        assert (await second.run("while :; do :; done", timeout_s=0.1)).timed_out
        await second.close()
        assert (await slow).stdout == b"slow\n"
        assert len(find_processes("600.18")) == 1

    with_guest(tmp_path, test)
    assert find_processes("600.18") == [], "the end of the connection ends sessions"


def test_a_session_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        with pytest.raises(SandboxUnavailable, match="nope"):
            await guest.open_session(env={}, cwd="/nope")

    with_guest(tmp_path, test)


def test_a_lost_connection_ends_a_session(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        session = await guest.open_session(env={}, cwd="")
        running = asyncio.create_task(session.run("sleep 600.19"))
        await wait_until(lambda: len(find_processes("600.19")) == 1)
        await guest.close()
        with pytest.raises(GuestLost):
            await running
        with pytest.raises(GuestLost):
            await session.run("true")
        await session.close()
        assert find_processes("600.19") == []

    with_guest(tmp_path, test)
    assert os.listdir(tmp_path) == []
