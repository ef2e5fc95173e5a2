"""Patches: taking one from a work tree, and leaving out of one what must not decide over tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

PROTECTED = (
    "conftest.py",
    "*/conftest.py",
    "sitecustomize.py",
    "*/sitecustomize.py",
    "usercustomize.py",
    "*/usercustomize.py",
    "*.pth",
    "pytest.ini",
    ".pytest.ini",
    "*/pytest.ini",
)
"""Files that say how tests run, wherever they are: a patch's changes to them do not count."""

TAKE = """set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
top=$(pwd -P)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_DIR="$folder/git" GIT_WORK_TREE="$top"
git init -q
echo "$top/.git/objects" >"$GIT_DIR/objects/info/alternates"
git read-tree "$1"
git add -A 2>/dev/null
git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color "$1"
"""
"""Shell script: prints what the work tree in which it runs adds to the commit $1, new files included.

It reads the repository's objects alone, not its index, configuration or hooks, which an agent may have changed. What
.gitignore names is left out.
"""

_HEAD = re.compile(rb'^diff --git "?a/(.+?)"? "?b/(.+?)"?$', re.MULTILINE)


def whole(patch: bytes) -> bytes:
    """Return a patch with the line end that editors and models forget at its end."""
    return patch if not patch or patch.endswith(b"\n") else patch + b"\n"


def touched(patch: bytes) -> list[str]:
    """Return the paths that a patch of git changes, each once, in its order."""
    names = [name.decode(errors="replace") for pair in _HEAD.findall(patch) for name in pair]
    return list(dict.fromkeys(names))


def protected(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return those of the paths that one of the patterns names ("*" is any text, "/" included)."""
    return [path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]
