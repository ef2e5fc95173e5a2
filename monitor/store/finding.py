"""Where runs are."""

from __future__ import annotations

import json
from pathlib import Path

from rollcage.errors import UserError


def find_runs(folder: str | Path) -> list[Path]:
    """Return the run folders in ``folder`` and two levels below it, itself included, the newest first.

    Raises:
        UserError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such folder; give the one that holds your runs (`rollcage train --out`)."
        )
    found = {path.parent for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}config.json")}
    runs = [path for path in found if _is_run(path)]
    return sorted(runs, key=lambda path: (path / "config.json").stat().st_mtime, reverse=True)


def _is_run(path: Path) -> bool:
    try:
        return isinstance(json.loads((path / "config.json").read_text(encoding="utf-8"))["config"]["rollout"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False
