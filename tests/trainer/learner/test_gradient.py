"""The gradient of an update is that of the formula, whatever the micro-batches, the ranks and the ZeRO stage."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.models import load_model

PROBE = Path(__file__).with_name("gradient_probe.py")
Result = tuple[float, int, dict[str, torch.Tensor]]


def configs(model: Path, num_ranks: int) -> dict[str, LearnerConfig]:
    """Return configurations that must give the same gradient; with an entropy bonus where so named."""
    common: dict[str, Any] = {"model": str(model), "num_ranks": num_ranks, "temperature": 0.8, "max_grad_norm": 1e9}
    plain = {f"zero {stage}": LearnerConfig(zero_stage=stage, **common) for stage in (0, 1, 2, 3)}
    for stage in (0, 2, 3):
        small = LearnerConfig(zero_stage=stage, micro_batch_tokens=20, **common)
        plain[f"zero {stage}, small micro-batches"] = small
    plain["zero 2, optimiser offloaded"] = LearnerConfig(zero_stage=2, offload="optimizer", **common)
    plain["zero 3, all offloaded"] = LearnerConfig(zero_stage=3, offload="all", **common)
    plain["checkpointing"] = LearnerConfig(gradient_checkpointing=True, **common)
    bonus = {"entropy_coef": 0.01, "loss": "ppo", "loss_options": {"e_hi": 0.28}}
    return {
        **plain,
        "cut": LearnerConfig(mask_cut=True, **common),
        "entropy": LearnerConfig(**common, **bonus),
        "entropy, small micro-batches": LearnerConfig(micro_batch_tokens=1, **common, **bonus),
    }


def reference(model: Path, batch: Batch, kind: str) -> dict[str, torch.Tensor]:
    """Return the gradient written down directly: GRPO on policy, mean over episodes of token means.

    ``kind`` "entropy": with its bonus; "cut": without a pull on the messages that were cut.
    """
    entropy_coef = 0.01 if kind == "entropy" else 0.0
    policy = load_model(model)
    total = torch.zeros(())
    for row in range(len(batch)):
        group = batch.returns[batch.group_ids == batch.group_ids[row]]
        deviation = group.std(ddof=1)
        advantage = 0.0 if deviation == 0 else float((batch.returns[row] - group.mean()) / (deviation + 1e-6))
        if kind == "cut" and batch.cut_by_length[row]:
            advantage = 0.0
        length = int(batch.attention_mask[row].sum())
        ids, mask = torch.from_numpy(batch.token_ids[row, :length]), torch.from_numpy(batch.loss_mask[row, 1:length])
        table = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1] / 0.8, -1)
        logprobs = table.gather(-1, ids[1:, None])[:, 0]
        entropy = torch.distributions.Categorical(logits=table).entropy()
        per_token = -(logprobs - logprobs.detach()).exp() * advantage - entropy_coef * entropy
        total = total + per_token[mask].mean() / len(batch)
    total.backward()
    return {name: weight.grad for name, weight in policy.named_parameters()}


@pytest.fixture(scope="module")
def batch(random_batch: Callable[..., Batch]) -> Batch:
    """Eleven rows, which do not divide evenly: a member of the last group is missing."""
    whole = random_batch()
    whole.cut_by_length[[1, 5, 6]] = True  # one of the group that has no advantages
    return Batch(*(getattr(whole, name)[:-1] for name in Batch.__slots__))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_gradient_is_the_formula_for_any_micro_batch_rank_and_zero_stage(
    tiny_policy: Path, batch: Batch, num_ranks: int, tmp_path: Path
) -> None:
    results = probe(batch, configs(tiny_policy, num_ranks), num_ranks, tmp_path)
    for kind, num_skipped in (("zero", 4), ("checkpointing", 4), ("entropy", 0), ("cut", 6)):
        expected = reference(tiny_policy, batch, kind)
        norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
        chosen = {name: result for name, result in results.items() if name.startswith(kind)}
        assert chosen
        for name, (grad_norm, rows_skipped, gradients) in chosen.items():
            assert rows_skipped == num_skipped, "group 0 has equal returns: skipped without a trace"
            assert grad_norm == pytest.approx(float(norm), rel=1e-4), name
            assert gradients.keys() == expected.keys()
            for weight, gradient in expected.items():
                torch.testing.assert_close(
                    gradients[weight], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
                )


@pytest.mark.timeout(300)
def test_an_episode_whose_rows_are_on_two_ranks_has_one_ratio(tiny_policy: Path, batch: Batch, tmp_path: Path) -> None:
    torn = Batch(*(getattr(batch, name).copy() for name in Batch.__slots__))
    torn.episode_ids = np.array([0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 7])
    torn.returns = np.array([1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0], np.float32)
    torn.returns[torn.group_ids == 2] = [0, 0, 0]  # one episode of three rows: nothing to compare it with
    common: dict[str, Any] = {"loss": "topr", "advantage": "dr_grpo", "num_ranks": 2, "max_grad_norm": 1e9}
    results = probe(
        torn,
        {
            "whole": LearnerConfig(str(tiny_policy), **common),
            "zero 3, one row at a time": LearnerConfig(str(tiny_policy), zero_stage=3, micro_batch_tokens=1, **common),
        },
        2,
        tmp_path,
    )
    policy = load_model(tiny_policy)
    logprobs = {row: row_logprobs(policy, torn, row) for row in range(4, 8)}
    losses = []
    for rows in ([4, 5], [6], [7]):  # the episodes of group 1; their returns are 0, 1, 0
        advantage = float(torn.returns[rows[0]]) - 1 / 3
        ratio = sum(
            (logprobs[row].detach() - torch.from_numpy(torn.rollout_logprobs[row][torn.loss_mask[row]])).sum()
            for row in rows
        )
        weight = 1.0 if advantage > 0 else float(torch.as_tensor(ratio).clamp(max=0).exp())
        losses.append(-weight * advantage * torch.cat([logprobs[row] for row in rows]).mean())
    (torch.stack(losses).sum() / 8).backward()  # eight episodes have tokens
    for name, (_, rows_skipped, gradients) in results.items():
        assert rows_skipped == 7, name
        for weight_name, weight in policy.named_parameters():
            torch.testing.assert_close(
                gradients[weight_name], weight.grad, rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


def row_logprobs(policy: Any, batch: Batch, row: int) -> torch.Tensor:
    """Return the log-probabilities of a row's trainable tokens."""
    length = int(batch.attention_mask[row].sum())
    ids, mask = torch.from_numpy(batch.token_ids[row, :length]), torch.from_numpy(batch.loss_mask[row, 1:length])
    table = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1], -1)
    return table.gather(-1, ids[1:, None])[:, 0][mask]


def probe(batch: Batch, configs: dict[str, LearnerConfig], num_ranks: int, folder: Path) -> dict[str, Result]:
    """Run the probe with so many ranks."""
    (folder / "request").write_bytes(pickle.dumps((batch, configs)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(PROBE), str(folder / "request"), str(folder / "reply")]
    common = os.environ | {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(num_ranks):
        log = (folder / f"log{rank}").open("wb")
        environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        log.close()
    try:
        for rank, process in enumerate(ranks):
            assert process.wait(280) == 0, (folder / f"log{rank}").read_text()[-3000:]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    results: dict[str, Result] = pickle.loads((folder / "reply").read_bytes())
    return results
