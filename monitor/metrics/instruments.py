"""Metrics that are counted and timed one by one: of engines, episodes, events, sandboxes."""

from __future__ import annotations

from rollcage.monitor.metrics.metric import Label, Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets of durations: from a probe's millisecond to an episode's half hour."""

VERSIONS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
"""Buckets of ages in policy versions."""

_ENGINE = {"engine": Label("number of the replica", most=256)}
_HOST = {"host": Label("of the sandbox manager", most=64)}
_NODE = {"node": Label("of the cluster, its address", most=256)}
_OUTCOMES = ("trained", "filtered", "stale", "failed", "late")
_UPPER = Label("upper bound of the bucket", most=40)
_STATES = (
    "PENDING",
    "STARTING",
    "READY",
    "UNHEALTHY",
    "RECOVERING",
    "STOPPED",
    "FAILED",
    "DELETED",
)
EVENTS = (
    "start",
    "finished",
    "failed",
    "stopped",
    "paused",
    "resumed",
    "checkpoint",
    "sample_failed",
    "engine_died",
    "engine_restarted",
    "engine_lost",
    "learner_restarted",
    "actor_started",
    "node_joined",
    "node_lost",
    "training",
    "evaluating",
    "group_late",
    "group_dropped",
    "group_filtered",
    "logprob_gap",
    "alert",
    "alert_resolved",
    "recorder_failed",
)

FLEET = (
    Metric("rollcage_sampled_tokens_total", "counter", "Tokens that the engines sampled.", "sampled_tokens", _ENGINE),
    Metric(
        "rollcage_requests_total",
        "counter",
        "Generations that ended.",
        "requests",
        {**_ENGINE, "finish_reason": Label("why it ended", ("stop", "length", "abort"))},
    ),
    Metric(
        "rollcage_discarded_tokens_total",
        "counter",
        "Sampled tokens thrown away because their request started again on new weights.",
        "discarded_tokens",
        _ENGINE,
    ),
    Metric(
        "rollcage_restarted_requests_total",
        "counter",
        "Requests that started again on new weights.",
        "restarted_requests",
        _ENGINE,
    ),
    Metric("rollcage_engine_deaths_total", "counter", "Engine replicas that died.", "engine_deaths", _ENGINE),
    Metric("rollcage_engine_restarts_total", "counter", "Engine replicas that came back.", "engine_restarts", _ENGINE),
    Metric(
        "rollcage_engine_live_requests",
        "gauge",
        "Requests that a replica has, running and waiting.",
        "engine_live_requests",
        _ENGINE,
    ),
    Metric("rollcage_cluster_nodes", "gauge", "Nodes of the Ray cluster.", "cluster_nodes"),
    Metric(
        "rollcage_cluster_actors",
        "gauge",
        "Actors whose last place is the node.",
        "cluster_actors",
        {**_NODE, "role": Label("of the actor", ("engine", "rank", "environment", "critic", "attention"))},
    ),
    Metric("rollcage_node_load", "gauge", "Processes that run or want to, a core of the node.", "node_load", _NODE),
    Metric("rollcage_node_memory_ratio", "gauge", "Share of the node's memory in use.", "node_memory", _NODE),
    Metric(
        "rollcage_trajectory_bytes_total",
        "counter",
        "Bytes of prompts and generations between the loop and a replica on a cluster.",
        "trajectory_bytes",
        _ENGINE,
    ),
    Metric(
        "rollcage_weight_bytes_total",
        "counter",
        "Bytes of weights put into the cluster's object store: each version once.",
        "weight_bytes",
    ),
    Metric("rollcage_running_episodes", "gauge", "Episodes that run.", "running_episodes"),
    Metric("rollcage_complete_groups", "gauge", "Groups in the buffer that can be trained on.", "complete_groups"),
    Metric(
        "rollcage_publish_seconds",
        "histogram",
        "Time until all replicas had new weights.",
        "publish_seconds",
        buckets=SECONDS,
    ),
    Metric(
        "rollcage_sample_staleness_versions",
        "histogram",
        "Versions between the start of a sample and its training.",
        "sample_staleness",
        buckets=VERSIONS,
    ),
    Metric(
        "rollcage_samples_by_duration_total",
        "counter",
        "What became of samples, by their duration in seconds.",
        "samples_by_duration_s",
        {"upper": _UPPER, "outcome": Label("of the sample", _OUTCOMES)},
    ),
    Metric(
        "rollcage_samples_by_length_total",
        "counter",
        "What became of samples, by their number of sampled tokens.",
        "samples_by_length_tokens",
        {"upper": _UPPER, "outcome": Label("of the sample", _OUTCOMES)},
    ),
    Metric(
        "rollcage_samples_by_difficulty_total",
        "counter",
        "What became of samples, by the share of failures at their task.",
        "samples_by_difficulty",
        {"upper": _UPPER, "outcome": Label("of the sample", _OUTCOMES)},
    ),
)

DERIVED = (
    Metric("rollcage_policy_version", "gauge", "Updates made.", "(metrics)"),
    Metric(
        "rollcage_last_update_timestamp_seconds", "gauge", "When the last update was made, since 1970.", "(metrics)"
    ),
    Metric("rollcage_paused", "gauge", "1 while the run is paused.", "(event)"),
    Metric(
        "rollcage_events_total",
        "counter",
        "What happened, as in the run's events.",
        "(event)",
        {"event": Label("what", EVENTS)},
    ),
    Metric(
        "rollcage_sample_failures_total",
        "counter",
        "Samples that failed, by kind and reason.",
        "(event sample_failed)",
        {
            "kind": Label("whose fault", ("task", "model", "infra")),
            "reason": Label("short stable word", most=32),
        },
    ),
    Metric(
        "rollcage_busy_seconds_total",
        "counter",
        "Time that somebody spent on something, as in the run's timeline.",
        "(span)",
        {"track": Label("who; numbers are left out", most=16), "name": Label("what", most=32)},
    ),
    Metric(
        "rollcage_episodes_total",
        "counter",
        "Episodes that ended.",
        "(trajectory)",
        {
            "env": Label("environment", most=16),
            "outcome": Label("how", ("success", "no_success", "task", "model", "infra")),
        },
    ),
    Metric(
        "rollcage_episode_seconds",
        "histogram",
        "Duration of episodes.",
        "(trajectory)",
        {"env": Label("environment", most=16)},
        SECONDS,
    ),
    Metric(
        "rollcage_episode_turns",
        "histogram",
        "Turns of episodes.",
        "(trajectory)",
        {"env": Label("environment", most=16)},
        (1, 2, 3, 5, 8, 12, 20, 30, 50, 100),
    ),
    Metric(
        "rollcage_trajectory_tokens",
        "histogram",
        "Sampled tokens of episodes.",
        "(trajectory)",
        {"env": Label("environment", most=16)},
        (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144),
    ),
    Metric("rollcage_disk_free_bytes", "gauge", "Space left where the run folder is.", "(when asked)"),
    Metric("rollcage_disk_size_bytes", "gauge", "Size of the file system where the run folder is.", "(when asked)"),
    Metric(
        "rollcage_unknown_metrics_total",
        "counter",
        "What was told under a name or with labels that the catalogue lacks.",
        "(anything)",
    ),
)

SANDBOXES = (
    Metric(
        "rollcage_sandboxes",
        "gauge",
        "Sandboxes by host and state.",
        "sandboxes",
        {**_HOST, "state": Label("as the manager has it", _STATES)},
    ),
    Metric(
        "rollcage_sandbox_transitions_total",
        "counter",
        "Changes of a sandbox's host or state.",
        "sandbox_transitions",
        {"state": Label("the new one", _STATES)},
    ),
    Metric(
        "rollcage_sandbox_create_seconds",
        "histogram",
        "Time that creating took.",
        "sandbox_create_seconds",
        {"phase": Label("part of it", ("queue", "create", "connect", "ready", "claim"))},
        SECONDS,
    ),
    Metric(
        "rollcage_sandbox_exec_seconds",
        "histogram",
        "Time that commands took, as their callers saw it.",
        "sandbox_exec_seconds",
        buckets=SECONDS,
    ),
    Metric(
        "rollcage_sandbox_exec_timed_out_total",
        "counter",
        "Commands that were ended at their deadline.",
        "sandbox_exec_timed_out",
    ),
    Metric(
        "rollcage_sandbox_exec_truncated_total",
        "counter",
        "Commands whose output was cut.",
        "sandbox_exec_truncated",
    ),
    Metric(
        "rollcage_sandbox_oom_kills_total",
        "counter",
        "Processes in sandboxes that the kernel killed for memory.",
        "sandbox_oom_kills",
    ),
    Metric(
        "rollcage_sandbox_restarts_total",
        "counter",
        "New lives of sandboxes.",
        "sandbox_restarts",
        {"why": Label("reason", ("died", "unhealthy", "restore"))},
    ),
    Metric(
        "rollcage_sandbox_probe_seconds",
        "histogram",
        "Time that probes took.",
        "sandbox_probe_seconds",
        {"ok": Label("whether it was answered", ("true", "false"))},
        SECONDS,
    ),
    Metric(
        "rollcage_sandbox_orphans_total",
        "counter",
        "Things removed from a daemon that had no right to be there.",
        "sandbox_orphans",
        {"kind": Label("what", ("container", "image", "network", "volume"))},
    ),
    Metric(
        "rollcage_sandbox_circuit_changes_total",
        "counter",
        "Openings and closings of a host's circuit breaker.",
        "sandbox_circuit_changes",
        {**_HOST, "state": Label("the new one", most=8)},
    ),
)

SOAK = (
    Metric(
        "rollcage_soak_injuries_total",
        "counter",
        "What was done to a run by `rollcage bench soak`.",
        "soak_injuries",
        {"what": Label("kind", ("trainer", "worker", "learner", "engine", "container", "stop"))},
    ),
)
