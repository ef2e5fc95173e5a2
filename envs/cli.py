"""The commands ``envs``, ``check`` and ``data``, and ``--env-arg`` for every command with an environment."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rollcage.command import CommandParser, natural_float
from rollcage.envs.core import TextEnv
from rollcage.envs.registration import find_spec, make
from rollcage.errors import RollcageError, UserError, did_you_mean

_DATA = {"alfworld": ("rollcage.envs.alfworld.prepare", "the games of rollcage/ALFWorld-v0")}
"""Data set -> module with `main`, and what it is."""


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--env-arg KEY=VALUE``; `env_kwargs` reads what was given."""
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the environment, as JSON or else as text; repeatable (--env-arg split=test)",
    )


def env_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments given with ``--env-arg``.

    Raises:
        UserError: one without "=", with a key that is no name, or given twice.
    """
    kwargs: dict[str, Any] = {}
    for pair in args.env_arg:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"--env-arg {pair!r}: write KEY=VALUE, as in split=test or num_numbers=4.")
        if key in kwargs:
            raise UserError(f"--env-arg {key}: given twice.")
        try:
            kwargs[key] = json.loads(value)
        except ValueError:
            kwargs[key] = value
    return kwargs


def run_envs(argv: Sequence[str]) -> int:
    """List the environments, or show the page of one."""
    parser = CommandParser(
        "rollcage envs",
        "List the environments, or show the documentation, spaces, splits and arguments of one.",
        "rollcage envs\nrollcage envs rollcage/Countdown-v0\n"
        "rollcage envs rollcage/Countdown-v0 --env-arg num_numbers=4\nrollcage envs my_module:mine/Env-v0 --json\n"
        "rollcage envs my_module:mine/Env-v0 --markdown >Env.md",
    )
    parser.add_argument("env_id", nargs="?", help="id, or module:id for one of yours; none lists all")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--markdown", action="store_true", help="the page of one as Markdown, for a website or folder")
    add_env_arguments(parser)
    args = parser.parse_args(argv)
    kwargs = env_kwargs(args)
    if args.markdown and (args.env_id is None or args.json):
        raise UserError("--markdown needs the id of one environment, and no --json.")
    if args.env_id is not None:
        description = describe(find_spec(args.env_id), kwargs)
        if args.markdown:
            sys.stdout.write(markdown_page(description))
            return 0
        sys.stdout.write(json.dumps(description, indent=2) + "\n" if args.json else _page(description))
        return 0
    if kwargs:
        raise UserError("--env-arg needs the id of one environment.")
    specs = [spec for spec in gymnasium.registry.values() if _is_ours(spec)]
    rows = [describe(spec, {}) for spec in sorted(specs, key=lambda spec: spec.id)]
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    width = max((len(row["env_id"]) for row in rows), default=0)
    for row in rows:
        sys.stdout.write(f"{row['env_id']:{width}}  {row['summary']}\n{'':{width}}  {_splits(row)}\n")
    return 0


def run_check(argv: Sequence[str]) -> int:
    """Check an environment; exit code 1 where a promise is broken."""
    from rollcage.envs.checker import check
    from rollcage.envs.checks import CHECKS
    from rollcage.envs.checks.subject import SECONDS

    checks = "".join(
        f"\n  {name:12} {(inspect.getdoc(function) or '').partition(chr(10))[0]}" for name, function in CHECKS.items()
    )
    parser = CommandParser(
        "rollcage check",
        "Check that an environment keeps every promise of the suite, one line for each check:" + checks,
        "rollcage check rollcage/Countdown-v0\nrollcage check my_module:mine/Env-v0\n"
        "rollcage check rollcage/SWEMini-v0 --seconds 60\n"
        "rollcage check rollcage/FrozenLake-v0 --env-arg is_slippery=true --only rewards --json",
    )
    parser.add_argument("env_id", help="id, or module:id for one of yours")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="run this check only; repeatable")
    parser.add_argument(
        "--seconds",
        type=natural_float,
        default=SECONDS,
        help=f"so long a check goes on with new episodes, two at least (default: {SECONDS:g})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_env_arguments(parser)
    args = parser.parse_args(argv)
    on_result = _ignore if args.json else _tell
    given: dict[str, Any] = {"only": args.only, "seconds": args.seconds}
    report = check(args.env_id, **given, progress=_progress, on_result=on_result, **env_kwargs(args))
    if args.json:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")
    else:
        verdict = f"failed: {', '.join(report.failed)}" if report.failed else "keeps every promise"
        sys.stdout.write(f"{report.env_id}: {verdict}\n")
    return 0 if report.ok else 1


def run_data(argv: Sequence[str]) -> int:
    """Prepare published data; imports only what that data set needs."""
    if not argv or argv[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:10}{text}" for name, (_, text) in _DATA.items())
        sys.stdout.write(f"usage: rollcage data NAME [arguments]\n\n{listed}\n\n  rollcage data NAME --help\n")
        return 0 if argv else 2
    if argv[0] not in _DATA:
        raise UserError(
            f"nothing to prepare for {argv[0]!r} (known: {', '.join(_DATA)}).{did_you_mean(argv[0], _DATA)}"
        )
    main: Callable[[Sequence[str]], int] = import_module(_DATA[argv[0]][0]).main
    return main(argv[1:])


def _progress(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _tell(result: object) -> None:
    sys.stdout.write(f"{result}\n")
    sys.stdout.flush()


def _ignore(result: object) -> None:
    """Say nothing: all of it comes at the end."""


def describe(spec: EnvSpec, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what there is to know about an environment, as JSON's types.

    Keys: ``env_id``, ``summary``, ``documentation``, ``arguments`` (name to default), ``licence``, ``splits`` (name to
    size), ``spaces``, ``tools``, ``placement``, and ``missing``: why it cannot be built here, or None.

    Raises:
        UserError: a wrong argument.
    """
    creator: Any = spec.entry_point
    missing = None
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except (ImportError, AttributeError) as error:
            creator, missing = None, f"cannot load {spec.entry_point} ({error})."
    documentation = (inspect.getdoc(creator) or "") if creator is not None else ""
    description: dict[str, Any] = {
        "env_id": spec.id,
        "summary": documentation.partition("\n")[0],
        "documentation": documentation,
        "arguments": {**_defaults(creator), **{key: repr(value) for key, value in spec.kwargs.items()}},
        "licence": "",
        "splits": {},
        "spaces": {},
        "tools": [],
        "placement": getattr(creator, "metadata", {}).get("placement", "inline"),
        "missing": missing,
    }
    if missing:
        return description
    try:
        env = make(spec.id, **kwargs)
    except RollcageError as error:
        if kwargs:
            raise
        description["missing"] = str(error)
        return description
    description["spaces"] = {"observation": repr(env.observation_space), "action": repr(env.action_space)}
    if isinstance(inner := env.unwrapped, TextEnv):
        description |= {"licence": inner.tasks.licence, "splits": dict(inner.tasks.splits), "tools": [*inner.tools]}
    env.close()
    return description


def _defaults(creator: Any) -> dict[str, str]:
    if creator is None:
        return {}
    parameters = inspect.signature(creator).parameters.values()
    plain = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return {p.name: "required" if p.default is p.empty else repr(p.default) for p in plain}


def _is_ours(spec: EnvSpec) -> bool:
    return isinstance(spec.vector_entry_point, str) and spec.vector_entry_point.startswith("rollcage.envs.vector:")


def _splits(description: dict[str, Any]) -> str:
    if description["missing"]:
        return f"not here: {description['missing']}"
    return ", ".join(f"{name} {size:,}" for name, size in description["splits"].items()) or "no task set"


def _page(description: dict[str, Any]) -> str:
    rows = {
        "Observations": description["spaces"].get("observation", ""),
        "Actions": description["spaces"].get("action", ""),
        "Splits": _splits(description),
        "Licence": description["licence"],
        "Placement": description["placement"],
        "Tools": ", ".join(tool["name"] for tool in description["tools"]),
        "Arguments": ", ".join(f"{name}={default}" for name, default in description["arguments"].items()),
    }
    table = "".join(f"{name:13} {value}\n" for name, value in rows.items() if value)
    return f"{description['env_id']}\n\n{description['documentation']}\n\n{table}"


def markdown_page(description: dict[str, Any]) -> str:
    """Return an environment's page as Markdown, the same on every machine: its docstring, and how it is made.

    Args:
        description: what `describe` returns.
    """
    env_id = description["env_id"]
    arguments = "".join(
        f"    {name}=...,  # required\n" if default == "required" else f"    {name}={_double_quoted(default)},\n"
        for name, default in description["arguments"].items()
    )
    return (
        f"# {env_id}\n\n{description['documentation'].strip()}\n\n## Making One\n\n```python\nimport gymnasium\n"
        f'import rollcage\n\nenv = gymnasium.make(\n    "{env_id}",\n{arguments})\n```\n\n'
        f"`rollcage envs {env_id}` shows this page, and which data there are on your machine;\n"
        f"`rollcage check {env_id}` checks that it keeps the suite's promises.\n"
    )


def _double_quoted(representation: str) -> str:
    return representation if '"' in representation else representation.replace("'", '"')
