"""Which snapshots to remove: so many stay per sandbox and in all, and never one goes that somebody lives on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from rollcage.sandbox.types import Snapshot


def expired_snapshots(
    snapshots: Iterable[Snapshot], needed: Collection[str], *, max_per_sandbox: int = 5, max_snapshots: int = 200
) -> list[Snapshot]:
    """Return the snapshots to remove, oldest first.

    Args:
        snapshots: all that are kept, in any order.
        needed: ids of those that must stay: the restore sources of live sandboxes. They count towards both limits, and
            where they alone are more than a limit, more than the limit stays.
        max_per_sandbox: so many stay of one sandbox, the newest.
        max_snapshots: so many stay in all, the newest.
    """
    oldest_first = sorted(snapshots, key=lambda snapshot: (snapshot.time, snapshot.id))
    num_kept, num_kept_of = len(oldest_first), Counter(snapshot.sandbox_id for snapshot in oldest_first)
    expired: list[Snapshot] = []

    def remove(snapshot: Snapshot) -> None:
        nonlocal num_kept
        expired.append(snapshot)
        num_kept -= 1
        num_kept_of[snapshot.sandbox_id] -= 1

    for snapshot in oldest_first:
        if num_kept_of[snapshot.sandbox_id] > max_per_sandbox and snapshot.id not in needed:
            remove(snapshot)
    removed = {snapshot.id for snapshot in expired}
    for snapshot in oldest_first:
        if num_kept > max_snapshots and snapshot.id not in needed and snapshot.id not in removed:
            remove(snapshot)
    return sorted(expired, key=lambda snapshot: (snapshot.time, snapshot.id))
