"""pip for another Python: what a package requires there is got, and what it requires here is not."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rollcage.sandbox.images.foreign_pip import arguments


def wheel(folder: Path, name: str, tag: str = "py3-none-any", *requires: str) -> None:
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {r}\n" for r in requires)
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as file:
        file.writestr(f"{name}-1.0.dist-info/METADATA", about)
        file.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")


def got(folder: Path, python: str) -> list[str]:
    """Return what pip gets for a Python out of ``folder/index``."""
    module = (sys.executable, "-m", "rollcage.sandbox.images.foreign_pip", python, "download", "--quiet")
    where = ("--no-index", "--find-links", str(folder / "index"), "--dest", str(folder / python))
    subprocess.run((*module, *arguments(python, "x86_64"), *where, "top"), check=True, timeout=60)
    return sorted(path.name for path in (folder / python).iterdir())


@pytest.mark.parametrize(
    ("python", "tag", "other"), [("3.9", "cp39-cp39-manylinux_2_28_x86_64", "old"), ("3.13", "cp313-abi3", "new")]
)
def test_markers_and_tags_are_those_of_the_other_python(tmp_path: Path, python: str, tag: str, other: str) -> None:
    tag = tag if tag.count("-") == 2 else f"{tag}-manylinux2014_x86_64"
    index = tmp_path / "index"
    needs = ('old; python_version < "3.10"', 'new; python_full_version >= "3.13.0"', 'mac; sys_platform == "darwin"')
    wheel(index, "top", "py3-none-any", *needs, "binary")
    wheel(index, "old")
    wheel(index, "new")
    wheel(index, "binary", tag)
    wanted = [f"binary-1.0-{tag}.whl", f"{other}-1.0-py3-none-any.whl", "top-1.0-py3-none-any.whl"]
    assert got(tmp_path, python) == sorted(wanted)


def test_source_distributions_are_got_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with tarfile.open(tmp_path / "index" / "top-1.0.tar.gz", "w:gz") as archive:
        for name, text in (
            ("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'),
            (
                "own.py",
                "import os\n\n\ndef prepare_metadata_for_build_wheel(folder, config=None):\n"
                "    os.mkdir(folder + '/top-1.0.dist-info')\n"
                "    open(folder + '/top-1.0.dist-info/METADATA', 'w').write("
                "'Metadata-Version: 2.1\\nName: top\\nVersion: 1.0\\n')\n    return 'top-1.0.dist-info'\n\n\n"
                "def build_wheel(*arguments):\n    raise SystemExit('it is not built here')\n",
            ),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: top\nVersion: 1.0\n"),
        ):
            member = tarfile.TarInfo(f"top-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    assert got(tmp_path, "3.9") == ["top-1.0.tar.gz"]
