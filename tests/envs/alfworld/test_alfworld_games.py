"""Where games come from, and the cache of their translations."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rollcage.__main__ import main
from rollcage.envs.alfworld import games
from rollcage.envs.alfworld.cache import DiskCache
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.games import find_source, open_game
from rollcage.envs.alfworld.grammar import compile_grammar
from rollcage.envs.alfworld.planner import find_plan
from rollcage.envs.alfworld.sample import SampleSource
from rollcage.envs.alfworld.source import PLACEHOLDER
from rollcage.envs.checker import check
from rollcage.errors import UserError

TRIALS = {"train": ["train/0", "train/1"], "valid_seen": ["valid_seen/0"], "valid_unseen": ["valid_unseen/3"]}


def game_of(task_id):
    """A sample game with a walkthrough, as a publisher would write it."""
    text = SampleSource().text(task_id)
    game = open_game(SampleSource(), task_id).game
    return text._replace(walkthrough=tuple(find_plan(game, game.start)))


def name_of(task_id):
    row = SampleSource().rows()[task_id.partition("/")[0]][int(task_id.partition("/")[2])]
    return f"{row['task_type']}-Thing-None-Place-{task_id.replace('/', '')}/trial_T2026"


def write_pack(folder, change=lambda row: row):
    (folder / "logic").mkdir(parents=True)
    for split, task_ids in TRIALS.items():
        rows = []
        for task_id in task_ids:
            text = game_of(task_id)
            (folder / "logic" / "alfred.pddl").write_text(text.domain)
            (folder / "logic" / "alfred.twl2").write_text(text.grammar)
            row = {"id": f"{split}/{name_of(task_id)}", "task_type": name_of(task_id).partition("-")[0]}
            row |= {"goal": text.goal, "walkthrough": list(text.walkthrough), "pddl_problem": text.problem}
            rows.append(change(row))
        with lzma.open(folder / f"games_{split}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        index = [{key: value for key, value in row.items() if key != "pddl_problem"} for row in rows]
        (folder / f"index_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in index))


def write_download(folder, change=lambda game: game):
    for split, task_ids in TRIALS.items():
        for task_id in task_ids:
            text = game_of(task_id)
            trial = folder / "json_2.1.1" / split / name_of(task_id)
            trial.mkdir(parents=True)
            game = {"pddl_domain": text.domain, "pddl_problem": text.problem, "solvable": True}
            game |= {"grammar": text.grammar.replace(PLACEHOLDER, text.goal), "walkthrough": list(text.walkthrough)}
            (trial / "game.tw-pddl").write_text(json.dumps(change(game)))


def test_a_pack_that_cannot_be_unpacked_says_so(tmp_path, monkeypatch):
    write_pack(tmp_path / "alfworld")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"games_train.jsonl.xz: cannot be unpacked to .*\$ROLLCAGE_CACHE") as error:
        ALFWorldEnv(data_dir=tmp_path).reset(seed=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("write", [write_pack, write_download])
def test_both_layouts_of_the_official_games_hold_the_same_games(tmp_path, write):
    write(tmp_path / "alfworld")
    env = ALFWorldEnv(data_dir=tmp_path, instructions=False)
    assert dict(env.tasks.splits) == {"train": 2, "valid_seen": 1, "valid_unseen": 1}
    assert env.tasks.licence.startswith("MIT")
    ours = ALFWorldEnv(dataset="sample", instructions=False)
    for split, task_ids in TRIALS.items():
        for task_id in task_ids:
            first, info = env.reset(options={"task": f"{split}/{name_of(task_id)}"})
            assert (first, info["admissible_commands"]) == (
                ours.reset(options={"task": task_id})[0],
                ours.reset_info()["admissible_commands"],
            )
            assert tuple(env.expert_plan()) == game_of(task_id).walkthrough
    report = check("rollcage/ALFWorld-v0", only=["tasks"], data_dir=str(tmp_path))
    assert report.ok, "games of the same type and goal, in different splits, are different games"


def test_games_are_found_where_alfworld_puts_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_DATA", raising=False)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "there"))
    with pytest.raises(UserError, match=r"not on this machine.*there.*alfworld-download.*sample"):
        find_source()
    write_download(tmp_path / "there")
    assert ALFWorldEnv().tasks.splits["train"] == 2


def test_a_pack_that_changed_is_read_again(tmp_path):
    write_pack(tmp_path / "one")
    before = find_source(data_dir=tmp_path / "one")
    task_id = f"valid_seen/{name_of('valid_seen/0')}"
    goal = before.text(task_id).goal
    write_pack(tmp_path / "two", lambda row: {**row, "goal": "do something else"})
    for file in (tmp_path / "two").glob("*.*"):
        os.replace(file, tmp_path / "one" / file.name)
    after = find_source(data_dir=tmp_path / "one")
    assert after != before
    assert after.text(task_id).goal == "do something else" != goal


# Games that do not work


def test_commands_of_another_version_are_a_clear_error_e8(tmp_path):
    def old(game):
        commands = [c.replace("move ", "put ").replace(" to ", " in/on ") for c in game["walkthrough"]]
        return {
            **game,
            "walkthrough": [
                c if c.startswith("put") else w for c, w in zip(commands, game["walkthrough"], strict=True)
            ],
        }

    write_download(tmp_path, old)
    env = ALFWorldEnv(data_dir=tmp_path, split="valid_seen")
    with pytest.raises(
        UserError, match=r"game valid_seen/.*'put .* in/on .*', is no command.*different versions"
    ) as error:
        env.reset(seed=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_the_walkthroughs_of_the_official_games_win_e8(shared_data, split):
    env = ALFWorldEnv(data_dir=shared_data, split=split) if shared_data else ALFWorldEnv(dataset="sample", split=split)
    for seed in range(4):
        env.reset(seed=seed)
        plan = env.expert_plan()
        assert [env.step(command)[2] for command in plan] == [False] * (len(plan) - 1) + [True]


def test_a_walkthrough_that_does_not_win_is_an_error(tmp_path):
    write_download(tmp_path, lambda game: {**game, "walkthrough": game["walkthrough"][:-1]})
    with pytest.raises(UserError, match="does not reach its goal"):
        ALFWorldEnv(data_dir=tmp_path).reset(seed=0)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"pddl_domain": "(define (domain"}, "cannot be read as PDDL"),
        ({"pddl_problem": "no PDDL"}, "cannot be read as PDDL"),
        ({"grammar": "no grammar"}, "grammar cannot be read"),
        ({"grammar": None}, "cannot be read as a game"),
    ],
)
def test_a_broken_game_is_one_clear_line(tmp_path, broken, message):
    write_download(tmp_path, lambda game: {**game, **broken})
    with pytest.raises(UserError, match=message) as error:
        ALFWorldEnv(data_dir=tmp_path).reset(seed=0)
    assert "\n" not in str(error.value)


def test_expressions_in_a_grammar_are_never_executed(tmp_path):
    grammar = SampleSource().text("train/0").grammar
    for expression in ("__import__('os').system('false')", "r.__class__", "r.name.upper()", "open"):
        changed = grammar.replace("You close the {r.name}.", "You close the {" + expression + "}.")
        assert changed != grammar
        if expression == "open":  # a variable, which stands for nothing there
            continue
        with pytest.raises(UserError, match="is none that games use"):
            compile_grammar(changed)


# The cache


def test_a_game_is_translated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path))
    open_game.cache_clear()
    first = ALFWorldEnv(dataset="sample").reset(seed=0)
    open_game.cache_clear()
    monkeypatch.setattr(games, "translate", None)
    assert ALFWorldEnv(dataset="sample").reset(seed=0) == first
    with pytest.raises(TypeError):
        ALFWorldEnv(dataset="sample").reset(seed=1)


def test_a_file_that_is_not_whole_is_translated_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path))
    open_game.cache_clear()
    first = ALFWorldEnv(dataset="sample").reset(seed=0)
    [file] = (tmp_path / "alfworld" / "translations").iterdir()
    whole = file.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], b"x" * 100):
        file.write_bytes(broken)
        open_game.cache_clear()
        assert ALFWorldEnv(dataset="sample").reset(seed=0) == first
        assert file.read_bytes() == whole


def test_where_nothing_can_be_written_games_are_played_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path / "file"))
    open_game.cache_clear()
    assert ALFWorldEnv(dataset="sample").reset(seed=0)[1]["admissible_commands"]


def test_what_was_not_used_for_longest_goes_when_there_is_too_much(tmp_path):
    cache = DiskCache(tmp_path / "cache", max_bytes=5_000)
    values = {f"key{number}": os.urandom(400).hex() for number in range(20)}
    for age, (key, value) in enumerate(values.items()):
        cache.put(key, value)
        os.utime(tmp_path / "cache" / key, (1e9 + age, 1e9 + age))
        cache.get("key0")  # used all the time
    num_kept, kept_bytes = cache.size()
    assert 5 < num_kept < 20
    assert kept_bytes <= 5_000
    assert cache.get("key0") == values["key0"]
    assert cache.get("key19") == values["key19"]
    assert cache.get("key1") is None


def test_processes_that_open_the_same_game_at_once_all_get_it(tmp_path):
    write_pack(tmp_path / "alfworld")
    code = (
        "import sys\nfrom rollcage.envs.alfworld.env import ALFWorldEnv\n"
        "env = ALFWorldEnv(data_dir=sys.argv[1])\n"
        "sys.stdout.write(repr([env.reset(seed=seed) for seed in range(6)]))\n"
    )
    environment = {**os.environ, "ROLLCAGE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(4)]
    said = [process.communicate(timeout=90)[0] for process in processes]
    assert said[0]
    assert said == [said[0]] * 4
    left = {path.name for path in (tmp_path / "cache" / "alfworld").rglob("tmp*")}
    assert left == set(), "no half-written file stays"


# The command


def test_the_command_tells_what_there_is_and_makes_it_ready(tmp_path, capsys):
    write_pack(tmp_path / "alfworld")
    assert main(["data", "alfworld", "--data-dir", str(tmp_path)]) == 0
    assert "train            2  look_at_obj_in_light 1, pick_and_place_simple 1" in capsys.readouterr().out
    arguments = ["data", "alfworld", "--data-dir", str(tmp_path), "--translate", "all", "--workers", "2", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["checked"], found["failed"]) == (4, [])
    assert found["translated"] >= 4


def test_the_command_names_games_that_do_not_work(tmp_path, capsys):
    write_download(tmp_path, lambda game: {**game, "walkthrough": ["look"]})
    assert main(["data", "alfworld", "--data-dir", str(tmp_path), "--translate", "valid_seen", "--workers", "1"]) == 1
    assert "does not reach its goal" in capsys.readouterr().out


def test_bad_input_to_the_command_is_one_line(tmp_path, capsys):
    for arguments, words in (
        (["alfword"], "Did you mean 'alfworld'"),
        (["alfworld", "--data-dir", str(tmp_path)], "alfworld-download"),
        (["alfworld", "--dataset", "sample", "--translate", "trian"], "Did you mean 'train'"),
    ):
        assert main(["data", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_sources_are_told_apart(tmp_path):
    write_pack(tmp_path / "alfworld")
    source = find_source(data_dir=tmp_path)
    assert source == find_source(data_dir=tmp_path)
    assert replace(source, stamps=()) != source
