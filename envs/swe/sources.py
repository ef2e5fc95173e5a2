"""Where a task's repository comes from: a git mirror, or the source distribution of a release."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from rollcage.envs.swe.git_objects import AUTHOR, DATE, MESSAGE
from rollcage.errors import UserError
from rollcage.sandbox.images.foreign_pip import arguments
from rollcage.sandbox.images.running import run, silent

HUB = "https://github.com/{repo}"

CUT = """set -e
source=$1 commit=$2
export GIT_TERMINAL_PROMPT=0 GIT_DIR="$3"
git init -q -b main --template=
git config core.bare false
git fetch -q --no-tags "$source" "$commit"
commit=$(git rev-parse FETCH_HEAD^0)
git update-ref refs/heads/main "$commit"
ends=$(git show -s --format=%ct "$commit")
git ls-remote --tags "$source" | while read -r id name; do
  case "$name" in *^{}) ;; *) continue ;; esac
  if git cat-file -e "$id^{commit}" 2>/dev/null; then echo "${name%^??}:${name%^??}"; fi
done >"$GIT_DIR/wanted"
git ls-remote --tags --refs "$source" | while read -r id name; do
  if git cat-file -e "$id^{commit}" 2>/dev/null; then echo "$name:$name"; fi
done >>"$GIT_DIR/wanted"
if [ -s "$GIT_DIR/wanted" ]; then sort -u "$GIT_DIR/wanted" | git fetch -q --no-tags --stdin "$source"; fi
git for-each-ref --format='%(creatordate:unix) %(refname)' refs/tags | while read -r time name; do
  if [ "$time" -gt "$ends" ]; then echo "delete $name"; fi
done | git update-ref --stdin
rm -rf "$GIT_DIR/wanted" "$GIT_DIR/FETCH_HEAD" "$GIT_DIR/logs"
git repack -adq
git prune --expire=now
"""
"""Shell script: makes the repository $3 of commit $2 of the repository $1 and what lies before it, and nothing else.

Tags stay where they stand on such commits and are not younger than $2: packages get their version from them.
"""

_COMMIT = f"""set -e
cd "$1"
export GIT_DIR="$2" GIT_WORK_TREE="$1" GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME='{AUTHOR.partition(" <")[0]}' GIT_AUTHOR_EMAIL='{AUTHOR.partition("<")[2][:-1]}'
export GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME" GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL"
export GIT_AUTHOR_DATE='{DATE}' GIT_COMMITTER_DATE='{DATE}'
git init -q -b main --template=
git config --unset core.worktree || true
git add -A -f
git commit -q -m '{MESSAGE}'
rm -rf "$GIT_DIR/logs" "$GIT_DIR/index"
"""
_CHECK_OUT = """set -e
mkdir -p "$2"
export GIT_INDEX_FILE="$2.index"
git --git-dir="$1" --work-tree="$2" checkout -q -f "$3" -- .
rm "$GIT_INDEX_FILE"
"""
_UNPACK = 'set -e; mkdir -p "$2"; tar -xf "$1"/* -C "$2" --strip-components=1 --no-same-owner'


def mirror_of(mirror: str, repo: str) -> str:
    """Return the path or URL of a repository's mirror: ``{repo}`` in it stands for "owner/name".

    Raises:
        UserError: it names a folder that is not there.
    """
    place = mirror.replace("{repo}", repo)
    if "://" in place or re.match(r"[\w.-]+@[\w.-]+:", place):
        return place
    path = Path(place).expanduser()
    if not path.is_dir():
        raise UserError(f"mirror {place}: there is no such folder; give a git repository of {repo}, or its URL.")
    return str(path.resolve())


async def from_mirror(mirror: str, commit: str, folder: Path, what: str, timeout_s: float) -> None:
    """Make ``folder/git``, a repository that ends with a commit, and ``folder/tree``, the files at it.

    Raises:
        ImageMissing: git failed; the message has its last line.
    """
    git, tree = str(folder / "git"), str(folder / "tree")
    await run(("sh", "-c", CUT, "git", mirror, commit, git), what, silent, timeout_s)
    await run(("sh", "-c", _CHECK_OUT, "git", git, tree, commit), what, silent, timeout_s)


async def tree_from_mirror(mirror: str, commit: str, folder: Path, what: str, timeout_s: float) -> None:
    """Make ``folder/setup``: the files at a commit, which may be a later one than the task's."""
    git, source = str(folder / "setup.git"), mirror if "://" in mirror or "@" in mirror else f"file://{mirror}"
    script = (
        'set -e; export GIT_TERMINAL_PROMPT=0; git init -q --bare --template= "$1"\n'
        'git --git-dir="$1" fetch -q --no-tags --depth 1 "$2" "$3"'
    )
    await run(("sh", "-c", script, "git", git, source, commit), what, silent, timeout_s)
    await run(("sh", "-c", _CHECK_OUT, "git", git, str(folder / "setup"), commit), what, silent, timeout_s)


async def from_sdist(requirement: str, python: str, machine: str, folder: Path, what: str, timeout_s: float) -> None:
    """Make ``folder/git`` and ``folder/tree`` of a release's source distribution: one commit, always the same.

    Args:
        requirement: "name==version".
        python, machine: see `rollcage.sandbox.images.foreign_pip`.
        folder, what, timeout_s: as above.

    Raises:
        ImageMissing: pip or git failed; the message has their last line.
    """
    command = pip(python, machine, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder / "sdist"))
    await run((*command, requirement), what, silent, timeout_s)
    tree = str(folder / "tree")
    await run(("sh", "-c", _UNPACK, "tar", str(folder / "sdist"), tree), what, silent, timeout_s)
    await run(("sh", "-c", _COMMIT, "git", tree, str(folder / "git")), what, silent, timeout_s)


async def from_files(files: Mapping[str, bytes], folder: Path, what: str, timeout_s: float) -> None:
    """Make ``folder/git`` and ``folder/tree`` of files in memory: one commit, always the same."""
    tree = folder / "tree"
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    await run(("sh", "-c", _COMMIT, "git", str(tree), str(folder / "git")), what, silent, timeout_s)


def pip(python: str, machine: str, command: str, *options: str) -> tuple[str, ...]:
    """Return the start of a pip command for another Python than this one."""
    quiet = ("--disable-pip-version-check", "--no-input", "--quiet", "--quiet")
    module = ("-m", "rollcage.sandbox.images.foreign_pip", python, command)
    return (sys.executable, *module, *quiet, *arguments(python, machine), *options)
