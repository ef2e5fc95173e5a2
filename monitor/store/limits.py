"""How large a run folder may grow."""

from __future__ import annotations

from dataclasses import dataclass

from rollcage.errors import UserError

MIB = 1 << 20


@dataclass(frozen=True)
class StoreConfig:
    """What a run keeps of itself, and how much of it. A stream is a file of rows (metrics, events, timeline,
    trajectories, annotations, evaluations) that is continued in segments; closed segments are compressed, about 4 : 1.

    Raises:
        UserError: values that cannot be meant.
    """

    segment_mib: float = 16.0
    """A stream's file is closed and compressed from this size on, and a new one begun."""
    keep_mib: float = 4096.0
    """Most of each of trajectories, annotations and timeline, compressed: their oldest segments go."""
    keep_small_mib: float = 1024.0
    """The same for each of metrics, events and evaluations."""
    tokens: bool = True
    """Write the token ids and log-probabilities of every trajectory."""
    max_tokens: int = 65_536
    """Trajectories with more tokens than this are written without them."""

    def __post_init__(self) -> None:
        faults = [
            f"{name} must be at least {least}, not {getattr(self, name)}"
            for name, least in (
                ("segment_mib", 0.001),
                ("keep_mib", 0.001),
                ("keep_small_mib", 0.001),
                ("max_tokens", 0),
            )
            if not least <= getattr(self, name) < float("inf")
        ]
        if faults:
            raise UserError("store: " + "; ".join(faults) + ".")

    def keep_bytes(self, stream: str) -> float:
        """Most bytes of a stream's closed segments."""
        small = stream in ("metrics", "events", "evaluations")
        return (self.keep_small_mib if small else self.keep_mib) * MIB
