"""vLLM replicas on an engine server, for real: `rollcage engine` on the CPU, one fed by shared memory, one by gloo."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from tests.trainer.engines.tiny_llama import gap, make_model, plain_logprobs, request, sample, weights_of

from rollcage.errors import UserError
from rollcage.trainer.engines.base import EngineDied, EngineError
from rollcage.trainer.engines.served import parse_address
from rollcage.trainer.engines.vllm import VllmEngine
from rollcage.trainer.engines.vllm_options import VllmEngineConfig
from rollcage.trainer.learner.batch import make_batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Generation

pytestmark = pytest.mark.timeout(300)  # the first test of the file waits for the replicas


@dataclass
class Served:
    """A server, the replicas that run there, and the loop and router that use them."""

    process: subprocess.Popen[str]
    runner: asyncio.Runner
    engines: list[VllmEngine]
    router: Router
    metrics: str

    def replicas(self) -> list[psutil.Process]:
        """The processes of the replicas, the oldest first."""
        children = psutil.Process(self.process.pid).children()
        return sorted(
            (child for child in children if child.status() != "zombie"), key=lambda child: child.create_time()
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    token, command = folder / "token", [sys.executable, "-m", "rollcage", "engine", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--token-file", str(token), "--logs", str(folder / "logs")], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    address = process.stderr.readline().removeprefix("listening at ").strip()
    metrics = process.stderr.readline().removeprefix("metrics: ").strip()
    common = {"model": str(folder), "max_batch_size": 8, "cache_gib": 0.05, "servers": (address,)}
    engines = [
        VllmEngine(VllmEngineConfig(**common, token_file=str(token), weights=weights), replica=index)
        for index, weights in enumerate(("auto", "gloo"))
    ]
    router = Router(engines)
    with asyncio.Runner() as runner:
        try:
            runner.run(router.start())
            yield Served(process, runner, engines, router, metrics)
        finally:
            runner.run(router.close())
            process.kill()
            process.wait()
            process.stderr.close()


def test_the_server_tells_prometheus_how_it_does(served):
    with urlopen(served.metrics, timeout=5) as answer:
        assert b"\nrollcage_disk_free_bytes " in answer.read()


def test_three_updates_with_weights_by_shared_memory_and_by_broadcast(served, folder):
    """Token ids in and out: sampler and trainer agree after every publish, on both replicas, and differ before it."""
    assert [engine._group is not None for engine in served.engines] == [False, True]
    gaps: list[tuple[float, float]] = []

    async def main() -> None:
        learner = DeepSpeedLearner(LearnerConfig(str(folder), lr=1e-3))
        await learner.start()
        try:
            groups = await sample(served.router.generate, 0)
            for version in (1, 2, 3):
                await learner.train(make_batch(groups))
                before = await gap(learner, groups)
                await served.router.publish(await learner.publish(), version)
                groups = await sample(served.router.generate, version)
                assert {version} == {
                    v for g in groups for t in g.trajectories for v in t.segments[0].policy_versions[5:]
                }
                gaps.append((before, await gap(learner, groups)))
        finally:
            await learner.close()

    served.runner.run(main())
    for before, after in gaps:
        assert before > 1e-3  # the update is visible
        assert after < 1e-5


@pytest.mark.parametrize("index", [0, 1])
def test_publish_while_requests_run_pause_and_abort(served, index):
    engine, old, new = served.engines[index], make_model(), make_model(seed=1)

    async def main() -> None:
        await engine.publish(weights_of(old), 10)
        across = request("across", max_new_tokens=400)
        running = asyncio.create_task(engine.generate(across))
        aborted = asyncio.create_task(engine.generate(request("aborted", max_new_tokens=400)))
        await engine.generate(request("clock", max_new_tokens=4))
        await engine.publish(weights_of(new), 11)
        await engine.pause()
        await engine.abort("aborted")
        part = await aborted
        assert part.finish_reason == "abort"
        assert 0 < len(part.token_ids) < 400
        assert not running.done()
        await engine.resume()
        generation = await running
        num_old = generation.policy_versions.count(10)
        assert 0 < num_old < 400
        by_old, by_new = (plain_logprobs(model, across, generation) for model in (old, new))
        assert generation.logprobs == pytest.approx([*by_old[:num_old], *by_new[num_old:]], abs=1e-4)
        with pytest.raises(EngineError, match="no weight 'extra'"):
            await engine.publish({**weights_of(new), "extra": weights_of(new)["model.norm.weight"]}, 12)
        await engine.publish(weights_of(new), 12)

    served.runner.run(main())


def test_a_replica_that_is_killed_is_replaced_and_goes_on_with_the_newest_weights(served):
    """The second replica, by kill -9; its successor joins a group of its own."""
    engine, router = served.engines[1], served.router

    async def main() -> None:
        await router.publish(weights_of(make_model(seed=2)), 13)
        await engine.pause()  # so that none of its requests is through before the kill
        tasks = [
            asyncio.create_task(router.generate(request(f"m{i}", max_new_tokens=200, group="g"))) for i in range(4)
        ]
        await asyncio.sleep(0.1)
        assert engine.num_live == 2
        os.kill(_pid_of(engine, served), signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, EngineDied) for result in results) == 2
        assert sum(isinstance(result, Generation) for result in results) == 2
        async with asyncio.timeout(120):
            while router.num_live_engines < 2:
                await asyncio.sleep(0.1)
        asked = request("after")
        generation = await engine.generate(asked)
        assert generation.policy_versions == [13] * 12
        assert generation.logprobs == pytest.approx(plain_logprobs(make_model(seed=2), asked, generation), abs=1e-4)

    served.runner.run(main())


def test_whoever_hangs_up_takes_his_process_along_and_a_stopped_server_all_of_them(served):
    async def main() -> None:
        before = served.replicas()
        assert len(before) == 2
        pid = _pid_of(served.engines[0], served)
        os.kill(pid, signal.SIGSTOP)  # it cannot notice by itself
        await served.engines[0].close()
        await asyncio.to_thread(psutil.wait_procs, [process for process in before if process.pid == pid], 10)
        assert len(served.replicas()) == 1
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 130
        assert not any(process.is_running() for process in before)
        with pytest.raises(EngineDied, match="closed the connection"):
            await served.engines[1].generate(request("late"))

    served.runner.run(main())


def test_without_the_token_or_a_server_nothing_starts(tmp_path, folder):
    """And a caller that says nothing, or something else, is let go."""
    path, right, wrong = tmp_path / "s", tmp_path / "right", tmp_path / "wrong"
    wrong.write_text("another-token-of-some-length\n")
    command = [sys.executable, "-m", "rollcage", "engine", "--listen", f"unix:{path}", "--token-file", str(right)]

    async def start(token: Path) -> None:
        options = {"servers": (f"unix:{path}",), "token_file": str(token)}
        engine = VllmEngine(VllmEngineConfig(model=str(folder), **options))
        try:
            await engine.start()
        finally:
            await engine.close()

    with subprocess.Popen([*command, "--logs", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            process.stderr.readline()
            assert right.stat().st_mode & 0o77 == 0
            with pytest.raises(UserError, match="has another token"):
                asyncio.run(start(wrong))
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                stranger.sendall(bytes(32))
                assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
                stranger.sendall(bytes(32))
                assert stranger.recv(1) == b""  # no proof, no answer
            assert psutil.Process(process.pid).children() == []
        finally:
            process.terminate()
    assert not path.exists()
    with pytest.raises(EngineDied, match="cannot be reached"):
        asyncio.run(start(right))


@pytest.mark.parametrize("address", ["nowhere", ":7000", "host:port", "host:70000"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match="HOST:PORT or unix:PATH"):
        parse_address(address)


def test_servers_need_a_token():
    with pytest.raises(UserError, match=r"needs vllm\.token_file"):
        VllmEngineConfig(model="m", servers=("127.0.0.1:1",))


def _pid_of(engine: VllmEngine, served: Served) -> int:
    """Process id of an engine's replica: the one that holds the other end of its connection."""
    assert engine._child is not None
    assert engine._child._writer is not None
    ours = engine._child._writer.get_extra_info("sockname")
    for process in served.replicas():
        if any(connection.raddr == ours for connection in process.net_connections("tcp")):
            return process.pid
    raise AssertionError("no process has this connection")
