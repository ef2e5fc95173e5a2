"""Checkpoints are complete or absent (the part of case T10 that needs no trainer)."""

import asyncio
from pathlib import Path

import pytest

from rollcage.errors import UserError
from rollcage.trainer.checkpoints import newest_checkpoint, read_state, remove_partial, write_checkpoint


async def save(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("w")


def write(run: Path, version: int, keep: int = 2) -> Path:
    return asyncio.run(write_checkpoint(run, version, {"policy_version": version}, save, keep=keep))


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for version in (1, 2, 10):
        write(tmp_path, version)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000002", "step-000010"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert read_state(newest) == {"policy_version": 10}
    assert (newest / "model" / "weights").read_text() == "w"


def test_t10_a_save_that_ends_halfway_leaves_the_earlier_checkpoint_as_the_newest(tmp_path: Path) -> None:
    async def killed(folder: Path) -> None:
        await save(folder)
        raise KeyboardInterrupt

    first = write(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(write_checkpoint(tmp_path, 2, {}, killed, keep=2))
    assert newest_checkpoint(tmp_path) == first
    remove_partial(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert write(tmp_path, 2) == newest_checkpoint(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "trainer.json").write_text("{")
    with pytest.raises(UserError, match="step-000001"):
        read_state(path)
