# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax replay` on real runs of the tiny model: bit for bit, and every change of the folder has a name."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from relax.data.columns import group_columns
from relax.entrypoints.replay import DIFFERS, main
from relax.utils.types import Sample
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import ASYNC, HOOKS, Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
COLUMNS = sorted(
    group_columns([Sample(group_index=0, index=0, loss_mask=[], rollout_log_probs=[], reward=0.0)], [0.0], [0.0])
)


@dataclass
class Replayed:
    code: int
    out: str
    err: str

    @property
    def result(self) -> dict:
        return json.loads(self.out.splitlines()[-1].removeprefix("RESULT "))


def on_runs(main: Callable[[list[str]], int], capsys) -> Callable[..., Replayed]:
    """A command that takes `--run`, called with a run's folder and further words."""

    def go(folder: Path, *words: object) -> Replayed:
        capsys.readouterr()
        code = main(["--run", str(folder), *map(str, words)])
        return Replayed(code, *capsys.readouterr())

    return go


@pytest.fixture
def replay(capsys) -> Callable[..., Replayed]:
    return on_runs(main, capsys)


@pytest.fixture(scope="module")
def done(inputs: Inputs, tmp_path_factory) -> Finished:
    """Three rollouts of two optimizer steps each, with a KL, and a checkpoint after each rollout."""
    flags = inputs.flags(
        tmp_path_factory.mktemp("replay") / "run",
        num_rollout=3, global_batch_size=2, kl_loss_coef=0.1, save_interval=1, custom_rm_path=HOOKS + "text_reward",
    )  # fmt: skip
    return inline([*flags, "--colocate", "--use-kl-loss"]).ok()


@pytest.fixture
def copy(done: Finished, tmp_path: Path) -> Path:
    """The run's folder without checkpoints, to be changed."""
    return shutil.copytree(done.folder, tmp_path / "run", ignore=shutil.ignore_patterns("iter_*"))


def rewrite_journal(folder: Path, change: Callable[[dict], dict | None]) -> None:
    """Change or (None) remove the driver's events."""
    path = folder / "journal" / "driver.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [line if "schema" in line else change(line) for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed if line is not None))


def change_config(folder: Path, name: str, value: object) -> None:
    entries = json.loads((folder / "config.json").read_text())
    entries[name]["value"] = value
    (folder / "config.json").write_text(json.dumps(entries))


# ------------------------------------------------------------------ bit for bit


def test_every_step_of_a_run_comes_out_again_bit_for_bit(done, copy, replay):
    found = replay(copy)  # without checkpoints: from the model of the start
    assert found.code == 0, found.out + found.err
    assert found.result["identical"] is True
    assert (found.result["steps"], found.result["from_version"]) == ([0, 1, 2], 0)
    assert found.result["skipped"] == {}
    for kind in ("rewards", "advantages", "old_logprobs", "ref_logprobs", "loss", "gradient", "weights"):
        assert found.out.count(f" {kind} = ") == 3, kind
    assert "relax-replay" not in " ".join(path.name for path in Path("/dev/shm").glob("*"))


def test_a_step_starts_at_the_checkpoint_before_it(done, replay):
    found = replay(done.folder, "--step", 2)
    assert found.code == 0, found.out + found.err
    assert (found.result["identical"], found.result["from_version"]) == (True, 2)
    assert "step 0" not in found.out and "step 1:" not in found.out


def test_a_resumed_asynchronous_run_with_all_roles_comes_out_again(inputs, tmp_path, replay):
    roles = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"actor_fwd":[1,1]}'
    words = ["--fully-async", "--use-kl-loss", "--use-tis", "--max-staleness", 1]
    changed = {"resource": roles, "kl_loss_coef": 0.1, "custom_rm_path": HOOKS + "text_reward"}
    folder = tmp_path / "run"
    inline([*inputs.flags(folder, num_rollout=3, save_interval=1, **changed), *words]).ok()
    (folder / "latest_checkpointed_iteration.txt").write_text("0")  # rollouts 1 and 2 are trained again
    inline([*inputs.flags(folder, num_rollout=3, load=folder, **changed), *words]).ok()
    shutil.rmtree(folder / "iter_0000001")
    found = replay(folder)
    assert found.code == 0, found.out + found.err
    assert (found.result["identical"], found.result["steps"]) == (True, [0, 1, 2])


def test_samples_are_drawn_again_under_their_own_version_and_key(done, copy, replay):
    found = replay(copy, "--step", "1-2", "--regenerate", "--no-rewards")
    assert found.code == 0, found.out + found.err
    assert found.result["skipped"] == {}
    # two groups of two samples a step, ids and log-probs
    assert found.out.count(" regenerated = 8") == 2
    change_config(copy, "rollout_seed", 7)
    other = replay(copy, "--step", 1, "--regenerate", "--no-rewards")
    assert other.code == DIFFERS
    assert other.result["first"]["field"] == "regenerated sampled token"
    assert re.fullmatch(r"sample g\d+\.\d response token \d", other.result["first"]["where"])


def test_an_older_token_is_drawn_again_under_its_older_version(inputs, tmp_path, replay):
    flags = inputs.flags(tmp_path / "run", num_rollout=3, save_interval=1)
    done = inline([*flags, *ASYNC, 1]).ok()
    found = replay(done.folder, "--step", 2, "--regenerate")
    assert found.code == 0, found.out + found.err
    ages = [2 - sample["first_version"] for sample in done.samples(2)]
    assert found.result["from_version"] == 2 - max(ages)
    several = sum(sample["first_version"] != sample["last_version"] for sample in done.samples(2))
    assert f" regenerated = {2 * (4 - several)}" in found.out
    assert found.result["skipped"] == (
        {"regenerated": f"{several} samples saw several versions, or none"} if several else {}
    )


def test_a_rollout_that_was_trained_part_after_part_comes_out_again_in_that_order(inputs, tmp_path, replay):
    flags = inputs.flags(tmp_path / "run", num_rollout=2, rollout_batch_size=4, global_batch_size=8)
    words = ["--num-iters-per-train-update", 2, "--stream-order", "arrival"]
    done = inline([*flags, *ASYNC, 1, *words]).ok()
    assert [event["last"] for event in done.events("bound")] == [False, True] * 2
    for path in done.folder.glob("iter_*"):
        shutil.rmtree(path)
    found = replay(done.folder)
    assert found.code == 0, found.out + found.err
    assert (found.result["identical"], found.result["steps"]) == (True, [0, 1])


def test_media_are_read_again_from_the_data_and_a_changed_picture_is_named(tmp_path, replay):
    from PIL import Image

    def picture(seed: int) -> None:
        noise = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "noise.png")

    picture(0)
    rows = [{"input": f"{'<image> ' * (i % 2)}What is {i}?", "images": ["noise.png"] * (i % 2)} for i in range(2)]
    model = build_tiny_model_folder(tmp_path / "model", "qwen3_omni")
    inputs = Inputs(model, write_jsonl(tmp_path / "prompts.jsonl", rows))
    flags = inputs.flags(tmp_path / "run", num_rollout=1, label_key=None)
    done = inline([*flags, "--colocate", "--apply-chat-template", "--multimodal-keys", '{"image": "images"}']).ok()
    found = replay(done.folder, "--regenerate")
    assert found.code == 0, found.out + found.err
    assert " media = 4" in found.out and " regenerated = 8" in found.out
    picture(1)
    other = replay(done.folder)
    assert other.code == DIFFERS
    row_of = {event["group"]: event["row"] for event in done.events("admitted")}
    with_picture = next(group for group, row in row_of.items() if row == 1)
    first = other.result["first"]
    assert (first["field"], first["where"]) == ("media", f"sample g{with_picture}.0")
    write_jsonl(inputs.prompts, [{**row, "input": row["input"].replace("What", "Which")} for row in rows])
    prompt = replay(done.folder).result["first"]
    assert prompt["field"] == "prompt (--prompt-data has changed)"


# ------------------------------------------------------------------ what has changed is named


def test_the_parameters_are_all_columns_of_the_trace(done):
    event = done.events("completed", "rollout")[0]
    assert set(event["columns"]) == {*COLUMNS, "(header)", "(notes)"}


@pytest.mark.parametrize("column", [*COLUMNS, "(header)"])
def test_one_flipped_bit_of_the_trace_is_named(column, done, copy, replay):
    group = next(event["groups"][1] for event in done.events("bound") if event["rollout_id"] == 1)
    event = next(e for e in done.events("completed", "rollout") if e["group"] == group)
    path = copy / "trace" / event["file"]
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<Q", data, event["offset"])
    start = event["offset"] + 8 + size
    header = json.loads(data[event["offset"] + 8 : start])
    byte = event["offset"] + 20 if column == "(header)" else start + header[column]["data_offsets"][1] - 1
    data[byte] ^= 1
    path.write_bytes(data)
    found = replay(copy)
    assert found.code == DIFFERS
    first = found.result["first"]
    assert (found.result["identical"], first["step"], first["field"]) == (False, 1, f"trace {column}")
    assert f"g{group}" in first["where"]
    assert first["recorded"] != first["recomputed"]
    assert f"the first difference is in step 1: trace {column}" in found.out


@pytest.mark.parametrize("name", ["response", "label", "prompt", "attempt"])
def test_a_flipped_bit_of_the_texts_beside_the_trace_is_named(name, done, copy, replay):
    group = next(event["groups"][1] for event in done.events("bound") if event["rollout_id"] == 1)
    event = next(e for e in done.events("completed", "rollout") if e["group"] == group)
    path = (copy / "trace" / event["file"]).with_suffix(".jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if json.loads(line)["group"] == group)
    value = json.dumps(json.loads(lines[number])["rows"][0][name], ensure_ascii=False).encode()
    line = bytearray(lines[number])
    start = line.index(b'"' + name.encode() + b'":') + len(name) + 3
    line[start + (len(value) - 2 if value[:1] == b'"' else 0)] ^= 1  # the last character of the value
    lines[number] = bytes(line)
    path.write_bytes(b"".join(lines))
    first = replay(copy).result["first"]
    assert first["field"] in (f"trace notes.rows[0].{name}", "trace (notes)")  # the second where it broke the line
    assert f"g{group}" in first["where"]


def test_another_reward_function_gives_other_rewards_and_the_sample_is_named(done, copy, replay):
    change_config(copy, "custom_rm_path", HOOKS + "constant_reward")
    found = replay(copy, "--step", 1)
    assert found.code == DIFFERS
    sample = next(s for s in done.samples(1) if s["reward"] != 1.0)
    first = found.result["first"]
    assert (first["field"], first["where"]) == ("raw_reward", f"sample g{sample['group']}.{sample['index']}")
    assert (float(first["recorded"]), float(first["recomputed"])) == (sample["reward"], 1.0)
    assert replay(copy, "--step", 1, "--no-rewards").code == 0


def test_another_setting_is_found_where_it_acts_first(copy, replay):
    change_config(copy, "kl_loss_coef", 0.2)
    first = replay(copy, "--step", 0).result["first"]
    # in the first optimizer step the reference is the policy itself: its KL is 0 with any coefficient, its slope not
    assert first["field"].startswith(("gradient/", "sums/gradient_square/"))
    assert first["where"] == "optimizer step 0"


@pytest.mark.parametrize("kind", ["advantages", "gradient/lm_head.weight", "weights/lm_head.weight"])
def test_a_recorded_number_that_does_not_come_out_is_named(kind, copy, replay):
    def change(event: dict) -> dict:
        if kind == "advantages" and event["kind"] == "trained":
            event["columns"]["advantages"] = (
                event["columns"]["advantages"][:8] + "0" * 8 + event["columns"]["advantages"][16:]
            )
        if kind.startswith("gradient") and event["kind"] == "trained":
            event["steps"][1]["gradient"]["lm_head.weight"] *= 1 + 2**-23
        if kind.startswith("weights") and event["kind"] == "weights" and event["version"] == 1:
            event["tensors"]["lm_head.weight"] = "crc32:00000000"
        return event

    rewrite_journal(copy, change)
    found = replay(copy, "--step", 0, "--no-rewards")
    assert found.code == DIFFERS
    first = found.result["first"]
    assert first["field"] == kind
    assert first["where"] in ("sample g0.1", "optimizer step 1", "version 1")
    assert found.result["differences"] == 1


# ------------------------------------------------------------------ what is not there


def test_a_run_that_is_not_finished_is_replayed_as_far_as_it_got(done, copy, replay):
    path = copy / "journal" / "driver.jsonl"
    text = path.read_text()
    end = text.index('"kind":"published","version":2')
    path.write_text(text[: end + 12])  # killed in the middle of a line
    found = replay(copy)
    assert found.code == 0, found.out + found.err
    assert found.result["steps"] == [0, 1]
    assert "the run has not ended" in found.out
    assert found.result["skipped"] == {"weights": "this version was not published"}
    assert replay(copy, "--step", 2).err.startswith("ConfigError: --step 2: ")


def test_a_run_of_a_version_that_recorded_less_is_compared_as_far_as_that_goes(copy, replay):
    rewrite_journal(copy, lambda event: None if event["kind"] in ("trained", "weights") else event)
    rollout = copy / "journal" / "rollout.jsonl"
    lines = [json.loads(line) for line in rollout.read_text().splitlines()]
    rollout.write_text("".join(json.dumps({k: v for k, v in e.items() if k != "columns"}) + "\n" for e in lines))
    for path in (copy / "trace").glob("*.jsonl"):
        path.unlink()
    found = replay(copy, "--step", 0)
    assert found.code == 0, found.out + found.err
    assert set(found.result["skipped"]) == {"columns", "loss", "gradient", "weights", "rewards", "start"}


@pytest.mark.parametrize(
    ("gone", "code", "said"),
    [
        ("config.json", 2, "there is no config.json"),
        ("journal/driver.jsonl", 2, "journal/driver.jsonl is missing"),
        ("trace/0.safetensors", 2, "the trace cannot be read"),
        ("trace/0.jsonl", 2, "the notes of the trace cannot be read"),
        ("journal/rollout.jsonl", 2, "no `completed` line says where it is"),
    ],
)
def test_a_missing_file_is_named(gone, code, said, copy, replay):
    (copy / gone).unlink()
    found = replay(copy)
    assert found.code == code
    assert said in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "7"], "has trained rollouts 0 to 2; the run finished"),
        (["--step", "x"], "give the number of a rollout"),
        (["--step", "2-1"], "ends before it begins"),
    ],
)
def test_a_step_that_is_not_there_is_refused(words, said, copy, replay):
    found = replay(copy, *words)
    assert found.code == 2
    assert said in found.err


def test_a_run_that_went_on_from_another_folder_starts_there_and_says_so_when_it_is_gone(inputs, tmp_path, replay):
    inline([*inputs.flags(tmp_path / "first", num_rollout=1), *ASYNC, 0]).ok()
    inline([*inputs.flags(tmp_path / "second", num_rollout=2, load=tmp_path / "first"), *ASYNC, 0]).ok()
    found = replay(tmp_path / "second")
    assert found.code == 0, found.out + found.err
    assert (found.result["steps"], found.result["from_version"]) == ([1], 1)
    shutil.rmtree(tmp_path / "first")
    gone = replay(tmp_path / "second")
    assert gone.code == 2
    assert "no weights at or before version 1 can be used to start from (there are: version 2" in gone.err
