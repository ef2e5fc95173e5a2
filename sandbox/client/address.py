"""Where the sandbox manager keeps its state, and how its service is found: a file there, for its owner's eyes only."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "service.json"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """How to reach a service.

    Attributes:
        address: "http://127.0.0.1:PORT" or "unix:///PATH".
        token: what every request must show.
        pid: its process.
    """

    address: str
    token: str
    pid: int


def default_folder() -> Path:
    """Return this user's state folder: ``$ROLLCAGE_SANDBOX``, else ``rollcage/sandbox`` where XDG keeps state."""
    if named := os.environ.get("ROLLCAGE_SANDBOX"):
        return Path(named).expanduser()
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "rollcage" / "sandbox"


def write_address(folder: Path, service: ServiceAddress) -> None:
    """Write the file, readable by its owner alone, in one step."""
    part = folder / f".{FILE}.{os.getpid()}"
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        json.dump(asdict(service), stream)
    part.rename(folder / FILE)


def read_address(folder: Path) -> ServiceAddress | None:
    """Return what the file says, or None where there is none that can be read; its service may have died."""
    try:
        return ServiceAddress(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove_address(folder: Path, service: ServiceAddress) -> None:
    """Remove the file where it is still this service's."""
    if read_address(folder) == service:
        (folder / FILE).unlink(missing_ok=True)
