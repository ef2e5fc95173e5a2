"""``rollcage swebench``: images of SWE-bench's instances, and whether an instance can be scored here."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

from rollcage.command import CommandParser, positive
from rollcage.envs.swe.datasets import quarantine_file, read_quarantine, swe_tasks, write_quarantine
from rollcage.errors import RollcageError, UserError, did_you_mean, require

_ACTIONS = ("build", "check", "ls", "prune")


def run_swebench(argv: Sequence[str]) -> int:
    """Build images, check instances, list or remove images; exit code 1 where one of several failed."""
    parser = CommandParser(
        "rollcage swebench",
        "build   make the image of an instance without a registry: from a git mirror of its repository (default:\n"
        "        GitHub), or a release's source distribution, and wheels that are got here and installed without\n"
        "        network. To learn what the repository requires, its setup is run here\n"
        "check   try whether the official patch resolves an instance here, and nothing does not; instances of which\n"
        "        that is not so are quarantined: rollcage/SWEBench-v0 leaves them out, and says so\n"
        "ls      list the images that were built here\n"
        "prune   remove the images that were pulled or built for environments and that nobody uses",
        "rollcage swebench build pytest-dev__pytest-9359 --mirror ../pytest.git\n"
        "rollcage swebench build pallets__flask-4992 --sdist flask==2.2.3\n"
        "rollcage swebench check pallets__flask-4992 --json\n"
        "rollcage swebench check --dataset verified --mirror '/srv/mirrors/{repo}.git' --concurrency 4\n"
        "rollcage swebench prune",
    )
    parser.add_argument("action", metavar="{build,check,ls,prune}")
    parser.add_argument("instances", nargs="*", metavar="INSTANCE", help="instance id; with check, none means all")
    parser.add_argument("--dataset", default="lite", help="lite, verified, full or sample (default: lite)")
    parser.add_argument("--data", type=Path, help="file or folder of rows instead")
    parser.add_argument("--mirror", default="", help="path or URL of a git repository; {repo} is owner/name")
    parser.add_argument(
        "--sdist", default="", metavar="NAME==VERSION", help="build from this release's sources on PyPI"
    )
    parser.add_argument("--python", default="", help="in place of the specification's, such as 3.9")
    parser.add_argument("--rebuild", action="store_true", help="build it even where it is there")
    parser.add_argument("--concurrency", type=positive, default=2, help="with check: instances at once (default: 2)")
    parser.add_argument("--memory-mib", type=positive, default=2048, help="with check: of a sandbox (default: 2048)")
    parser.add_argument("--keep-images", type=positive, default=16, help="with check: as the environment's (16)")
    parser.add_argument("--quarantine", type=Path, help="with check: the file (default: in the user's cache)")
    parser.add_argument("--endpoint", default="", help="Docker daemon (default: the docker command's)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args(argv)
    if args.action not in _ACTIONS:
        parser.error(f"{args.action!r}: write {', '.join(_ACTIONS)}.{did_you_mean(args.action, _ACTIONS)}")
    require("aiodocker", "sandbox")
    return {"build": _build, "check": _check, "ls": _list, "prune": _prune}[args.action](args)


def _build(args: argparse.Namespace) -> int:
    from rollcage.envs.swe.build import Source
    from rollcage.envs.swe.images import build
    from rollcage.envs.swe.shelf import building
    from rollcage.envs.swe.sources import HUB

    if not args.instances:
        raise UserError("name an instance, as in  rollcage swebench build pallets__flask-4992 --sdist flask==2.2.3")
    if args.mirror and args.sdist:
        raise UserError("give --mirror or --sdist, not both.")
    source = Source(mirror=args.mirror or HUB, sdist=args.sdist, python=args.python)
    built = []
    for row in _rows(args):
        started_s = time.monotonic()
        with building(3600.0):
            image = asyncio.run(build(row, source, _endpoint(args), rebuild=args.rebuild, progress=_say))
        built.append({"instance_id": row["instance_id"], "image": image, "seconds": time.monotonic() - started_s})
        if not args.json:
            sys.stdout.write(f"{image}\n")
    if args.json:
        sys.stdout.write(json.dumps(built) + "\n")
    return 0


def _check(args: argparse.Namespace) -> int:
    file = args.quarantine or quarantine_file()
    why = dict(read_quarantine(args.quarantine if args.quarantine and args.quarantine.is_file() else None))
    tasks = swe_tasks(args.dataset, args.data, quarantine="")
    ids = {task_id.partition("/")[2]: task_id for task_id in _ids(tasks)}
    chosen = [_known(name, ids) for name in args.instances] or sorted(ids)
    checked, errors = [], 0
    with ThreadPoolExecutor(max_workers=args.concurrency) as pool:
        jobs = {pool.submit(_try, args, name, ids[name]): name for name in chosen}
        for job in as_completed(jobs):
            result = job.result()
            checked.append(result)
            errors += result["reason"] is None and not result["ok"]
            if result["ok"]:
                why.pop(result["instance_id"], None)
            elif result["reason"]:
                why[result["instance_id"]] = result["reason"]
            write_quarantine(file, why)
            if not args.json:
                sys.stdout.write(_told(result))
    if args.json:
        sys.stdout.write(json.dumps({"checked": checked, "quarantine": str(file)}) + "\n")
    else:
        num_ok = sum(result["ok"] for result in checked)
        quarantined = sum(result["reason"] is not None for result in checked)
        sys.stdout.write(f"{num_ok} can be scored, {quarantined} quarantined ({file}), {errors} could not be tried\n")
    return 1 if errors else 0


def _try(args: argparse.Namespace, name: str, task_id: str) -> dict[str, Any]:
    """Hand in the official patch and nothing; says what came of it, and how long it took beside the tests."""
    from rollcage.envs.swe.bench import SWEBenchEnv

    result: dict[str, Any] = {"instance_id": name, "ok": False, "reason": None, "error": None}
    env = SWEBenchEnv(
        dataset=args.dataset,
        data=args.data,
        quarantine="",
        endpoints=args.endpoint or (),
        mirror=args.mirror,
        memory_mib=args.memory_mib,
        keep_images=args.keep_images,
        split=task_id.partition("/")[0],
    )
    with closing(env):
        try:
            for policy in ("gold", "empty"):
                started_s = time.monotonic()
                env.reset(options={"task": task_id})
                reset_s = time.monotonic() - started_s
                info = env.step(getattr(env, policy)())[-1]
                if info["failure"]:
                    return {**result, "error": info["failure_message"]}
                result[policy] = {
                    "status": info["status"],
                    "fail_to_pass": info["fail_to_pass"],
                    "pass_to_pass": info["pass_to_pass"],
                    "reset_s": round(reset_s, 3),
                    "episode_s": round(time.monotonic() - started_s, 3),
                    "test_s": round(env.test_s, 3),
                }
        except RollcageError as error:
            return {**result, "error": str(error)}
    gold, empty = result["gold"], result["empty"]
    if gold["status"] != "resolved":
        shares = f"FAIL_TO_PASS {gold['fail_to_pass']:.0%}, PASS_TO_PASS {gold['pass_to_pass']:.0%}"
        result["reason"] = f"its official patch does not resolve it here: {gold['status']}, {shares}"
    elif empty["status"] == "resolved":
        result["reason"] = "it is resolved by doing nothing"
    return {**result, "ok": result["reason"] is None}


def _told(result: dict[str, Any]) -> str:
    if result["error"]:
        return f"{result['instance_id']:32} could not be tried: {result['error']}\n"
    gold, empty = result["gold"], result["empty"]
    seconds = f"{gold['episode_s']:6.1f} s, of which tests {gold['test_s']:6.1f} s"
    verdict = f"quarantined: {result['reason']}" if result["reason"] else "ok"
    return f"{result['instance_id']:32} gold {gold['status']}, empty {empty['status']}; {seconds}; {verdict}\n"


def _list(args: argparse.Namespace) -> int:
    from rollcage.envs.swe.build import LABEL
    from rollcage.envs.swe.shelf import run
    from rollcage.sandbox.images.catalogue import Catalogue

    async def find() -> list[tuple[str, int]]:
        async with Catalogue(_endpoint(args)) as host:
            return await host.labelled(LABEL)

    found = run(find())
    if args.json:
        sys.stdout.write(json.dumps([{"image": name, "size_bytes": size} for name, size in found]) + "\n")
    else:
        sys.stdout.write("".join(f"{size / 2**20:8.0f} MiB  {name}\n" for name, size in found))
    return 0


def _prune(args: argparse.Namespace) -> int:
    from rollcage.envs.swe.shelf import prune

    removed = prune(0)
    sys.stdout.write(json.dumps(removed) + "\n" if args.json else "".join(f"{name}\n" for name in removed))
    return 0


def _rows(args: argparse.Namespace) -> list[Any]:
    tasks = swe_tasks(args.dataset, args.data, quarantine="")
    ids = {task_id.partition("/")[2]: task_id for task_id in _ids(tasks)}
    return [tasks.by_id(ids[_known(name, ids)]).data for name in args.instances]


def _ids(tasks: Any) -> list[str]:
    return [tasks.task(split, index).id for split, size in tasks.splits.items() for index in range(size)]


def _known(name: str, ids: dict[str, str]) -> str:
    if name not in ids:
        raise UserError(f"no instance {name!r} in these data.{did_you_mean(name, ids)}")
    return name


def _endpoint(args: argparse.Namespace) -> str:
    from rollcage.sandbox.opening import default_endpoint, parse_endpoint

    return parse_endpoint(args.endpoint or default_endpoint())[1]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
