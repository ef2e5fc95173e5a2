"""What a run asks of a cluster's nodes, and whether these could ever give it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_ROUNDING = 1e-6
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True)
class Demand:
    """Several equal actors, each of which wants a part of one node.

    Attributes:
        what: one of them, in words.
        num: how many.
        resources: of each: CPU, GPU.
        labels: that its node must have, with these values.
    """

    what: str
    num: int
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f" on nodes with {_listed(self.labels)}" if self.labels else ""
        return f"{self.num} x {self.what} ({_amounts(self.resources)} each{where})"


@dataclass(frozen=True)
class Node:
    """A node as Ray reports it.

    Attributes:
        id: Ray's.
        address: at which the others reach it.
        resources: what it has in all, whoever uses it.
        labels: what its operator gave it with ``ray start --labels``.
    """

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def __str__(self) -> str:
        own = {key: value for key, value in self.labels.items() if not key.startswith("ray.io/")}
        labels = f"; {_listed(own)}" if own else ""
        return f"{self.address} ({_amounts(self.resources)}{labels})"

    def room_for(self, demand: Demand) -> int:
        """Return how many of ``demand`` this node could hold if it were empty."""
        if not demand.labels.items() <= self.labels.items():
            return 0
        shares = [self.resources.get(name, 0.0) / amount for name, amount in demand.resources.items() if amount > 0]
        return min((int(share + _ROUNDING) for share in shares), default=demand.num)


def live_nodes(ray: Any) -> list[Node]:
    """Return the nodes that are there now; blocks for a moment."""
    return [
        Node(row["NodeID"], row["NodeManagerAddress"], dict(row["Resources"]), dict(row.get("Labels") or {}))
        for row in ray.nodes()
        if row["Alive"]
    ]


def shortfall(demands: Sequence[Demand], nodes: Sequence[Node]) -> str:
    """Return why the nodes can never give what is asked, were they empty; "" where that cannot be proved.

    >>> two = [Node("a", "10.0.0.1", {"CPU": 4.0}, {}), Node("b", "10.0.0.2", {"CPU": 4.0}, {"kind": "big"})]
    >>> shortfall([Demand("engine", 2, {"CPU": 3.0})], two)
    ''
    >>> shortfall([Demand("engine", 2, {"CPU": 3.0}, {"kind": "big"})], two)
    '2 x engine (3 CPU each on nodes with kind=big), where there is room for 1'
    >>> shortfall([Demand("engine", 2, {"CPU": 3.0}), Demand("rank", 1, {"CPU": 3.0})], two)
    '9 CPU together, of 8'
    """
    for demand in demands:
        room = sum(node.room_for(demand) for node in nodes)
        if room < demand.num:
            return f"{demand}, where there is room for {room}"
    for name in sorted({name for demand in demands for name in demand.resources}):
        asking = [demand for demand in demands if demand.num and demand.resources.get(name)]
        asked = sum(demand.num * demand.resources[name] for demand in asking)
        there = sum(node.resources.get(name, 0.0) for node in nodes if any(node.room_for(each) for each in asking))
        if asked > there + _ROUNDING:
            return f"{asked:g} {name} together, of {there:g}"
    return ""


def described(nodes: Iterable[Node]) -> str:
    """Return the nodes in one line."""
    return "; ".join(map(str, nodes)) or "no node"


def _amounts(resources: Mapping[str, float]) -> str:
    told = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)]
    return ", ".join(told) or "no CPU"


def _listed(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
