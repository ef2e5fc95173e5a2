"""How many requests each replica has, and which of them has the fewest, without looking at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping


class Loads:
    """Requests of each replica.

    A heap of (load, replica) to which every change adds an entry; one that is out of date is thrown away when it is
    met. A change and a choice cost O(log replicas), beside the siblings that a choice avoids.

    Args:
        replicas: their indices.
    """

    def __init__(self, replicas: Iterable[int]) -> None:
        self._loads = dict.fromkeys(replicas, 0)
        self._heap = [(0, replica) for replica in sorted(self._loads)]

    def __getitem__(self, replica: int) -> int:
        """Return the requests of a replica."""
        return self._loads[replica]

    def change(self, replica: int, by: int) -> None:
        """Add to a replica's requests; one that was removed is ignored."""
        load = self._loads.get(replica)
        if load is None:
            return
        self._loads[replica] = load + by
        heapq.heappush(self._heap, (load + by, replica))
        if len(self._heap) > 4 * len(self._loads) + 64:
            self._heap = [(load, replica) for replica, load in self._loads.items()]
            heapq.heapify(self._heap)

    def add(self, replica: int) -> None:
        """Take in a replica without requests."""
        self._loads[replica] = 0
        heapq.heappush(self._heap, (0, replica))

    def remove(self, replica: int) -> None:
        """Forget a replica."""
        self._loads.pop(replica, None)

    def least(self, siblings: Mapping[int, int]) -> int:
        """Return the replica with the fewest siblings, among equals with the fewest requests, then the first.

        Args:
            siblings: replica -> members of the group that it has got; none where it is missing.

        Raises:
            IndexError: no replica is left.
        """
        taken = [count for replica, count in siblings.items() if replica in self._loads]
        fewest = min(taken) if taken and len(taken) == len(self._loads) else 0
        set_aside = []
        while True:
            load, replica = self._heap[0]
            if self._loads.get(replica) != load:
                heapq.heappop(self._heap)
            elif siblings.get(replica, 0) > fewest:
                set_aside.append(heapq.heappop(self._heap))
            else:
                break
        for entry in set_aside:
            heapq.heappush(self._heap, entry)
        return replica
