"""Two official rows on a real repository and real Docker: flask, from its source distribution and wheels on PyPI."""

import contextlib
import json

import gymnasium
import pytest

from rollcage.__main__ import main
from rollcage.envs.swe.rows import read_rows

IDS = ("pallets__flask-4992", "pallets__flask-5063")


@pytest.fixture
def rows(shared_data, tmp_path):
    """A file of the two official rows; None where the published data are not on this machine."""
    if shared_data is None:
        return None
    rows = [row for row in read_rows(shared_data / "swebench" / "lite.jsonl.xz") if row["instance_id"] in IDS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "rows.jsonl"


@pytest.mark.timeout(300)  # on a new machine the image takes about a minute
@pytest.mark.parametrize("instance", IDS)
def test_gold_resolves_an_official_row_and_nothing_does_not(docker, rows, instance, capsys):
    if rows is None:
        return  # test_swe_bench takes the same way with rows of our own
    arguments = (instance, "--data", str(rows), "--sdist", "flask==2.2.3", "--endpoint", docker)
    assert main(["swebench", "build", *arguments]) == 0
    image = capsys.readouterr().out.strip()
    assert image == f"rollcage-swe/{instance}"
    with contextlib.closing(gymnasium.make("rollcage/SWEBench-v0", data=rows, endpoints=docker).unwrapped) as env:
        for policy, resolved in (("gold", True), ("empty", False)):
            _, info = env.reset(options={"task": f"test/{instance}"})
            assert info["image"] == image
            _, reward, terminated, _, info = env.step(getattr(env, policy)())
            assert (reward, terminated, info["success"]) == (float(resolved), True, resolved), env.verdict.log[-2000:]
            assert (info["fail_to_pass"], info["pass_to_pass"]) == (float(resolved), 1.0)
        assert set(env.task.data["PASS_TO_PASS"]) <= env.verdict.tests.keys()
