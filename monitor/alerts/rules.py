"""The rules: each is what is measured, from where on it fires, from where on it is over, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Literal

from rollcage.monitor.alerts.window import RECENT, Window

Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: of the field.
        title: for people.
        severity: "critical" where the run is lost, or nearly, unless somebody does something.
        measure: what is measured in a window; None: it cannot be told.
        fire: it fires from here on: at or above ``clear`` side, see `fires`.
        clear: it is over from here on; between the two nothing changes, so that nothing flickers.
        words: what is seen, with ``{value}``.
        why: what that means.
        advice: what to try, the first thing first.
    """

    name: str
    title: str
    severity: Severity
    measure: Callable[[Window], float | None]
    fire: float
    clear: float
    words: str
    why: str
    advice: tuple[str, ...]

    def fires(self, value: float) -> bool:
        """Return whether it fires at a value: one that rises too high, or with ``fire`` below ``clear`` falls too low.

        >>> RULES["disk_pressure"].fires(0.04), RULES["stale_share"].fires(0.04)
        (True, False)
        """
        return value >= self.fire if self.fire > self.clear else value <= self.fire

    def is_over(self, value: float) -> bool:
        """Return whether it is over at a value."""
        return value <= self.clear if self.fire > self.clear else value >= self.clear

    def message(self, value: float | None) -> str:
        """Return what is seen, in words."""
        return self.words.format(value=float("nan") if value is None else value)


MIN_USUAL_S = 12.0
"""Shorter updates count as this long for `stall`: with its threshold of 10, nothing is called a stall before 2 min."""
START_S = 60.0
"""Stands for an update's usual time before the first ones: a start with evaluations takes minutes."""


def stall(window: Window) -> float | None:
    """Return how many times the usual time of an update nothing has come."""
    if window.waited_s is None:
        return None
    seconds = window.values("time/elapsed_s")
    steps = [later - earlier for earlier, later in pairwise(seconds) if later > earlier]
    return window.waited_s / max(median(steps) if steps else START_S, MIN_USUAL_S)


def entropy_left(window: Window) -> float | None:
    """Return the entropy now as a share of what it was at the run's beginning."""
    now = window.level("learner/entropy")
    before = Window(window.first).level("learner/entropy", len(window.first) or 1)
    return None if now is None or before is None or before <= 0 else now / before


def reward_lost(window: Window) -> float | None:
    """Return what share of the best reward in the window is lost; 0 where the difference is within its noise."""
    values = window.values("rollout/reward")
    if len(values) < 2 * RECENT:
        return None
    levels = [median(values[end - 5 : end]) for end in range(5, len(values) + 1)]
    best, now = max(levels), levels[-1]
    noise = median(abs(later - earlier) for earlier, later in pairwise(values))
    return 0.0 if best - now <= 2 * noise else (best - now) / max(abs(best), 1e-9)


def level(window: Window, name: str, most: int = 5) -> float | None:
    """Return the median of a statistic's last values."""
    return window.level(name, most)


def share(window: Window, name: str) -> float | None:
    """Return by how much a count has grown over the last updates, for each sample that was started meanwhile."""
    part, whole = window.grown(name), window.grown("account/started")
    return None if part is None or not whole else part / whole


def not_finite(window: Window) -> float | None:
    """Return how many of the last five updates had a loss or gradient that is no number."""
    names = ("learner/loss", "learner/grad_norm")
    rows = window.rows[-5:]
    return float(sum(any(not math.isfinite(row.get(name, 0.0)) for name in names) for row in rows)) if rows else None


def count(window: Window, name: str) -> float | None:
    """Return a count as it stands."""
    values = window.values(name, 1)
    return values[-1] if values else None


def free_disk(window: Window) -> float | None:
    """Return the free share of the disk."""
    return window.free_disk


_RULES = (
    Rule(
        "stall", "No progress", "critical", stall, 10.0, 5.0,
        "nothing has been trained on for {value:.0f} times as long as an update usually takes",
        "Samples no longer come, or the learner hangs.",
        ("Look at the pipeline page for who is still busy, and at RUN/logs for the engines' and ranks' last words.",
         "Environments that hang: set rollout.env_deadline_s; engines: rollout.turn_deadline_s.",
         "rollcage train --resume RUN goes on from the last checkpoint."),
    ),
    Rule(
        "entropy_collapse", "Entropy has collapsed", "warning", entropy_left, 0.1, 0.2,
        "the policy's entropy is at {value:.0%} of what it was at the beginning",
        "The policy says nearly the same whatever is drawn: groups no longer differ, and nothing more is learned.",
        ("Lower learner.lr, or start again from an earlier checkpoint.",
         "Give an entropy bonus (learner.entropy_coef), a KL penalty (learner.kl_coef), or a higher upper clip "
         "(learner.loss_options e_hi).",
         "Raise sampling.temperature."),
    ),
    Rule(
        "reward_collapse", "Reward has collapsed", "critical", reward_lost, 0.5, 0.3,
        "{value:.0%} of the best reward of the last updates is lost",
        "An update has broken the policy, or the environments fail in a way that gives no reward.",
        ("Go back to a checkpoint from before the fall, with a lower learner.lr.",
         "Compare KL, ratios and gradient norm at the fall; see whether failures rose at the same time.",
         "Read a few of the newest trajectories: gibberish, or no answer at all?"),
    ),
    Rule(
        "kl_blow_up", "KL is blowing up", "critical", partial(level, name="learner/approx_kl_k3", most=3), 0.2, 0.1,
        "each update moves the policy by {value:.2f} nats a token",
        "Updates are far too large for what the samples can tell.",
        ("Lower learner.lr or learner.max_grad_norm.",
         "Use a loss that bounds the ratio (learner.loss), or lower rollout.async_ratio."),
    ),
    Rule(
        "stale_share", "Samples go stale", "warning", partial(share, name="account/stale"), 0.3, 0.2,
        "{value:.0%} of the samples are thrown away as too old",
        "Sampling runs ahead of training: that work is lost.",
        ("Lower rollout.async_ratio or rollout.num_slots.",
         "Raise rollout.num_groups, or give the learner more GPUs."),
    ),
    Rule(
        "failures_infra", "Environments or engines fail", "critical", partial(share, name="failed/infra"), 0.2, 0.1,
        "{value:.0%} of the samples fail for reasons of the infrastructure",
        "Those samples are lost, and tasks that fail more often than others are trained on less.",
        ("The environments page shows each failure's message and traceback; the doctor the most frequent ones.",
         "Timeouts: raise rollout.env_deadline_s. Memory: lower rollout.num_slots, or give sandboxes more.",
         "rollcage check ENV_ID finds faults of an environment without any training."),
    ),
    Rule(
        "failures_model", "The model's calls fail", "warning", partial(share, name="failed/model"), 0.3, 0.15,
        "{value:.0%} of the samples fail because of what the model did",
        "Too long contexts, or messages that no environment can take.",
        ("Raise engine.max_context_tokens, or lower the environment's max_turns.",
         "Read the newest failed trajectories."),
    ),
    Rule(
        "failures_task", "Tasks are broken", "warning", partial(share, name="failed/task"), 0.1, 0.05,
        "{value:.0%} of the samples fail because their task is broken",
        "Such tasks can never be scored.",
        ("The environments page lists the tasks that fail: quarantine or repair them.",),
    ),
    Rule(
        "sandbox_restarts", "Sandboxes are restarted", "warning", partial(share, name="restarts"), 0.2, 0.1,
        "there are {value:.2f} restarts for each sample that is started",
        "Containers or workers die under their episodes.",
        ("The sandboxes page shows why: out of memory, failed probes, a daemon that is too slow.",
         "Give them more memory, or start fewer at a time (rollout.num_slots)."),
    ),
    Rule(
        "disk_pressure", "The disk is nearly full", "critical", free_disk, 0.05, 0.08,
        "only {value:.1%} of the disk is free",
        "The next checkpoint may not fit, and a run that cannot write ends.",
        ("Remove old runs and checkpoints; lower keep_checkpoints.",
         "rollcage sandbox images prune removes snapshots that nobody needs."),
    ),
    Rule(
        "dead_engine", "An engine has died", "critical", partial(count, name="engine_deaths"), 1.0, 0.0,
        "{value:.0f} engine replicas have died since the run was started",
        "The others carry its load; when the last one dies, the run ends.",
        ("RUN/logs/engineN.log holds its last words: out of memory is the most frequent.",
         "Lower engine.max_batch_size or engine.max_context_tokens.",
         "rollcage train --resume RUN brings all engines back."),
    ),
    Rule(
        "logprob_gap", "Sampler and trainer disagree", "warning",
        partial(level, name="learner/logprob_gap_mean", most=3), 0.1, 0.05,
        "the trainer's log-probabilities differ from the sampler's by {value:.2f} nats a token",
        "The engine computes something else than the learner, or the samples are from a policy long gone.",
        ("Use the same dtype in both (engine.dtype, learner.compute_dtype).",
         "Lower rollout.async_ratio and learner.lr.",
         "Use a loss that corrects for it (learner.loss tis)."),
    ),
    Rule(
        "not_finite", "Loss or gradient is no number", "critical", not_finite, 1.0, 0.0,
        "{value:.0f} of the last five updates had a loss or gradient that is no number",
        "The weights are damaged, or about to be.",
        ("Go back to the last checkpoint before, with a lower learner.lr.",
         "Use learner.compute_dtype float32 to see whether it is the precision."),
    ),
    Rule(
        "no_variance", "Groups do not differ", "warning", partial(level, name="rollout/mixed_groups"), 0.05, 0.1,
        "in only {value:.0%} of the groups do the rewards differ",
        "Where all attempts at a task earn the same, no advantage is left, and nothing is learned from them.",
        ("Tasks are too hard or too easy for this policy: choose others, or give partial rewards.",
         "Raise rollout.group_size or sampling.temperature.",
         "rollout.group_filter keeps such groups out of batches."),
    ),
    Rule(
        "cut_by_length", "Messages are cut off", "warning", partial(level, name="rollout/cut_by_length"), 0.5, 0.3,
        "{value:.0%} of the samples are cut off at the longest message that is allowed",
        "They end before their answer and earn nothing for it.",
        ("Raise sampling.max_new_tokens (and learner.max_length).",
         "learner.mask_cut keeps them from being punished for it."),
    ),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}
"""All rules, by name."""
