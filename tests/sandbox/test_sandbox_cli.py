"""The commands ``rollcage sandbox ...``, as users run them; without containers where none is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.service.service_process import ServiceProcess, running

from rollcage.sandbox.cli import COMMANDS
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable, ImageMissing, SandboxError
from rollcage.sandbox.sync import SyncSandboxes
from rollcage.sandbox.types import SandboxSpec, State

BASE = [sys.executable, "-m", "rollcage", "sandbox"]


def _start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command that may be interrupted, even where these tests run in a background job, which ignores SIGINT."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class Shell:
    """Runs commands on one state folder."""

    def __init__(self, folder: Path, *place: str) -> None:
        self.folder, self.place = folder, place

    def __call__(
        self, command: str, *arguments: str, code: int = 0, stdin: str = "", **how: str
    ) -> subprocess.CompletedProcess[str]:
        given = [*BASE, command, "--folder", str(self.folder), *self.place, *arguments]
        done = subprocess.run(given, capture_output=True, text=True, input=stdin, timeout=60, env={**os.environ, **how})
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def create(self, *arguments: str) -> str:
        """Make a sandbox that stays; returns its id."""
        return self("run", "--keep", *arguments, "rollcage-base", "true").stderr.split()[-1]


@pytest.fixture(params=["own manager", "service"])
def sh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Commands with a manager of their own, and with a service."""
    if request.param == "own manager":
        shell = Shell(tmp_path / "state", "--endpoint", "process:")
        yield shell
        shell("rm", "--all")
        return
    with running(tmp_path / "state"):
        shell = Shell(tmp_path / "state")
        yield shell
        shell("rm", "--all")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Shell]:
    """Commands with a manager of their own."""
    shell = Shell(tmp_path / "state", "--endpoint", "process:")
    yield shell
    shell("rm", "--all")


def test_run_shows_output_as_it_comes_and_passes_the_exit_code_on(sh: Shell) -> None:
    done = sh("run", "rollcage-base", "echo out; echo error >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == ("out\n", "error\n")
    assert sh("run", "rollcage-base", "echo", "$HOME; |").stdout == "$HOME; |\n", "several are a program's arguments"
    assert sh("run", "--stdin", "rollcage-base", "cat", stdin="given").stdout == "given"
    assert sh("run", "--env", "A=b=c", "rollcage-base", "echo $A").stdout == "b=c\n"
    assert "deadline" in sh("run", "--timeout", "0.5", "rollcage-base", "sleep 30", code=124).stderr
    sh("run", "rollcage-base", "kill -9 $$", code=137)
    assert json.loads(sh("ls", "--json").stdout) == [], "nothing is left"


def test_run_json_is_one_exact_document(sh: Shell) -> None:
    told = json.loads(sh("run", "--json", "rollcage-base", "printf '\\377ok'; exit 3", code=3).stdout)
    assert (told["exit_code"], told["stdout"], told["stdout_base64"]) == (3, "�ok", "/29r")


def test_a_sandbox_from_its_start_to_its_end(sh: Shell, tmp_path: Path) -> None:
    box = sh.create("--key", "mine", "--owner", "me", "--ttl", "600")
    [info] = json.loads(sh("ls", "--json").stdout)
    assert (info["id"], info["key"], info["owner"], info["state"]) == (box, "mine", "me", "READY")
    table = sh("ls", "--owner", "me").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["ID", box]
    assert len(sh("ls", "--owner", "you").stdout.splitlines()) == 1
    home = sh("exec", box, "pwd").stdout.strip()

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b").write_text("content")
    sh("exec", box, "mkdir deep")
    sh("cp", str(tmp_path / "data"), f"{box}:{home}/deep")
    assert sh("exec", box, "cat 'deep/data/a b'").stdout == "content"
    sh("cp", f"{box}:{home}/deep/data", str(tmp_path / "back"))
    assert (tmp_path / "back" / "a b").read_text() == "content"
    sh("cp", f"{box}:{home}/deep/data/a b", str(tmp_path))
    assert (tmp_path / "a b").read_text() == "content"
    assert "exists" in sh("cp", f"{box}:{home}/deep/data/a b", str(tmp_path), code=2).stderr

    done = sh("shell", box, stdin="cd /tmp\nX=5\n\npwd; echo $X\nfalse\n", code=1)
    assert done.stdout == "/tmp\n5\n"
    assert sh("shell", box, stdin="echo a\nexit\necho b\n").stdout == "a\n"

    assert sh("logs", box).stdout == ""
    assert json.loads(sh("logs", box, "--json").stdout) == {"id": box, "logs": ""}
    kinds = [json.loads(line)["kind"] for line in sh("events", box, "--json").stdout.splitlines()]
    assert {"created", "ready"} <= set(kinds)
    assert sh("reap", "--json").stdout == "[]\n"
    assert sh("rm", box).stdout == f"{box}\n"
    assert json.loads(sh("rm", "--json", box, code=1).stdout) == []
    assert "deleted" in sh("events", box).stdout, "history stays"
    assert f"no sandbox '{box}'" in sh("exec", box, "true", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rn"], "Did you mean 'run'?"),
        (["run"], "image"),
        (["run", "rollcage-base"], "rollcage sandbox run rollcage-base 'ls -l'"),
        (["exec", "mine"], "rollcage sandbox exec mine 'ls -l'"),
        (["run", "--env", "A", "rollcage-base", "true"], "NAME=VALUE"),
        (["run", "--memory", "lots", "rollcage-base", "true"], "64m"),
        (["run", "--timeout", "-1", "rollcage-base", "true"], "at least 0"),
        (["run", "--image", "x"], "unrecognized arguments: --image"),
        (["cp", "a", "b"], "ID:PATH"),
        (["cp", "x:a", "y:b"], "ID:PATH"),
        (["rm"], "--all"),
        (["rm", "--owner", "me"], "--all"),
        (["rm", "--all", "x"], "--all"),
        (["images", "biuld"], "Did you mean 'build'?"),
        (["images", "build", "best"], "base"),
        (["serve", "--host", "0.0.0.0"], "--beyond-loopback"),
        (["serve", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["serve", "--port", "99999"], "99999"),
        (["ls", "--endpoint", "nonsense"], "unix:///PATH"),
        (["events", "--after", "x"], "whole number"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], told: str, tmp_path: Path) -> None:
    place = ["--folder", str(tmp_path), "--endpoint", "process:"] if arguments[0] == "serve" else []
    done = subprocess.run([*BASE, *arguments, *place], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rollcage sandbox: ")
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = subprocess.run([*BASE, command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert f"examples:\n  rollcage sandbox {command}" in done.stdout


def test_the_help_needs_no_extra_and_names_every_command() -> None:
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['aiodocker', 'aiohttp', 'fastapi', 'uvicorn']))\n"
        "from rollcage.__main__ import main\nsys.exit(main(['sandbox', *sys.argv[1:]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert all(f"\n  {command}" in done.stdout for command in COMMANDS)
    for command in (["run", "--help"], ["serve", "--help"], ["doctor", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "rollcage-base", "true"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
        (["images", "ls"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
        (["images", "build", "base"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
        (["images", "prune"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
        (["reap"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
        (["chaos", "--cycles", "1"], "no Docker daemon answers at unix:///nowhere/docker.sock"),
    ],
)
def test_docker_down_is_one_line_at_once(arguments: list[str], told: str, tmp_path: Path) -> None:
    place = ["--folder", str(tmp_path)] if arguments[0] != "chaos" else []
    place += ["--endpoint", "unix:///nowhere/docker.sock"]
    begin_s = time.monotonic()
    done = subprocess.run([*BASE, arguments[0], *place, *arguments[1:]], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begin_s < 15.0
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("seed ")]
    assert len(lines) == 1, done.stderr
    assert told in lines[0]


def test_no_permission_is_one_line_at_once_in_commands_and_in_the_library(tmp_path: Path) -> None:
    """As another user, on a socket that is somebody else's."""
    code = (
        "import os, pkgutil, socket, statistics, sys, tempfile\nfrom importlib import import_module\n"
        "import rollcage.sandbox.commands as commands\n"
        "import rollcage.sandbox.manager.manager, rollcage.sandbox.drivers.docker, rollcage.sandbox.images.base\n"
        "from rollcage.__main__ import main\nfrom rollcage.sandbox import SandboxSpec, SyncSandboxes\n"
        "from rollcage.sandbox.errors import DaemonForbidden\n"
        "for it in pkgutil.iter_modules(commands.__path__): import_module(commands.__name__ + '.' + it.name)\n"
        "folder = tempfile.mkdtemp()\nos.chmod(folder, 0o777)\npath = folder + '/socket'\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen(); os.chmod(path, 0)\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "place = ['--folder', folder + '/state', '--endpoint', 'unix://' + path]\n"
        "for line in ('run rollcage-base true', 'images ls', 'images build base', 'images prune', 'reap', 'doctor'):\n"
        "    name, *rest = line.split()\n"
        "    print(main(['sandbox', name, *place, *rest]), flush=True)\n"
        "with SyncSandboxes(folder=folder + '/state', endpoints=('unix://' + path,)) as sandboxes:\n"
        "    try: sandboxes.create(SandboxSpec())\n"
        "    except DaemonForbidden as error: print(type(error).__name__)\n"
    )
    begin_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begin_s < 25.0
    told = [line for line in done.stdout.splitlines() if not line.startswith(("ok ", "NO ", " "))]
    assert told == ["2", "2", "2", "2", "2", "1", "DaemonForbidden"], done.stderr
    assert "NO  permission" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 5, done.stderr
    assert all("no permission to talk to the Docker daemon" in line and "usermod" in line for line in lines)


@pytest.mark.parametrize("endpoint", ["unix:///nowhere/docker.sock", "docker"])
def test_the_service_says_at_once_what_is_missing(endpoint: str, tmp_path: Path, docker_endpoint: str) -> None:
    kind: type[SandboxError] = ImageMissing if endpoint == "docker" else DaemonUnreachable
    service = ServiceProcess(tmp_path, endpoint=docker_endpoint if endpoint == "docker" else endpoint)
    try:
        with SyncSandboxes(folder=tmp_path) as sandboxes:
            for key in ("", "mine", "mine"):
                begin_s = time.monotonic()
                with pytest.raises(kind) as told:
                    sandboxes.create(SandboxSpec(image="rollcage-no-such-image"), key=key)
                assert time.monotonic() - begin_s < 5.0
                assert "\n" not in str(told.value)
            assert {info.state for info in sandboxes.list_sandboxes()} <= {State.FAILED}, "nothing is pending"
            if kind is DaemonUnreachable:
                for call in (sandboxes.reap, sandboxes.prune_images):
                    with pytest.raises((kind, HostUnavailable), match="no Docker daemon answers"):
                        call()
    finally:
        assert service.stop() == 0
    assert service.errors == ""


def test_a_missing_image_is_one_line_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BASE, "run", "--folder", str(tmp_path), "rollcage-no-such-image", "true"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "rollcage-no-such-image" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_run_in_a_container_is_held_to_its_limits(tmp_path: Path) -> None:
    command = "id -u; ls /sys/class/net; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>&-"
    done = subprocess.run(
        [*BASE, "run", "--folder", str(tmp_path), "--memory", "64m", "rollcage-base", f"{command}; exit 5"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split()) == (5, ["1000", "lo", str(64 * 1024 * 1024)]), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, own: Shell) -> None:
    command = [*BASE, "run", "--folder", str(own.folder), *own.place, "rollcage-base", "echo begun; sleep 60"]
    process = _start(command)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (128 + number, "")
    assert json.loads(own("ls", "--json").stdout) == []


def test_events_are_followed_until_interrupted(own: Shell) -> None:
    own.create()
    command = [*BASE, "events", "--folder", str(own.folder), *own.place, "--follow", "--json"]
    process = _start(command)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["kind"]
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "")


def test_a_copy_out_cannot_leave_its_target(own: Shell, tmp_path: Path) -> None:
    box = own.create()
    home = own("exec", box, "mkdir evil; ln -s /etc/passwd evil/link; pwd").stdout.strip()
    target = tmp_path / "inner" / "out"
    target.parent.mkdir()
    own("cp", f"{box}:{home}/evil", str(target), code=1)
    assert list(target.parent.iterdir()) == []
    own("cp", str(tmp_path / "inner"), f"{box}:", code=2)
    assert own("cp", f"{box}:{home}/evil", "/nowhere/x", code=1).stderr.count("\n") == 1


def test_text_from_a_sandbox_cannot_command_the_terminal(own: Shell) -> None:
    own.create("--key", "\x1b[2Jkey")
    for command in ("ls", "events"):
        assert "\x1b" not in own(command).stdout


def test_a_reader_that_leaves_is_no_error(own: Shell) -> None:
    line = f"{' '.join(BASE)} run --folder {own.folder} --endpoint process: rollcage-base 'yes' | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "y\n", "")


def test_the_state_folder_follows_xdg(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "ROLLCAGE_SANDBOX"}
    for name, value, wanted in [
        ("XDG_STATE_HOME", str(tmp_path / "xdg"), tmp_path / "xdg" / "rollcage" / "sandbox"),
        ("ROLLCAGE_SANDBOX", str(tmp_path / "mine"), tmp_path / "mine"),
    ]:
        given = [*BASE, "ls", "--endpoint", "process:"]
        subprocess.run(given, env={**environment, name: value}, check=True, capture_output=True, timeout=60)
        assert (wanted / "manager.db").exists()
        assert wanted.stat().st_mode & 0o777 == 0o700
