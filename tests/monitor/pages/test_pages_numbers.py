"""Every chart shows what the store holds: its numbers are read out of the page and compared."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.monitor.pages.recorded_run import metrics_of
from tests.monitor.pages.site import Site, charts, lines, until

from rollcage.monitor.store import RunReader

RUN = "countdown-0"


def test_every_statistic_of_training_is_in_exactly_one_chart_with_the_stores_numbers(
    page: Page, site: Site, runs: Path
) -> None:
    site.open(page, "training", run=RUN)
    reader = RunReader(runs / RUN)
    try:
        names = [name for name in reader.metric_names() if re.match(r"rollout/|learner/|time/(?!elapsed|$)", name)]
        store = reader.series(names)
        staleness = reader.histograms()["sample_staleness"]
    finally:
        reader.close()
    shown = [line for model in charts(page).values() for line in model.get("lines", [])]
    assert sorted(line["name"] for line in shown) == sorted(re.sub(r"^(rollout|learner|time)/", "", it) for it in names)
    by_name = {re.sub(r"^(rollout|learner|time)/", "", name): points for name, points in store.items()}
    for line in shown:
        versions, values = by_name[line["name"]]
        assert line["x"] == versions.tolist()
        assert line["y"] == pytest.approx(values.tolist())
    assert shown[0]["y"][6] == pytest.approx(metrics_of(7, 0)["rollout/reward"])  # the store is right, too
    counts = [row["pieces"][0]["value"] for row in charts(page)["sample staleness"]["rows"]]
    assert counts == [count for count in staleness["counts"] if count]
    assert sum(counts) == 200


def test_what_is_drawn_is_what_the_model_says(page: Page, site: Site) -> None:
    site.open(page, "training", run=RUN)
    chart = page.locator("figure", has_text="Reward").first
    path = chart.locator("path.line")
    expect(path).to_have_count(1)
    points = [tuple(map(float, it.split())) for it in re.split("[ML]", path.get_attribute("d") or "")[1:]]
    values = lines(page, "Reward")["reward"]["y"]
    assert len(points) == len(values) == 40
    by_height = sorted(range(40), key=lambda index: -points[index][1])
    assert [round(values[it], 2) for it in by_height] == sorted(round(value, 2) for value in values)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_training_over_seconds(page: Page, site: Site) -> None:
    site.open(page, "training", run=RUN, x="seconds")
    assert lines(page, "Entropy (nats a token)")["entropy"]["x"] == [3.0 * version for version in range(1, 41)]


def test_several_seeds_are_one_line_with_a_band(page: Page, site: Site) -> None:
    site.open(page, "compare", runs=[f"countdown-{seed}" for seed in range(3)], names=["rollout/reward"])
    [line] = charts(page)["rollout/reward"]["lines"]
    for version in (1, 20, 40):
        values = [metrics_of(version, seed)["rollout/reward"] for seed in range(3)]
        mean = sum(values) / 3
        deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
        half = 4.30265 * deviation / 3**0.5  # Student's t with two degrees of freedom
        assert line["y"][version - 1] == pytest.approx(mean)
        assert line["low"][version - 1] == pytest.approx(mean - half, abs=1e-3 * half)
        assert line["high"][version - 1] == pytest.approx(mean + half, abs=1e-3 * half)
    expect(page.locator("path.band")).to_have_count(1)


def test_pipeline_shows_spans_gauges_and_the_account(page: Page, site: Site, runs: Path) -> None:
    site.open(page, "pipeline", run=RUN, all=1)
    timeline = page.evaluate("document.querySelector('.timeline').model")
    reader = RunReader(runs / RUN)
    try:
        spans = [span for span in reader.spans()[1] if span["track"] == "learner"]
        gauges = reader.gauges()
    finally:
        reader.close()
    tracks = {track["name"]: track for track in timeline["tracks"]}
    engines = [f"engine {number}{strip}" for number in "01" for strip in ("", " requests")]
    assert list(tracks) == ["learner", *engines, "environments reset", "environments step", "episodes"]
    found = [(span["name"], span["start_s"], span["end_s"]) for span in tracks["learner"]["spans"]]
    assert found == [(span["name"], span["start_s"], span["end_s"]) for span in spans]
    assert len(found) == 120
    at_s, values = gauges["engine_live_requests{engine=1}"]
    assert [(span["busy_s"], span["num"]) for span in tracks["engine 1"]["spans"]] == [(1.5, 8)] * 40
    assert tracks["engine 1 requests"]["strip"] == {"at_s": at_s.tolist(), "value": values.tolist()}
    assert lines(page, "engine live requests")["engine=1"]["y"] == values.tolist()
    assert lines(page, "complete groups")["complete groups"]["y"] == gauges["complete_groups"][1].tolist()
    last = metrics_of(40, 0)
    account = lines(page, "Samples, by what became of them")
    for column in ("trained", "filtered", "stale", "failed", "cancelled", "in_flight"):
        assert account[column]["y"][-1] == last[f"account/{column}"]
    expect(page.locator(".account")).to_contain_text("the account closes")
    expect(page.locator(".shares")).to_contain_text("train 60 %, wait 33 %, publish 7 %")
    expect(page.locator(".shares tr", has_text="engine 0")).to_contain_text("generate 50 %50.0 %")  # and waits as long


def test_a_stretch_of_the_timeline_is_in_the_address(page: Page, site: Site) -> None:
    site.open(page, "pipeline", run=RUN, all=1)
    page.get_by_role("button", name="zoom in").click()
    until(page, "location.hash.includes('from=1030.000&to=1090.000')")
    until(page, "document.querySelector('.timeline').model.first === 1030")
    inside = page.evaluate("document.querySelector('.timeline').model.tracks[0].spans")
    assert {span["end_s"] >= 1030 and span["start_s"] <= 1090 for span in inside} == {True}


def test_environments_and_what_became_of_the_samples(page: Page, site: Site) -> None:
    site.open(page, "environments", run=RUN)
    told = site.run(RUN, "/environments")
    row = page.locator(".by_env tbody tr")
    expect(row).to_contain_text(f"{100 * told['by_env'][0]['success']:.1f} %")
    outcomes = ("trained", "filtered", "failed", "stale", "late")
    for title, upper in (
        ("By difficulty: share of failed attempts up to", "0.25"),
        ("By length: sampled tokens up to", "64"),
        ("By duration: seconds up to", "4"),
    ):
        values = zip(outcomes, (480, 80, 0, 0, 0), strict=True)
        pieces = [{"name": name, "value": value} for name, value in values]
        assert charts(page)[title]["rows"] == [{"label": upper, "pieces": pieces}]
