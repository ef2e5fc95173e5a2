"""What a run tells the world while it runs, and where."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollcage.errors import UserError
from rollcage.monitor.alerts.notify import OnAlert


@dataclass(frozen=True)
class MonitorConfig:
    """What a run tells while it runs, beside its folder.

    Raises:
        UserError: values that cannot be meant.
    """

    metrics: bool = True
    """Serve /metrics for Prometheus, and the run's actions (pause, resume) for its dashboard."""
    host: str = "127.0.0.1"
    """Where: an address of this machine; beyond the loopback every request needs the token."""
    port: int = 0
    """Its port; 0 is any free one."""
    token_file: str = ""
    """File with the token, for an address beyond the loopback; what Prometheus has as credentials_file."""
    tensorboard: bool = False
    """Write TensorBoard's files into RUN/tensorboard (pip install tensorboard)."""
    wandb: str = ""
    """Project of Weights & Biases to tell too (pip install wandb); empty for none."""
    on_alert: OnAlert = field(default_factory=OnAlert)
    """Whom to tell when a rule fires, beside the run's events and its dashboard."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"monitor: port must be between 0 and 65535, not {self.port}.")
