"""One run in a few lines: how it stands, how far it is, and its last figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from rollcage.monitor.alerts.judged import firing
from rollcage.monitor.alerts.rules import RULES
from rollcage.monitor.store import RunReader

SHOWN = (
    "rollout/reward",
    "rollout/success",
    "rollout/staleness",
    "learner/entropy",
    "learner/approx_kl_k3",
    "learner/grad_norm",
    "learner/logprob_gap_mean",
    "account/started",
    "account/trained",
    "account/failed",
    "time/elapsed_s",
)
"""Statistics of the last update that lists of runs show."""
_WORST = {"critical": 2, "warning": 1}
_FIRING: WeakKeyDictionary[RunReader, tuple[float | None, list[str]]] = WeakKeyDictionary()
"""What was found of a run, and when it had written last: one that has ended is judged once."""


def summary(run_id: str, reader: RunReader) -> dict[str, Any]:
    """Return what lists of runs show of one."""
    status, (command, config) = reader.status(), _config(reader)
    made, wanted = status["policy_version"], status["num_updates"]
    fired = _firing(reader, status["updated_at"])
    worst = max((RULES[name].severity for name in fired), key=_WORST.__getitem__, default=None)
    last = reader.series(SHOWN, max_points=4)
    return {
        "id": run_id,
        "name": Path(run_id).name,
        "path": str(reader.path),
        **status,
        "progress": min(1.0, made / wanted) if wanted else None,
        "env_id": _of(config, "env", "id"),
        "model": config.get("model"),
        "seed": config.get("seed"),
        "command": command,
        "group": group_of(config),
        "last": {name: float(values[-1]) for name, (_, values) in last.items() if len(values)},
        "num_alerts": len(fired),
        "worst": worst,
    }


def _firing(reader: RunReader, updated_at: float | None) -> list[str]:
    found = _FIRING.get(reader)
    if found is None or found[0] != updated_at:
        found = _FIRING[reader] = updated_at, firing(reader)
    return found[1]


def broken(run_id: str, path: Path, message: str) -> dict[str, Any]:
    """Return what lists of runs show of one that cannot be read."""
    none = dict.fromkeys(
        ("num_updates", "started_at", "updated_at", "eta_s", "progress", "env_id", "model", "seed", "worst")
    )
    known = {"id": run_id, "name": Path(run_id).name, "path": str(path), "state": "unknown", "error": message}
    return {
        **none,
        **known,
        "policy_version": 0,
        "is_partial": False,
        "train_s": 0.0,
        "command": "",
        "group": run_id,
        "last": {},
        "num_alerts": 0,
    }


def group_of(config: Mapping[str, Any]) -> str:
    """Return a name that runs share which differ in nothing but their seed.

    >>> group_of({"model": "small", "seed": 1}) == group_of({"model": "small", "seed": 2})
    True
    """
    same = json.dumps({key: value for key, value in config.items() if key != "seed"}, sort_keys=True, default=str)
    return hashlib.sha256(same.encode()).hexdigest()[:12]


def label_of(config: Mapping[str, Any]) -> str:
    """Return what a group of runs is called for people: model and environment."""
    return ", ".join(str(it) for it in (config.get("model"), _of(config, "env", "id")) if it)


def _config(reader: RunReader) -> tuple[str, dict[str, Any]]:
    read = reader.config()
    config = read.get("config")
    return str(read.get("command", "")), config if isinstance(config, dict) else {}


def _of(config: Mapping[str, Any], *keys: str) -> Any:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
