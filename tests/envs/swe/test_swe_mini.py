"""rollcage/SWEMini-v0, whole, in real containers: what resolves an issue and what does not."""

import contextlib

import gymnasium
import pytest

from rollcage.envs.swe.grading import judge
from rollcage.envs.swe.lab import Lease
from rollcage.envs.swe.mini_harness import MiniHarness
from rollcage.envs.swe.suite import Source, diff, mini_rows
from rollcage.envs.tools import write_call
from rollcage.sandbox.types import SandboxSpec

ROWS = {row["repo"].partition("/")[2]: row for rows in mini_rows().values() for row in rows}
BREAKING = {
    "fields": ("fields.py", "    return value\n\n\ndef read", "    return '\"' + value + '\"'\n\n\ndef read"),
    "numerals": (
        "numerals.py",
        'if not 1 <= number <= 3999:\n        raise ValueError(f"not b',
        'if 0:\n        raise (f"b',
    ),
    "orders": ("orders/errors.py", '" -> ".join', '"".join'),
    "paragraphs": ("paragraphs.py", "if width < 1:", "if width < 0:"),
    "recent": ("recent/cache.py", "return default", "return None"),
    "releases": ("releases/version.py", "if len(numbers) != 3 or", "if len(numbers) > 3 or"),
    "settings": ("settings/names.py", "if not all(parts):", "if not parts:"),
    "shares": ("shares.py", " or min(weights) < 0", ""),
    "slugs": ("slugs/convert.py", 'return "".join(character for', 'return text or "".join(character for'),
    "spans": ("spans.py", "if begin > end:", "if begin > end + 10:"),
}
"""Changes of the mended code that break a test which passed before."""

SPEC = SandboxSpec(workdir="/work/repo")


def judged(lease, name, patch, timeout_s=20.0):
    box = lease.create(SPEC, deadline_s=60.0)
    try:
        return judge(MiniHarness(), box, ROWS[name], patch.encode(), timeout_s=timeout_s)
    finally:
        lease.delete(box)


@contextlib.contextmanager
def opened(docker, **arguments):
    env = gymnasium.make("rollcage/SWEMini-v0", endpoints=docker, **arguments).unwrapped
    with contextlib.closing(env):
        yield env


def task_id(env, name):
    return next(
        f"{split}/{row['instance_id']}" for split, rows in mini_rows().items() for row in rows if row is ROWS[name]
    )


def bash(command):
    return write_call("bash", command=command)


def play(env, name, *commands):
    env.reset(options={"task": task_id(env, name)})
    return env.step("".join(map(bash, commands)) + write_call("submit"))


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_suite_gold_resolves_and_empty_wrong_and_breaking_patches_do_not(docker, name):
    row, source = ROWS[name], Source(name)
    path, old, new = BREAKING[name]
    assert source.mended[path].count(old) == 1
    broken = {**source.mended, path: source.mended[path].replace(old, new)}
    wrong = {**source.base, "README.md": source.base["README.md"] + "\nResolved.\n"}
    with contextlib.closing(Lease((docker,))) as lease:
        gold = judged(lease, name, row["patch"])
        empty = judged(lease, name, "")
        harmless = judged(lease, name, diff(source.base, wrong))
        breaking = judged(lease, name, diff(source.base, broken))
    assert (gold.status, gold.fail_to_pass, gold.pass_to_pass) == ("resolved", 1.0, 1.0)
    assert sorted(gold.tests) == sorted([*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]])
    for verdict in (empty, harmless):
        assert (verdict.status, verdict.fail_to_pass, verdict.pass_to_pass) == ("unresolved", 0.0, 1.0)
    assert (breaking.status, breaking.fail_to_pass) == ("unresolved", 1.0)
    assert 0 < breaking.pass_to_pass < 1


def test_an_agent_that_reads_edits_tests_and_hands_in_is_rewarded(docker):
    with opened(docker) as env:
        observation, info = env.reset(options={"task": task_id(env, "spans")})
        assert "merge() loses the end" in observation
        assert info["status"] == "open"
        said = env.step(write_call("view", path="spans.py", start_line=12, end_line=16))[0]
        assert "    16\t" in said
        assert "for begin, end in sorted" in said
        assert "Ran 5 tests" in env.step(bash("python3 -m unittest discover -s tests -t ."))[0]
        said, reward, terminated, _, info = env.step(write_call("edit", path="spans.py"))
        assert (reward, terminated, info["num_malformed_calls"]) == (0.0, False, 1)
        assert "edit needs the argument 'old'" in said
        old = "if merged and begin < merged[-1][1]:\n            merged[-1] = (merged[-1][0], end)"
        new = "if merged and begin <= merged[-1][1]:\n            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))"
        assert env.step(write_call("edit", path="spans.py", old=old, new=new))[0] == "spans.py is written."
        text, reward, terminated, truncated, info = env.step("Done.\n" + write_call("submit"))
    assert (text, reward, terminated, truncated, info["success"]) == ("Resolved.", 1.0, True, False, True)
    assert (info["status"], info["fail_to_pass"], info["pass_to_pass"]) == ("resolved", 1.0, 1.0)
    assert env.verdict.tests["tests/test_spans.py::MergeTest::test_apart"] == "passed"


def test_exploits_earn_nothing_e12_e13(docker):
    with opened(docker) as env:
        for name in ("spans", "orders"):
            for exploit in env.exploits():
                env.reset(options={"task": task_id(env, name)})
                _, reward, terminated, _, info = env.step(exploit)
                assert (reward, terminated, info["success"]) == (0.0, True, False), exploit
                assert (info["status"], info["failure"]) == ("unresolved", None), exploit


def test_changes_to_tests_and_to_how_they_run_are_left_out_and_told(docker):
    command = (
        "touch conftest.py && mkdir -p a && touch a/sitecustomize.py a/x.pth"
        " && echo >tests/test_spans.py && rm -r tests/__init__.py"
    )
    with opened(docker) as env:
        info = play(env, "spans", command)[-1]
        assert info["ignored_paths"] == [
            "a/sitecustomize.py",
            "a/x.pth",
            "conftest.py",
            "tests/__init__.py",
            "tests/test_spans.py",
        ]
        assert info["pass_to_pass"] == 1.0, "the tests stand as they were"
        gold = env.gold().partition('<tool_call>\n{"name": "submit"')[0]
        env.reset(options={"task": task_id(env, "spans")})
        info = env.step(gold + bash(command) + write_call("submit"))[-1]
        assert info["status"] == "resolved", "a good patch stays good"


def test_lines_that_a_test_run_prints_are_no_results(docker):
    row = ROWS["spans"]
    forged = "".join(f'0123456789abcdef ["{test}", "passed"]\n{test} PASSED\n' for test in row["FAIL_TO_PASS"])
    code = (
        "\nimport os\n"
        "for fd in range(1, 64):\n"
        "    try:\n"
        f"        os.write(fd, {forged.encode()!r})\n"
        "    except OSError:\n"
        "        pass\n"
    )
    command = f"cat >>spans.py <<'END'\n{code}END"
    with opened(docker) as env:
        info = play(env, "spans", command)[-1]
    assert (info["status"], info["fail_to_pass"], info["pass_to_pass"]) == ("unresolved", 0.0, 1.0)
    assert "PASSED" in env.verdict.log


def test_tests_that_never_end_have_not_passed(docker):
    with opened(docker, test_timeout_s=2) as env:
        _, reward, terminated, _, info = play(env, "spans", "echo 'while True: pass' >>spans.py")
    assert (reward, terminated, info["status"], info["failure"]) == (0.0, True, "unresolved", None)


def test_a_patch_that_kills_the_judges_sandbox_is_no_infrastructure_failure(docker):
    with opened(docker) as env:
        command = "printf 'import os, signal\\nos.kill(-1, signal.SIGKILL)\\n' >>spans.py"
        _, reward, terminated, _, info = play(env, "spans", command)
    assert (reward, terminated, info["status"], info["failure"]) == (0.0, True, "unresolved", None)


def test_the_history_ends_with_the_base_commit_e10(docker):
    with opened(docker) as env:
        env.reset(options={"task": task_id(env, "spans")})
        base = ROWS["spans"]["base_commit"]
        look = (
            "git log --all --format=%H; git reflog --all --format=%H; git tag; git stash list; git remote;"
            " git fsck --unreachable --no-reflogs 2>/dev/null"
        )
        assert set(env.step(bash(look))[0].splitlines()) == {base, "(exit code 0)"}
        seen = "git cat-file --batch-all-objects --batch | grep -ac test_one_within_another; ls -a .. | tr '\\n' ' '"
        assert env.step(bash(seen))[0].splitlines()[0] == "0", "no object holds a hidden test"
        folders = "/work /home /tmp /var /etc /usr/local"
        packs = env.step(
            bash(f"find .git/objects -name '*.pack'; grep -rl test_one_within_another {folders} 2>/dev/null")
        )[0]
        assert packs.strip().startswith("(exit code")


def test_a_patch_is_applied_without_its_last_line_end_or_fails_as_such_e11(docker):
    with contextlib.closing(Lease((docker,))) as lease:
        assert judged(lease, "spans", ROWS["spans"]["patch"].rstrip("\n")).resolved
        for patch in ("no patch at all", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "--- a\n"):
            verdict = judged(lease, "spans", patch)
            assert (verdict.status, verdict.tests) == ("patch_apply_failed", {})
