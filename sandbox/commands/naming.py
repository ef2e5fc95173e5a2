"""Which sandbox a command means: by its id, by its key, or by the first characters of its id."""

from __future__ import annotations

from collections.abc import Mapping

from rollcage.errors import UserError, did_you_mean
from rollcage.sandbox.errors import SandboxNotFound
from rollcage.sandbox.sync import SyncSandbox, SyncSandboxes
from rollcage.sandbox.types import State

ABOUT = "of the sandbox: its id, its key, or the first characters of its id"
"""For the help of an argument that names a sandbox."""
MAX_TOLD = 5


def find(sandboxes: SyncSandboxes, name: str) -> SyncSandbox:
    """Return the sandbox of a name that is not deleted; where several have had the key, the one that has not failed.

    Raises:
        SandboxNotFound: there is none.
        UserError: there are several.
    """
    try:
        return sandboxes.attach(name)
    except SandboxNotFound:
        infos = sandboxes.list_sandboxes()
    living = {info.id: info.key for info in infos if info.state != State.FAILED}
    if name not in living.values():
        living = {info.id: info.key for info in infos}
    return sandboxes.attach(match(name, living))


def find_id(sandboxes: SyncSandboxes, name: str) -> str:
    """Return the id of a name, also of a sandbox that has been deleted: those that live count first. As `find`."""
    try:
        return find(sandboxes, name).id
    except SandboxNotFound:
        pass
    keys: dict[str, str] = {}
    after = 0
    while events := sandboxes.events(after=after):
        after = events[-1].number
        for event in events:
            if event.sandbox_id:
                keys[event.sandbox_id] = str(event.data.get("key") or keys.get(event.sandbox_id, ""))
    return match(name, keys)


def match(name: str, keys: Mapping[str, str]) -> str:
    """Return the id that a name means: an id counts before a key, and a key before the beginning of an id.

    Args:
        name: what the user wrote.
        keys: id -> key, "" where it has none.

    Raises:
        SandboxNotFound, UserError: as `find`.

    >>> match("mine", {"a1": "mine", "a2": ""}), match("a2", {"a1": "a2", "a2": ""}), match("b", {"a1": "", "b1": ""})
    ('a1', 'a2', 'b1')
    """
    if name in keys:
        return name
    found = [it for it, key in keys.items() if name and key == name]
    found = found or [it for it in keys if name and it.startswith(name)]
    if not found:
        hint = did_you_mean(name, [*keys, *filter(None, keys.values())])
        raise SandboxNotFound(f"there is no sandbox {name!r} (or it has been deleted).{hint}  See: rollcage sandbox ls")
    if len(found) > 1:
        told = ", ".join(f"{it} ({keys[it]})" if keys[it] else it for it in found[:MAX_TOLD])
        more = f" and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""
        raise UserError(f"{name!r} means {len(found)} sandboxes: {told}{more}: write more of the id.")
    return found[0]
