# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Wrong input ends the command with 2 before anything starts, and the text says where, what was got and what to do."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from relax.config.run import default_config
from relax.config.sections import RewardConfig
from relax.core.checkpoint import RunState, first_rollout
from relax.data.datasets import FileRows
from relax.engine.rewards.builtin import BUILT_IN, REMOTE
from relax.entrypoints.machine_check import cards, disk
from relax.entrypoints.model_check import dimensions_of_config, dimensions_of_shapes, known_class
from relax.entrypoints.preflight import ROWS_CHECKED
from relax.entrypoints.train import main
from relax.utils.errors import ConfigError
from relax.utils.lock import RunLock

ROW = {"prompt": [{"role": "user", "content": "1 + 2 = ?"}], "label": "3"}
MODEL = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 512}
FLAGS = {
    "hf-checkpoint": "model",
    "prompt-data": "prompts.jsonl",
    "input-key": "prompt",
    "label-key": "label",
    "rm-type": "math",
    "rollout-batch-size": "4",
    "n-samples-per-prompt": "2",
    "num-rollout": "2",
    "serve-port": "0",
}
IMAGES = ("--multimodal-keys", '{"image": "images"}')


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model and prompts."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    for name in ("tokenizer.json", "processor_config.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_text("{}")
    weights(tmp_path, 1000)
    write_rows(tmp_path, *[ROW] * 10)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def argv(*more: str, **changes: str | None) -> list[str]:
    flags: dict[str, str | None] = {**FLAGS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", value)]
    return [*words, "--apply-chat-template", *more]


def write_rows(work: Path, *rows: object) -> None:
    (work / "prompts.jsonl").write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


def with_images(text: str, *images: str) -> dict[str, object]:
    return {"prompt": [{"role": "user", "content": text}], "label": "3", "images": list(images)}


# --------------------------------------------------------------------------- what makes it wrong


def no_object(work: Path) -> None:
    write_rows(work, ROW, ROW, "[1, 2]", ROW)


def broken_json(work: Path) -> None:
    write_rows(work, ROW, ROW, "{broken")


def a_column_goes_missing(work: Path) -> None:
    write_rows(work, ROW, {"prompt": ROW["prompt"], "lable": "3"})


def a_prompt_that_is_a_number(work: Path) -> None:
    write_rows(work, ROW, ROW | {"prompt": 7})


def no_role(work: Path) -> None:
    write_rows(work, ROW, ROW | {"prompt": [{"content": "hello"}]})


def too_many_images(work: Path) -> None:
    write_rows(work, with_images("no place"), with_images("<image> what?", "a.png", "b.png"))


def too_few_images(work: Path) -> None:
    write_rows(work, with_images("<image><image> what?", "https://example.org/a.png"))


def a_lost_image(work: Path) -> None:
    write_rows(work, *[with_images("text only")] * 20, with_images("<image> what?", "gone.png"))


def a_broken_image(work: Path) -> None:
    (work / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    write_rows(work, with_images("<image> what?", "broken.png"))


def no_tokenizer(work: Path) -> None:
    (work / "model" / "tokenizer.json").unlink()


def no_template(work: Path) -> None:
    (work / "model" / "chat_template.jinja").unlink()


def no_processor(work: Path) -> None:
    write_rows(work, with_images("text"))
    (work / "model" / "processor_config.json").unlink()


def a_processor_of_small_images(work: Path) -> None:
    write_rows(work, with_images("text"))
    saved = {"patch_size": 8, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 16384}}
    (work / "model" / "processor_config.json").write_text(json.dumps({"image_processor": saved}))


def a_processor_in_the_older_files(work: Path) -> None:
    write_rows(work, with_images("text"))
    saved = {"patch_size": 14, "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 12845056}}
    (work / "model" / "processor_config.json").unlink()
    (work / "model" / "preprocessor_config.json").write_text(json.dumps(saved))


def a_torn_processor(work: Path) -> None:
    write_rows(work, with_images("text"))
    (work / "model" / "processor_config.json").write_text("{")


def an_unknown_class(work: Path) -> None:
    (work / "model" / "config.json").write_text(json.dumps(MODEL | {"architectures": ["Qwen9ForCausalLM"]}))


def no_weights(work: Path) -> None:
    (work / "model" / "model.safetensors").unlink()


def no_class(work: Path) -> None:
    (work / "model" / "config.json").write_text("{}")


def a_torn_weight_file(work: Path) -> None:
    (work / "model" / "model.safetensors").write_bytes(b"abc")


def weights(work: Path, *shape: int) -> None:
    """Only a header, which is all that is looked at."""
    head = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (work / "model" / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)


def a_model_larger_than_the_disk(work: Path) -> None:
    weights(work, 4_000_000, 1_000_000_000)  # x 12 bytes = 4.8e7 GB


def hooks(work: Path) -> None:
    (work / "hooks_of_mine.py").write_text(
        "raise SystemExit('a look must not run this')\n"
        "def reward(args): ...\n"
        "def generate(args, sample, sampling_params): ...\n"
        "def post(args, samples, *, scale): ...\n"
    )


def checkpoint(
    work: Path, *, digest: str | None = None, shapes: dict[str, list[int]] | None = None, rollout_id: int = 0
) -> None:
    rows = FileRows("prompts.jsonl")
    rows.close()
    folder = work / "run" / f"iter_{rollout_id:07d}"
    (folder / "model").mkdir(parents=True)
    state = RunState(rollout_id, 4, 4, (), digest or rows.digest, "d")
    (folder / "run_state.json").write_text(json.dumps(state.to_json()))
    (folder / "model" / "relax.json").write_text(json.dumps({"schema": 1, "shapes": shapes or {}}))
    (work / "run" / "latest_checkpointed_iteration.txt").write_text(str(rollout_id))


def another_model(work: Path) -> None:
    checkpoint(work, shapes={"model.embed_tokens.weight": [512, 128], "model.layers.1.mlp.up_proj.weight": [1, 1]})


def other_data(work: Path) -> None:
    checkpoint(work, digest="0" * 32)


def a_lost_checkpoint(work: Path) -> None:
    checkpoint(work)
    (saved,) = (work / "run").glob("iter_*")
    saved.rename(work / "moved")
    (work / "run" / "latest_checkpointed_iteration.txt").write_text("7")


# {what is wrong: (what makes it so, command line, texts of the message)}
WRONG: dict[str, tuple[Callable[[Path], None] | None, list[str], tuple[str, ...]]] = {
    "a misspelt flag": (None, argv("--rollout-bach-size", "4"), ("--rollout-bach-size", "--rollout-batch-size")),
    "the name that another program has": (None, argv("--learning-rate", "1"), ("--learning-rate: here that is --lr",)),
    "a comparison with nothing": (None, argv(label_key=None), ("--rm-type math", "add --label-key", "did you mean")),
    "flags that exclude each other": (
        None,
        argv("--fully-async", "--colocate"),
        ("--fully-async and --colocate exclude each other", "keep one of the three"),
    ),
    "a missing file": (
        None,
        argv(prompt_data="prompt.jsonl"),
        ("--prompt-data", "prompt.jsonl", "near it are prompts"),
    ),
    "a missing column": (None, argv(input_key="promt"), ("--input-key promt", "did you mean prompt?")),
    "a missing key of evaluation": (
        None,
        argv("--eval-prompt-data", "held_out", "prompts.jsonl", eval_input_key="question", eval_interval="1"),
        ("held_out, input_key question", "prompts.jsonl has the columns prompt, label"),
    ),
    "a row that is no object": (no_object, argv(), ("prompts.jsonl:3", "must be a JSON object", "list")),
    "a row that is no JSON": (broken_json, argv(), ("prompts.jsonl:3", "not JSON", "{broken")),
    "a row without the label": (a_column_goes_missing, argv(), ("prompts.jsonl:2", "--label-key", "did you mean")),
    "a prompt of the wrong type": (a_prompt_that_is_a_number, argv(), ("prompts.jsonl:2", "--input-key", "int")),
    "a message without a role": (no_role, argv(), ("prompts.jsonl:2", "message 0", "role")),
    "more media than placeholders": (
        too_many_images,
        argv(*IMAGES),
        ("prompts.jsonl:2", "has 1 <image> placeholders, the row has 2 image entries"),
    ),
    "fewer media than placeholders": (
        too_few_images,
        argv(*IMAGES),
        ("prompts.jsonl:1", "has 2 <image> placeholders, the row has 1 image entries"),
    ),
    "a medium that is not there": (a_lost_image, argv(*IMAGES), ("prompts.jsonl:21", "gone.png", "No such file")),
    "a medium that cannot be read": (a_broken_image, argv(*IMAGES), ("prompts.jsonl:1", "broken.png")),
    "a model without a tokenizer": (no_tokenizer, argv(), ("--hf-checkpoint model has no tokenizer", "copy")),
    "a model without a template": (no_template, argv(), ("--apply-chat-template", "chat_template.jinja")),
    "a template file that is not there": (
        None,
        argv(chat_template="mine.jinja"),
        ("--chat-template mine.jinja is not a file of a Jinja chat template",),
    ),
    "a text model for images": (no_processor, argv(*IMAGES), ("--multimodal-keys names image", "no processor")),
    "more tokens than the saved processor allows": (
        a_processor_of_small_images,
        argv(*IMAGES, image_min_tokens="65"),
        ("--image-min-tokens 65 is above the most", "allows, 64", "--image-max-tokens too"),
    ),
    "fewer tokens than the saved processor allows": (
        a_processor_in_the_older_files,
        argv(*IMAGES, image_max_tokens="3"),
        ("--image-max-tokens 3 is below the least", "allows, 4", "--image-min-tokens too"),
    ),
    "a processor that is no JSON": (
        a_torn_processor,
        argv(*IMAGES, image_max_tokens="3"),
        ("--hf-checkpoint model: the files of its processor are not JSON objects",),
    ),
    "a model of an unknown class": (
        an_unknown_class,
        argv(),
        ("--hf-checkpoint model", "Qwen9ForCausalLM", "update transformers"),
    ),
    "a model without weights": (no_weights, argv(), ("--hf-checkpoint model holds no weights", "download")),
    "a model without a class": (no_class, argv(), ("--hf-checkpoint model", '"architectures"')),
    "a torn weight file": (a_torn_weight_file, argv(save="out"), ("model.safetensors", "download it again")),
    "a reward that cannot be imported": (
        None,
        argv(rm_type=None, custom_rm_path="no_such_package.reward"),
        ("--custom-rm-path no_such_package.reward", "no module 'no_such_package'", "PYTHONPATH"),
    ),
    "a reward that is not there": (
        hooks,
        argv(rm_type=None, custom_rm_path="hooks_of_mine.rewards"),
        ("--custom-rm-path hooks_of_mine.rewards", "did you mean reward?"),
    ),
    "a reward with the wrong arguments": (
        hooks,
        argv(rm_type=None, custom_rm_path="hooks_of_mine.reward"),
        ("--custom-rm-path hooks_of_mine.reward", "called as (args, sample), but takes (args)"),
    ),
    "a generate function that cannot be awaited": (
        hooks,
        argv(custom_generate_function_path="hooks_of_mine.generate"),
        ("--custom-generate-function-path hooks_of_mine.generate", "write `async def`"),
    ),
    "a post-processing that needs more": (
        hooks,
        argv(custom_reward_post_process_path="hooks_of_mine.post"),
        ("--custom-reward-post-process-path hooks_of_mine.post", "takes (args, samples, *, scale)"),
    ),
    "an inference that tells nothing": (
        None,
        argv("--rm-type-infer", rm_type=None, label_key="prompt"),
        ("--rm-type-infer tells no reward from the first label", "--rm-type-fallback"),
    ),
    "an unknown fallback": (None, argv(rm_type_fallback="nil"), ("--rm-type-fallback nil is no built-in reward",)),
    "more cards than this machine can hold": (
        None,
        argv("--resource", '{"actor": [1, 800000], "rollout": [1, 800000]}'),
        ("--resource needs 1600000 cards", "of memory: use at most"),
    ),
    "batches that do not divide": (
        None,
        argv(global_batch_size="3"),
        ("= 8 samples a round, which --global-batch-size 3 does not divide: use 2 or 4",),
    ),
    "a start without a checkpoint": (None, argv(start_rollout_id="1"), ("--start-rollout-id 1 needs --load", "leave")),
    "a start on an empty folder": (
        None,
        argv(start_rollout_id="1", load="run"),
        ("--start-rollout-id 1", "--load holds no checkpoint"),
    ),
    "a checkpoint of another model": (
        another_model,
        argv(load="run"),
        ("--load run holds a checkpoint of another model than model", "hidden_size 128 there, 64 here"),
    ),
    "a checkpoint of other data": (
        other_data,
        argv(load="run"),
        ("--load run was reading other data",),
    ),
    "a checkpoint that is gone": (a_lost_checkpoint, argv(load="run"), ("--load run", "names iter_0000007")),
    "no room on the disk": (
        a_model_larger_than_the_disk,
        argv(save="out"),
        ("--save out: one checkpoint needs about 4.8e+07 GB", "another disk"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_told_before_anything_starts(name: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, words, texts = WRONG[name]
    if prepare is not None:
        prepare(work)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for text in texts:
        assert text in captured.err
    assert "Traceback" not in captured.err
    assert not (work / "out").exists()
    assert not (work / "runs").exists()


def test_several_problems_are_told_together_one_a_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_tokenizer(work)
    assert main(argv(label_key="answer", rm_type="maths")) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "--hf-checkpoint" in first
    assert "--label-key" in second
    assert "--rm-type" in third


def test_a_port_in_use_is_told(work: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(argv(serve_port=str(port))) == 2
        assert f"--serve-port {port} on --serve-host 127.0.0.1 cannot be used" in capsys.readouterr().err
        assert main(argv("--dry-run", serve_port=str(port))) == 0  # a dry run describes a run of later
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(f"would not start now: --serve-port {port}" in note for note in notes)


def test_a_folder_that_another_run_holds_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(work / "out"):
        assert main(argv(save="out")) == 2
        assert "--save out: the folder is in use by process" in capsys.readouterr().err
    assert main(argv("--dry-run", save="out")) == 0


def test_rows_behind_the_checked_ones_are_named_in_a_note(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(work, *[ROW] * ROWS_CHECKED, "[]")
    assert main(argv("--dry-run")) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    told = f"--prompt-data prompts.jsonl: the first {ROWS_CHECKED} of {ROWS_CHECKED + 1} rows were checked"
    assert any(note.startswith(told) for note in notes)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"num_epoch": "1", "num_rollout": None},
            ["--num-epoch 1 of 10 prompts is 2 rounds of 4: the last 2"],
        ),
        ({"num_epoch": "2", "num_rollout": None}, []),
        ({"num_epoch": "1", "num_rollout": "1"}, []),
        ({"num_rollout": "3"}, []),
    ],
)
def test_A23_prompts_that_an_epoch_leaves_over_are_told(work: Path, capsys, flags, told) -> None:
    write_rows(work, *[ROW] * 10)
    assert main(argv("--dry-run", rollout_batch_size="4", **flags)) == 0
    notes = [note for note in json.loads(capsys.readouterr().out)["notes"] if "--num-epoch" in note]
    assert len(notes) == len(told) and all(map(str.startswith, notes, told))


def test_a_resume_that_fits_is_accepted_and_says_whose_weights_count(work: Path, capsys) -> None:  # C22
    shapes = {"model.embed_tokens.weight": [512, 64], "model.layers.1.mlp.up_proj.weight": [1, 1]}
    checkpoint(work, shapes=shapes, rollout_id=3)
    assert main(argv("--dry-run", load="run")) == 0
    (note,) = [note for note in json.loads(capsys.readouterr().out)["notes"] if note.startswith("--load run goes on")]
    assert note == "--load run goes on at rollout 4 with the weights of iter_0000003, not with those of --ref-load"


def test_a_load_without_a_checkpoint_is_noted(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv("--dry-run", load="rnu")) == 0
    assert "--load rnu holds no checkpoint: training starts at model" in json.loads(capsys.readouterr().out)["notes"]


def test_limits_that_the_saved_processor_allows_are_accepted_beside_other_media(work: Path) -> None:
    a_processor_of_small_images(work)
    write_rows(work, {**with_images("text"), "audio": []})
    keys = ("--multimodal-keys", '{"image": "images", "audio": "audio"}')
    assert main(argv(*keys, "--dry-run", image_min_tokens="5", image_max_tokens="64")) == 0


def test_a_finished_run_is_noted(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(work, rollout_id=1)
    assert main(argv("--dry-run", load="run")) == 0
    assert any("contains 2 rollouts" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_prompt_function_leaves_the_placeholders_to_the_run(work: Path) -> None:
    too_few_images(work)
    (work / "prompt_hooks.py").write_text("def edit(prompt, row): return prompt\n")
    assert main(argv(*IMAGES, "--dry-run", custom_prompt_path="prompt_hooks.edit")) == 0


def test_gpus_that_do_not_suffice_are_told_with_a_table() -> None:
    config = default_config(resource={"actor": [1, 4], "rollout": [1, 4]})
    (text,) = cards(config, 4, memory=1 << 40)
    assert "--resource needs 8 GPUs and the cluster has 4" in text
    assert "--colocate" in text
    assert list(cards(config, 8, memory=0)) == []


def test_one_checkpoint_takes_twelve_bytes_a_parameter(work: Path) -> None:
    weights(work, 1000)
    config = default_config(hf_checkpoint="model", save="out")
    assert list(disk(config, free=12_000)) == []
    assert "(1e+03 parameters x 12 bytes)" in next(disk(config, free=11_999))


def test_dimensions_are_those_of_the_language_model() -> None:
    shapes = {
        "model.embed_tokens.weight": [512, 64],
        "visual.layers.9.weight": [1],
        "audio_tower.layers.7.weight": [1],
        "model.layers.0.weight": [1],
        "model.layers.3.weight": [1],
    }
    nested = {"thinker_config": {"text_config": {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4}}}
    assert dimensions_of_shapes(shapes) == dimensions_of_config(nested)


def test_classes_are_found_in_the_source_of_transformers() -> None:
    assert known_class("Qwen3OmniMoeThinkerForConditionalGeneration")
    assert not known_class("Qwen3OmniMoeThinkerForConditionalGeneratio")


def test_an_explicit_start_wins_over_the_checkpoints() -> None:
    state = RunState(4, 10, 10, (), "", "")
    assert [first_rollout(explicit, state) for explicit in (None, 0, 9)] == [5, 0, 9]
    assert [first_rollout(explicit, None) for explicit in (None, 0)] == [0, 0]
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        first_rollout(1, None)


def test_the_help_names_every_built_in_reward() -> None:
    text = next(f for f in fields(RewardConfig) if f.name == "rm_type").metadata["help"]
    words = set(text.replace(",", " ").replace(";", " ").split())
    assert {*BUILT_IN, REMOTE} - words == set()
