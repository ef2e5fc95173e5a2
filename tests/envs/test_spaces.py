"""UnicodeText: the text space of every environment."""

import copy
import pickle

import pytest
from gymnasium.spaces import Text
from gymnasium.spaces.utils import flatdim
from gymnasium.vector.utils import batch_space, iterate

from rollcage.envs import UnicodeText
from rollcage.errors import UserError


@pytest.mark.parametrize("text", ["", "plain", "÷ 答 🙂", "\x00", "\ud800", "\U0010ffff", "x" * 2**20])
def test_every_string_is_contained(text):
    assert text in UnicodeText()


@pytest.mark.parametrize("value", [None, 7, b"bytes", ["text"], ("text",)])
def test_nothing_else_is_contained(value):
    assert value not in UnicodeText()


def test_a_length_limit_holds_for_members_and_samples():
    space = UnicodeText(max_length=3, seed=0)
    assert "abc" in space
    assert "abcd" not in space
    assert max(len(space.sample()) for _ in range(50)) == 3
    assert UnicodeText(max_length=0).sample() == ""
    with pytest.raises(UserError, match="max_length"):
        UnicodeText(max_length=-1)


def test_samples_are_seeded_short_and_of_several_scripts():
    space, same = UnicodeText(seed=3), UnicodeText(seed=3)
    samples = [space.sample() for _ in range(100)]
    assert samples == [same.sample() for _ in range(100)]
    assert all(sample in space and len(sample) <= 32 for sample in samples)
    letters = "".join(samples)
    assert letters.isascii() is False
    assert any(letter.isascii() for letter in letters)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in letters)
    letters.encode()  # no lone surrogate: a sample can be written anywhere
    space.seed(3)
    assert space.sample() == samples[0]


def test_spaces_are_equal_where_their_limits_are():
    assert UnicodeText() == UnicodeText(seed=9)
    assert UnicodeText() != UnicodeText(max_length=5)
    assert UnicodeText(max_length=5) != Text(5)
    assert repr(UnicodeText(max_length=5)) == "UnicodeText(max_length=5)"


def test_a_copy_continues_the_same_samples():
    space = UnicodeText(seed=0)
    space.sample()
    copies = [copy.deepcopy(space), pickle.loads(pickle.dumps(space))]
    expected = space.sample()
    assert all(other == space and other.sample() == expected for other in copies)


def test_it_says_that_it_cannot_be_flattened():
    assert UnicodeText().is_np_flattenable is False
    with pytest.raises((ValueError, NotImplementedError)):
        flatdim(UnicodeText())


def test_gymnasium_batches_it_as_a_tuple_of_texts():
    batch = batch_space(UnicodeText(), 3)
    assert ("", "\x00", "答") in batch
    assert list(iterate(batch, ("a", "b", "c"))) == ["a", "b", "c"]
    batch.seed(0)
    assert batch.sample() in batch
