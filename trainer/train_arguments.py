"""The arguments of `rollcage train`: a preset and overrides of its fields, or a run to go on with."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import tyro

from rollcage.errors import UserError, did_you_mean
from rollcage.trainer.config import TrainConfig
from rollcage.trainer.presets import PRESETS

_HELP = """usage: rollcage train PRESET [--out DIR] [--monitor] [--FIELD VALUE ...]
       rollcage train --resume RUN [--monitor]

Train a language model with asynchronous reinforcement learning: rollout and training run side by side.

presets:
{presets}

losses, --learner.loss (which to use when: python -m pydoc rollcage.trainer.learner.losses):
{losses}

advantage estimators, --learner.advantage:
{advantages}

  --out DIR      run folder (default: runs/PRESET-DATE)
  --resume RUN   go on with a run that was stopped or killed, from its newest checkpoint
  --monitor      serve the dashboard meanwhile, for this machine; its address is printed
  --FIELD VALUE  override a field of the preset; `rollcage train PRESET --help` lists them all

examples:
  rollcage train countdown-small
  rollcage train countdown-small --seed 1 --rollout.async-ratio 2 --learner.lr 1e-4
  rollcage train countdown-small --env.args num_numbers 4 --out runs/four-numbers
  rollcage train countdown-small --cluster ray --address 10.0.0.1:6379 --num-engines 4
  rollcage train --resume runs/four-numbers --monitor
"""


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for: a new run, or where ``config`` is None, the run in ``folder`` to go on with."""

    folder: Path
    config: TrainConfig | None = None
    command: str = ""
    monitor: bool = False
    """Serve the dashboard meanwhile."""


def parse_train(argv: Sequence[str]) -> TrainRequest:
    """Read the command line.

    Raises:
        UserError: an unknown preset or field (with the nearest known one), or a value of the wrong kind; one line.
        SystemExit: help was asked for, and given.
    """
    arguments = list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        presets = "\n".join(f"  {name:20}{text}" for name, (text, _) in PRESETS.items())
        sys.stdout.write(_HELP.format(presets=presets, **_tables()))
        raise SystemExit(0 if arguments else 2)
    monitor = "--monitor" in arguments
    arguments = [word for word in arguments if word != "--monitor"]
    resume = _take(arguments, "--resume")
    if resume is not None:
        if arguments:
            raise UserError(f"--resume goes on with the run as it was configured: leave out {arguments[0]!r}.")
        return TrainRequest(Path(resume), monitor=monitor)
    out = _take(arguments, "--out")
    if not arguments or arguments[0] not in PRESETS:
        name = arguments[0] if arguments else "nothing"
        raise UserError(f"unknown preset {name!r} (known: {', '.join(PRESETS)}).{did_you_mean(name, PRESETS)}")
    preset, overrides = arguments[0], arguments[1:]
    folder = Path(out) if out is not None else Path("runs") / f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = shlex.join(["rollcage", "train", *arguments])
    return TrainRequest(folder, _override(preset, overrides), command, monitor)


def _tables() -> dict[str, str]:
    """Return the losses and the estimators, each with the first line of its documentation, which has its source."""
    from rollcage.trainer.learner.advantages import ADVANTAGES
    from rollcage.trainer.learner.losses import LOSSES

    return {"losses": _describe(LOSSES), "advantages": _describe(ADVANTAGES)}


def _describe(table: Mapping[str, Callable[..., Any]]) -> str:
    names: dict[str, list[str]] = {}
    for name, function in table.items():
        first_line = (function.__doc__ or "").partition("\n")[0]
        names.setdefault(first_line.replace("`", "").rstrip("."), []).append(name)
    return "\n".join(f"  {', '.join(same):20}{text}" for text, same in names.items())


def _override(preset: str, overrides: Sequence[str]) -> TrainConfig:
    text, default = PRESETS[preset]
    known = list(_options(default))
    for word in overrides:
        if word.startswith("--") and word not in ("--help", "--"):
            name = word.partition("=")[0].replace("_", "-")
            if name not in known:
                hint = f"{did_you_mean(name, known)}  See: rollcage train {preset} --help"
                raise UserError(f"unknown field {word.partition('=')[0]!r}.{hint}")
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                TrainConfig, prog=f"rollcage train {preset}", description=text, default=default, args=list(overrides)
            )
    except SystemExit as stop:
        if stop.code == 0:
            raise
        raise UserError(_one_line(errors.getvalue())) from None


def _options(config: Any, prefix: str = "--") -> Iterator[str]:
    """Yield the option of every field, nested ones as ``--part.field``."""
    for f in fields(config):
        value, name = getattr(config, f.name), prefix + f.name.replace("_", "-")
        if is_dataclass(value):
            yield from _options(value, name + ".")
        else:
            yield name
            if isinstance(value, bool):
                yield prefix + "no-" + f.name.replace("_", "-")


def _one_line(text: str) -> str:
    """Return the message of tyro's error box as one line."""
    words = re.sub(r"[\u2500-\u257f]|\x1b\[[0-9;]*m", " ", text).split()
    return " ".join(words) or "the arguments cannot be read."


def _take(arguments: list[str], option: str) -> str | None:
    """Remove ``option VALUE`` (or ``option=VALUE``) from the arguments and return the value, None without it."""
    for position, word in enumerate(arguments):
        if word == option:
            if position + 1 == len(arguments):
                raise UserError(f"{option} needs a folder.")
            del arguments[position]
            return arguments.pop(position)
        if word.startswith(option + "="):
            return arguments.pop(position).partition("=")[2]
    return None
