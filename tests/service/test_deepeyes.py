# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The DeepEyes example trains: images that a tool makes in later turns reach engine and trainer alike."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from relax.entrypoints.replay import main as replay
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two steps of two groups of two samples; sample 1 of each group zooms twice, sample 0 answers at once."""
    folder = tmp_path_factory.mktemp("deepeyes")
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    rows = [{"input": f"<image> Which digit is {i}?", "label": str(i), "images": ["noise.png"]} for i in range(4)]
    model = build_tiny_model_folder(folder / "model", "qwen3_omni")
    inputs = Inputs(model, write_jsonl(folder / "prompts.jsonl", rows))
    flags = inputs.flags(
        folder / "run",
        custom_generate_function_path="tests.service.deepeyes.generate",
        custom_rm_path="tests.service.deepeyes.score",
        reward_key="score",
        multimodal_keys='{"image": "images"}',
        rollout_max_response_len=64,
        max_turns=3,
        dump_details=folder / "details",
    )
    return inline([*flags, "--colocate", "--apply-chat-template"]).ok()


def test_engine_and_trainer_agree_on_every_token_after_later_images(done: Finished) -> None:
    assert done.metrics("train/log_prob_difference_abs") == [0.0, 0.0]
    assert all(norm > 0 for norm in done.metrics("train/grad_norm"))


def test_tool_calls_are_counted_and_observations_are_not_sampled_tokens(done: Finished) -> None:
    for rollout_id in range(2):
        for row in done.samples(rollout_id):
            zooms = 2 * row["index"]
            assert row["metadata"]["deepeyes"] == {"turns": 1 + zooms, "tool_calls": zooms, "tool_errors": 0}
            assert (row["sampled_tokens"] < row["response_tokens"]) == bool(zooms)
            assert row["response"].count("<tool_response>") == zooms
            assert row["response"].count("<|image_pad|>") == zooms
            assert row["reward_parts"] == {"accuracy": 0.0, "format": -1.0, "tool": 0.0}


def test_each_sample_is_trained_with_its_own_images(done: Finished) -> None:
    """96 x 96 pixels are 36 tokens; the crops of 32 x 32 and 64 x 64 pixels are 4 and 16."""
    table = load_file(done.folder.parent / "details/rollout_data/0.safetensors")
    for group in {name.split("/")[0] for name in table}:
        assert table[f"{group}/media/num_tokens"].tolist() == [36, 4, 16]
        assert table[f"{group}/media/sample_items"].tolist() == [0, 0, 1, 2]
        assert table[f"{group}/media/sample_offsets"].tolist() == [0, 1, 4]


def test_a_replay_says_which_media_it_cannot_make_again(done: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(["--run", str(done.folder)]) == 2
    assert "its generate function added media to the prompt's" in capsys.readouterr().err
