"""`rollcage bench cluster`: what it measures on a real cluster, at its smallest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.ray_cluster import RayNodes

from rollcage.benchmarks.cluster import figures
from rollcage.benchmarks.cluster.cli import main
from rollcage.errors import UserError


def test_throughput_is_measured_beside_its_prediction(
    ray_nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added: list[Any] = []

    class Raylets:
        """The tests' cluster in place of one more."""

        address = ray_nodes.address

        def __init__(self, num_cpus: float) -> None: ...

        def __enter__(self) -> Raylets:
            return self

        def add(self, num_cpus: float, kind: str) -> None:
            added.append(ray_nodes.add(kind=kind))

        def __exit__(self, *error: object) -> None:
            ray_nodes.kill(added.pop())

    monkeypatch.setattr(figures, "Raylets", Raylets)
    sizes = ["--raylets", "1", "--envs-per-raylet", "2", "--latency", "0.05", "--updates", "1"]
    assert main(["scaling", *sizes, "--output", str(tmp_path)]) == 0
    report = (tmp_path / "cluster.md").read_text()
    assert report == capsys.readouterr().out
    [row] = [line for line in report.splitlines() if line.startswith("| 1 |")]
    raylets, envs, rate, times, predicted, _ = (float(cell) for cell in row.strip("| ").split("|"))
    assert (raylets, envs, times) == (1, 2, 1)
    assert 0 < rate < 1.5 * predicted
    assert 10 < predicted < 30, "two environments, 0.1 s an episode"


def test_what_people_wrote_below_the_figures_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = figures.Table("Scaling", "Text.", ("raylets", "episodes/s"), [("1", "4.1")])
    monkeypatch.setitem(figures.FIGURES, "scaling", lambda sizes: table)
    page = tmp_path / "cluster.md"
    for updates in ("1", "2"):
        assert main(["scaling", "--updates", updates, "--output", str(tmp_path)]) == 0
        if updates == "1":
            page.write_text(page.read_text() + "\n## Notes\n\nThe machine was crowded.\n")
    text = page.read_text()
    assert "--updates 2" in text
    assert "--updates 1" not in text
    assert text.endswith("| 1 | 4.1 |\n\n## Notes\n\nThe machine was crowded.\n")


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(UserError, match=r"no figure 'scalling'.*Did you mean"):
        main(["scalling"])
