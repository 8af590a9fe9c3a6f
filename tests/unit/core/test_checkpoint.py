# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from relax.components.messages import GroupOrder
from relax.core.checkpoint import STATE, TRACKER, RunState, latest_checkpoint, weights_identity, write_checkpoint
from relax.utils.errors import ConfigError
from tests.builders import build_tiny_model_folder


def state(rollout_id: int, **changes) -> RunState:
    values = {
        "rollout_id": rollout_id,
        "next_group": 40,
        "prompts_drawn": 38,
        "open_groups": (GroupOrder(30, 0, 4), GroupOrder(31, 1, 2, attempt=1)),
        "dataset_digest": "d",
        "digest": "e",
        "optimizer_steps": 12,
        "draw_again": ((0, 3), (1, 1)),
    }
    return RunState(**{**values, **changes})


def saver(text: str):
    async def save(folder: str) -> None:
        Path(folder).mkdir()
        (Path(folder) / "weights").write_text(text)

    return save


async def test_a_checkpoint_is_read_back_as_it_was_written(tmp_path: Path):
    path = await write_checkpoint(tmp_path / "run", state(7), saver("seven"))
    assert path.name == "iter_0000007"
    assert latest_checkpoint(tmp_path / "run") == (path, state(7))
    assert (path / "model" / "weights").read_text() == "seven"
    assert (tmp_path / "run" / TRACKER).read_text() == "7"


async def test_the_tracker_names_the_newest(tmp_path: Path):
    await write_checkpoint(tmp_path, state(1), saver("one"))
    await write_checkpoint(tmp_path, state(3), saver("three"))
    assert latest_checkpoint(tmp_path)[1].rollout_id == 3


async def test_a_save_that_fails_half_way_leaves_the_old_one_in_force(tmp_path: Path):
    await write_checkpoint(tmp_path, state(1), saver("one"))

    async def fails(folder: str) -> None:
        await saver("half")(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await write_checkpoint(tmp_path, state(3), fails)
    folder, found = latest_checkpoint(tmp_path)
    assert (found.rollout_id, (folder / "model" / "weights").read_text()) == (1, "one")
    await write_checkpoint(tmp_path, state(3), saver("three"))  # what is left of the try is no obstacle
    assert latest_checkpoint(tmp_path)[1].rollout_id == 3


async def test_a_rollout_that_is_reached_again_replaces_its_folder(tmp_path: Path):
    await write_checkpoint(tmp_path, state(3), saver("first"))
    path = await write_checkpoint(tmp_path, state(3, digest="other"), saver("second"))
    assert (path / "model" / "weights").read_text() == "second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_0000003", TRACKER]


def test_no_tracker_means_no_checkpoint(tmp_path: Path):
    (tmp_path / "iter_0000003").mkdir()
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


async def test_a_tracker_that_names_nothing_whole_is_an_error_with_the_flag(tmp_path: Path):
    path = await write_checkpoint(tmp_path, state(3), saver("three"))
    (path / STATE).unlink()
    with pytest.raises(
        ConfigError,
        match=r"--load .*\.txt names iter_0000003, which .* has no run_state",
    ):
        latest_checkpoint(tmp_path)
    (tmp_path / TRACKER).write_text("release")
    with pytest.raises(ConfigError, match="holds 'release', expected the number of a rollout"):
        latest_checkpoint(tmp_path)


async def test_R8_R10_a_damaged_checkpoint_is_named_and_the_older_one_taken(tmp_path: Path, caplog):
    older = await write_checkpoint(tmp_path, state(1), saver("one"))
    newest = await write_checkpoint(tmp_path, state(3), saver("three"))
    for damage, said in (
        (lambda path: path.write_text("thre3"), "model/weights has other contents than were written"),
        (lambda path: path.write_text("thr"), "model/weights has 3 bytes, 5 were written"),
        (lambda path: path.unlink(), "model/weights is missing"),
    ):
        caplog.clear()
        damage(newest / "model" / "weights")
        assert latest_checkpoint(tmp_path) == (older, state(1))
        assert f"iter_0000003: {said}; going on at the older iter_0000001" in caplog.text
    (older / "model" / "weights").unlink()
    with pytest.raises(ConfigError, match=r"names iter_0000003, which cannot be loaded: model/weights is missing"):
        latest_checkpoint(tmp_path)


async def test_R10_a_checkpoint_can_be_named_itself(tmp_path: Path):
    older = await write_checkpoint(tmp_path, state(1), saver("one"))
    await write_checkpoint(tmp_path, state(3), saver("three"))
    assert latest_checkpoint(older) == (older, state(1))
    (older / "model" / "weights").unlink()
    with pytest.raises(ConfigError, match=r"--load .*iter_0000001: model/weights is missing"):
        latest_checkpoint(older)


def test_a_state_of_an_older_version_is_read():
    old = state(2).to_json()
    del old["draw_again"], old["optimizer_steps"]
    old["open_groups"] = []
    assert RunState.from_json(old) == state(2, open_groups=(), draw_again=(), optimizer_steps=0)


def test_one_changed_matrix_makes_other_weights(tmp_path):
    folder = build_tiny_model_folder(tmp_path / "model")
    before = weights_identity(folder)
    assert before == weights_identity(build_tiny_model_folder(tmp_path / "same"))
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file(weights | {name: weights[name] + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_identity(folder) not in (before, "")
    assert weights_identity(tmp_path / "nothing") == ""
