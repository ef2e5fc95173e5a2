"""The README is true: its Python runs, its commands exist, its file tree is the repository's."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"^(?:    )?(rollcage [a-z].*?)(?:\s+#.*)?$", README, re.MULTILINE)))


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_every_python_example_runs(number: int, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PYTHON[number]], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_an_environment_of_ones_own_takes_under_twenty_lines_and_works_everywhere(tmp_path: Path) -> None:
    (example,) = [code for code in PYTHON if "class Reverse" in code]
    lines = [line for line in example.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) < 20
    (tmp_path / "my_module.py").write_text(example)
    code = (
        "import my_module, gymnasium, rollcage\n"
        "envs = gymnasium.make_vec('mine/Reverse-v0', num_envs=2)\n"
        "observations, _ = envs.reset(seed=0)\n"
        'words = [o.split("\'")[1][::-1] for o in observations]\n'
        "assert list(envs.step(words)[1]) == [1.0, 1.0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
    checked = subprocess.run(
        [sys.executable, "-m", "rollcage", "check", "my_module:mine/Reverse-v0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=110,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_is_one_that_exists(command: str) -> None:
    from rollcage.__main__ import COMMANDS as KNOWN

    words = shlex.split(command)
    assert words[1] in KNOWN


def test_the_file_tree_names_every_file_and_no_other() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    there = {path for path in listed.splitlines() if not path.startswith(("tests/", ".pkg/"))}
    (tree,) = re.findall(r"```tree\n(.*?)```", README, re.DOTALL)
    named, folder = set(), ""
    for line in tree.splitlines():
        name = line.split()[0]
        if name.endswith("/"):
            folder = name
        elif name.endswith(".py"):
            named.add(folder + name)
    there = {path for path in there if not path.endswith("__init__.py")}
    assert named == there, (sorted(there - named), sorted(named - there))
