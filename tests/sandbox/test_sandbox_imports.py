"""What `import rollcage.sandbox` brings, and what it must not load."""

from __future__ import annotations

import subprocess
import sys

import rollcage.sandbox


def test_importing_loads_neither_a_docker_client_nor_a_web_framework() -> None:
    heavy = "'aiodocker', 'aiohttp', 'docker', 'fastapi', 'starlette', 'uvicorn', 'sqlite3'"
    check = f"import sys, rollcage.sandbox; print([name for name in ({heavy},) if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_all_that_is_exported_is_there() -> None:
    for name in rollcage.sandbox.__all__:
        assert getattr(rollcage.sandbox, name).__name__ == name
