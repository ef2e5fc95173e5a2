"""What can go wrong between a browser and the server: each error has its HTTP status."""

from __future__ import annotations

from rollcage.errors import RollcageError


class Refused(RollcageError):
    """A request that is answered with an error: one line for people, and an HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def to_json(message: str, status: int, kind: str = "Refused") -> dict[str, dict[str, str | int]]:
    """Return the body of an answer that is an error."""
    return {"error": {"type": kind, "message": message, "status": status}}
