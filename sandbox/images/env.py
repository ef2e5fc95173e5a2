"""The environments' image: the base image with Rollcage itself, from wheels that are got here: no network inside."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rollcage import errors
from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images import BASE_IMAGE, BASE_PYTHON, ENV_DATA, ENV_IMAGE, ENV_PYTHON
from rollcage.sandbox.images.base import build_base
from rollcage.sandbox.images.building import build_image, machine
from rollcage.sandbox.images.importing import has_recipe
from rollcage.sandbox.images.running import Progress, run, silent

_PACKAGE = Path(errors.__file__).parent
_LABEL_PART = "rollcage.env"
"""On the image, and on what its building leaves behind: that, and the one before, are removed."""


async def build_env(
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    extras: Sequence[str] = (),
    requirements: Sequence[Path] = (),
    data: Sequence[Path] = (),
    image: str = ENV_IMAGE,
    rebuild: bool = False,
    progress: Progress = silent,
    timeout_s: float = 1800.0,
) -> str:
    """Make the image in which environments run, where it is not there for this Rollcage yet; returns its name.

    Nothing in it is fetched from inside: wheels are downloaded here (from pip's index), and installed without network.

    Args:
        endpoint: of the Docker daemon.
        extras: of Rollcage, that the environments need, such as "math".
        requirements: files of further, pinned requirements, taken as they are, without what those require in turn.
        data: folders of published data, such as ``data/alfworld``, which environments inside find by their names.
        image: its name.
        rebuild: make it even where it is there.
        progress: is given a line now and then.
        timeout_s: for all of it.

    Raises:
        ImageMissing: it cannot be made here; the message says what failed.
        DaemonUnreachable, DaemonForbidden, HostUnavailable: the daemon.
    """
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + timeout_s
    await build_base(endpoint, progress=progress, timeout_s=timeout_s)
    engine = Engine(endpoint)
    try:
        async with engine.call(f"look for {BASE_IMAGE}") as docker:
            base_id = (await docker.images.inspect(BASE_IMAGE))["Id"]
        recipe = await asyncio.to_thread(_recipe, base_id, sorted(set(extras)), requirements, data)
        if not rebuild and await has_recipe(engine, image, recipe):
            progress(f"{image} is there")
            return image
        with tempfile.TemporaryDirectory(prefix="rollcage-env-") as folder:
            wheels = Path(folder) / "wheels"
            progress("getting the wheels of Rollcage and of what it needs")
            for command in _pip(sorted(set(extras)), requirements, wheels):
                await run(command, image, silent, ends_at_s - loop.time())
            progress(f"installing {len(list(wheels.iterdir()))} wheels into {image}, without network")
            nothing = Path(folder) / "data"
            nothing.mkdir()
            folders = {"wheels": wheels, "data": nothing, **{f"data/{path.name}": path for path in data}}
            left_s = ends_at_s - loop.time()
            await build_image(engine, image, _dockerfile(recipe), folders, label=_LABEL_PART, timeout_s=left_s)
        return image
    finally:
        await engine.close()


def _recipe(base_id: str, extras: Sequence[str], requirements: Sequence[Path], data: Sequence[Path]) -> str:
    """Return what tells this image from one of another base, of other extras, or of another state of the environments.

    What else the package has (the trainer, the manager) does not run inside.
    """
    digest = hashlib.sha256(json.dumps([_dockerfile(""), base_id, list(extras)]).encode())
    try:
        files = [(path.name, path) for path in requirements]
        files += [(path.name, path) for path in sorted(_PACKAGE.glob("*.py"))]
        for folder, folders, names in os.walk(_PACKAGE / "envs", followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            files += [(os.path.relpath(path, _PACKAGE), path) for name in sorted(names) if (path := Path(folder, name))]
        for place in data:
            if not place.is_dir():
                raise ImageMissing(f"{place}: there is no such folder of data.")
            found = (path for path in sorted(place.rglob("*")) if path.is_file())
            files += [(f"data/{path.relative_to(place.parent)}", path) for path in found]
        if (checkout := _checkout()) is not None:
            files.append(("pyproject.toml", checkout / "pyproject.toml"))
        for name, path in files:
            digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise ImageMissing(f"{error.filename}: cannot be read ({error.strerror}).") from None
    return f"env-1 {digest.hexdigest()[:32]}"


def _checkout() -> Path | None:
    """Return the folder of the sources that this package is imported from; None where it was installed."""
    folder = _PACKAGE.resolve().parent.parent
    return folder if _PACKAGE.parent.name == ".pkg" and (folder / "pyproject.toml").is_file() else None


def _pip(extras: Sequence[str], requirements: Sequence[Path], wheels: Path) -> list[tuple[str, ...]]:
    """Return the commands that put every wheel that is needed into a folder."""
    pip = (sys.executable, "-m", "pip")
    quiet = ("--disable-pip-version-check", "--no-input", "--quiet")
    checkout, named = _checkout(), f"[{','.join(extras)}]" if extras else ""
    wanted = f"rollcage{named} @ {checkout.as_uri()}" if checkout else f"rollcage{named}=={version('rollcage')}"
    if sys.platform == "linux" and platform.python_version().startswith(f"{BASE_PYTHON}."):
        build = (*pip, "wheel", *quiet, "--wheel-dir", str(wheels))
        commands: list[tuple[str, ...]] = [(*build, wanted)]
        return commands + [(*build, "--no-deps", "--requirement", str(path)) for path in requirements]
    # Another interpreter than the image's: what has to be compiled cannot be had here.
    tags = [
        tag for glibc in ("2014", "_2_17", "_2_28", "_2_34") for tag in ("--platform", f"manylinux{glibc}_{machine()}")
    ]
    fetch = (
        *pip,
        "download",
        *quiet,
        "--only-binary=:all:",
        "--python-version",
        BASE_PYTHON,
        *tags,
        "--dest",
        str(wheels),
    )
    commands = []
    if checkout:
        commands.append((*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", str(wheels), str(checkout)))
        wanted = f"rollcage{named}=={version('rollcage')}"
    commands.append((*fetch, "--find-links", str(wheels), wanted))
    return commands + [(*fetch, "--no-deps", "--requirement", str(path)) for path in requirements]


def _dockerfile(recipe: str) -> str:
    home = str(Path(ENV_PYTHON).parent.parent)
    install = f"{ENV_PYTHON} -m pip install --no-index --no-deps --no-cache-dir --quiet /wheels/*.whl"
    lines = (
        f"FROM {BASE_IMAGE} AS build",
        f"LABEL {_LABEL_PART}=1",
        "COPY wheels /wheels",
        # Compiled, since those who run it may not write there; and checked: it must start, and its parts must fit.
        f"RUN python3 -m venv {home} && {install} && {ENV_PYTHON} -P -c 'import rollcage.envs.worker'",
        f"FROM {BASE_IMAGE}",
        f"COPY --from=build {home} {home}",
        f"COPY data {ENV_DATA}",
        f"ENV ROLLCAGE_DATA={ENV_DATA}",
        f'LABEL {_LABEL_PART}=1 {LABEL_RECIPE}="{recipe}"',
    )
    return "\n".join(lines) + "\n"
