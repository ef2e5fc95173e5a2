"""The pages' files: read once, served from memory, so that no path of a request ever reaches the disk."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from rollcage.monitor.server.errors import Refused

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "map": "application/json",
    "txt": "text/plain; charset=utf-8",
}


class Pages:
    """The files below ``rollcage/monitor/pages`` of the types above; "/" is index.html.

    Args:
        root: another folder of files.
    """

    def __init__(self, root: Traversable | None = None) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self._collect(root or files("rollcage.monitor") / "pages", "/")
        if index := self._files.get("/index.html"):
            self._files["/"] = index

    def _collect(self, folder: Traversable, prefix: str) -> None:
        if not folder.is_dir():
            return
        for item in folder.iterdir():
            if item.is_dir():
                self._collect(item, f"{prefix}{item.name}/")
            elif kind := TYPES.get(item.name.rpartition(".")[2]):
                self._files[prefix + item.name] = item.read_bytes(), kind

    def answer(self, request: Request) -> Response:
        """Return the file that a request names.

        Raises:
            Refused: there is none.
        """
        found = self._files.get(request.scope["path"])
        if found is None:
            raise Refused("there is no such page.", 404)
        return Response(found[0], media_type=found[1])
