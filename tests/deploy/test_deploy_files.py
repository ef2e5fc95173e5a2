"""The files in deploy/: what the tools that they are written for say of them, and that they fit this repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rollcage.trainer.cluster.sandbox_hosts import DOCKER_LABEL
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.train_arguments import parse_train

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SLURM = DEPLOY / "slurm" / "train.sbatch"


def tool(name: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).parent / name  # where the Makefile puts promtool
    program = shutil.which(name) or (str(beside) if beside.exists() else None)
    if program is None:
        pytest.fail(f"{name} is not here: install it, or run the tests with  make test")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, **options
    )


def passes(name: str, *arguments: str | Path, **options: Any) -> str:
    done = tool(name, *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """compose.yml as docker-compose understands it."""
    path = DEPLOY / "compose" / "compose.yml"
    told = passes("docker-compose", "-f", path, "config", env={**os.environ, "GRAFANA_PASSWORD": "secret"})
    found: dict[str, Any] = yaml.safe_load(told)
    return found


def test_compose_has_every_part_and_mounts_what_is_there(composed: dict[str, Any]) -> None:
    services = composed["services"]
    assert services.keys() == {"head", "worker", "sandboxes", "docker-proxy", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume["source"] if isinstance(volume, dict) else volume.partition(":")[0]
            if source.startswith(str(ROOT)) and not source.endswith("/token"):  # which its user makes
                assert Path(source).is_file(), source
    assert f"--labels={DOCKER_LABEL}=2375" in services["sandboxes"]["command"]
    assert "metrics" not in services["sandboxes"]["networks"], "Grafana does not reach the Docker socket"
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert all("127.0.0.1" in str(port) for port in published)
    assert len(published) == 2


def test_composes_prometheus_takes_the_shipped_rules(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "monitor" / "prometheus" / "alerts.yml", tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef")
    assert "SUCCESS" in passes("promtool", "check", "config", "prometheus.yml", cwd=tmp_path)


def test_yaml_is_tidy() -> None:
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, comments: disable}}"
    files = [path for path in DEPLOY.rglob("*") if path.suffix in (".yml", ".yaml")]
    assert len(files) == 5
    passes("yamllint", "--strict", "-d", rules, *files)


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
GROUP = {
    "type": "object",
    "required": ["rayStartParams", "template"],
    "properties": {
        "rayStartParams": {**TEXTS, "not": {"required": ["labels"]}},
        "labels": TEXTS,
        "template": {
            "type": "object",
            "required": ["spec"],
            "additionalProperties": False,
            "properties": {
                "metadata": {"type": "object", "properties": {"annotations": TEXTS, "labels": TEXTS}},
                "spec": {
                    "type": "object",
                    "required": ["containers"],
                    "properties": {
                        "containers": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name", "image", "resources"],
                                "properties": {"resources": {"additionalProperties": TEXTS}},
                            },
                        },
                        "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                    },
                },
            },
        },
    },
}
COUNT = {"type": "integer", "minimum": 0}
RAY_CLUSTER = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "spec": {
            "type": "object",
            "required": ["headGroupSpec", "rayVersion"],
            "additionalProperties": False,
            "properties": {
                "rayVersion": {"type": "string"},
                "headGroupSpec": GROUP,
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        **GROUP,
                        "required": [*GROUP["required"], "groupName"],  # type: ignore[misc]
                        "properties": {
                            **GROUP["properties"],  # type: ignore[dict-item]
                            "groupName": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
                            "replicas": COUNT,
                            "minReplicas": COUNT,
                            "maxReplicas": COUNT,
                        },
                        "additionalProperties": False,
                    },
                },
            },
        },
    },
}
"""What KubeRay wants of a RayCluster, as far as ours uses it."""


def test_the_kuberay_manifest_is_a_ray_cluster_with_a_docker_daemon_where_its_label_says() -> None:
    claim, cluster = yaml.safe_load_all((DEPLOY / "kuberay" / "raycluster.yaml").read_text())
    jsonschema.validate(cluster, RAY_CLUSTER)
    assert f'"ray>={cluster["spec"]["rayVersion"].rpartition(".")[0]},' in (ROOT / "pyproject.toml").read_text()
    groups = cluster["spec"]["workerGroupSpecs"]
    for group in (cluster["spec"]["headGroupSpec"], *groups):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {m["name"] for container in pod["containers"] for m in container["volumeMounts"]} == volumes
        claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
        assert claims == {claim["metadata"]["name"]}
    [sandboxes] = [group for group in groups if DOCKER_LABEL in group.get("labels", {})]
    [daemon] = [c for c in sandboxes["template"]["spec"]["containers"] if c["name"] == "docker"]
    assert daemon["args"][0].endswith(f":{sandboxes['labels'][DOCKER_LABEL]}")


@pytest.mark.parametrize("place", ["spec.headGroupSpec.rayStartParams.labels", "spec.replica"])
def test_the_schema_can_fail(place: str) -> None:
    _, cluster = yaml.safe_load_all((DEPLOY / "kuberay" / "raycluster.yaml").read_text())
    *path, name = place.split(".")
    inner = cluster
    for step in path:
        inner = inner[step]
    inner[name] = "x=y"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, RAY_CLUSTER)


def test_the_slurm_script_is_sound_shell() -> None:
    passes("bash", "-n", SLURM)
    passes("shellcheck", "--severity=style", SLURM)


STANDIN = """#!/bin/bash
echo "$(basename "$0") $*" >> "$LOG"
case "$(basename "$0") $*" in
    scontrol*) printf 'n1\\nn2\\nn3\\n' ;;
    *hostname*) echo "10.0.0.1 fe80::1" ;;
    *--block*) exec sleep 60 ;;
    *"ray status"*) until grep -q 'ray start --head' "$LOG"; do sleep 0.02; done ;;
    *"rollcage train"*)
        until [ "$(grep -c 'ray start --address' "$LOG")" = 2 ]; do sleep 0.02; done
        exit 3
        ;;
esac
"""


def test_the_slurm_script_starts_a_head_then_workers_then_the_run_and_ends_with_it(tmp_path: Path) -> None:
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text(STANDIN)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "SLURM_JOB_NODELIST": "n[1-3]"}
    done = tool("bash", SLURM, "countdown-small", env={**environment, "ROLLCAGE_DOCKER_PORT": "2375"}, cwd=tmp_path)
    assert done.returncode == 3, "the run's own"
    lines = [line.removeprefix("srun --overlap --nodes=1 --ntasks=1 ") for line in log.read_text().splitlines()]
    labels = f"--labels {DOCKER_LABEL}=2375 --block"
    head = lines.index(f"--nodelist=n1 ray start --head --node-ip-address=10.0.0.1 --port=6379 {labels}")
    for node in ("n2", "n3"):
        assert lines.index(f"--nodelist={node} ray start --address=10.0.0.1:6379 {labels}") > head
    [run] = [line for line in lines if "rollcage train" in line]
    assert run.startswith("--nodelist=n1 rollcage train countdown-small --cluster ray --address 10.0.0.1:6379")


def test_the_commands_that_the_files_show_are_read_by_rollcage() -> None:
    texts = [path.read_text() for path in (DEPLOY / "compose" / "compose.yml", DEPLOY / "kuberay" / "raycluster.yaml")]
    shown = [re.sub(r"\\\n#", "", text) for text in texts]
    commands = [found for text in shown for found in re.findall(r"rollcage train (.*)", text) if "--out" in found]
    readme = (ROOT / "README.md").read_text()
    commands += re.findall(r"^rollcage train (.*--cluster ray.*?)(?: +#.*)?$", readme, re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        config = parse_train(command.split()).config
        assert config is not None
        assert config.cluster == "ray"
        assert config.model == PRESETS[command.split()[0]][1].model
    assert json.loads((ROOT / "monitor" / "grafana" / "rollcage.json").read_text())["panels"]
