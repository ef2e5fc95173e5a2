"""``rollcage bench rhythm-overhead``: what attention rhythm credit adds to an update, by the length of responses."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollcage.benchmarks.machine import describe
from rollcage.command import CommandParser, positive
from rollcage.trainer.config import model_path
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import join_ranks, make_engine
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.rhythm.credit import CREDITS
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.learner.update import PolicyUpdate
from rollcage.trainer.models import fastest_attention, load_config, load_model, resolve_dtype
from rollcage.trainer.presets import PRESETS

PRESET = "countdown-small"
WITHOUT, KNOWN, ANEW = "without credit", "heads known", "heads of every batch"
GROUP_SIZE = 8


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object."""
    parser = CommandParser(
        "rollcage bench rhythm-overhead",
        "What credit by attention rhythm adds to an update of the learner, by the length of responses. The same\n"
        f"random batch goes through updates of one policy that differ in it alone ({PRESET}'s settings),\n"
        "repetitions interleaved: without credit, with credit whose heads are known, and with heads picked anew for\n"
        "every batch. Nothing is sampled.",
        "rollcage bench rhythm-overhead\n"
        "rollcage bench rhythm-overhead --lengths 40 160 640 --report benchmarks/results/rhythm_overhead.md\n"
        "rollcage bench rhythm-overhead --model smollm2 --lengths 256 --tokens 2048 --repetitions 3",
    )
    parser.add_argument("--model", default="small", help="model to train, as for rollcage train (default: small)")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[40, 160, 640], help="tokens of a response")
    parser.add_argument("--prompt", type=positive, default=20, help="tokens of a prompt (default: 20)")
    parser.add_argument("--tokens", type=positive, default=16384, help="tokens of a batch (default: 16384)")
    parser.add_argument("--repetitions", type=positive, default=7, help="updates of each, the first aside (default: 7)")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads of the learner (default: 1)")
    parser.add_argument("--mini-batches", type=positive, default=1, help="optimiser steps of an update (default: 1)")
    parser.add_argument("--credit", default="coupled", choices=CREDITS, help="which credit (default: coupled)")
    parser.add_argument("--report", type=Path, help="also write the result as Markdown")
    arguments = parser.parse_args(argv)
    result = _measure(arguments)
    result["how"] = {
        "command": f"rollcage bench rhythm-overhead {' '.join(argv)}".strip(),
        "machine": describe(),
        "torch": torch.__version__,
    }
    if arguments.report:
        arguments.report.write_text(_report(result), encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def make_batch(num_rows: int, prompt: int, response: int, vocab_size: int) -> Batch:
    """Return rows of random tokens, all of the same length, in groups of which every second row is rewarded."""
    rng = np.random.default_rng(0)
    shape = num_rows, prompt + response
    mask = np.zeros(shape, np.bool_)
    mask[:, prompt:] = True
    number = np.arange(num_rows)
    returns = (number % 2).astype(np.float32)
    rewards = np.zeros(shape, np.float32)
    rewards[:, -1] = returns
    turns = np.where(mask, 0, -1).astype(np.int32)
    return Batch(
        token_ids=rng.integers(0, vocab_size, shape),
        attention_mask=np.ones(shape, np.bool_),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -np.log(vocab_size), 0).astype(np.float32),
        rewards=rewards,
        returns=returns,
        group_ids=number // GROUP_SIZE,
        episode_ids=number,
        truncated=np.zeros(num_rows, np.bool_),
        cut_by_length=np.zeros(num_rows, np.bool_),
        policy_versions=turns,
        start_versions=np.zeros(num_rows, np.int32),
        turns=turns,
        anchors=turns,
        greedy_returns=np.full(num_rows, np.nan, np.float32),
    )


def _measure(arguments: Any) -> dict[str, Any]:
    arguments.model = model_path(arguments.model)
    vocab_size = int(load_config(arguments.model).get_text_config().vocab_size)
    updates = make_updates(
        {
            WITHOUT: _config(arguments, RhythmConfig()),
            KNOWN: _config(arguments, RhythmConfig(arguments.credit, heads_every=0)),
            ANEW: _config(arguments, RhythmConfig(arguments.credit, heads_every=1)),
        }
    )
    rows: list[dict[str, Any]] = []
    for length in arguments.lengths:
        num_groups = max(1, round(arguments.tokens / (arguments.prompt + length) / GROUP_SIZE))
        batch = make_batch(num_groups * GROUP_SIZE, arguments.prompt, length, vocab_size)
        seconds: dict[str, list[float]] = {name: [] for name in updates}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in updates}
        reading: list[float] = []
        for repetition in range(arguments.repetitions + 1):  # the first one warms up, and picks the heads
            sys.stderr.write(f"{length} tokens: {repetition}/{arguments.repetitions}\n")
            for name, update in _turned(updates, repetition):
                start_s = time.process_time()
                update.begin(batch, repetition)
                _, measured = update.train()
                if repetition > 0:
                    seconds[name].append(measured["seconds"])
                    cpu_seconds[name].append(time.process_time() - start_s)
                    if name == KNOWN:
                        reading.append(measured["rhythm_seconds"])
        rows.append({"length": length, "num_rows": len(batch), **_row(seconds, cpu_seconds, reading)})
    return {"credit": arguments.credit, "model": Path(arguments.model).name, "lengths": rows}


def make_updates(configs: Mapping[str, LearnerConfig]) -> dict[str, PolicyUpdate]:
    """Return an update for each configuration, all of one policy in this process: processes differ in speed."""
    config = next(iter(configs.values()))
    torch.set_num_threads(config.num_threads)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    join_ranks(0, 1, TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False), config.start_timeout_s)
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    dtype = resolve_dtype(config.compute_dtype, device)
    policy = load_model(config.model, config.dtype, attn_implementation=fastest_attention(device, dtype))
    engine = make_engine(TokenLogprobs(policy, config.temperature, getattr(torch, dtype)), config)
    return {name: PolicyUpdate(engine, own, 0) for name, own in configs.items()}


def _config(arguments: Any, rhythm: RhythmConfig) -> LearnerConfig:
    # A learning rate that leaves the policy as it is: what is measured must not drift.
    return replace(
        PRESETS[PRESET][1].learner,
        model=arguments.model,
        num_threads=arguments.threads,
        num_mini_batches=arguments.mini_batches,
        lr=1e-9,
        rhythm=rhythm,
    )


def _turned(updates: Mapping[str, PolicyUpdate], by: int) -> list[tuple[str, PolicyUpdate]]:
    """Return the updates, beginning with another one each time: none always follows the same one."""
    items = list(updates.items())
    by %= len(items)
    return items[by:] + items[:by]


def _row(
    seconds: Mapping[str, Sequence[float]], cpu_seconds: Mapping[str, Sequence[float]], reading: Sequence[float]
) -> dict[str, Any]:
    """Return medians, and what each kind adds in each repetition, in shares of that repetition's update without."""
    row: dict[str, Any] = {f"{name} (s)": statistics.median(values) for name, values in seconds.items()}
    for times, what in ((seconds, "adds"), (cpu_seconds, "adds CPU time")):
        for name in (KNOWN, ANEW):
            added = [value / plain - 1 for value, plain in zip(times[name], times[WITHOUT], strict=True)]
            row[f"{name} {what}"] = [statistics.median(added), min(added), max(added)]
    read = [value / plain for value, plain in zip(reading, seconds[WITHOUT], strict=True)]
    return {**row, "reading": statistics.median(read)}


def _report(result: dict[str, Any]) -> str:
    how = result["how"]
    lines = [
        "# What attention rhythm credit costs",
        "",
        f"`{how['command']}`",
        "",
        f"{how['machine']} at the end; torch {how['torch']}. Model {result['model']}, credit {result['credit']}, the "
        f"learner's settings of {PRESET}. Shares are of an update without credit, beside it in the same repetition: "
        "medians, with the least and the most. CPU time is the update's alone; what else the machine does disturbs it "
        "less than wall time. A step of training also samples, which makes the share smaller.",
        "",
        "| response | rows | update without (s) | credit, heads known | CPU time | of it reading maps | heads of every "
        "batch | CPU time |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["lengths"]:
        known, known_cpu, anew, anew_cpu = (
            f"{100 * median:+.1f} % ({100 * least:+.1f} to {100 * most:+.1f})"
            for name in (KNOWN, ANEW)
            for median, least, most in (row[f"{name} adds"], row[f"{name} adds CPU time"])
        )
        lines.append(
            f"| {row['length']} | {row['num_rows']} | {row[f'{WITHOUT} (s)']:.3f} | {known} | {known_cpu} | "
            f"{100 * row['reading']:.1f} % | {anew} | {anew_cpu} |"
        )
    lines += [
        "",
        "With the heads known, maps are read in a pass that the update makes anyway: only of the heads that credit is "
        "taken from, only of the response's rows, in five layers at most, and none for longer than its layer takes. "
        "What remains is that, and one more column in the pass: the last token is not needed for log-probabilities, "
        "but what it attends to is. Picking heads takes a pass of its own through the layers up to the last one "
        "looked at; `learner.rhythm.heads_every` says how often (every 50 updates if nothing is said, which adds a "
        "fiftieth of the difference between the last column and the one before).",
        "",
    ]
    return "\n".join(lines)
