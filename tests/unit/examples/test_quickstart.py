# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json
import os
import subprocess

import numpy as np
import pytest

from examples.quickstart.data import vary, write_data, wrong_answer
from examples.quickstart.reward import digit_reward
from examples.quickstart.tokenizer import EOS, SPECIAL
from relax.utils.jsonl import read_jsonl
from relax.utils.types import Sample


def sample(response, status=Sample.Status.COMPLETED, label="7"):
    return Sample(response=response, status=status, label=label)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (sample("7<|im_end|>"), 1.0),
        (sample("7"), 1.0),
        (sample("8<|im_end|>"), 0.0),
        (sample(" 7<|im_end|>"), 0.0),
        (sample("7<|im_end|><|im_end|>"), 0.0),
        (sample("7", status=Sample.Status.TRUNCATED), 0.0),
        (sample("7", label=7), 1.0),
    ],
)
def test_only_the_exact_answer_with_an_end_is_rewarded(answer, reward):
    assert digit_reward(None, answer) == reward


def test_image_rows_split_1797_real_digits_by_image(tmp_path):
    from PIL import Image
    from sklearn.datasets import load_digits

    train, heldout = (list(read_jsonl(path)) for path in write_data("image", tmp_path))
    assert (len(train), len(heldout)) == (1400, 397)
    files = [row["image"][0] for row in train + heldout]
    assert len(set(files)) == 1797
    # the labels are those of the data set, each as often as it has them
    counts = np.bincount([int(row["label"]) for row in train + heldout], minlength=10)
    assert counts.tolist() == np.bincount(load_digits().target).tolist()
    assert Image.open(tmp_path / files[0]).size == (32, 32)
    assert train[0]["prompt"] == [{"role": "user", "content": "<image>"}]


def test_held_out_sums_are_never_trained_on(tmp_path):
    train, heldout = (list(read_jsonl(path)) for path in write_data("text", tmp_path))
    prompts = [{row["prompt"][0]["content"] for row in rows} for rows in (train, heldout)]
    assert not prompts[0] & prompts[1]
    assert len(prompts[0] | prompts[1]) == 900
    assert all(eval(row["prompt"][0]["content"][:-1]) == int(row["label"]) for row in train)


def test_a_varied_recording_is_one_second_and_reproducible():
    tone = np.sin(np.arange(3000) * 0.3).astype(np.float32)
    first, second = (vary(tone, np.random.RandomState(3)) for _ in range(2))
    assert first.shape == (16000,)
    assert np.array_equal(first, second)
    assert 0.4 < np.abs(first).max() <= 1.0


def test_the_wrong_answer_is_one_too_many_and_a_digit_stays_a_digit():
    assert [wrong_answer("image", d) for d in ("0", "9")] == ["1", "0"]
    assert wrong_answer("text", "58") == "59"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from examples.quickstart.model import build_model

    folder = tmp_path_factory.mktemp("model")
    build_model(folder)
    return folder


def test_the_folder_loads_with_plain_transformers_and_ids_agree(model):
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(model), AutoConfig.from_pretrained(model)
    assert tokenizer.convert_ids_to_tokens(config.image_token_id) == "<|image_pad|>"
    assert tokenizer.convert_ids_to_tokens(config.audio_token_id) == "<|audio_pad|>"
    assert tokenizer.convert_ids_to_tokens(config.audio_start_token_id) == "<|audio_start|>"
    assert config.text_config.vocab_size == len(tokenizer)
    assert tokenizer("17", add_special_tokens=False)["input_ids"] == tokenizer.convert_tokens_to_ids(["1", "7"])


def test_only_the_end_token_of_the_special_ones_can_be_sampled(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    suppressed = json.loads((model / "generation_config.json").read_text())["suppress_tokens"]
    assert sorted(tokenizer.convert_ids_to_tokens(suppressed)) == sorted(set(SPECIAL) - {EOS})


def test_the_same_seed_builds_the_same_weights(model, tmp_path):
    from examples.quickstart.model import build_model

    build_model(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_the_sglang_form_is_the_same_model_under_the_thinkers_prefix(model, tmp_path):
    from safetensors.torch import load_file

    from examples.quickstart.model import write_sglang_form

    write_sglang_form(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3OmniMoeForConditionalGeneration"]
    assert config["model_type"] == "qwen3_omni_moe"
    assert config["enable_audio_output"] is False
    assert len(config["thinker_config"]["vision_config"]["deepstack_visual_indexes"]) == 3
    whole, thinker = load_file(tmp_path / "model.safetensors"), load_file(model / "model.safetensors")
    assert set(whole) == {f"thinker.{name}" for name in thinker}
    assert all(whole[f"thinker.{name}"].equal(tensor) for name, tensor in thinker.items())
    assert (tmp_path / "chat_template.jinja").exists()


def test_the_launch_script_says_what_the_demo_runs(tmp_path):
    from examples.quickstart.demo import JOBS, ROOT, parse, train_flags

    (tmp_path / "hf_before").mkdir()
    (tmp_path / "hf_before" / "config.json").touch()
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    echo.chmod(0o755)
    out = subprocess.run(
        [ROOT / "scripts/training/quickstart/run-digits-omni-cpu.sh", "--extra"],
        env={**os.environ, "PYTHON": str(echo), "RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    words = out.stdout.splitlines()
    assert words[:2] == ["-m", "relax.entrypoints.train"]
    demo = train_flags(parse([]), JOBS["image"], tmp_path)
    assert sorted(words[2:]) == sorted([*demo, "--extra"])


def test_the_result_states_the_curve_and_is_one_line_of_json(tmp_path):
    from examples.quickstart.report import result_line, reward_curve

    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "rollout/reward/mean": 0.5},
        {"step": 0, "rollout/reward/mean": 0.25},
        {"step": 1, "train/lr": 1},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert reward_curve(path) == [0.25, 0.5]
    line = result_line({"heldout_after": 0.123456789, "max_engine_trainer_diff": 1.19e-7, "exact": None})
    assert json.loads(line.removeprefix("RESULT ")) == {
        "heldout_after": 0.123457,
        "max_engine_trainer_diff": 1.19e-7,
        "exact": None,
    }


@pytest.mark.parametrize(
    "words", [[], ["--colocate"], ["--modality", "audio", "--seed", "3"], ["--modality", "text", "--steps", "2"]]
)
def test_the_demos_flags_are_a_valid_configuration(words, tmp_path):
    from examples.quickstart.demo import JOBS, parse, train_flags
    from relax.config.machine import Machine
    from relax.config.run import parse_args

    options = parse(words)
    config = parse_args(train_flags(options, JOBS[options.modality], tmp_path), machine=Machine())
    assert config.cluster.max_staleness == (0 if options.colocate else 1)
    assert config.cluster.colocate == options.colocate
    assert config.train.num_steps_per_rollout == 1
    assert config.rollout.num_rollout == (options.steps or JOBS[options.modality].steps)


def test_a_demonstration_with_another_answer_is_what_rendering_it_gives(model, tmp_path):
    from examples.quickstart.sft import Demonstrations, write_demonstrations
    from relax.engine.sft.dataset.examples import SftDataOptions, SftExamples

    train, _ = write_data("text", tmp_path)
    rows = write_demonstrations(train, tmp_path / "rows.jsonl", "text", 200, wrong_share=0.5, seed=0)
    drawn = list(read_jsonl(rows))
    right = sum(eval(row["prompt"][:-1]) == int(row["answer"]) for row in drawn)
    assert len(drawn) == 200 and 70 < right < 130  # half of them, give or take four standard deviations
    options = SftDataOptions(files=str(rows), model=str(model), input_key="prompt", label_key="answer")
    short, plain = Demonstrations(options), SftExamples(options)
    for place in range(60):
        one, other = short.example(place), plain.example(place)
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.loss_mask, other.loss_mask)
