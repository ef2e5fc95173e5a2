"""The collector's thresholds: raised inside the block, as they were after it, never lowered, and off stays off."""

import gc
from collections.abc import Iterator

import pytest

from rollcage.trainer.garbage import rare_collections


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("given", "inside"),
    [((700, 10, 10), (10_000, 10, 100)), ((50_000, 20, 1000), (50_000, 20, 1000)), ((0, 10, 10), (0, 10, 100))],
)
def test_looks_become_rarer_inside_the_block_only(given: tuple[int, int, int], inside: tuple[int, int, int]) -> None:
    gc.set_threshold(*given)
    with rare_collections():
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == given
