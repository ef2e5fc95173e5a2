"""Building a task's image without any registry: the base image, the repository, and what it needs from PyPI.

Two images: one with the Python environment of the official specification, which tasks of one version share, and on it
one with the repository, installed. Where the official images have conda, these have a venv at the same place, with as
much of the command ``conda`` as the official scripts use.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.envs.swe.official import (
    ENV_NAME,
    FOLDER,
    clean_requirements,
    requirements_paths,
    specification,
)
from rollcage.envs.swe.sample import OWN
from rollcage.envs.swe.sources import from_files, from_mirror, from_sdist, mirror_of, pip, tree_from_mirror
from rollcage.envs.swe.suite import mini_files
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images import BASE_PYTHON, base_image
from rollcage.sandbox.images.running import run, silent

LABEL = "rollcage.swe"
CONDA = "/opt/miniconda3"
USER = "1000:1000"
_WHEELS = "/opt/wheels"
_ACTIVATE = f"""conda() {{
  if [ "$1" = activate ]; then export PATH="{CONDA}/envs/$2/bin:$PATH" CONDA_DEFAULT_ENV="$2"; fi
}}
"""
_ALWAYS = ("pip", "setuptools", "wheel")
COMMIT_ALL = f"""cd {FOLDER}
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
if [ -n "$(git status --porcelain --untracked-files=all)" ]; then
  git add -A
  date=$(git show -s --format=%cd --date=raw HEAD)
  GIT_AUTHOR_DATE="$date" GIT_COMMITTER_DATE="$date" \\
    git -c user.name=Rollcage -c user.email=rollcage@localhost commit -q -m Setup
fi
"""
"""What installing has changed becomes a commit, of the base commit's date: a patch is what comes after it."""


@dataclass(frozen=True)
class Source:
    """Where a repository comes from.

    Attributes:
        mirror: path or URL of a git repository that holds the base commit; "{repo}" stands for "owner/name".
        sdist: "name==version" on PyPI, in place of a mirror: the release on which the row's patches apply.
        python: version of Python; "" for the specification's.
    """

    mirror: str = ""
    sdist: str = ""
    python: str = ""


class Build:
    """The images of one row.

    Args:
        row: in SWE-bench's format.
        source: of its repository.

    Raises:
        UserError: there is no specification of it.
        ImageMissing: it cannot be built here (its specification needs conda, or system packages).
    """

    def __init__(self, row: Mapping[str, Any], source: Source) -> None:
        self.row, self.spec = row, specification(row)
        self.is_own = row["repo"].startswith(OWN)
        self.sdist, self.name = source.sdist, row["instance_id"]
        self.python = str(source.python or self.spec.get("python", BASE_PYTHON))
        pre_install = self.spec.get("pre_install", [])
        pre_install = [pre_install] if isinstance(pre_install, str) else list(pre_install)
        if "python" not in self.spec and "spec" not in row:
            raise ImageMissing(f"{self.name}: only Python's rows can be built here; use the official image.")
        if self.spec.get("packages") == "environment.yml":
            raise ImageMissing(f"{self.name}: its specification is conda's environment.yml; use the official image.")
        if any("apt-get" in command for command in pre_install):
            raise ImageMissing(f"{self.name}: it needs packages of the system; use the official image.")
        self.mirror = mirror_of(source.mirror, row["repo"]) if not source.sdist and not self.is_own else ""
        self.commands = [*pre_install, *([self.spec["install"]] if self.spec.get("install") else [])]

    @property
    def base(self) -> str:
        """Name of the image that it stands on."""
        return base_image(self.python)

    def recipe(self, base_id: str) -> str:
        """Return what tells this image from others: rows with the same one share an image."""
        place = self.sdist or self.row["base_commit"]
        setup = self.row.get("environment_setup_commit", "") if self._reads_requirements else ""
        parts = [_dockerfiles("", self.base), COMMIT_ALL, base_id, self.row["repo"], place, setup, self.spec]
        return "swe-1 " + _digest(parts)

    @property
    def _installs(self) -> bool:
        return any(self.spec.get(key) for key in ("packages", "pip_packages", "install"))

    @property
    def _reads_requirements(self) -> bool:
        return bool(self.spec.get("packages") == "requirements.txt")

    async def fetch(self, folder: Path, machine: str, timeout_s: float) -> None:
        """Get the repository: ``folder/git`` and ``folder/tree``."""
        if self.is_own:
            await from_files(mini_files(self.row["repo"].removeprefix(OWN)), folder, self.name, timeout_s)
            return
        if self.sdist:
            await from_sdist(self.sdist, self.python, machine, folder, self.name, timeout_s)
            return
        await from_mirror(self.mirror, self.row["base_commit"], folder, self.name, timeout_s)
        commit = self.row.get("environment_setup_commit") or self.row["base_commit"]
        if self._reads_requirements and commit != self.row["base_commit"]:
            await tree_from_mirror(self.mirror, commit, folder, self.name, timeout_s)

    def requirements(self, folder: Path) -> list[list[str]]:
        """Return what is installed before the repository, in its order, as arguments of pip."""
        packages = self.spec.get("packages", "")
        first = [*_ALWAYS] if self._installs else []
        second: list[str] = []
        if self._reads_requirements:
            tree = folder / "setup" if (folder / "setup").is_dir() else folder / "tree"
            second = _requirements(self.row["repo"], tree)
        elif packages:
            second = shlex.split(packages)
        return [part for part in (first, second, list(self.spec.get("pip_packages", []))) if part]

    def env_image(self, base_id: str, requirements: Sequence[Sequence[str]]) -> str:
        """Return the name of the image with the environment."""
        return "rollcage-swe-env:" + _digest([_dockerfiles("", self.base)[0], base_id, requirements])

    async def env_parts(
        self, folder: Path, machine: str, requirements: Sequence[Sequence[str]], timeout_s: float
    ) -> tuple[str, dict[str, Path]]:
        """Get the wheels; returns Dockerfile and folders of the environment's image."""
        wheels, lists, commands = folder / "wheels", folder / "lists", ["set -e", f"mkdir -p {CONDA}/envs"]
        lists.mkdir()
        wheels.mkdir()
        commands.append(f"python3 -m venv {CONDA}/envs/{ENV_NAME}")
        for position, part in enumerate(requirements):
            (lists / f"{position}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
            given = ("--dest", str(wheels), "--requirement", str(lists / f"{position}.txt"))
            await run(pip(self.python, machine, "download", *given), self.name, silent, timeout_s)
            upgrade = "--upgrade " if position == 0 else ""
            commands.append(f"python -m pip install --quiet {upgrade}-r /opt/setup/{position}.txt")
        (lists / "setup.sh").write_text("\n".join(commands) + "\n", encoding="utf-8")
        (folder / "activate").write_text(_ACTIVATE, encoding="utf-8")
        dockerfile = _dockerfiles("", self.base)[0]
        return dockerfile, {"wheels": wheels, "setup": lists, "activate": folder / "activate"}

    async def parts(
        self, folder: Path, machine: str, env_image: str, recipe: str, timeout_s: float
    ) -> tuple[str, dict[str, Path]]:
        """Get what the repository itself requires; returns Dockerfile and folders of the image."""
        wheels, tree = folder / "own_wheels", folder / "tree"
        wheels.mkdir()
        given = ("--dest", str(wheels))
        if self._installs:
            command = (*pip(self.python, machine, "download", *given), *_ALWAYS, *_build_requires(tree))
            await run(command, self.name, silent, timeout_s)
        if any("pip install" in command for command in self.commands):
            shutil.copytree(folder / "git", tree / ".git", dirs_exist_ok=True)  # packages take their version from it
            command = (*pip(self.python, machine, "download", *given), str(tree))
            await run(command, self.name, silent, timeout_s)
        own = self.row["repo"].rpartition("/")[2].replace("-", "?").replace("_", "?")
        lines = [
            "set -e",
            f"find {_WHEELS} -iname '{own}-*' -delete",  # a later release of the repository itself has the answer
            f"cd {FOLDER}",
            "git reset -q --hard",
            f". {CONDA}/bin/activate",
            f"conda activate {ENV_NAME}",
        ]
        (folder / "setup.sh").write_text("\n".join([*lines, *self.commands, COMMIT_ALL]), encoding="utf-8")
        dockerfile = _dockerfiles(recipe, env_image)[1]
        return dockerfile, {"git": folder / "git", "wheels": wheels, "setup.sh": folder / "setup.sh"}


def _dockerfiles(recipe: str, parent: str) -> tuple[str, str]:
    owned = f"--chown={USER}"
    path = f"{CONDA}/envs/{ENV_NAME}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = (
        f"FROM {parent}",
        f"LABEL {LABEL}=env",
        "USER 0:0",
        f"RUN mkdir -p {CONDA}/bin {FOLDER} {_WHEELS} && chown -R {USER} {CONDA} {FOLDER} {_WHEELS}",
        f"USER {USER}",
        f"ENV PATH={path} PIP_NO_INDEX=1 PIP_FIND_LINKS={_WHEELS} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
        f"COPY {owned} activate {CONDA}/bin/activate",
        f"COPY {owned} wheels {_WHEELS}",
        f"COPY {owned} setup /opt/setup",
        "RUN sh /opt/setup/setup.sh",
    )
    own = (
        f"FROM {parent}",
        f"COPY {owned} git {FOLDER}/.git",
        f"COPY {owned} wheels {_WHEELS}",
        f"COPY {owned} setup.sh /opt/setup/repository.sh",
        "RUN bash /opt/setup/repository.sh",
        f"WORKDIR {FOLDER}",
        f'LABEL {LABEL}=task rollcage.recipe="{recipe}"',
    )
    return "\n".join(env) + "\n", "\n".join(own) + "\n"


def _requirements(repo: str, tree: Path) -> list[str]:
    """Return the lines of a repository's requirements file, as the official harness reads them."""
    for path in requirements_paths(repo):
        if (tree / path).is_file():
            lines = _lines(tree / path)
            return [line for line in clean_requirements("\n".join(lines)).splitlines() if line.strip()]
    raise ImageMissing(f"{repo}: it has no requirements file ({', '.join(requirements_paths(repo))}).")


def _lines(file: Path) -> list[str]:
    found: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("-r"):
            other = file.parent / text[2:].strip()
            found += _lines(other) if other.is_file() else []
        elif text and not text.startswith(("-e .", "#", ".[test")):
            found.append(text)
    return found


def _build_requires(tree: Path) -> list[str]:
    try:
        project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(part) for part in project.get("build-system", {}).get("requires", [])]


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
