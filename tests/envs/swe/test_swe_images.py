"""Images of tasks: got one at a time, kept in bounded number, and never half-built, whenever somebody is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rollcage.envs.swe import images, shelf
from rollcage.envs.swe.build import Build, Source
from rollcage.envs.swe.images import Images, own_name
from rollcage.envs.swe.sample import sample_rows
from rollcage.errors import UserError
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images.catalogue import Catalogue

ROWS = [row for rows in sample_rows().values() for row in rows]
FLASK = {**ROWS[0], "instance_id": "pallets__flask-0", "repo": "pallets/flask", "version": "2.3"}
del FLASK["spec"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLCAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "swebench"


def ask(docker, method, *arguments):
    async def call():
        async with Catalogue(docker) as host:
            return await getattr(host, method)(*arguments)

    return asyncio.run(call())


def renamed(row, name):
    return {**row, "instance_id": name}


def lend(docker, row, keep=16):
    return Images((docker,), mirror="", keep=keep, timeout_s=100.0).lend(row)


def test_so_many_images_stay_and_those_in_use_do_too(docker, cache):
    rows = [renamed(ROWS[0], f"mini__kept-{number}") for number in range(4)]
    held = []
    try:
        for row in rows:
            place, files = lend(docker, row, keep=2)
            assert place == (own_name(row["instance_id"]), "1000:1000", True)
            held.append(files)
        assert all(ask(docker, "has", own_name(row["instance_id"])) for row in rows), "all are in use"
        for files in held[:3]:
            images.close_all(files)
        shelf.prune(2)
        assert [ask(docker, "has", own_name(row["instance_id"])) for row in rows] == [False, False, True, True]
        _, again = lend(docker, rows[0], keep=2)
        assert ask(docker, "has", own_name(rows[0]["instance_id"])), "it is made again"
        images.close_all(again)
    finally:
        for files in held:
            images.close_all(files)
        shelf.prune(0)
    assert not any(ask(docker, "has", own_name(row["instance_id"])) for row in rows)
    assert list(cache.glob("*.image")) == []


def test_what_the_user_has_built_or_pulled_stays(docker, cache):
    row = renamed(ROWS[0], "mini__mine-1")
    with shelf.building(100.0):
        asyncio.run(images.build(row, Source(), docker))
    try:
        images.close_all(lend(docker, row)[1])
        assert shelf.prune(0) == []
        assert ask(docker, "has", own_name("mini__mine-1"))
    finally:
        assert ask(docker, "remove", own_name("mini__mine-1"))


_BUILD = """
import asyncio, sys
from rollcage.envs.swe import images, shelf
from rollcage.envs.swe.build import Source
from rollcage.envs.swe.sample import sample_rows
row = {**sample_rows()["train"][0], "instance_id": "mini__killed-1"}
row["spec"] = {**row["spec"], "pre_install": ["sleep 2"]}
with shelf.building(100.0):
    asyncio.run(images.build(row, Source(), sys.argv[1], progress=lambda line: print(line, flush=True)))
"""


def test_a_build_that_is_killed_leaves_no_image_no_lock_and_nothing_that_the_next_one_takes(docker, cache):
    image = own_name("mini__killed-1")
    running = subprocess.Popen((sys.executable, "-c", _BUILD, docker), stdout=subprocess.PIPE, text=True)
    try:
        for line in running.stdout:
            if "installing it, without network" in line and "repository" in line:
                break
        time.sleep(0.5)
    finally:
        running.kill()
        running.stdout.close()
        assert running.wait(timeout=30) == -signal.SIGKILL
    assert not ask(docker, "has", image)
    assert os.listdir(cache / "build"), "what it had begun"
    row = renamed(ROWS[0], "mini__killed-1")
    place, files = lend(docker, row)
    images.close_all(files)
    assert place.image == image
    assert not (cache / "build").exists()
    assert shelf.prune(0).count(image) == 1


def test_one_at_a_time_is_got_and_nobody_waits_for_ever(cache):
    order = []

    def other():
        with shelf.building(10.0):
            order.append("other")

    with shelf.building(10.0):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.4)
        with pytest.raises(ImageMissing, match="others have been building images"), shelf.building(0.1):
            pass
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def test_the_same_sources_are_built_once(docker, cache):
    lines = []
    with shelf.building(100.0):
        asyncio.run(images.build(renamed(ROWS[0], "mini__twin-1"), Source(), docker))
        asyncio.run(images.build(renamed(ROWS[0], "mini__twin-2"), Source(), docker, progress=lines.append))
    assert lines[-1] == f"{own_name('mini__twin-2')} is there"
    assert ask(docker, "id_of", own_name("mini__twin-1")) == ask(docker, "id_of", own_name("mini__twin-2"))
    assert all(ask(docker, "remove", own_name(f"mini__twin-{number}")) for number in (1, 2))


def test_a_registry_that_does_not_answer_is_not_asked_again_for_a_while(docker, cache, monkeypatch):
    monkeypatch.setattr(images, "_silent_since", {})
    for words in ("cannot be pulled", "could not be reached a moment ago"):
        with pytest.raises(UserError, match=words) as raised:
            lend(docker, renamed(FLASK, "pallets__flask-0"))
        assert "swebench/sweb.eval.x86_64.pallets_1776_flask-0:latest" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": {"packages": "environment.yml", "test_cmd": "true"}}, "conda's environment.yml"),
        ({"spec": {"pre_install": ["apt-get update"], "test_cmd": "true"}}, "packages of the system"),
        ({"version": "0.0.1"}, "no specification of pallets/flask"),
        ({}, "there is no such folder"),
    ],
)
def test_what_cannot_be_built_here_says_why(changes, words):
    with pytest.raises((ImageMissing, UserError), match=words):
        Build({**FLASK, **changes}, Source(mirror="/nowhere/{repo}"))
