"""The benchmark suites: which tasks of which environment a named benchmark is made of, and how its result is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcage.envs.countdown.tasks import published_files
from rollcage.errors import UserError, did_you_mean
from rollcage.trainer.evaluation.evaluate import Evaluation, Result, plan


@dataclass(frozen=True, slots=True)
class Part:
    """One set of tasks.

    Attributes:
        env_id: its environment.
        kwargs: returns the arguments of the environment; a UserError where its data are not on this machine.
        split: its split.
        num_tasks: how many of its tasks, drawn by seed; None for all of them.
        optional: left out where its data are not on this machine, and named in the result.
    """

    env_id: str
    kwargs: Callable[[], Mapping[str, Any]]
    split: str = "test"
    num_tasks: int | None = None
    optional: bool = False


def _math(name: str) -> Mapping[str, Part]:
    return {name: Part("rollcage/Math-v0", lambda: {"dataset": name})}


def _qa(name: str) -> Part:
    return Part("rollcage/QA-v0", lambda: {"dataset": name})


def _countdown_files() -> Mapping[str, Any]:
    return {"data": {"test": published_files()["test"]}}


SUITES: Mapping[str, Mapping[str, Part]] = {
    "countdown": {
        "procedural": Part("rollcage/Countdown-v0", lambda: {"num_numbers": [3, 4]}, num_tasks=2048),
        "3to4": Part("rollcage/Countdown-v0", _countdown_files, optional=True),
    },
    "gsm8k": _math("gsm8k"),
    "math500": _math("math500"),
    "aime24": _math("aime24"),
    "aime25": _math("aime25"),
    "amc23": _math("amc23"),
    "olympiadbench": _math("olympiadbench"),
    "qa": {name: _qa(name) for name in ("mmlu", "bbh", "agieval")},
}
"""Suite -> its parts, each with a name."""


def plan_suite(
    name: str, *, num_tasks: int | None, seed: int, attempts: int, solver: str | None
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return the evaluations of a suite's parts, and why the parts that are missing here were left out.

    Args:
        name: one of `SUITES`.
        num_tasks: at most so many tasks of each part; None for all.
        seed: of the draw and of every episode.
        attempts: episodes of each task.
        solver: see `plan`.

    Raises:
        UserError: unknown suite, or data that are not on this machine.
    """
    if name not in SUITES:
        raise UserError(f"no suite {name!r} (there are: {', '.join(SUITES)}).{did_you_mean(name, SUITES)}")
    evaluations, left_out = {}, {}
    for part_name, part in SUITES[name].items():
        try:
            kwargs = part.kwargs()
        except UserError as error:
            if not part.optional:
                raise
            left_out[part_name] = str(error)
            continue
        wanted = min((n for n in (num_tasks, part.num_tasks) if n is not None), default=None)
        evaluations[part_name] = plan(
            part.env_id, kwargs, split=part.split, num_tasks=wanted, seed=seed, attempts=attempts, solver=solver
        )
    return evaluations, left_out


def summarize(
    suite: str, results: Mapping[str, Result], left_out: Mapping[str, str], *, expert: bool
) -> dict[str, Any]:
    """Return the result of a suite as JSON-able data; rates are over the tasks of all parts, which all weigh the same.

    Keys: suite, policy, num_tasks, num_scored, pass@1 and its interval (the unbiased estimate, which is the mean over
    all attempts), avg@k (the same, by the name that goes with k attempts), pass@k for k = 2, 4, 8, ... up to
    ``attempts`` and k = ``attempts``, mean_reward, failures, seconds, attempts, seed, the parts (with the tasks that
    their data set leaves out because they cannot be scored), those left out, and for the expert the ids that it did
    not solve.
    """
    whole = _join(list(results.values()))
    summary = whole.summary()
    numbers: dict[str, Any] = {"suite": suite, "policy": whole.policy}
    numbers |= {key: summary[key] for key in ("num_tasks", "num_scored")} | _rates(whole)
    numbers |= {key: summary[key] for key in ("mean_reward", "failures", "seconds", "attempts", "seed")}
    numbers["parts"] = {
        name: {key: result.summary()[key] for key in ("env_id", "split", "num_tasks", "num_scored")}
        | _rates(result)
        | {"quarantined": dict(result.evaluation.quarantined)}
        for name, result in results.items()
    }
    numbers["left_out"] = dict(left_out)
    numbers["failure_reasons"] = summary["failure_reasons"]
    if expert:
        numbers["not_solved"] = [e["task_id"] for e in whole.episodes if not e["success"]]
    return numbers


def _rates(result: Result) -> dict[str, Any]:
    attempts = result.evaluation.attempts
    ks = [k for k in (2**exponent for exponent in range(1, 12)) if k < attempts]
    rates: dict[str, Any] = {}
    for name, k in [("pass@1", 1), (f"avg@{attempts}", 1), *((f"pass@{k}", k) for k in [*ks, attempts] if k > 1)]:
        rate = result.rate(k)
        rates[name] = rate and rate[0]
        rates[f"{name}_ci95"] = list(rate[1]) if rate else [None, None]
    return rates


def _join(results: Sequence[Result]) -> Result:
    """Return the results of several parts as one; task ids are told apart by their part."""
    if len(results) == 1:
        return results[0]
    episodes = [
        {**episode, "task_id": f"{number}:{episode['task_id']}"}
        for number, result in enumerate(results)
        for episode in result.episodes
    ]
    evaluation = results[0].evaluation
    task_ids = tuple(f"{number}:{task_id}" for number, r in enumerate(results) for task_id in r.evaluation.task_ids)
    joined = Evaluation(evaluation.env, evaluation.split, task_ids, evaluation.seed, evaluation.attempts)
    return Result(joined, results[0].policy, episodes, sum(result.seconds for result in results))
