"""``rollcage sandbox images``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rollcage.command import CommandParser
from rollcage.errors import UserError, did_you_mean, require
from rollcage.sandbox.commands.looking import span
from rollcage.sandbox.commands.opened import add_place, opened, patience, say, show, show_json, table
from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_SANDBOX
from rollcage.sandbox.images import BASE_PYTHON
from rollcage.sandbox.opening import default_endpoint, parse_endpoint
from rollcage.sandbox.types import MIB

T = TypeVar("T")


def run_images(argv: Sequence[str]) -> int:
    """Make the base image, list images, or remove unused ones."""
    actions = {"build": _build, "ls": _list, "prune": _prune}
    parser = CommandParser(
        "rollcage sandbox images",
        "build   make the image that sandboxes start from: `base` extends python:3.11-slim where a registry\n"
        "        answers, else builds Debian with debootstrap (root; about a minute); `bare` is busybox; `env` is\n"
        "        base with this Rollcage inside, for placement `sandbox`: --extra brings what one needs\n"
        "ls      list Rollcage's images\n"
        "prune   remove the images of snapshots that nobody needs: of sandboxes that are gone, and those\n"
        "        that are more than are kept. Only what the manager of the state folder made: the base\n"
        "        image stays, and containers are for `rollcage sandbox reap`",
        "rollcage sandbox images build base\nrollcage sandbox images build base --python 3.9\n"
        "rollcage sandbox images build bare\n"
        "rollcage sandbox images ls --json\nrollcage sandbox images prune",
    )
    parser.add_argument("action", metavar="{build,ls,prune}")
    parser.add_argument("what", nargs="?", default="base", metavar="{base,bare,env}", help="with build; default base")
    parser.add_argument("--extra", action="append", default=[], help="of rollcage, with build env; can be repeated")
    parser.add_argument(
        "--requirement",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="pinned requirements, taken without what they require in turn; with build env; can be repeated",
    )
    parser.add_argument(
        "--python", default=BASE_PYTHON, help=f"version of Python, with build base; default {BASE_PYTHON}"
    )
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="published data that environments read, such as data/alfworld; with build env; can be repeated",
    )
    parser.add_argument("--source", choices=["auto", "registry", "debootstrap"], default="auto", help="default auto")
    parser.add_argument("--rebuild", action="store_true", help="even where it is there")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_place(parser)
    args = parser.parse_args(argv)
    if args.action not in actions:
        parser.error(f"{args.action!r}: write build, ls or prune.{did_you_mean(args.action, actions)}")
    require("aiodocker", "sandbox")
    actions[args.action](args)
    return 0


def _build(args: argparse.Namespace) -> None:
    from rollcage.sandbox.images.bare import build_bare
    from rollcage.sandbox.images.base import build_base
    from rollcage.sandbox.images.env import build_env

    if args.what not in ("base", "bare", "env"):
        hint = did_you_mean(args.what, ("base", "bare", "env"))
        raise UserError(
            f"image {args.what!r}: write base (Debian, Python, git), bare (busybox) or env (Rollcage).{hint}"
        )
    for endpoint in _endpoints(args):
        with patience(f"making the image {args.what} on {endpoint}"):
            if args.what == "base":
                image = _run(
                    build_base(endpoint, python=args.python, source=args.source, rebuild=args.rebuild, progress=say)
                )
            elif args.what == "env":
                given = {"extras": args.extra, "requirements": args.requirement, "data": args.data}
                image = _run(build_env(endpoint, **given, rebuild=args.rebuild, progress=say))
            else:
                image = _run(build_bare(endpoint))
        show_json({"endpoint": endpoint, "image": image}) if args.json else show(image)


def _list(args: argparse.Namespace) -> None:
    rows = [row for endpoint in _endpoints(args) for row in _run(_find(endpoint))]
    if args.json:
        show_json(rows)
        return
    heads = ["IMAGE", "WHAT", "AGE", "SIZE", "ENDPOINT"]
    cells = []
    for row in rows:
        age, size = span(time.time() - row["created"]), f"{row['size_bytes'] / MIB:.0f} MiB"
        cells.append([row["image"], row["what"], age, size, row["endpoint"]])
    sys.stdout.write(table(heads, cells))


async def _find(endpoint: str) -> list[dict[str, Any]]:
    from rollcage.sandbox.drivers.docker_api import Engine
    from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE

    engine = Engine(endpoint)
    try:
        async with engine.call("list images") as docker:
            images = await docker.images.list()
    finally:
        await engine.close()
    rows = []
    for image in images:
        labels = image.get("Labels") or {}
        if LABEL_RECIPE not in labels and LABEL_MANAGER not in labels:
            continue
        what = f"snapshot of {labels.get(LABEL_SANDBOX, '?')}" if LABEL_MANAGER in labels else "made by images build"
        about = {"what": what, "created": image["Created"], "size_bytes": image["Size"], "endpoint": endpoint}
        rows += [{"image": tag, **about} for tag in image.get("RepoTags") or [image["Id"]]]
    return rows


def _prune(args: argparse.Namespace) -> None:
    with opened(args) as sandboxes, patience("looking through the hosts"):
        names = sandboxes.prune_images()
    if args.json:
        show_json(names)
    for name in [] if args.json else names:
        show(name)


def _endpoints(args: argparse.Namespace) -> list[str]:
    return [parse_endpoint(text)[1] for text in args.endpoint or (default_endpoint(),)]


def _run(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)
