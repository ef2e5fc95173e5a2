"""The run store, read: what one run folder holds, live and afterwards, without reading it all again each time."""

from rollcage.monitor.store.finding import find_runs
from rollcage.monitor.store.reader import RunReader

__all__ = ["RunReader", "find_runs"]
