"""Evaluation in one process: what is counted, how, and what makes it the same again."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollcage.envs import RowTasks, Task, TextEnv, Turn, register
from rollcage.envs.placements import make_placement
from rollcage.errors import UserError
from rollcage.trainer.agents.endpoint import ChatEndpoint
from rollcage.trainer.agents.fake_endpoint import FakeEndpoint, RawReply
from rollcage.trainer.agents.policies import EndpointPolicy, Policy, SolverPolicy, make_policy
from rollcage.trainer.evaluation.evaluate import Evaluation, Result, evaluate, plan
from rollcage.trainer.rollout.episode import Deadlines
from rollcage.trainer.types import Sampling

SAMPLING = Sampling(max_new_tokens=16, temperature=0.0)
QUICK = Deadlines(env_s=1.0, turn_s=5.0, episode_s=20.0)


class PolarityEnv(TextEnv):
    """Say the word. Tasks named after what goes wrong in them go wrong in that way."""

    def __init__(self, split: str = "test") -> None:
        names = ["good-0", "good-1", "good-2", "raises", "unusable", "hopeless"]
        super().__init__(RowTasks("polarity", {"test": [{"id": name} for name in names]}), split=split)

    def begin(self, task: Task) -> str:
        return f"Say: {task.id}"

    def advance(self, action: str) -> Turn:
        if self.task.id == "test/raises":
            raise RuntimeError("the environment is broken here")
        failure = {"failure": "task"} if self.task.id == "test/unusable" else {}
        success = action == self.task.id
        return Turn("done", float(success), True, success, failure)

    def expert(self) -> str:
        if self.task.id == "test/hopeless":
            raise UserError("no idea")
        return self.task.id

    def random_action(self, rng: np.random.Generator) -> str:
        return str(rng.choice(["test/good-0", "test/good-1"]))


@pytest.fixture(autouse=True)
def env_id() -> Iterator[str]:
    register("tests/Polarity-v0", PolarityEnv)
    yield "tests/Polarity-v0"
    del gymnasium.registry["tests/Polarity-v0"]


def play(evaluation: Evaluation, policy: Policy, *, output: Path | None = None, concurrency: int = 3) -> Result:
    async def run() -> Result:
        placement = make_placement("inline", evaluation.env, num_workers=concurrency)
        try:
            await policy.start()
            return await evaluate(
                evaluation, policy, placement, concurrency=concurrency, deadlines=QUICK, output=output
            )
        finally:
            await placement.close()
            await policy.close()

    return asyncio.run(run())


def outcome(result: Result) -> list[Any]:
    """All of a result that must not depend on the clock."""
    times = ("start_s", "end_s", "act_s", "env_s")

    def timeless(record: Any) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key not in times}

    episodes = [{**timeless(episode), "turns": [*map(timeless, episode["turns"])]} for episode in result.episodes]
    summary = {key: value for key, value in result.summary().items() if key != "seconds"}
    return [episodes, summary]


def test_failures_are_counted_by_kind_and_only_those_of_the_model_are_scored(env_id: str) -> None:
    summary = play(plan(env_id), SolverPolicy("expert")).summary()
    assert list(summary)[:10] == [
        "env_id", "policy", "split", "num_tasks", "num_scored", "success_rate", "success_ci95", "mean_reward",
        "failures", "seconds",
    ]  # fmt: skip
    assert summary["num_tasks"] == 6
    assert summary["num_scored"] == 4  # three good ones, and the one that the expert had no action for
    assert summary["success_rate"] == summary["mean_reward"] == 0.75
    assert summary["success_ci95"][0] < 0.75 < summary["success_ci95"][1]
    assert summary["failures"] == {"infra": 1, "model": 1, "task": 1}
    assert summary["failure_reasons"] == {"infra/env_raised": 1, "model/no_expert": 1, "task/env_reported": 1}


def test_where_nothing_was_scored_the_rates_are_null_and_the_json_is_strict(env_id: str) -> None:
    evaluation = plan(env_id)
    broken = Evaluation(evaluation.env, "test", ("test/raises",))
    summary = play(broken, SolverPolicy("expert")).summary()
    assert (summary["num_scored"], summary["success_rate"], summary["mean_reward"]) == (0, None, None)
    assert summary["success_ci95"] == [None, None]
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("policy", ["expert", "random"])
def test_the_same_seed_gives_the_same_result_however_many_run_at_once(policy: str) -> None:
    evaluation = plan("rollcage/FrozenLake-v0", num_tasks=20, seed=5, attempts=2, solver=policy)
    results = [play(evaluation, make_policy(policy, SAMPLING), concurrency=n) for n in (1, 7)]
    assert outcome(results[0]) == outcome(results[1])
    other = plan("rollcage/FrozenLake-v0", num_tasks=20, seed=6, attempts=2, solver=policy)
    assert other.task_ids != evaluation.task_ids


def test_attempts_at_one_task_differ_and_are_one_cluster() -> None:
    evaluation = plan("rollcage/Countdown-v0", num_tasks=30, attempts=4)
    result = play(evaluation, SolverPolicy("random"))
    by_task = result.scored()
    assert all(len(episodes) == 4 for episodes in by_task.values())
    assert any(len({e["turns"][0]["action"] for e in episodes}) > 1 for episodes in by_task.values())
    rate, pass4 = result.rate(), result.rate(4)
    assert rate is not None
    assert pass4 is not None
    assert rate[0] == pytest.approx(sum(e["success"] for e in result.episodes) / 120)
    assert pass4[0] == pytest.approx(sum(any(e["success"] for e in es) for es in by_task.values()) / 30)
    assert result.rate(5) is None


def test_a_finished_evaluation_is_not_played_again(env_id: str, tmp_path: Path) -> None:
    evaluation = Evaluation(plan(env_id).env, "test", ("test/good-0", "test/good-1", "test/hopeless"))
    first = play(evaluation, SolverPolicy("expert"), output=tmp_path)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    assert outcome(play(evaluation, SolverPolicy("expert"), output=tmp_path)) == outcome(first)
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


def test_what_failed_by_infrastructure_is_played_again(tmp_path: Path) -> None:
    faults = [RawReply(400, b"broken"), RawReply(400, b"broken")]

    def answer(messages: list[dict[str, str]]) -> str | RawReply:
        if messages[0]["content"] == "Hello":
            return "Hello"
        return faults.pop() if faults else messages[0]["content"].removeprefix("Say: ")

    with FakeEndpoint(answer) as server:
        tasks = ("test/good-0", "test/good-1", "test/good-2")
        evaluation = Evaluation(plan("tests/Polarity-v0").env, "test", tasks)

        def policy() -> Policy:
            return EndpointPolicy("fake", ChatEndpoint(server.url, "fake"), SAMPLING)

        broken = play(evaluation, policy(), output=tmp_path).summary()
        assert (broken["num_scored"], broken["failure_reasons"]) == (1, {"infra/endpoint_refused": 2})
        mended = play(evaluation, policy(), output=tmp_path).summary()
        assert (mended["num_scored"], mended["success_rate"], mended["failures"]) == (3, 1.0, {})


def test_an_endpoint_that_never_works_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    with FakeEndpoint(lambda messages: RawReply(401, b"no key")) as server:
        policy = EndpointPolicy("fake", ChatEndpoint(server.url, "fake"), SAMPLING)
        with pytest.raises(UserError, match="no key"):
            play(plan("tests/Polarity-v0"), policy, output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_another_evaluation_in_the_same_folder_is_refused_by_the_field_that_differs(tmp_path: Path) -> None:
    def run(**changes: Any) -> None:
        arguments: dict[str, Any] = {"num_tasks": 4, "seed": 1, **changes}
        play(plan("rollcage/Countdown-v0", **arguments), SolverPolicy("expert"), output=tmp_path)

    run()
    for changes, field in [
        ({"seed": 2}, "seed was 1, now it is 2"),
        ({"num_tasks": 5}, "num_tasks was 4, now it is 5"),
        ({"attempts": 3}, "attempts was 1, now it is 3"),
        ({"split": "validation"}, "env_kwargs"),
        ({"env_kwargs": {"num_numbers": 4}}, "env_kwargs"),
    ]:
        with pytest.raises(UserError, match=field):
            run(**changes)
    with pytest.raises(UserError, match='policy was "expert", now it is "random"'):
        play(plan("rollcage/Countdown-v0", num_tasks=4, seed=1), SolverPolicy("random"), output=tmp_path)


def test_a_line_cut_short_by_a_kill_is_played_again(tmp_path: Path) -> None:
    evaluation = plan("rollcage/Countdown-v0", num_tasks=5)
    first = play(evaluation, SolverPolicy("random"), output=tmp_path)
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-25])
    assert outcome(play(evaluation, SolverPolicy("random"), output=tmp_path)) == outcome(first)
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 5


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    evaluation = plan("rollcage/Countdown-v0", num_tasks=3)
    play(evaluation, SolverPolicy("random"), output=tmp_path)
    file = tmp_path / "episodes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + "{broken\n" + lines[2])
    with pytest.raises(UserError, match=r"episodes\.jsonl:2: not an episode"):
        play(evaluation, SolverPolicy("random"), output=tmp_path)


def test_two_evaluations_never_write_into_one_folder_at_once(tmp_path: Path) -> None:
    evaluation = plan("tests/Polarity-v0")

    async def both() -> None:
        placement = make_placement("inline", evaluation.env, num_workers=4)
        runs = [evaluate(evaluation, SolverPolicy("expert"), placement, output=tmp_path) for _ in range(2)]
        results = await asyncio.gather(*runs, return_exceptions=True)
        await placement.close()
        assert [type(result) for result in results] == [Result, UserError]
        assert "another evaluation is writing there" in str(results[1])

    asyncio.run(both())


def test_more_tasks_than_there_are_means_all_of_them(env_id: str) -> None:
    assert len(plan(env_id, num_tasks=1000).task_ids) == 6


def test_an_environment_that_takes_no_split_is_evaluated_all_the_same() -> None:
    class Fixed(PolarityEnv):
        def __init__(self) -> None:
            super().__init__()

    register("tests/Fixed-v0", Fixed)
    try:
        assert plan("tests/Fixed-v0", split="test", num_tasks=2).env.kwargs == {}
        with pytest.raises(UserError, match="has no split 'tset'"):
            plan("tests/Fixed-v0", split="tset")
    finally:
        del gymnasium.registry["tests/Fixed-v0"]


def test_a_plain_gymnasium_environment_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"derive it from rollcage\.envs\.TextEnv"):
        plan("CartPole-v1")


def test_a_solver_that_the_environment_does_not_offer_is_found_out_before_the_first_episode(env_id: str) -> None:
    class Silent(PolarityEnv):
        expert = TextEnv.expert
        random_action = TextEnv.random_action

    register("tests/Silent-v0", Silent)
    try:
        for solver in ("expert", "random"):
            with pytest.raises(UserError, match=f"Silent offers no {solver} policy"):
                plan("tests/Silent-v0", solver=solver)
    finally:
        del gymnasium.registry["tests/Silent-v0"]


def test_a_reward_that_is_no_number_is_a_failure_of_the_environment() -> None:
    class Strange(PolarityEnv):
        def advance(self, action: str) -> Turn:
            return Turn("done", math.nan, True, True)

    register("tests/Strange-v0", Strange)
    try:
        summary = play(plan("tests/Strange-v0", num_tasks=2), SolverPolicy("random")).summary()
        assert (summary["num_scored"], summary["failures"]) == (0, {"infra": 2})
    finally:
        del gymnasium.registry["tests/Strange-v0"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exper", r"no policy 'exper'.* Did you mean 'expert'\?"),
        ("openai:model", "write openai:MODEL@URL"),
        ("openai:@http://host", "write openai:MODEL@URL"),
        ("openai:model@host:80", "write openai:MODEL@URL"),
        ("no/such/folder", "no policy 'no/such/folder'"),
    ],
)
def test_an_unknown_policy_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_policy(name, SAMPLING)
