"""The package: what an import loads, what the wheel installs, and who may import whom."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "transformers",
    "deepspeed",
    "docker",
    "fastapi",
    "flask",
    "starlette",
    "aiohttp",
    "matplotlib",
    "tyro",
    "rich",
)


def run(*command: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, timeout=240, **kwargs
    )  # type: ignore[call-overload, no-any-return]


def test_importing_and_making_an_environment_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, gymnasium, rollcage\n"
        "env = gymnasium.make('rollcage/Countdown-v0'); env.reset(seed=0); env.step('<answer>1</answer>')\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    assert json.loads(run(sys.executable, "-W", "error", "-c", code).stdout) == []


def test_importing_has_no_side_effects_on_the_file_system_or_the_terminal(tmp_path: Path) -> None:
    result = run(
        sys.executable, "-c", "import rollcage, rollcage.trainer, rollcage.monitor, rollcage.benchmarks", cwd=tmp_path
    )
    assert result.stdout == result.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel in it; returns its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    run(folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return folder / "venv"


@pytest.mark.timeout(400)
def test_the_wheel_installs_rollcage_and_a_handful_of_packages(installed: Path) -> None:
    site = next((installed / "lib").glob("python*")) / "site-packages"
    listed = json.loads(run(installed / "bin/pip", "list", "--format=json", "--disable-pip-version-check").stdout)
    names = {package["name"].lower() for package in listed} - {"pip", "setuptools", "rollcage"}
    assert len(names) <= 9, names
    record = (next(site.glob("rollcage-*.dist-info")) / "RECORD").read_text()
    tops = {line.split(",")[0].split("/")[0] for line in record.splitlines()} - {"..", "rollcage"}
    assert {top for top in tops if not top.endswith(".dist-info")} == set()
    assert not [line for line in record.splitlines() if "benchmarks/results" in line or "/tests/" in line]
    shown = [
        *ROOT.glob("monitor/pages/**/*.*"),
        *ROOT.glob("monitor/prometheus/*.yml"),
        *ROOT.glob("monitor/grafana/*"),
    ]
    assert len(shown) > 30
    assert [path for path in shown if f"\nrollcage/{path.relative_to(ROOT)}," not in record] == []


@pytest.mark.timeout(400)
def test_the_installed_package_works_alone(installed: Path, tmp_path: Path) -> None:
    command = ["eval", "rollcage/Countdown-v0", "--policy", "expert", "--num-tasks", "20", "--json"]
    result = run(installed / "bin/rollcage", *command, cwd=tmp_path)
    assert json.loads(result.stdout.splitlines()[-1])["success_rate"] == 1.0
    assert "rollcage/Countdown-v0" in run(installed / "bin/rollcage", "envs", cwd=tmp_path).stdout
    failed = subprocess.run(
        [installed / "bin/rollcage", "train", "countdown-small"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert failed.returncode == 2
    assert "pip install 'rollcage[train]'" in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1


def test_parts_import_only_what_they_may() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "command", [[], ["--help"], *([c, "--help"] for c in ("envs", "check", "eval", "train", "replay", "bench"))]
)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rollcage", *command],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert result.returncode == (0 if command else 2)
    assert "example" in result.stdout.lower()


def test_an_unknown_command_is_refused_with_a_suggestion() -> None:
    result = subprocess.run([sys.executable, "-m", "rollcage", "evla"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "Did you mean 'eval'?" in result.stderr
