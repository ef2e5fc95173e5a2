"""The studies of `rollcage bench study`: runs that differ in one thing, each compared with another of the same seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOSSES = ("grpo", "decoupled_ppo", "topr", "tis", "cispo")
ALPHAS = ("0", "2", "8")
CREDITS = ("local", "global", "coupled", "random", "entropy", "bottom_waad", "bottom_fai")
SHARES = ("0.2", "0.4", "0.6", "0.8", "1.0")


@dataclass(frozen=True)
class Arm:
    """One kind of run.

    Attributes:
        name: what tables and ``--arms`` call it.
        arguments: of `rollcage train`, after the preset and what all runs share.
        against: name of the arm that it is compared with; empty: it is what others are compared with.
        settle: whether seeds are added until its difference is known well enough.
    """

    name: str
    arguments: tuple[str, ...] = ()
    against: str = ""
    settle: bool = False

    @property
    def slug(self) -> str:
        """The name as a folder's."""
        return self.name.replace(", ", "-").replace(" ", "")


@dataclass(frozen=True)
class Study:
    """A question, and the runs that answer it.

    Attributes:
        title: of its page.
        question: what it asks, in a sentence.
        arms: the kinds of runs.
        min_seeds: seeds of every arm.
        preset: of `rollcage train`.
    """

    title: str
    question: str
    arms: tuple[Arm, ...]
    min_seeds: int
    preset: str = "countdown-small"


def parity() -> Study:
    """Every loss at every asynchronous ratio, against the synchronous run of the same loss."""
    arms = []
    for loss in LOSSES:
        for alpha in ALPHAS:
            arguments = ("--learner.loss", loss, "--rollout.async-ratio", alpha)
            against = "" if alpha == "0" else f"{loss}, alpha 0"
            arms.append(Arm(f"{loss}, alpha {alpha}", arguments, against, settle=alpha == "2"))
    return Study("Learning parity", "What does training on older samples cost, loss by loss?", tuple(arms), 3)


def credit() -> Study:
    """Each way of giving single tokens more credit, against none."""
    arms = [Arm("none")]
    arms += [Arm(name, ("--learner.rhythm.credit", name), "none", settle=name == "coupled") for name in CREDITS]
    return Study("Token credit", "What does credit by attention rhythm bring?", tuple(arms), 5)


def credit_share() -> Study:
    """How many tokens are given more credit, the highest against the lowest."""
    arms = [Arm("none")]
    for share in SHARES:
        for name in ("fai", "waad"):
            top = {"fai": "global", "waad": "local"}[name]
            own = ("--learner.rhythm.q", share, "--learner.rhythm.credit")
            arms.append(Arm(f"bottom {share} by {name}", (*own, f"bottom_{name}"), "none"))
            arms.append(Arm(f"top {share} by {name}", (*own, top), f"bottom {share} by {name}"))
    return Study("Share of credited tokens", "How many tokens should be given more credit?", tuple(arms), 2)


def critics() -> Study:
    """PPO with a critic of the policy's size, against smaller critics, several of them, with and without masks."""
    bonus = ("--learner.entropy-coef", "1e-3")  # the entropy mask is of no use without
    steps = ("--learner.critic.epochs", "2", "--learner.critic.num-mini-batches", "16")  # as the presets have it
    gae = (*bonus, "--learner.advantage", "gae", *steps, "--learner.critic.warmup-steps", "10")
    mini = (*gae, "--learner.critic.model", "small-critic", "--learner.critic.lr", "3e-3")
    one, two = ("--learner.critic.num-critics", "1"), ("--learner.critic.num-critics", "2")
    no_advantage_mask = ("--learner.critic.advantage-mask-share", "0")
    no_entropy_mask = ("--learner.critic.entropy-mask-share", "0")
    arms = (
        Arm("ppo", (*gae, *one, "--learner.critic.lr", "1e-3")),
        Arm("ppo, mini-critic", (*mini, *one), "ppo"),
        Arm("asyppo", (*mini, *two), "ppo", settle=True),
        Arm("asyppo, advantage mask only", (*mini, *two, *no_entropy_mask), "ppo"),
        Arm("asyppo, entropy mask only", (*mini, *two, *no_advantage_mask), "ppo"),
        Arm("asyppo, no masks", (*mini, *two, *no_advantage_mask, *no_entropy_mask), "ppo"),
        Arm("dr_grpo", bonus, "ppo"),
        Arm("asyppo, coupled credit", (*mini, *two, "--learner.rhythm.credit", "coupled"), "asyppo"),
    )
    return Study("Critics", "What do critics bring, how large, how many, with which masks?", arms, 5)


STUDIES: dict[str, Callable[[], Study]] = {
    "parity": parity,
    "credit": credit,
    "credit-share": credit_share,
    "critics": critics,
}
"""Study by name."""


def chosen(study: Study, names: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of those names, and all that they are compared with; all arms where no name is given."""
    wanted = set(names or (arm.name for arm in study.arms))
    for arm in reversed(study.arms):  # what an arm is compared with stands before it
        if arm.name in wanted and arm.against:
            wanted.add(arm.against)
    return tuple(arm for arm in study.arms if arm.name in wanted)
