"""A run folder as a real run would leave it, from a simulated one."""

import json
from dataclasses import asdict
from pathlib import Path

from rollcage.envs.placements.base import EnvConfig
from rollcage.monitor.run_folder import RunFolder
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.record import trajectory_to_json
from rollcage.trainer.simulation.model import Cluster, Prediction, Workload, simulate
from rollcage.trainer.types import Trajectory


def record(
    folder: Path, workload: Workload, cluster: Cluster, config: RolloutConfig, num_updates: int = 6
) -> Prediction:
    """Simulate a run and record it in ``folder``."""
    folder.mkdir()
    given = {
        "rollout": asdict(config),
        "num_engines": cluster.num_replicas,
        "engine": {"max_batch_size": cluster.num_slots},
        "sampling": {"max_new_tokens": workload.max_new_tokens},
    }
    (folder / "config.json").write_text(json.dumps({"command": "", "config": given}), encoding="utf-8")
    recorder = RunFolder(folder)

    def keep(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory_to_json(trajectory, EnvConfig("a/B-v0"), "simulated"))

    try:
        return simulate(
            workload, cluster, config, num_updates=num_updates, tokens_per_id=1, recorder=recorder, record=keep
        )
    finally:
        recorder.close()
