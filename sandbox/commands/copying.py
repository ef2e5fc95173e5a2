"""``rollcage sandbox cp``."""

from __future__ import annotations

import os
import posixpath
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rollcage.command import CommandParser, natural_float
from rollcage.errors import UserError
from rollcage.sandbox.commands.naming import find
from rollcage.sandbox.commands.opened import add_place, opened, patience
from rollcage.sandbox.errors import NoSuchPath
from rollcage.sandbox.sync import SyncSandbox

PROBE = """[ -d "$1" ] && echo folder && exit
{ [ -e "$1" ] || [ -L "$1" ]; } && echo file && exit
[ -d "$2" ] && echo new || echo nowhere"""
"""What is at a path: a folder, something else, nothing, or not even the folder that it would be in."""


SPREAD = """cp -a "$1/." "$2"; code=$?; rm -rf "$1"; exit $code"""


def run_cp(argv: Sequence[str]) -> int:
    """Copy a file or folder into a sandbox or out of it."""
    parser = CommandParser(
        "rollcage sandbox cp",
        "Copy a file or folder into a sandbox or out of it. One of the two paths is ID:PATH, with a\n"
        "sandbox's id (or its first characters) or key; a path on this machine that holds a colon\n"
        "is written ./a:b. A link that is named is followed. Targets are those of `cp -r`:\n"
        "  TARGET is a folder             the file or folder is put into it, under its own name\n"
        "  TARGET is a file               a file takes its place in a sandbox; a folder is refused\n"
        "  there is no TARGET             the copy is called TARGET; the folder that it is in must exist\n"
        "  TARGET/ with a slash           it must be a folder; where there is none, a folder is copied to that name\n"
        "  SOURCE/. instead of SOURCE     what is in the folder is put into TARGET, not the folder itself\n"
        "Folders of the same name are merged in a sandbox. On this machine nothing that exists is overwritten.",
        "rollcage sandbox cp ./data mine:/work             # /work/data\n"
        "rollcage sandbox cp ./data/. mine:/work           # what is in it, beside what is in /work\n"
        "rollcage sandbox cp mine:/work/result.json .\n"
        "rollcage sandbox cp mine:/work ./copy",
    )
    add_place(parser)
    parser.add_argument("--timeout", type=natural_float, default=3600.0, metavar="S", help="default 3600")
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    args = parser.parse_args(argv)
    (from_name, source), (to_name, target) = _split(args.source), _split(args.target)
    if bool(from_name) == bool(to_name):
        parser.error(
            "exactly one of the two paths must be in a sandbox: ID:PATH (a key that holds / or : cannot be used)."
        )
    with opened(args) as sandboxes:
        sandbox = find(sandboxes, from_name or to_name)
        with patience(f"copying {args.source}"):
            if to_name:
                _put(sandbox, source, target, args.timeout)
            else:
                _get(sandbox, source, target, args.timeout)
    return 0


def _put(sandbox: SyncSandbox, source: str, target: str, timeout_s: float) -> None:
    here, kind = Path(source).resolve(), _kind_here(source)
    if kind in ("new", "nowhere"):
        raise NoSuchPath(f"there is no {source} on this machine.")
    there = _kind_in(sandbox, target)
    name = posixpath.basename(source.rstrip("/"))
    where = f"{target} in the sandbox"
    if there == "folder" and name in ("", ".", ".."):
        return _put_children(sandbox, here, target, timeout_s)
    if there == "folder":
        target = posixpath.join(target, name)
        there, where = _kind_in(sandbox, target), f"{target} in the sandbox"
        if there == "folder" and kind == "file":
            raise UserError(f"{where} is a folder: a file cannot take its place.")
    _check_target(kind, target, there, where)
    sandbox.put(here, target, timeout_s=timeout_s)


def _put_children(sandbox: SyncSandbox, source: Path, target: str, timeout_s: float) -> None:
    """Copy what is in a folder into one that exists."""
    copy = posixpath.join(target, f".rollcage-cp-{secrets.token_hex(4)}")
    sandbox.put(source, copy, timeout_s=timeout_s)
    result = sandbox.exec(["sh", "-c", SPREAD, "sh", copy, target], timeout_s=timeout_s)
    if not result.ok:
        told = result.stderr_text.strip().splitlines() or ["it took too long"]
        raise UserError(f"cannot write {target} in the sandbox: {told[0]}.")


def _get(sandbox: SyncSandbox, source: str, target: str, timeout_s: float) -> None:
    kind, here = _kind_in(sandbox, source), _kind_here(target)
    if kind in ("new", "nowhere"):
        raise NoSuchPath(f"there is no {source} in sandbox {sandbox.id}.")
    name = posixpath.basename(source.rstrip("/"))
    try:
        if here == "folder" and name in ("", ".", ".."):
            return _get_children(sandbox, source, Path(target), timeout_s)
        if here == "folder":
            target, here = os.path.join(target, name), "new"
        _check_target(kind, target, here, target)
        sandbox.get(source, Path(target), timeout_s=timeout_s)
    except FileExistsError as error:
        raise UserError(f"{error}  Nothing that exists on this machine is overwritten.") from None
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from None


def _get_children(sandbox: SyncSandbox, source: str, target: Path, timeout_s: float) -> None:
    """Copy what is in a folder into one that exists: all of it, or nothing where a name is taken."""
    with tempfile.TemporaryDirectory(prefix=".rollcage-cp-", dir=target) as folder:
        copy = Path(folder) / "copy"
        sandbox.get(source, copy, timeout_s=timeout_s)
        children = sorted(copy.iterdir())
        for child in children:
            if os.path.lexists(target / child.name):
                raise FileExistsError(f"{target / child.name} exists.")
        for child in children:
            shutil.move(child, target / child.name)


def _check_target(kind: str, target: str, there: str, where: str) -> None:
    """Refuse what `cp -r` refuses; ``kind`` is what is copied, and ``there`` what is at the target."""
    if there == "nowhere":
        raise NoSuchPath(f"there is no folder for {where}: make it first.")
    if there == "file" and kind == "folder":
        raise UserError(f"{where} is a file: a folder cannot take its place.")
    if target.endswith("/") and kind == "file":
        raise NoSuchPath(f"there is no folder {where}.")


def _kind_here(path: str) -> str:
    if os.path.isdir(path):
        return "folder"
    if os.path.exists(path) or (os.path.lexists(path) and not path.endswith("/")):
        return "file"
    return "new" if os.path.isdir(os.path.dirname(path.rstrip("/")) or ".") else "nowhere"


def _kind_in(sandbox: SyncSandbox, path: str) -> str:
    folder = posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
    result = sandbox.exec(["sh", "-c", PROBE, "sh", path, folder], timeout_s=60.0)
    if (kind := result.stdout_text.strip()) not in ("folder", "file", "new", "nowhere"):
        raise NoSuchPath(f"cannot look at {path} in sandbox {sandbox.id}: {result.stderr_text.strip()}.")
    return kind


def _split(path: str) -> tuple[str, str]:
    """Return the sandbox's name and the path in it; "" and the path where it is on this machine.

    >>> _split("a1b2:/work"), _split("./a:b"), _split("/tmp/x"), _split("x")
    (('a1b2', '/work'), ('', './a:b'), ('', '/tmp/x'), ('', 'x'))
    """
    name, colon, rest = path.partition(":")
    return (name, rest) if colon and name and "/" not in name and rest else ("", path)
