"""`rollcage train` with vLLM, for real: two replicas on the CPU, DeepSpeed, three updates; and how it is asked for."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from rollcage.errors import UserError
from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.trainer.config import read_config, write_config
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.engines.local import LocalEngine
from rollcage.trainer.engines.vllm import VllmEngine
from rollcage.trainer.engines.vllm_options import VllmOptions
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.train_arguments import parse_train


@pytest.mark.timeout(400)
def test_three_updates_through_the_whole_pipeline_with_samples_as_the_trainer_sees_them(tmp_path: Path) -> None:
    """On policy (asynchronous ratio 0) sampler and trainer have the same weights: |old - behav| is rounding alone."""
    command = [sys.executable, "-m", "rollcage", "train", "countdown-small", "--out", str(tmp_path / "run")]
    options = {
        "engine.kind": "vllm",
        "engine.dtype": "float32",
        "engine.max-batch-size": "16",
        "engine.vllm.cache-gib": "0.1",
        "num-engines": "2",
        "num-updates": "3",
        "rollout.num-groups": "4",
        "rollout.group-size": "4",
        "rollout.num-slots": "16",
        "rollout.async-ratio": "0",
        "learner.compute-dtype": "float32",
        "eval.num-tasks": "0",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=380)
    assert result.returncode == 0, result.stderr
    metrics = read_metrics(tmp_path / "run")
    assert [row["policy_version"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        assert row["rollout/staleness_max"] == 0
        assert row["learner/logprob_gap_mean"] < 1e-4
        assert row["learner/logprob_gap_max"] < 1e-2
        assert row["account/failed"] == 0
    assert not [row for row in read_rows(tmp_path / "run", "events") if row["event"] == "logprob_gap"]
    assert {path.name for path in (tmp_path / "run" / "logs").glob("engine*")} == {"engine0.log", "engine1.log"}
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [text for text in commands if str(tmp_path) in text]


def test_the_kind_of_engine_is_an_option_and_each_kind_gets_its_own_fields() -> None:
    assert isinstance(EngineConfig().make(), LocalEngine)
    config = parse_train(["countdown-small", "--engine.kind", "vllm", "--engine.vllm.tensor-parallel", "2"]).config
    assert config is not None
    engine = config.engine_config.make(3)
    assert isinstance(engine, VllmEngine)
    given = asdict(engine._config)
    assert given["tensor_parallel"] == 2
    assert given["max_context_tokens"] == PRESETS["countdown-small"][1].engine.max_context_tokens
    assert given["model"] == config.model_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine.kind", "vlm"], "vlm"),
        (["--engine.vllm.tensor-paralel", "2"], "Did you mean '--engine.vllm.tensor-parallel'"),
    ],
)
def test_unknown_kinds_and_fields_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_train(["countdown-small", *arguments])


def test_a_run_s_file_holds_the_engine_and_an_unknown_key_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = PRESETS["countdown-small"][1]
    config = replace(config, engine=replace(config.engine, kind="vllm", vllm=VllmOptions(cache_gib=0.25)))
    write_config(path, config, "rollcage train")
    assert read_config(path)[0] == config
    path.write_text(path.read_text().replace("cache_gib", "cache_gb"))
    with pytest.raises(UserError, match=r"engine: vllm: unknown key 'cache_gb'. Did you mean 'cache_gib'"):
        read_config(path)
