"""The command ``rollcage``: joins the commands of every part, and imports each part only when it is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module

from rollcage import __version__
from rollcage.errors import RollcageError, UserError, did_you_mean
from rollcage.recorder import Recorder

# command -> (module that holds `run_<command>(argv) -> exit code`, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "envs": ("rollcage.envs.cli", "list the environments, or show one's documentation"),
    "check": ("rollcage.envs.cli", "check that an environment keeps every promise, yours included"),
    "data": ("rollcage.envs.cli", "find published data that take preparing, and prepare them"),
    "eval": ("rollcage.trainer.cli", "evaluate a policy on an environment"),
    "train": ("rollcage.trainer.cli", "train a language model with asynchronous reinforcement learning"),
    "engine": ("rollcage.trainer.engines.vllm_server", "run vLLM replicas for training runs on other machines"),
    "simulate": ("rollcage.trainer.simulation.cli", "predict a run's throughput in virtual time, and what to choose"),
    "replay": ("rollcage.trainer.cli", "re-run recorded trajectories and show the first difference"),
    "rhythm": ("rollcage.trainer.analysis.cli", "show a language model's attention rhythm on any text"),
    "monitor": (
        "rollcage.monitor.cli",
        "show all runs on a page, live; `monitor doctor` says what went wrong with one",
    ),
    "top": ("rollcage.monitor.cli", "show one run in the terminal, live"),
    "sandbox": (
        "rollcage.sandbox.cli",
        "commands in sandboxes, one Docker container each; their service, images and doctor",
    ),
    "swebench": ("rollcage.envs.swe.command", "images of SWE-bench's instances, and which of them can be scored here"),
    "bench": ("rollcage.benchmarks.cli", "run a benchmark suite or a speed measurement"),
}

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

HELP = """usage: rollcage COMMAND [arguments]

{commands}

examples:
  rollcage envs
  rollcage eval rollcage/Countdown-v0 --policy expert --num-tasks 100
  rollcage train countdown-small
  rollcage sandbox run rollcage-base 'echo hello'
  rollcage COMMAND --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2 for bad input, 1 for a failure, 130 for Ctrl-C)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP.format(commands="\n".join(f"  {name:8}{text}" for name, (_, text) in COMMANDS.items())))
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"rollcage {__version__}\n")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        sys.stderr.write(f"rollcage: unknown command {name!r}.{did_you_mean(name, COMMANDS)}  See: rollcage --help\n")
        return 2
    if "" not in sys.path:  # as with `python -m`: "module:namespace/Name-v0" finds a module beside the user
        sys.path.append("")
    try:
        run: Callable[..., int] = getattr(import_module(COMMANDS[name][0]), f"run_{name}")
        if name == "monitor":  # which may not know the sandboxes
            run = partial(run, find_sandboxes=_sandbox_service)
        elif name == "sandbox":  # which may not know the monitor
            run = partial(run, measuring=_measuring)
        return run(rest)
    except UserError as error:
        sys.stderr.write(f"rollcage {name}: {error}\n")
        return 2
    except RollcageError as error:
        sys.stderr.write(f"rollcage {name}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader (`| head`) has gone: not an error
        return 0
    except OSError as error:
        if error.filename is None and error.errno not in _DISK_FULL:
            raise
        sys.stderr.write(f"rollcage {name}: {error.filename or 'disk'}: {error.strerror}\n")
        return 1 if error.errno in _DISK_FULL else 2


def _measuring(port: int) -> AbstractContextManager[tuple[Recorder, str]]:
    """See `Measuring`."""
    from rollcage.monitor.live import measuring

    return measuring(port)


def _sandbox_service() -> tuple[str, str] | None:
    """Return address and token of this user's sandbox service, as `rollcage sandbox` finds it, or None."""
    from rollcage.sandbox.client.address import default_folder, read_address

    service = read_address(default_folder())
    return None if service is None else (service.address, service.token)


if __name__ == "__main__":
    sys.exit(main())
