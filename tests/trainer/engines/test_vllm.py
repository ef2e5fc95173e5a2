"""The vLLM engine, for real: two replicas on the CPU, of a small random Llama, each in a process of its own."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tests.trainer.engines.tiny_llama import (
    CONTEXT,
    VOCAB,
    gap,
    make_model,
    plain_logprobs,
    request,
    sample,
    weights_of,
)

from rollcage.errors import MissingExtra, UserError
from rollcage.trainer.engines.base import ContextFull, EngineDied, EngineError
from rollcage.trainer.engines.vllm import VllmEngine
from rollcage.trainer.engines.vllm_options import VllmEngineConfig
from rollcage.trainer.learner.batch import make_batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Generation, Request, Sampling

pytestmark = pytest.mark.timeout(300)  # the first test of the file waits for the replicas


async def some_steps(engine: VllmEngine) -> None:
    """Return when everything that runs has got some tokens."""
    await engine.generate(request("clock", max_new_tokens=4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all tests that share the replicas."""
    with asyncio.Runner() as runner_:
        yield runner_


@pytest.fixture(scope="module")
def replicas(folder: Path, runner: asyncio.Runner) -> Iterator[list[VllmEngine]]:
    config = VllmEngineConfig(model=str(folder), max_batch_size=8, cache_gib=0.05)
    engines = [VllmEngine(config, replica=index, log=folder / f"engine{index}.log") for index in range(2)]

    async def start() -> None:
        await asyncio.gather(*(engine.start() for engine in engines))

    async def close() -> None:
        pids = [engine.pid for engine in engines]
        for engine in engines:
            await engine.close()
            await engine.close()
        assert not any(map(psutil.pid_exists, pids))

    try:
        runner.run(start())
        yield engines
    finally:
        runner.run(close())


@pytest.fixture
def engine(replicas: list[VllmEngine], runner: asyncio.Runner) -> VllmEngine:
    """The first replica, with the weights of version 0."""
    if replicas[0].policy_version:
        runner.run(replicas[0].publish(weights_of(make_model()), 0))
    return replicas[0]


def test_logprobs_are_those_of_a_plain_forward_pass_at_the_request_s_temperature(engine, runner):
    """More requests than run at once, of unequal lengths and temperatures, in one batch."""
    temperatures = (1.0, 0.5, 0.0, 1.3)
    requests = [
        request(f"r{i}", 1 + 7 * i % 40, sampling=Sampling(3 + 5 * i % 30, temperatures[i % 4])) for i in range(24)
    ]

    async def main() -> list[Generation]:
        return list(await asyncio.gather(*map(engine.generate, requests)))

    model = make_model()
    for request_, generation in zip(requests, runner.run(main()), strict=True):
        assert len(generation.token_ids) == request_.sampling.max_new_tokens
        assert generation.finish_reason == "length"
        expected = plain_logprobs(model, request_, generation, request_.sampling.temperature or 1.0)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
        assert generation.policy_versions == [0] * len(generation.token_ids)


def test_logprobs_under_top_p_and_top_k_are_of_the_tokens_that_may_be_drawn(engine, runner):
    """What was sampled from: the kept tokens' probabilities, renormalised."""
    asked = {"top_p": Sampling(10, top_p=0.4), "top_k": Sampling(10, temperature=1.5, top_k=3)}
    model = make_model()
    for name, sampling in asked.items():
        request_ = request(name, sampling=sampling)
        generation = runner.run(engine.generate(request_))
        ids = torch.tensor([[*request_.prompt_ids, *generation.token_ids]])
        with torch.inference_mode():
            probs = (model(input_ids=ids).logits[0, 4:-1] / sampling.temperature).softmax(-1)
        for row, token, logprob in zip(probs, generation.token_ids, generation.logprobs, strict=True):
            ordered = row.sort(descending=True).values
            num = sampling.top_k or int((ordered.cumsum(0) - ordered < sampling.top_p).sum())
            assert logprob == pytest.approx((row[token] / ordered[:num].sum()).log().item(), abs=1e-4)


def test_draws_depend_on_the_seed_and_not_on_the_neighbours(engine, runner):
    requests = [request(f"r{index}", length=2 + index % 9, max_new_tokens=16) for index in range(8)]

    async def main() -> list[list[Generation]]:
        together = list(await asyncio.gather(*map(engine.generate, requests)))
        alone = [await engine.generate(request_) for request_ in requests]
        others = [replace(request_, seed=request_.seed + 1000) for request_ in requests]
        return [together, alone, list(await asyncio.gather(*map(engine.generate, others)))]

    together, alone, others = ([item.token_ids for item in items] for items in runner.run(main()))
    assert together == alone != others


def test_stop_ids_and_the_context_end_a_request(engine, runner):
    async def main() -> None:
        free = await engine.generate(request("a", max_new_tokens=20))
        stop = free.token_ids[4]
        stopped = await engine.generate(request("a", max_new_tokens=20, stop_ids=frozenset({stop})))
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert engine.max_context_tokens == CONTEXT  # the model's own, below the configured 2,048
        last = await engine.generate(request("b", length=CONTEXT - 6, max_new_tokens=10))
        assert (len(last.token_ids), last.finish_reason) == (6, "length")
        with pytest.raises(ContextFull, match="the prompt has 512 tokens, the context 512"):
            await engine.generate(request("c", length=CONTEXT))

    runner.run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"prompt_ids": [VOCAB]}, "token ids"), ({"prompt_ids": []}, "empty"), ({"sampling": Sampling(0)}, "max_new")],
)
def test_a_bad_request_is_refused_and_the_engine_lives_on(change, message, engine, runner):
    with pytest.raises(EngineError, match=message):
        runner.run(engine.generate(replace(request("bad"), **change)))
    assert len(runner.run(engine.generate(request("good"))).token_ids) == 12
    assert engine.num_live == 0


def test_abort_returns_what_there_is_and_cancel_frees_the_place(engine, runner):
    async def main() -> None:
        long = [asyncio.create_task(engine.generate(request(f"long{i}", max_new_tokens=500))) for i in range(8)]
        queued = asyncio.create_task(engine.generate(request("queued", max_new_tokens=500)))
        await asyncio.sleep(0.3)
        assert engine.num_live == 9
        await engine.pause()
        assert not any(task.done() for task in long)
        await engine.abort("never heard of")
        await engine.abort("queued")
        assert await queued == Generation([], [], [], "abort")
        await engine.abort("long0")
        part = await long[0]
        assert part.finish_reason == "abort"
        assert 0 < len(part.token_ids) == len(part.logprobs) == len(part.policy_versions) < 500
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in long[1:])  # paused
        for task in long[1:]:
            task.cancel()
        await asyncio.wait(long)
        assert engine.num_live == 0
        await engine.resume()
        assert len((await engine.generate(request("next"))).token_ids) == 12

    runner.run(main())


def test_publish_while_requests_run_marks_each_token_with_its_version_and_is_exact(engine, runner):
    """What an earlier version has computed is not used again: neither by running requests nor as a cached prefix."""
    old_model, new_model = make_model(), make_model(seed=1)
    prefix = request("prefix", length=100, max_new_tokens=5)

    async def main() -> tuple[Request, Generation, Generation]:
        await engine.generate(prefix)
        across = request("across", max_new_tokens=500)
        in_flight = asyncio.create_task(engine.generate(across))
        await some_steps(engine)
        given = weights_of(new_model)
        await engine.publish(given, 7)
        for tensor in given.values():
            tensor.fill_(float("nan"))  # the caller may overwrite them now
        assert engine.policy_version == 7
        again = await engine.generate(prefix)
        return across, await in_flight, again

    across, generation, again = runner.run(main())
    num_old = generation.policy_versions.count(0)
    assert 0 < num_old < 500
    assert generation.policy_versions == [0] * num_old + [7] * (500 - num_old)
    by_old = plain_logprobs(old_model, across, generation)
    by_new = plain_logprobs(new_model, across, generation)
    assert generation.logprobs == pytest.approx([*by_old[:num_old], *by_new[num_old:]], abs=1e-4)
    assert again.policy_versions == [7] * 5
    assert again.logprobs == pytest.approx(plain_logprobs(new_model, prefix, again), abs=1e-4)


def test_publish_of_foreign_weights_is_refused_as_a_whole(engine, runner):
    weights = weights_of(make_model(seed=1))
    faults = {
        "no weight 'extra'": {**weights, "extra": torch.zeros(1)},
        "is \\[1\\]": {**weights, "model.norm.weight": torch.zeros(1)},
        "missing": {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"},
    }
    before = runner.run(engine.generate(request("a")))
    for message, given in faults.items():
        with pytest.raises(EngineError, match=message):
            runner.run(engine.publish(given, 1))
    assert engine.policy_version == 0
    assert runner.run(engine.generate(request("a"))) == before


def test_diverged_weights_cost_the_requests_that_meet_them_and_no_later_one(engine, runner):
    good = weights_of(make_model())
    bad = {name: torch.full_like(tensor, float("nan")) for name, tensor in good.items()}

    async def main() -> None:
        expected = await engine.generate(request("a"))
        await engine.publish(bad, 1)
        with pytest.raises(EngineError, match="not finite"):
            await engine.generate(request("a"))
        await engine.publish(good, 2)
        assert (await engine.generate(request("a"))).token_ids == expected.token_ids

    runner.run(main())


def test_sampler_and_trainer_agree_after_every_publish_and_differ_before_it(engine, folder, runner):
    """Three updates with DeepSpeed: mean |old - behav| of fresh samples before and after each publish."""
    gaps: list[tuple[float, float]] = []

    async def main() -> None:
        learner = DeepSpeedLearner(LearnerConfig(str(folder), lr=1e-3))
        await learner.start()
        try:
            groups = await sample(engine.generate, 0)
            for version in (1, 2, 3):
                statistics = await learner.train(make_batch(groups))
                assert statistics["logprob_gap_mean"] < 1e-5  # reported with every update, over fresh samples
                assert statistics["logprob_gap_max"] < 1e-3
                before = await gap(learner, groups)
                await engine.publish(await learner.publish(), version)
                groups = await sample(engine.generate, version)
                gaps.append((before, await gap(learner, groups)))
        finally:
            await learner.close()

    runner.run(main())
    assert len(gaps) == 3
    for before, after in gaps:
        assert before > 1e-3  # the update is visible
        assert after < 1e-5


def test_a_killed_replica_costs_its_own_requests_only(replicas, runner):
    """T3 with kill -9: an error for those in flight there, none for the others, and the router goes on."""

    async def main() -> None:
        router = Router(replicas, max_restarts=0)
        await replicas[1].pause()  # so that none of its requests is through before the kill
        tasks = [
            asyncio.create_task(router.generate(request(f"m{i}", max_new_tokens=400, group="g"))) for i in range(8)
        ]
        await asyncio.sleep(0)
        assert [engine.num_live for engine in replicas] == [4, 4]
        os.kill(replicas[1].pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
        died = [result for result in results if isinstance(result, EngineDied)]
        assert len(died) == 4
        assert all("killed by SIGKILL" in str(error) for error in died)
        assert sum(isinstance(result, Generation) for result in results) == 4
        assert router.num_live_engines == 1
        assert len((await router.generate(request("next"))).token_ids) == 12
        for call in (replicas[1].generate(request("late")), replicas[1].pause(), replicas[1].start()):
            with pytest.raises(EngineDied):
                await call

    runner.run(main())


def test_a_replica_that_hangs_is_dead_at_its_deadline(replicas, runner):
    engine = replicas[0]

    async def main() -> None:
        engine._config = replace(engine._config, step_timeout_s=1.0)
        running = asyncio.create_task(engine.generate(request("a", max_new_tokens=500)))
        await asyncio.sleep(0)
        os.killpg(engine.pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(EngineDied, match=r"did not answer '\w+' within 1 s"):
            await engine.pause()
        with pytest.raises(EngineDied, match="did not answer"):
            await running
        assert time.monotonic() - start < 10

    runner.run(main())


def test_the_process_ends_with_its_parent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "rollcage.trainer.engines.vllm_worker", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        ours.close()  # as the kernel does when a process is killed
        assert process.wait(timeout=60) == -signal.SIGKILL


def test_a_missing_model_or_vllm_and_a_wrong_setting_are_one_clear_line(tmp_path, folder, monkeypatch):
    async def start(path: Path) -> None:
        engine = VllmEngine(VllmEngineConfig(model=str(path)))
        with pytest.raises(EngineError, match=r"call start\(\)"):
            await engine.generate(request("a"))
        try:
            await engine.start()
        finally:
            await engine.close()

    with pytest.raises(UserError, match="nowhere"):
        asyncio.run(start(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="tensor_parallel is 0"):
        VllmEngineConfig(model="x", tensor_parallel=0)
    monkeypatch.setattr("rollcage.trainer.engines.vllm.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rollcage\[vllm\]"):
        asyncio.run(start(folder))
