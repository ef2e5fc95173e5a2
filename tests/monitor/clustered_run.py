"""A run on a cluster of two nodes as a training writes it, with the logs of its actors, in a moment."""

from pathlib import Path

from tests.monitor.pages.recorded_run import START_S, write_config, write_update

from rollcage.monitor.run_folder import RunFolder

ACTORS = (
    ("engine 0", "10.0.0.2", 41, "engine0.log"),
    ("engine 10", "10.0.0.3", 42, "engine10.log"),
    ("engine 2", "10.0.0.2", 43, "engine2.log"),
    ("learner rank 0", "10.0.0.2", 44, "learner-rank0.log"),
    ("environment 0", "10.0.0.3", 45, "environment0.log"),
)
LAST_WORDS = "RuntimeError: CUDA out of memory <b>bold</b>"


def write_clustered_run(folder: Path) -> None:
    """Write it: engine 0 has started twice, a log of it was filled before; ``link.log`` leads out of the folder."""
    write_config(folder, seed=0, num_updates=2)
    run = RunFolder(folder)
    run.event("start", resumed_from=None)
    run.event("actor_started", actor="engine 0", node="10.0.0.3", pid=40, log="/tmp/a.err", file="engine0.log")
    for actor, node, pid, file in ACTORS:
        run.event("actor_started", actor=actor, node=node, pid=pid, log=f"/tmp/{pid}.err", file=file)
    for version in (1, 2):
        write_update(run, version)
        for node in ("10.0.0.2", "10.0.0.3"):
            run.gauge("node_load", 0.5, at_s=START_S + version, node=node)
            run.gauge("node_memory", 0.25, at_s=START_S + version, node=node)
    run.event("finished")
    run.close()
    logs = folder / "logs"
    logs.mkdir()
    for number, (_, _, _, file) in enumerate(ACTORS[:-1]):
        (logs / file).write_text(
            f"line one of {file}\n--api-key abc123 said\n{LAST_WORDS} {number}\n", encoding="utf-8"
        )
    (logs / "engine0.log.1").write_bytes(b"password=first " + b"x" * 5000 + b"\nolder \xff\n")
    (logs / "link.log").symlink_to("/etc/hostname")
