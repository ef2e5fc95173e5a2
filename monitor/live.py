"""What a running command tells the world: one recorder for all that listen, and the endpoint where they ask."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import UserError
from rollcage.monitor.alerts.watch import AlertWatch
from rollcage.monitor.config import MonitorConfig
from rollcage.monitor.endpoint import Action, Endpoint
from rollcage.monitor.metrics.prometheus import PrometheusRecorder
from rollcage.monitor.recorders.several import OpenRecorder, Several
from rollcage.monitor.store.secrets import masked
from rollcage.recorder import NullRecorder, Recorder


class Live:
    """One run's recorder and endpoint.

    Args:
        first: the run folder's recorder.
        folder: the run folder.
        config: who else is told.
        shown: the run's configuration, for those who show it.

    Raises:
        MissingExtra: one who is to be told is not installed.
        UserError: the token's file cannot be used.
    """

    def __init__(self, first: OpenRecorder, folder: Path, config: MonitorConfig, shown: Mapping[str, Any]) -> None:
        self._folder, self._config = folder, config
        self._token = _read_token(config)
        self._prometheus = PrometheusRecorder(folder) if config.metrics and has_prometheus() else None
        others: list[OpenRecorder] = [self._prometheus] if self._prometheus else []
        if config.tensorboard:
            from rollcage.monitor.recorders.tensorboard import TensorBoardRecorder

            others.append(TensorBoardRecorder(folder / "tensorboard"))
        if config.wandb:
            from rollcage.monitor.recorders.wandb import WandbRecorder

            others.append(WandbRecorder(folder, config.wandb, masked(dict(shown))))
        alerts = AlertWatch(folder, config.on_alert)
        self.recorder = Several(first, [*others, alerts])
        alerts.listen_for(self.recorder)

    @contextlib.contextmanager
    def serving(self, actions: Mapping[str, Action]) -> Iterator[None]:
        """Serve ``/metrics`` and actions, say where, and write it to ``control.json``.

        Raises:
            UserError: it cannot listen there.
        """
        config = self._config
        if not config.metrics:
            yield
            return
        endpoint = Endpoint(
            self._prometheus.exposition if self._prometheus else None,
            actions=actions,
            host=config.host,
            port=config.port,
            token=self._token,
            folder=self._folder,
        )
        with endpoint:
            if self._prometheus:
                sys.stderr.write(f"metrics: {endpoint.address}/metrics\n")
            yield


@contextlib.contextmanager
def measuring(port: int = 0, folder: Path | None = None) -> Iterator[tuple[Recorder, str]]:
    """Give a recorder, and the address on the loopback where its values are meanwhile: for commands without a run.

    Without prometheus-client nothing is measured, nothing served, and the address is empty.

    Args:
        port: where; 0 is any free one.
        folder: whose disk is watched; None for none.
    """
    if not has_prometheus():
        yield NullRecorder(), ""
        return
    recorder = PrometheusRecorder(folder)
    with Endpoint(recorder.exposition, port=port) as endpoint:
        yield recorder, f"{endpoint.address}/metrics"


def has_prometheus() -> bool:
    """Whether prometheus-client is installed (the extra ``monitor``)."""
    return importlib.util.find_spec("prometheus_client") is not None


def _read_token(config: MonitorConfig) -> str:
    if not config.token_file:
        return ""
    try:
        token = Path(config.token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"monitor.token_file: {config.token_file} cannot be read ({error.strerror}).") from None
    if len(token) < 16 or not token.isascii():
        raise UserError(f"monitor.token_file: {config.token_file} must hold a token of 16 or more ASCII characters.")
    return token
