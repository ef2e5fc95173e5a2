"""Repositories for images: what lies before a commit and nothing else, whichever way they are got."""

import asyncio
import os
import subprocess

import pytest

from rollcage.envs.swe import sources
from rollcage.envs.swe.suite import make_row, mini_files
from rollcage.errors import UserError
from rollcage.sandbox.errors import ImageMissing


def git(folder, *arguments, time=1_000_000_000):
    env = {**os.environ, "GIT_AUTHOR_DATE": f"{time} +0000", "GIT_COMMITTER_DATE": f"{time} +0000"}
    identity = ("-c", "user.name=a", "-c", "user.email=b")
    done = subprocess.run(("git", "-C", str(folder), *identity, *arguments), env=env, capture_output=True, check=True)
    return done.stdout.decode(errors="replace").strip()


@pytest.fixture
def history(tmp_path):
    """A repository with a past, a commit, and a future; returns it and the commit."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commits = []
    for number in range(4):
        (folder / "file").write_text(f"version {number}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {number}", time=1_000_000_000 + 1000 * number)
        commits.append(git(folder, "rev-parse", "HEAD"))
    git(folder, "tag", "v0", commits[0])
    git(folder, "tag", "-a", "v1", "-m", "one", commits[1], time=1_000_001_500)
    git(folder, "tag", "-a", "late", "-m", "how it was mended", commits[1], time=1_000_009_000)
    git(folder, "tag", "-a", "v3", "-m", "three", commits[3], time=1_000_003_500)
    git(folder, "branch", "fix", commits[3])
    return folder, commits[2]


def objects(repository):
    return git(repository, "cat-file", "--batch-all-objects", "--batch")


def test_a_repository_from_a_mirror_ends_with_the_base_commit_e10(history, tmp_path):
    mirror, base = history
    (tmp_path / "out").mkdir()
    asyncio.run(sources.from_mirror(str(mirror), base, tmp_path / "out", "x", 60.0))
    made = tmp_path / "out" / "git"
    assert git(made, "log", "--all", "--format=%s").splitlines() == ["commit 2", "commit 1", "commit 0"]
    assert git(made, "rev-parse", "main") == base
    assert git(made, "tag").splitlines() == ["v0", "v1"], "packages take their version from those"
    assert git(made, "describe", "main") == f"v1-1-g{base[:7]}"
    assert not any(words in objects(made) for words in ("version 3", "how it was mended", "commit 3", "three"))
    assert git(made, "fsck", "--unreachable", "--no-reflogs") == ""
    assert git(made, "reflog", "--all") == git(made, "remote") == ""
    assert not {"FETCH_HEAD", "ORIG_HEAD", "logs", "index"} & {path.name for path in made.iterdir()}
    assert (tmp_path / "out" / "tree" / "file").read_text() == "version 2\n"


def test_a_commit_that_a_mirror_does_not_have_is_told(history, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ImageMissing, match=r"x: sh failed: .*not our ref"):
        asyncio.run(sources.from_mirror(str(history[0]), "1" * 40, tmp_path / "out", "x", 60.0))


def test_requirements_may_be_those_of_a_later_commit_which_stays_outside(history, tmp_path):
    mirror, _ = history
    later = git(mirror, "rev-parse", "main")
    asyncio.run(sources.tree_from_mirror(str(mirror), later, tmp_path, "x", 60.0))
    assert (tmp_path / "setup" / "file").read_text() == "version 3\n"


def test_a_repository_of_files_is_the_same_commit_every_time(tmp_path):
    asyncio.run(sources.from_files(mini_files("spans"), tmp_path, "x", 60.0))
    assert git(tmp_path / "git", "rev-parse", "main") == make_row("spans")["base_commit"]
    assert "worktree" not in (tmp_path / "git" / "config").read_text(), "it is moved to another place"


def test_mirrors_are_paths_or_urls_for_one_repository_or_many(tmp_path):
    (tmp_path / "a" / "b.git").mkdir(parents=True)
    assert sources.mirror_of(f"{tmp_path}/{{repo}}.git", "a/b") == f"{tmp_path}/a/b.git"
    assert sources.mirror_of(sources.HUB, "a/b") == "https://github.com/a/b"
    assert sources.mirror_of("git@host:{repo}", "a/b") == "git@host:a/b"
    with pytest.raises(UserError, match="there is no such folder"):
        sources.mirror_of(str(tmp_path / "none"), "a/b")
