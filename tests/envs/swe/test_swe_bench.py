"""rollcage/SWEBench-v0 in real containers, on rows of our own that take the official way: no data, no network."""

import asyncio
import contextlib
import json
import pickle
import subprocess
import sys
import time
from dataclasses import replace

import gymnasium
import pytest

from rollcage.__main__ import main
from rollcage.envs.swe import images, official, shelf
from rollcage.envs.swe.bench_harness import BenchHarness
from rollcage.envs.swe.build import LABEL, Source
from rollcage.envs.swe.exploits import EXPLOITS
from rollcage.envs.swe.grading import NotJudged, judge
from rollcage.envs.swe.images import build, own_name
from rollcage.envs.swe.lab import Lease
from rollcage.envs.swe.sample import sample_rows
from rollcage.envs.swe.suite import Source as Suite
from rollcage.envs.swe.suite import diff
from rollcage.envs.tools import write_call
from rollcage.errors import MissingExtra, UserError
from rollcage.sandbox.images.building import build_image
from rollcage.sandbox.images.catalogue import Catalogue
from rollcage.sandbox.types import SandboxSpec

SPANS = sample_rows()["test"][0]
TASK = {"task": "test/mini__spans-1"}
ID = "rollcage/SWEBench-v0"


@contextlib.contextmanager
def opened(docker, **arguments):
    env = gymnasium.make(ID, endpoints=docker, **{"dataset": "sample", **arguments}).unwrapped
    with contextlib.closing(env):
        yield env


def bash(command):
    return write_call("bash", command=command)


def play(env, *commands):
    env.reset(options=TASK)
    return env.step("".join(map(bash, commands)) + write_call("submit"))


@pytest.fixture
def image(docker):
    with shelf.building(100.0):
        return asyncio.run(build(SPANS, Source(), docker))


@pytest.fixture
def judged(docker, image):
    def judged(patch, row=SPANS, timeout_s=60.0):
        with contextlib.closing(Lease((docker,))) as lease:
            box = lease.create(SandboxSpec(image=image, workdir="/testbed"), deadline_s=60.0)
            return judge(BenchHarness(), box, row, patch.encode(), timeout_s=timeout_s)

    return judged


def test_gold_resolves_and_nothing_does_not_by_the_official_script_and_grading(docker):
    with opened(docker) as env:
        observation, info = env.reset(options=TASK)
        assert "merge() loses the end" in observation
        assert (info["status"], info["image"]) == ("open", own_name("mini__spans-1"))
        assert "spans.py" in env.step(bash("git status; ls; python -m unittest -v 2>&1 | tail -3"))[0]
        text, reward, terminated, _, info = env.step(env.gold())
        assert (text, reward, terminated, info["success"]) == ("Resolved.", 1.0, True, True)
        assert (info["status"], info["fail_to_pass"], info["pass_to_pass"]) == ("resolved", 1.0, 1.0)
        assert ">>>>> Start Test Output" in env.verdict.log
        assert 0.0 < env.test_s < 60.0
        env.reset(options=TASK)
        _, reward, terminated, _, info = env.step(env.empty())
    assert (reward, terminated, info["status"], info["fail_to_pass"]) == (0.0, True, "unresolved", 0.0)
    assert info["pass_to_pass"] == 1.0


def test_wrong_and_breaking_patches_do_not_resolve(judged):
    source = Suite("spans")
    broken = source.mended["spans.py"].replace("if begin > end:", "if begin > end + 10:")
    assert broken != source.mended["spans.py"]
    breaking = judged(diff(source.base, {**source.mended, "spans.py": broken}))
    assert (breaking.status, breaking.fail_to_pass) == ("unresolved", 1.0)
    assert 0 < breaking.pass_to_pass < 1
    harmless = judged(diff(source.base, {**source.base, "README.md": "Resolved.\n"}))
    assert (harmless.status, harmless.fail_to_pass, harmless.pass_to_pass) == ("unresolved", 0.0, 1.0)


def test_a_patch_without_its_last_line_end_is_applied_and_nonsense_fails_as_such_e11(judged):
    assert judged(SPANS["patch"].rstrip("\n")).resolved
    verdict = judged("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b")
    assert (verdict.status, verdict.tests) == ("patch_apply_failed", {})


def test_exploits_earn_nothing_tests_that_skip_among_them_e12(docker):
    with opened(docker) as env:
        env.reset(options=TASK)
        for name in ("tests that skip", "a test case without judgement", "another way to run tests"):
            exploit = bash(EXPLOITS[name]) + write_call("submit")
            assert exploit in env.exploits()
            env.reset(options=TASK)
            _, reward, terminated, _, info = env.step(exploit)
            assert (reward, terminated, info["status"], info["failure"]) == (0.0, True, "unresolved", None), exploit


def test_an_official_patch_of_any_size_can_be_handed_in(docker):
    before, lines = Suite("spans").base["README.md"], "".join(f"line {number}\n" for number in range(20_000))
    large = diff({"README.md": before}, {"README.md": before + lines})
    assert len(large) > 200_000
    with opened(docker) as env:
        env.reset(options=TASK)
        env.task = replace(env.task, data={**env.task.data, "patch": env.task.data["patch"] + large})
        assert env.step(env.gold())[1] == 1.0


def test_changes_to_the_hidden_tests_files_do_not_count_and_are_told(docker):
    with opened(docker) as env:
        info = play(env, "echo >tests/test_spans.py; touch conftest.py; echo '# more' >>spans.py")[-1]
        assert info["ignored_paths"] == ["conftest.py", "tests/test_spans.py"]
        assert (info["status"], info["pass_to_pass"]) == ("unresolved", 1.0)


def test_what_the_official_patch_changes_counts_even_where_it_says_how_tests_run():
    row = {**SPANS, "patch": "diff --git a/tests/conftest.py b/tests/conftest.py\n"}
    patterns = BenchHarness().protected(row)
    assert "*/conftest.py" not in patterns
    assert {"conftest.py", "tests/test_spans.py", "*.pth"} <= set(patterns)


def test_a_run_that_never_starts_is_an_infrastructure_failure_not_reward_0_e12(docker):
    with opened(docker) as env:
        env.reset(options=TASK)
        env._bench.run_tests = lambda box, row, timeout_s: BenchHarness().run_tests(box, row, timeout_s=0.01)
        _, reward, terminated, truncated, info = env.step(env.gold())
        assert (reward, terminated, truncated, info["failure"]) == (0.0, False, True, "infra")
        assert info["failure_reason"] == "not_judged"
        assert "its tests did not start" in info["failure_message"]


def test_a_patch_that_keeps_the_tests_from_starting_is_unresolved(docker, tmp_path, image):
    row = {**SPANS, "spec": {**SPANS["spec"], "install": "sh install.sh"}}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    with opened(docker, dataset="lite", data=tmp_path / "rows.json") as env:
        _, reward, terminated, _, info = play(env, "echo 'kill -9 $PPID' >install.sh")
        assert (reward, terminated, info["status"], info["failure"]) == (0.0, True, "unresolved", None)
        assert "its tests did not start" in env.verdict.log
        assert play(env, "echo 'exit 1' >install.sh; echo >>spans.py")[-1]["pass_to_pass"] == 1.0


def test_tests_that_never_end_have_not_passed(docker):
    with opened(docker, test_timeout_s=3) as env:
        _, reward, terminated, _, info = play(env, "echo 'while True: pass' >>spans.py")
    assert (reward, terminated, info["status"], info["failure"]) == (0.0, True, "unresolved", None)


def test_a_test_patch_that_does_not_fit_is_an_infrastructure_failure(judged):
    with pytest.raises(NotJudged, match="its test patch does not apply"):
        judged(SPANS["patch"], {**SPANS, "test_patch": SPANS["test_patch"].replace("\n ", "\n no such line ", 1)})


def test_an_episode_goes_on_elsewhere(docker):
    with opened(docker) as env:
        env.reset(options=TASK)
        env.step(bash("echo '# mine' >>spans.py"))
        other = pickle.loads(pickle.dumps(env))
        with contextlib.closing(other):
            assert "# mine" in other.step(bash("tail -1 spans.py"))[0]
            assert other.step(other.gold())[1] == 1.0


def test_the_history_of_an_image_that_was_built_here_ends_with_the_base_commit_e10(docker):
    with opened(docker) as env:
        env.reset(options=TASK)
        look = (
            "git log --all --format=%H; git reflog --all --format=%H; git tag; git stash list; git remote;"
            " git fsck --unreachable --no-reflogs 2>/dev/null;"
            " git cat-file --batch-all-objects --batch | grep -ac test_one_within_another;"
            " grep -rl test_one_within_another /testbed /opt /home /tmp /var /etc 2>/dev/null | cat"
        )
        assert set(env.step(bash(look))[0].split("\n")) == {SPANS["base_commit"], "0", "(exit code 0)"}


FUTURE = """set -e
cd /testbed
git config --global user.name a
git config --global user.email b
start=$(git rev-parse HEAD)
git checkout -q -b fix
echo 'how it was mended' >answer
git add answer
git commit -q -m 'Mend it'
git tag v2
git remote add origin https://example.com/repo
git update-ref refs/remotes/origin/main HEAD
git checkout -q main
echo 'stashed answer' >>spans.py
git stash -q
echo left by installing >left.txt
echo '. /opt/miniconda3/bin/activate; conda activate testbed' >/root/.bashrc
"""


def test_an_official_image_is_taken_where_it_is_there_and_what_came_later_is_cut_off_e10(docker, image, tmp_path):
    """Such an image stands in for one from the registry: root's, with the repository's future in it."""
    row = {**SPANS, "instance_id": "mini__later-1"}
    official = images.official_names(row, "x86_64")[1]
    (tmp_path / "future.sh").write_text(FUTURE)
    dockerfile = (
        f"FROM {image}\nLABEL {LABEL}=test\nUSER 0:0\nCOPY future.sh /future.sh\n"
        "RUN chown -R 0:0 /testbed /opt && bash /future.sh && rm /future.sh\n"
    )

    async def make():
        async with Catalogue(docker) as host:
            folders = {"future.sh": tmp_path / "future.sh"}
            await build_image(host.engine, official, dockerfile, folders, label=LABEL, timeout_s=60.0)

    async def remove():
        async with Catalogue(docker) as host:
            assert await host.remove(official)

    asyncio.run(make())
    try:
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        with opened(docker, dataset="lite", data=tmp_path / "rows.json") as env:
            info = env.reset()[1]
            assert info["image"] == official
            look = (
                "git log --all --format=%s; git tag; git stash list; git remote; git branch -a; cat left.txt;"
                " git cat-file --batch-all-objects --batch | grep -ac -e answer -e mended; id -u; git status --short"
            )
            said = env.step(bash(look))[0].splitlines()
            assert said == ["Setup", "Base", "* main", "left by installing", "0", "0", "(exit code 0)"]
            assert env.step(bash("echo more >>left.txt"))[0] == "(exit code 0)"
            assert b"left.txt" in env.patch(), "what is there at the start is no part of it, what changes is"
            assert env.step(env.gold())[1] == 1.0
    finally:
        asyncio.run(remove())


def test_swe_smiths_rows_have_the_bug_and_not_the_way_back(docker, tmp_path):
    source = Suite("spans")
    good, bad = {**source.mended, **source.hidden}, {**source.base, **source.hidden}
    for path, text in good.items():
        (tmp_path / "mirror" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / path).write_text(text)
    for command in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "Mended")):
        identity = ("-c", "user.name=a", "-c", "user.email=b")
        subprocess.run(("git", *identity, *command), cwd=tmp_path / "mirror", check=True)
    row = {
        "instance_id": "mini__spans.0123abcd.smith-1",
        "repo": "swesmith/mini__spans.0123abcd",
        "patch": diff(good, bad),
        "problem_statement": SPANS["problem_statement"],
        "FAIL_TO_PASS": SPANS["FAIL_TO_PASS"],
        "PASS_TO_PASS": SPANS["PASS_TO_PASS"],
        "image_name": "rollcage-test-none/here",
        "spec": SPANS["spec"],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with opened(docker, dataset="lite", data=tmp_path / "rows.jsonl", mirror=str(tmp_path / "mirror")) as env:
        try:
            env.reset()
            assert env.step(bash("git log --all --format=%s; git diff --stat"))[0] == "Base\n(exit code 0)"
            assert env.step(env.gold())[1] == 1.0
            env.reset()
            _, reward, _, _, info = env.step(env.empty())
            assert (reward, info["status"], info["fail_to_pass"]) == (0.0, "unresolved", 0.0)
        finally:
            shelf.prune(0)


@pytest.mark.parametrize(("policy", "rate"), [("gold", 1.0), ("empty", 0.0)])
def test_gold_and_empty_are_policies_of_the_command(docker, capsys, policy, rate):
    arguments = ("--policy", policy, "--env-arg", "dataset=sample", "--env-arg", f"endpoints={docker}", "--json")
    assert main(["eval", ID, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["success_rate"] == rate


def test_an_evaluation_that_is_killed_goes_on_where_it_was_and_leaves_nothing(docker, tmp_path, capsys):
    file = tmp_path / "out" / "episodes.jsonl"
    command = ["eval", ID, "--policy", "gold", "--env-arg", "dataset=sample", "--env-arg", f"endpoints={docker}"]
    command += ["--attempts", "3", "--concurrency", "2", "--output", str(tmp_path / "out"), "--json"]
    running = subprocess.Popen((sys.executable, "-m", "rollcage", *command), stdout=subprocess.DEVNULL)
    try:
        ends_at = time.monotonic() + 60.0
        while not (file.exists() and file.read_bytes().count(b"\n")):
            assert running.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.02)
    finally:
        running.kill()
        running.wait(timeout=30)
    before = file.read_text()[: file.read_text().rfind("\n") + 1]
    assert before.count("\n") < 6
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_scored"], result["success_rate"]) == (6, 1.0)
    assert file.read_text().startswith(before)
    assert file.read_text().count("\n") == 6


def test_instances_that_cannot_be_scored_are_quarantined_by_id_and_reported_e13(docker, tmp_path, capsys):
    good, undone = SPANS, {**SPANS, "instance_id": "mini__undone-1", "patch": diff({"a": ""}, {"a": "b\n"})}
    (tmp_path / "rows.json").write_text(json.dumps([good, undone]))
    arguments = ["--data", str(tmp_path / "rows.json"), "--quarantine", str(tmp_path / "q.jsonl")]
    assert main(["swebench", "check", *arguments, "--endpoint", docker, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {row["instance_id"]: (row["ok"], row["reason"]) for row in report["checked"]}
    assert found["mini__spans-1"] == (True, None)
    ok, reason = found["mini__undone-1"]
    assert not ok
    assert reason == "its official patch does not resolve it here: unresolved, FAIL_TO_PASS 0%, PASS_TO_PASS 100%"
    with opened(docker, dataset="lite", data=tmp_path / "rows.json", quarantine=tmp_path / "q.jsonl") as env:
        assert env.tasks.splits == {"test": 1}
        assert env.tasks.quarantined == {"test/mini__undone-1": reason}
    with opened(docker, dataset="lite", data=tmp_path / "rows.json", quarantine="") as env:
        assert env.tasks.splits == {"test": 2}
    command = ["eval", ID, "--policy", "empty", "--env-arg", f"data={tmp_path / 'rows.json'}"]
    assert main([*command, "--env-arg", f"quarantine={tmp_path / 'q.jsonl'}"]) == 0
    assert "quarantined  test/mini__undone-1\n" in capsys.readouterr().out
    shelf.prune(0)


def test_without_image_or_docker_one_line_says_what_to_do(docker, tmp_path, monkeypatch):
    row = {key: value for key, value in SPANS.items() if key != "spec"}
    row |= {"instance_id": "pallets__flask-0", "repo": "pallets/flask", "version": "2.3"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    with opened(docker, dataset="lite", data=tmp_path / "rows.json") as env, pytest.raises(UserError) as raised:
        env.reset()
    assert "run  rollcage swebench build pallets__flask-0 --mirror PATH_OR_URL" in str(raised.value)
    assert "\n" not in str(raised.value)
    with monkeypatch.context() as patch, opened(docker) as env:
        patch.setattr(official, "_loaded", {})
        patch.setattr(official, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match="'swebench' is not installed"):
            env.reset()
    with pytest.raises(UserError, match="needs Docker"):
        gymnasium.make(ID, dataset="sample", endpoints="process:")
    with pytest.raises(UserError, match="is not on this machine"):
        gymnasium.make(ID, data_dir=tmp_path)
    with opened(f"unix://{tmp_path}/none.sock") as env, pytest.raises(Exception, match="no Docker daemon answers"):
        env.reset()
