"""``rollcage bench soak``: training that is injured again and again, then the account of what was promised."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rollcage.benchmarks.soak.account import Finding, take_account
from rollcage.benchmarks.soak.training import Training
from rollcage.benchmarks.soak.unruly import ENV_ID
from rollcage.command import CommandParser, natural, natural_float, positive
from rollcage.errors import RollcageError, UserError
from rollcage.monitor.live import measuring
from rollcage.monitor.run_folder import read_metrics
from rollcage.recorder import Recorder

INJURIES = ("trainer", "worker", "learner", "engine", "container", "stop")
"""What is done: kill -9 of the trainer, of one of its processes or containers; SIGSTOP of a worker for ever."""


def main(argv: Sequence[str]) -> int:
    """``rollcage bench soak``; exit code 0 only where every promise held."""
    parser = CommandParser(
        "rollcage bench soak",
        "Train the small policy while environments hang, raise and die, and while its processes and containers are\n"
        "killed at random moments, the trainer included; then say of each guarantee whether it held. Exit code 0 only\n"
        "where all did. What is done, and when, follows from --seed, but for the speed of the machine.",
        "rollcage bench soak --hours 2\n"
        "rollcage bench soak --injuries 20 --only trainer      # kill -9 of the trainer, 20 times\n"
        "rollcage bench soak --hours 8 --placement sandbox     # needs Docker: rollcage sandbox images build env\n"
        "rollcage bench soak --hours 1 --override=--rollout.async-ratio=2 --override=--num-engines=2",
    )
    parser.add_argument("--hours", type=natural_float, default=2.0, help="how long (default: 2)")
    parser.add_argument("--injuries", type=positive, help="end after so many, if that comes earlier")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=INJURIES,
        metavar="WHAT",
        help=f"only these of {', '.join(INJURIES)} (default: all)",
    )
    parser.add_argument("--pause", type=natural_float, default=10.0, help="mean seconds between injuries (default: 10)")
    parser.add_argument("--placement", choices=("process", "sandbox"), default="process", help="(default: process)")
    parser.add_argument("--async-ratio", type=natural_float, default=1.0, help="of the run (default: 1)")
    parser.add_argument("--patience", type=natural_float, default=300.0, help="longest wait for an update (300 s)")
    parser.add_argument("--seed", type=natural, default=0, help="(default: 0)")
    parser.add_argument("--override", action="append", default=[], metavar="--FIELD=VALUE", help="of the preset")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder (default: %(default)s)")
    parser.add_argument("--metrics-port", type=natural, default=0, help="of /metrics, on loopback (any free one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line on stdout")
    arguments = parser.parse_args(argv)
    run = arguments.out / "run"
    if (run / "config.json").exists():
        raise UserError(f"{run} holds a run already: choose another --out, or remove it.")
    training = Training(run, train_arguments(arguments), arguments.patience)
    injuries = arguments.only or [name for name in INJURIES if name != "container" or arguments.placement == "sandbox"]
    with measuring(arguments.metrics_port) as (recorder, metrics):
        if metrics:
            sys.stderr.write(f"metrics: {metrics}\n")
        done, gave_up = asyncio.run(_soak(training, arguments, injuries, recorder))
    if not training.version():
        raise RollcageError(gave_up or "it was stopped before the first update: there is nothing to account for.")
    findings = [
        Finding("progress", not gave_up, gave_up or f"{training.num_updates} updates, each in time"),
        *take_account(
            run,
            async_ratio=arguments.async_ratio,
            resumed_from=training.resumed_from,
            leftovers=training.leftovers,
            attacked=bool(done),
        ),
    ]
    shutil.rmtree(arguments.out / "sandboxes", ignore_errors=True)
    what = ", ".join(f"{num} x {name}" for name, num in sorted(done.items())) or "none"
    sys.stdout.write(f"injuries: {what}; the trainer gave up by itself {training.ended_by_itself} times\n")
    for finding in findings:
        sys.stdout.write(f"{'held  ' if finding.held else 'BROKEN'} {finding.promise}: {finding.told}\n")
    held = all(finding.held for finding in findings)
    if arguments.json:
        told = {finding.promise: {"held": finding.held, "told": finding.told} for finding in findings}
        totals = {"injuries": dict(done), "updates": len(read_metrics(run)), "gave_up": training.ended_by_itself}
        sys.stdout.write(json.dumps({"held": held, **totals, "promises": told}) + "\n")
    return 0 if held else 1


def train_arguments(arguments: object) -> list[str]:
    """Return the arguments of ``rollcage train``: small batches, such that updates come every few seconds."""
    given = vars(arguments)
    return [
        "countdown-small",
        *("--env.id", ENV_ID),
        *("--env.placement", given["placement"]),
        *("--rollout.num-groups", "4", "--rollout.group-size", "4", "--rollout.num-slots", "16"),
        *("--rollout.async-ratio", str(given["async_ratio"])),
        *("--rollout.env-deadline-s", "5", "--rollout.turn-deadline-s", "60", "--rollout.episode-deadline-s", "120"),
        *("--num-updates", "1000000", "--max-train-s", "1e9", "--checkpoint-every", "2", "--eval.num-tasks", "0"),
        *("--store.keep-mib", "256"),  # of each large stream: hours of episodes, and a disk that does not fill
        *("--seed", str(given["seed"])),
        *given["override"],
    ]


async def _soak(
    training: Training, arguments: object, injuries: Sequence[str], recorder: Recorder
) -> tuple[Counter[str], str]:
    """Injure the run until its time is over, or somebody stops us: the run has ended on return.

    Returns what was done how often, and "" or why the run could not go on.
    """
    given, rng, done = vars(arguments), random.Random(vars(arguments)["seed"]), Counter[str]()
    begin_s = time.monotonic()
    ends_at = begin_s + 3600.0 * given["hours"]
    gave_up = ""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        training.start()
        sys.stderr.write(f"started; each update may take {given['patience']:g} s; what it says is in {training.log}\n")
        await training.next_update()
        while time.monotonic() < ends_at and done.total() < (given["injuries"] or float("inf")):
            await asyncio.sleep(min(rng.expovariate(1 / max(given["pause"], 1e-3)), ends_at - time.monotonic(), 6e1))
            name = rng.choice(list(injuries))
            if await _injure(training, name, rng):
                done[name] += 1
                recorder.counter("soak_injuries", what=name)
            await training.next_update()
            minutes = (time.monotonic() - begin_s) / 60
            sys.stderr.write(
                f"{minutes:.1f} min: {done.total()} injuries, version {training.version()}, last: {name}\n"
            )
        await training.next_update()
    except asyncio.CancelledError:
        task.uncancel()
        sys.stderr.write("stopped before its time: the account of what there is\n")
    except RollcageError as error:
        gave_up = str(error)
    finally:
        await training.stop()
        if given["placement"] == "sandbox":
            training.leftovers += [f"container {name}" for name in await _containers_left(training)]
    return done, gave_up


async def _injure(training: Training, name: str, rng: random.Random) -> bool:
    """Do it; returns whether there was somebody to do it to."""
    if name == "trainer":
        await training.kill()
        return True
    if name == "container":
        containers = await training.containers()
        if containers:
            await training.kill_container(rng.choice(containers))
        return bool(containers)
    victims = training.victims("worker" if name == "stop" else name)
    if victims:
        try:
            os.kill(rng.choice(victims), signal.SIGSTOP if name == "stop" else signal.SIGKILL)
        except ProcessLookupError:
            return False
    return bool(victims)


async def _containers_left(training: Training, patience_s: float = 30.0) -> list[str]:
    """Return the containers that are still there a while after the run's end."""
    ends_at = time.monotonic() + patience_s
    while (found := await training.containers()) and time.monotonic() < ends_at:
        await asyncio.sleep(0.5)
    return found
