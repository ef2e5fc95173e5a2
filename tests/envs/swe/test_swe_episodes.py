"""Software engineering episodes: what they leave, how they go on elsewhere, and what a failing place makes of them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import gymnasium
import pytest

from rollcage.__main__ import main
from rollcage.envs.swe import lab
from rollcage.envs.swe.grading import run_unittest
from rollcage.envs.tools import write_call
from rollcage.errors import UserError
from rollcage.sandbox.drivers.base import LABEL_MANAGER

ID = "rollcage/SWEMini-v0"
TASK = {"task": "test/mini__spans-1"}


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLCAGE_SANDBOX", str(tmp_path / "state"))
    return tmp_path / "state"


@contextlib.contextmanager
def opened(endpoint="process:", **arguments):
    env = gymnasium.make(ID, endpoints=endpoint, **arguments).unwrapped
    with contextlib.closing(env):
        yield env


def bash(command):
    return write_call("bash", command=command)


def test_the_patch_is_all_that_was_done_to_the_work_tree_whatever_git_was_told(state):
    with opened() as env:
        env.reset(options=TASK)
        env.step(
            bash(
                "printf 'a\\0b\\377' >bin; mkdir d; echo x >'d/new file'; rm README.md; chmod +x spans.py;"
                " ln -s d link;"
                " echo ignored >x.pyc; printf '*.pyc\\n' >>.gitignore; git add -A;"
                " git -c user.name=a -c user.email=b commit -qm 'my own'; git checkout -q -b other;"
                " git config diff.external /bin/false; git config diff.noprefix true;"
                " git config core.fsmonitor /bin/false;"
                " echo '*.py -diff' >.git/info/attributes; echo y >>spans.py"
            )
        )
        patch = env.patch()
        assert b"GIT binary patch" in patch
        for part in (b"b/d/new file", b"deleted file mode", b"new mode 100755", b"new file mode 120000", b"+y\n"):
            assert part in patch
        assert b"x.pyc" not in patch
        env.restore(env.snapshot())
        assert env.patch() == patch
        assert "x y" in env.step(bash("cat 'd/new file' | tr '\\n' ' '; tail -1 spans.py"))[0]
        assert env.patch() == patch, "made again, it is the same"
        env.step(bash("rm -rf .git"))
        assert env.patch() == b""
        assert env.step(write_call("submit"))[4]["status"] == "unresolved"


def test_a_snapshot_goes_on_in_another_environment(state):
    with opened() as env, opened() as other:
        env.reset(options=TASK)
        env.step(bash("echo '# mine' >>spans.py"))
        other.restore(env.snapshot())
        assert "# mine" in other.step(bash("tail -1 spans.py"))[0]
        assert other.step(other.gold())[1] == 1.0
        assert "# mine" in env.step(bash("tail -1 spans.py"))[0]


def test_a_sandbox_that_is_killed_makes_the_episode_an_infrastructure_failure(docker):
    with opened(docker) as env:
        env.reset(options=TASK)
        _, reward, terminated, truncated, info = env.step(bash("echo last words; kill -9 -1"))
        if not truncated:  # the command's own answer was quicker
            _, reward, terminated, truncated, info = env.step(bash("echo still there?"))
        assert (reward, terminated, truncated, info["failure"]) == (0.0, False, True, "infra")
        assert info["failure_reason"].startswith("Sandbox")
        env.reset(options=TASK)
        assert env.step(env.gold())[1] == 1.0, "the next episode has a new one"


def test_a_test_run_that_never_starts_is_an_infrastructure_failure_e12(state):
    with opened() as env:
        env.reset(options=TASK)
        env._harness.run_tests = lambda box, row, timeout_s: run_unittest(box, ["tests/none.py::A::b"], timeout_s=5.0)
        _, reward, terminated, truncated, info = env.step(env.gold())
        assert (reward, terminated, truncated, info["failure"], info["success"]) == (0.0, False, True, "infra", False)
        assert info["failure_reason"] == "not_judged"
        assert info["failure_message"].startswith("the test run did not start")


def test_closing_ends_every_sandbox_and_the_manager(state):
    before = {thread.name for thread in threading.enumerate()}
    first, second = (gymnasium.make(ID, endpoints="process:").unwrapped for _ in range(2))
    for env in (first, second):
        env.reset(options=TASK)
        env.step(bash("true"))
    (manager,) = {env._lease._lab for env in (first, second)}
    assert len(manager.sandboxes.list_sandboxes()) == 2, "both share one"
    first.close()
    first.close()
    assert len(manager.sandboxes.list_sandboxes()) == 1
    second.close()
    assert lab._labs == {}
    assert {thread.name for thread in threading.enumerate()} <= before
    second.reset(options=TASK)
    assert second.step(bash("echo again"))[0].startswith("again"), "a closed one may be reset"
    second.close()


def test_an_environment_that_nobody_closed_leaves_nothing_either(state):
    env = gymnasium.make(ID, endpoints="process:").unwrapped
    env.reset(options=TASK)
    env.step(bash("true"))
    manager = env._lease._lab
    with opened() as other:
        other.reset(options=TASK)
        del env
        other.step(bash("true"))
        assert len(manager.sandboxes.list_sandboxes()) == 1
    assert lab._labs == {}


_KILLED = """
import os, signal, sys, gymnasium, rollcage
env = gymnasium.make("rollcage/SWEMini-v0", endpoints=sys.argv[1]).unwrapped
env.reset(seed=0)
env.step('```bash\\ntrue\\n```')
print(len(env._lease._lab.sandboxes.list_sandboxes()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_deleted_by_the_next_one(docker):
    done = subprocess.run((sys.executable, "-c", _KILLED, docker), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n"), done.stderr
    with opened(docker) as env:
        env.reset(options=TASK)
        env.step(bash("true"))
        assert len(env._lease._lab.sandboxes.list_sandboxes()) == 1, "its own"


def test_a_process_that_ends_without_closing_leaves_nothing(docker, manager_id):
    program = _KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
    done = subprocess.run((sys.executable, "-c", program, docker), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    label = f"label={LABEL_MANAGER}={manager_id}"
    command = ("docker", "-H", docker, "ps", "-aq", "--filter", label)
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == ""


def test_two_processes_have_managers_of_their_own(state):
    program = _KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "env.close()")
    with opened() as env:
        env.reset(options=TASK)
        env.step(bash("true"))
        done = subprocess.run((sys.executable, "-c", program, "process:"), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        assert env.step(bash("echo here"))[0].startswith("here")
    assert sorted(os.listdir(state / "envs")) == ["0", "1"]


def test_without_docker_or_image_one_line_says_what_to_do(state, docker_endpoint):
    for arguments, words in (
        ({"endpoint": f"unix://{state}/none.sock"}, "docker"),
        ({"endpoint": docker_endpoint, "image": "no-such-image-here"}, "no-such-image-here"),
        ({"endpoint": "nonsense"}, "endpoint 'nonsense'"),
    ):
        with opened(**arguments) as env, pytest.raises(UserError) as raised:
            env.reset(options=TASK)
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)


def test_wrong_arguments_are_told():
    for arguments in ({"command_timeout_s": 0}, {"test_timeout_s": "1"}, {"max_output_chars": 5}, {"split": "dev"}):
        with pytest.raises(UserError):
            opened(**arguments).__enter__()


@pytest.mark.parametrize(("policy", "rate"), [("gold", 1.0), ("empty", 0.0)])
def test_gold_and_empty_are_policies_of_the_command(state, capsys, policy, rate):
    arguments = ("--policy", policy, "--env-arg", "endpoints=process:", "--num-tasks", "2", "--json")
    assert main(["eval", ID, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["success_rate"] == rate
    assert main(["eval", "rollcage/Countdown-v0", "--policy", "gold"]) == 2
    assert "offers no gold policy" in capsys.readouterr().err
