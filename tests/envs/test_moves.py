"""Moves as words: one policy for what a message asks for, and maps that belong to exactly one split."""

import random
import time

import numpy as np
import pytest

from rollcage.envs.moves import (
    draw_map,
    map_rows,
    parse_moves,
    random_moves,
    shuffled,
    split_of,
    turn_limit,
    write_moves,
)
from rollcage.errors import UserError


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("<answer>up</answer>", ["up"]),
        ("I think.\n<answer>\n Left \t</answer>\nDone.", ["left"]),
        ("<ANSWER>RIGHT</Answer>", ["right"]),
        ("<answer>up</answer> no: <answer>down</answer>", ["down"]),
        ("<answer>up</answer> and a stray </answer>", ["up"]),
        ("an open <answer> then <answer>up</answer>", ["up"]),
        ("  Down\n", ["down"]),
        ("<think><answer>left</answer> perhaps</think><answer>up</answer>", ["up"]),
        ("<think>left, or up?</think>\n\nup", ["up"]),
        ("up,left", ["up", "left"]),
        ("<answer>up,\nLEFT right</answer>", ["up", "left", "right"]),
    ],
)
def test_the_last_tag_outside_thinking_counts_else_the_whole_message(text, moves):
    assert parse_moves(text, limit=3) == moves


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "go up",
        "up.",
        "<answer></answer>",
        "<answer>up",
        "<answer>up</answer> and an open <answer>",
        "<think><answer>up</answer></think>",
        "<think>never closed <answer>up</answer>",
        "up</answer>",
        "</answer>up<answer>",
        "<answer>move up</answer>",
        "<answer>up</answer><answer>north</answer>",
        "up up up up",
        "ｕｐ",
        "up\x00",
        "\ud800",
    ],
)
def test_everything_else_asks_for_no_move(text):
    assert parse_moves(text, limit=3) is None


@pytest.mark.parametrize("unit", ["up ", "<answer>", "</answer>", "<answer></answer>", "\x00", "\ud800", "İ", ",", " "])
def test_a_mebibyte_of_text_is_read_at_once(unit):
    text = unit * (2**20 // len(unit))
    started = time.perf_counter()
    assert parse_moves(text, limit=1) is None
    assert parse_moves(text + "<answer>up</answer>", limit=1) == ["up"]
    assert time.perf_counter() - started < 2


def test_written_and_random_moves_are_read_back():
    assert parse_moves(write_moves(["up", "left"]), limit=2) == ["up", "left"]
    rng = np.random.default_rng(0)
    lengths = {len(parse_moves(random_moves(rng, 3), 3) or ()) for _ in range(100)}
    assert lengths == {1, 2, 3}


def test_every_split_gets_maps_and_its_own_ones_only():
    def draw(rng: random.Random) -> list[str]:
        return ["".join("#_"[rng.random() < 0.5] for _ in range(8)) for _ in range(4)]

    maps = {
        split: {tuple(draw_map(str(i), split, draw)) for i in range(200)} for split in ("train", "validation", "test")
    }
    assert all(split_of(rows) == split for split, found in maps.items() for rows in found)
    assert not maps["train"] & maps["test"]
    assert not maps["train"] & maps["validation"]
    assert not maps["test"] & maps["validation"]


def test_a_map_that_cannot_be_drawn_is_a_clear_error_and_no_endless_loop():
    with pytest.raises(UserError, match="no map in 2000 attempts"):
        draw_map("lake/1", "train", lambda rng: None)


def test_the_shuffle_is_the_same_on_every_python_version():
    assert shuffled(random.Random("rollcage"), list(range(8))) == [1, 3, 0, 7, 2, 6, 4, 5]


def test_a_map_by_hand_is_rows_or_one_text():
    assert map_rows(["SF", "FG"], "SFG") == map_rows("SF\nFG\n", "SFG") == ["SF", "FG"]


@pytest.mark.parametrize("value", [None, 7, [], [""], "", ["SF", 3], {"SF": 1}, b"SF"])
def test_what_is_no_map_is_refused(value):
    with pytest.raises(UserError, match="list of strings"):
        map_rows(value, "SFG")


def test_a_strange_character_in_a_map_is_named():
    with pytest.raises(UserError, match="unknown character 'x'"):
        map_rows(["SxG"], "SFG")


def test_the_turn_limit_is_a_number_auto_or_none():
    assert [turn_limit(value, 4.2) for value in (7, "auto", None)] == [7, 5, None]
    with pytest.raises(UserError, match="'auto' or None"):
        turn_limit("many", 4)
