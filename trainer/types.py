"""The types that cross the trainer's seams, each field with its shape and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        max_new_tokens: most tokens of one generation.
        temperature: logits are divided by it; 0 takes the most likely token.
        top_p: smallest set of tokens whose probabilities reach it; 1 is off.
        top_k: so many most likely tokens; 0 is off.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to make.

    Attributes:
        id: unique among live requests.
        prompt_ids: [P] token ids to continue.
        sampling: how.
        seed: the draw depends on this and the logits alone, never on what else is in the batch.
        stop_ids: token ids that end the generation (the id itself is kept in the result).
        group: the prompt's group; siblings are spread over replicas.
        affinity: the trajectory; later turns go to the replica that holds its prefix.
    """

    id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    group: str = ""
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine made.

    Attributes:
        token_ids: [T] sampled ids, the stop id included where one ended it.
        logprobs: [T] natural log-probability of each token under the distribution without top-p and top-k, at the
            sampling temperature (1 where it is 0): what a trainer recomputes. vLLM's are renormalised over what top-p
            and top-k keep; with both off, as in training, that is the same.
        policy_versions: [T] the policy version that sampled each token.
        finish_reason: "stop": a stop id; "length": max_new_tokens or the model's context; "abort": `Engine.abort`.
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: Literal["stop", "length", "abort"]


FailureKind = Literal["task", "model", "infra"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode gave no score.

    Attributes:
        kind: "task": the task is unusable; "model": the policy could give no action; "infra": anything else.
        reason: short stable word, for counting (``env_timeout``, ``env_raised``, ``context_full``, ``engine_error``).
        message: for people.
    """

    kind: FailureKind
    reason: str
    message: str = ""


@dataclass(slots=True)
class TurnRecord:
    """One turn: the model's message and the environment's reply.

    Attributes:
        action: decoded text of the model's message.
        observation: the environment's reply to it.
        reward: reward of the turn.
        segment, start, end: the sampled tokens are ``segments[segment].token_ids[start:end]``.
        finish_reason: of the generation.
        act_s: seconds until the message was there, waiting for the engine included.
        env_s: seconds until the environment had replied.
    """

    action: str
    observation: str
    reward: float
    segment: int
    start: int
    end: int
    finish_reason: str
    act_s: float = 0.0
    env_s: float = 0.0


@dataclass(slots=True)
class Segment:
    """A run of tokens in which every turn's ids are a prefix of the next turn's. T = its length.

    Attributes:
        token_ids: [T] prompt, sampled and observation tokens, exactly as the engine saw and made them.
        loss_mask: [T] 1 on tokens the policy sampled.
        rollout_logprobs: [T] the sampler's, 0 where loss_mask is 0.
        policy_versions: [T] version that sampled the token, -1 where loss_mask is 0.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    rollout_logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """The record of one episode.

    Attributes:
        sample_id: (group id, member): orders a batch, names the sample in every log.
        task_id: the task.
        seed: seed of the environment's reset.
        prompt: first observation.
        turns: what was said.
        segments: one, or more where the conversation could not be continued token by token.
        success: the environment's word.
        terminated, truncated: how it ended; both False on a failure before the end.
        failure: None where it was scored.
        start_version: policy version when its first token was asked for.
        end_version: the newest version that made one of its tokens.
        start_s, end_s: loop time.
    """

    sample_id: tuple[int, int]
    task_id: str
    seed: int
    prompt: str = ""
    turns: list[TurnRecord] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    failure: Failure | None = None
    start_version: int = 0
    end_version: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def return_(self) -> float:
        """Sum of the turns' rewards."""
        return sum([turn.reward for turn in self.turns])

    @property
    def cut_by_length(self) -> bool:
        """Whether a message was cut by the token limit."""
        return any(turn.finish_reason == "length" for turn in self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum([sum(segment.loss_mask) for segment in self.segments])


@dataclass(slots=True)
class Group:
    """The rollouts of one task.

    Attributes:
        id: 0-based position in the task-start order; drops are not renumbered.
        task_id: the task.
        trajectories: the scored members, ordered by member; failed ones are left out (and counted elsewhere).
        start_version: the oldest start version among the members: what freshness is measured from.
        greedy_return: return of the group's greedy rollout, which is a baseline and not trained on; None without one.
    """

    id: int
    task_id: str
    trajectories: list[Trajectory]
    start_version: int
    greedy_return: float | None = None
