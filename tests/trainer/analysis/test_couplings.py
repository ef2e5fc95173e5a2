"""The three couplings on curves made by hand, and what resampling says of chance."""

import numpy as np
import pytest

from rollcage.trainer.analysis.couplings import ResponseCurves, couplings, top
from rollcage.trainer.analysis.resampling import lift, mean_ci95

R = 100


def curves(**changed: np.ndarray) -> ResponseCurves:
    """A response of 100 tokens without any rhythm, whose last ten have an empty window."""
    noise = np.random.default_rng(changed.pop("seed", 0)).random((4, R))
    parts = dict(zip(("entropies", "waad", "fai", "received"), noise, strict=True))
    parts |= {"positions": np.arange(R) + 7, "eligible": np.arange(R) < R - 10}
    return ResponseCurves(**{**parts, **changed})


def spikes(*places: int, height: float = 2.0) -> np.ndarray:
    values = np.linspace(1.0, 0.9, R)
    values[list(places)] = height
    return values


TENS = range(5, R, 10)


def test_peaks_are_the_highest_share_ties_by_place_and_never_where_they_are_not_eligible() -> None:
    assert np.flatnonzero(top(np.array([1.0, 3, 2, 3, 3]), 0.4)).tolist() == [1, 3]
    assert np.flatnonzero(
        top(np.array([9.0, 1, 2, 0, 0]), 0.4, np.array([False, True, True, True, True]))
    ).tolist() == [1, 2]
    assert top(np.zeros(3), 0.1).sum() == 1
    assert top(np.zeros(3), 0.9, np.array([False, False, True])).sum() == 1


def test_entropy_that_is_twice_as_high_at_waad_peaks() -> None:
    entropies = np.where(np.isin(np.arange(R), list(TENS)), 2.0, 1.0)
    result = couplings([curves(waad=spikes(*TENS), entropies=entropies)])["entropy_at_waad_peaks"]
    assert result.observed == 2.0
    assert result.chance == pytest.approx(1.1, abs=0.01)
    assert result.lift == pytest.approx(2 / 1.1 - 1, abs=0.01)
    assert result.p_value == pytest.approx(1 / 1001)
    assert result.ci95 is None  # one text


def test_receiver_heads_that_have_the_same_anchors_and_others() -> None:
    fai = np.arange(R, dtype=float)
    agree = couplings([curves(fai=fai, received=fai)])["receiver_heads_agree"]
    differ = couplings([curves(fai=fai, received=-fai)])["receiver_heads_agree"]
    assert (agree.observed, differ.observed) == (1.0, 0.0)
    assert agree.chance == pytest.approx(20 / 90, abs=0.01)  # 20 anchors among the 90 tokens that FAI knows of
    assert differ.lift == -1.0
    assert differ.p_value > 0.99


@pytest.mark.parametrize(("behind", "observed"), [(0, 1.0), (3, 1.0), (4, 0.0), (-1, 0.0)])
def test_a_waad_peak_leads_when_it_stands_at_the_same_token_or_up_to_three_before(behind: int, observed: float) -> None:
    places = [place for place in TENS if place < R - 10]
    text = curves(waad=spikes(*TENS), fai=spikes(*(place + behind for place in places), TENS[0] + behind + 1))
    fai_peaks = [place + behind for place in places] + [TENS[0] + behind + 1]
    result = couplings([text])["waad_peaks_lead"]
    led = [any(0 <= peak - waad <= 3 for waad in TENS) for peak in fai_peaks]
    assert result.observed == pytest.approx(np.mean(led))
    assert led[:-1] == [observed == 1.0] * 9
    assert result.chance == pytest.approx(36 / 90, abs=0.02)


def test_distance_is_that_of_the_text_not_of_the_response() -> None:
    apart = np.arange(R) * 5  # of several turns: other people's tokens stand between
    text = curves(waad=spikes(*TENS), fai=spikes(*(place + 1 for place in TENS)), positions=apart)
    assert couplings([text])["waad_peaks_lead"].observed == 0.0


def test_without_rhythm_nothing_is_above_chance() -> None:
    for name, result in couplings([curves(seed=seed) for seed in range(40)]).items():
        assert result.ci95 is not None
        assert result.ci95[0] < 0 < result.ci95[1], name
        assert 0.01 < result.p_value < 0.99, name


def test_the_same_seed_gives_the_same_numbers() -> None:
    texts = [curves(seed=seed) for seed in range(3)]
    assert couplings(texts, seed=5) == couplings(texts, seed=5)
    assert couplings(texts, seed=5) != couplings(texts, seed=6)


def test_a_lift_is_a_ratio_of_means() -> None:
    result = lift(np.array([0.0, 3.0]), np.array([[0.0, 0.0], [1.0, 1.0]]), np.random.default_rng(0))
    assert (result.observed, result.chance, result.lift) == (1.5, 0.5, 2.0)


def test_bootstrap_intervals_hold_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    bounds = [mean_ci95(rng.normal(3.0, 1.0, 60), rng) for _ in range(100)]
    covered = sum(bound is not None and bound[0] <= 3.0 <= bound[1] for bound in bounds)
    assert 87 <= covered <= 100
    assert mean_ci95(np.array([1.0]), rng) is None
