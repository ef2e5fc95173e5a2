"""A run as a training writes it, with every kind of failure in it, made in a moment and always the same."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage.monitor.run_folder import RunFolder

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "world.py", line 7, in step\n    raise ValueError("the lake has thawed")\nValueError: the lake has thawed'
)
FAILURES = (
    ("infra", "env_raised", TRACEBACK),
    ("infra", "env_timeout", "a step took longer than 60 s"),
    ("infra", "engine_error", "engine 1 died: out of memory"),
    ("model", "context_full", "the conversation has 4,096 tokens"),
    ("task", "bad_task", "task train/13 has no solution"),
)
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><b onmouseover=window.hacked=3>hi</b> "
    "[link](javascript:window.hacked=4) \x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eesrever\u202c \u200b\u200f "
    "\ud83d alone \udc00 \x00 \ufeff {{7*7}} ${7*7} </pre></main><style>*{display:none}</style>"
)
ENGINES = ("0", "1")
START_S = 1000.0
UPDATE_S = 3.0
NUM_TASKS = 6
_WORDS = ["<answer>", "3", "*", "(", "9", "-", "2", ")", "</answer>"]


def write_config(folder: Path, *, seed: int, num_updates: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model": "small",
        "env": {"id": "rollcage/Countdown-v0", "args": {}, "split": "train"},
        "rollout": {"num_groups": 4, "group_size": 4},
        "learner": {"lr": 0.0002},
        "wandb": {"api_key": "very-secret-word"},
        "num_updates": num_updates,
        "seed": seed,
    }
    told = {"command": f"rollcage train countdown-small --seed {seed}", "config": config}
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")


def metrics_of(version: int, seed: int) -> dict[str, float]:
    """Return the statistics of one update."""
    draw = random.Random(1000 * seed + version)
    progress = 1 - math.exp(-version / 25)
    success = 0.2 + 0.6 * progress + draw.uniform(-0.05, 0.05)
    started, done = 16 * (version + 2), 16 * version
    failed = version // 4
    return {
        "rollout/reward": success - 0.1,
        "rollout/success": success,
        "rollout/mixed_groups": 0.5,
        "rollout/turns": 2.0,
        "rollout/sampled_tokens": 70 + 10 * progress,
        "rollout/cut_by_length": 0.1,
        "rollout/episode_s": 2.5,
        "rollout/staleness": 1.0 + draw.random(),
        "rollout/staleness_max": 3.0,
        "rollout/drift": 0.1,
        "rollout/num_samples": 16.0,
        "learner/loss": 0.02 * draw.random(),
        "learner/grad_norm": 0.5 + draw.random(),
        "learner/lr": 0.0002,
        "learner/entropy": 1.2 - progress,
        "learner/approx_kl_k3": 0.001 + 0.002 * draw.random(),
        "learner/kl_reference": 0.01 * progress,
        "learner/importance_ratio_mean": 1.0,
        "learner/importance_ratio_max": 1.0 + draw.random(),
        "learner/clip_frac": 0.05,
        "learner/weight_capped": 0.02,
        "learner/ess": 0.98,
        "learner/logprob_gap_mean": 0.003,
        "learner/logprob_gap_max": 0.5 * draw.random(),
        "learner/critic_0_loss": 0.3 - 0.2 * progress,
        "learner/critic_1_loss": 0.32 - 0.2 * progress,
        "learner/critic_mean_explained_variance": 0.8 * progress,
        "learner/critic_disagreement_mean": 0.1 + 0.05 * draw.random(),
        "learner/critic_advantage_masked": 0.2,
        "learner/critic_entropy_masked": 0.05,
        "learner/rhythm_share_amplified": 0.4,
        "learner/rhythm_gamma_mean": 1.2,
        "learner/rhythm_waad_mean": 7.5 - progress,
        "learner/rhythm_fai_mean": 0.02,
        "learner/rhythm_share_of_step": 0.15,
        "learner/novelty": 0.1,
        "time/wait_s": 1.0,
        "time/train_s": 1.8,
        "time/publish_s": 0.2,
        "time/elapsed_s": UPDATE_S * version,
        "account/started": started,
        "account/trained": done - failed,
        "account/filtered": 4,
        "account/stale": 2,
        "account/failed": failed,
        "account/cancelled": 3,
        "account/in_flight": started - (done - failed) - 4 - 2 - failed - 3,
    }


def episode(number: int, version: int, **changed: Any) -> dict[str, Any]:
    """Return the record of one episode of two turns, with its tokens."""
    draw = random.Random(number)
    success = draw.random() < 0.5
    task = f"train/{number % NUM_TASKS}"
    turns, ids, mask = [], [5, 6, 7], [0, 0, 0]
    for turn in range(2):
        start = len(ids)
        ids += [100 + index for index in range(len(_WORDS))]
        mask += [1] * len(_WORDS)
        turns.append(
            {
                "action": "".join(_WORDS),
                "observation": "Wrong: that is 20, not 21. Try again." if turn == 0 else "Done.",
                "reward": float(success) if turn else 0.0,
                "segment": 0,
                "start": start,
                "end": len(ids),
                "finish_reason": "stop",
                "act_s": 0.4,
                "env_s": 0.05,
            }
        )
        if turn == 0:
            ids += [9, 9]
            mask += [0, 0]
    at_s = START_S + UPDATE_S * version
    return {
        "format": 1,
        "id": f"{number // 4}.{number % 4}",
        "env_id": "rollcage/Countdown-v0",
        "env_kwargs": {"split": "train"},
        "policy": "small",
        "task_id": task,
        "seed": 2**62 + number,
        "options": {"task": task},
        "prompt": f"Make 21 from the numbers 3, 9, 2. (task {task})",
        "turns": turns,
        "return": float(success),
        "success": success,
        "terminated": True,
        "truncated": False,
        "failure": None,
        "info": {"outcome": "right" if success else "wrong_value", "reward_parts": {"value": float(success)}},
        "start_version": max(0, version - number % 3),
        "end_version": version,
        "start_s": at_s - 1 - draw.random(),
        "end_s": at_s,
        "segments": [
            {
                "token_ids": ids,
                "loss_mask": mask,
                "rollout_logprobs": [-draw.random() if it else 0.0 for it in mask],
                "policy_versions": [version if it else -1 for it in mask],
            }
        ],
        **changed,
    }


def annotations_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the trainer had for the tokens of an episode: for each quantity one list a segment."""
    [segment] = record["segments"]
    sampled = [index for index, is_own in enumerate(segment["loss_mask"]) if is_own]

    def row(value: Callable[[int], float]) -> list[list[float | None]]:
        return [[value(index) if index in sampled else None for index in range(len(segment["token_ids"]))]]

    return {
        "id": record["id"],
        "policy_version": 6,
        "advantages": row(lambda index: 0.8 - 0.1 * (index % 16)),
        "old_logprobs": row(lambda index: segment["rollout_logprobs"][index] - 0.01 * (index % 3)),
        "credit": row(lambda index: 1.5 if index % 4 == 0 else 1.0),
        "waad": row(lambda index: abs(math.sin(index)) * 8),
        "fai": row(lambda index: abs(math.cos(index / 3)) / 10),
    }


def write_update(run: RunFolder, version: int, *, seed: int = 0) -> None:
    """Write all that a training writes around one update; ``version`` counts from 1."""
    at_s = START_S + UPDATE_S * version
    run.span("learner", "wait", at_s - 3, at_s - 2)
    run.span("learner", "train", at_s - 2, at_s - 0.2, policy_version=version)
    run.span("learner", "publish", at_s - 0.2, at_s, policy_version=version)
    for engine in ENGINES:
        run.span(f"engine {engine}", "generate", at_s - 3, at_s - 1, num=8, busy_s=1.5)
    run.span("environments", "reset", at_s - 3, at_s - 2.5, num=16, busy_s=0.25)
    run.span("environments", "step", at_s - 2, at_s - 0.5, num=32, busy_s=0.75)
    for index in range(6):
        now_s = at_s - 3 + index / 2
        run.gauge("running_episodes", 8 + index % 4, at_s=now_s)
        run.gauge("complete_groups", (version + index) % 5, at_s=now_s)
        run.gauge("sampled_tokens", 1000 * version + 150 * index, at_s=now_s)
        for engine in ENGINES:
            run.gauge("engine_live_requests", (version + index + int(engine)) % 9, at_s=now_s, engine=engine)
    run.histogram("publish_seconds", 0.2)
    for staleness in (0, 1, 1, 2, 3):
        run.histogram("sample_staleness", staleness)
    for dimension, upper in (("difficulty", "0.25"), ("length_tokens", "64"), ("duration_s", "4")):
        run.counter(f"samples_by_{dimension}", 12, upper=upper, outcome="trained")
        run.counter(f"samples_by_{dimension}", 2, upper=upper, outcome="filtered")
    run.counter("requests", 16, engine="0", finish_reason="stop")
    run.metrics(metrics_of(version, seed), policy_version=version)


def write_run(folder: Path, *, seed: int = 0, num_updates: int = 40, num_episodes: int = 60) -> None:
    """Write a finished run: failures of every kind, hostile text, and one episode whose tokens are annotated."""
    write_config(folder, seed=seed, num_updates=num_updates)
    run = RunFolder(folder)
    run.event("start", resumed_from=None)
    for version in range(1, num_updates + 1):
        write_update(run, version, seed=seed)
    for number in range(num_episodes):
        run.trajectory(episode(number, number % num_updates))
    for index, (kind, reason, message) in enumerate(FAILURES):
        for repeat in range(index + 1):
            failure = {"kind": kind, "reason": reason, "message": message}
            number = 10_000 + 10 * index + repeat
            run.event("sample_failed", task_id="train/1", sample_id=f"{number}.0", attempt=0, **failure)
            run.trajectory(episode(number, 3, failure=failure, success=False, terminated=False, task_id="train/1"))
    hostile_turn = episode(1, 1)["turns"][0] | {"action": HOSTILE, "observation": HOSTILE + "x" * 2**20}
    run.trajectory(
        episode(
            20_000, 5, id="20000.0", prompt=HOSTILE, task_id=HOSTILE[:60], turns=[hostile_turn], info={"said": HOSTILE}
        )
    )
    told = episode(30_000, 6, id="30000.0", task_id="train/annotated")
    told["segments"][0]["pieces"] = ["Make", " 21", "\n", *_WORDS, "Wrong", ".", *_WORDS]
    run.trajectory(told)
    run.annotations(annotations_of(told))
    run.trajectory(episode(30_001, 6, id="30001.0", task_id="train/annotated"))
    run.event("engine_died", engine=1, message=HOSTILE, num_left=1)
    run.write(
        "evaluations",
        {
            "when": "after",
            "name": "held out",
            "policy_version": num_updates,
            "env_id": "rollcage/Countdown-v0",
            "split": "test",
            "num_tasks": 100,
            "num_scored": 98,
            "success_rate": 0.71,
            "success_ci95": [0.61, 0.79],
            "mean_reward": 0.7,
            "failures": {"infra/env_timeout": 2},
            "seconds": 12.5,
            "samples": [],
        },
    )
    run.event("finished")
    run.close()
