"""``rollcage sandbox cp``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rollcage.command import CommandParser, natural_float
from rollcage.errors import UserError
from rollcage.sandbox.commands.opened import add_place, opened, patience


def run_cp(argv: Sequence[str]) -> int:
    """Copy a file or folder into a sandbox or out of it."""
    parser = CommandParser(
        "rollcage sandbox cp",
        "Copy a file or folder into a sandbox or out of it. One of the two paths is ID:PATH; a path on this machine\n"
        "that holds a colon is written ./a:b. What exists on this machine is not overwritten.",
        "rollcage sandbox cp ./data ID:/work/data\nrollcage sandbox cp ID:/work/result.json .\n"
        "rollcage sandbox cp ID:/work ./copy",
    )
    add_place(parser)
    parser.add_argument("--timeout", type=natural_float, default=3600.0, metavar="S", help="default 3600")
    parser.add_argument("source")
    parser.add_argument("target")
    args = parser.parse_args(argv)
    (from_id, source), (to_id, target) = _split(args.source), _split(args.target)
    if bool(from_id) == bool(to_id):
        parser.error("exactly one of the two paths must be in a sandbox: ID:PATH.")
    with opened(args) as sandboxes:
        sandbox = sandboxes.attach(from_id or to_id)
        with patience(f"copying {args.source}"):
            if to_id:
                inner = f"{target}{Path(source).resolve().name}" if target.endswith("/") else target
                sandbox.put(Path(source), inner, timeout_s=args.timeout)
                return 0
            outer = Path(target)
            if outer.is_dir():
                outer = outer / PurePosixPath(source).name
            try:
                sandbox.get(source, outer, timeout_s=args.timeout)
            except OSError as error:
                raise UserError(f"cannot write {outer}: {error.strerror or error}") from None
    return 0


def _split(path: str) -> tuple[str, str]:
    """Return the sandbox's id and the path in it; "" and the path where it is on this machine.

    >>> _split("a1b2:/work"), _split("./a:b"), _split("/tmp/x"), _split("x")
    (('a1b2', '/work'), ('', './a:b'), ('', '/tmp/x'), ('', 'x'))
    """
    name, colon, rest = path.partition(":")
    return (name, rest) if colon and name and "/" not in name and rest else ("", path)
