# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The training command: exit codes, what it prints, and what it does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relax.entrypoints.train import drop_job_address, main

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "ray", "transformers", "sglang", "megatron", "pyarrow", "aiohttp")
ROW = {"prompt": [{"role": "user", "content": "1 + 2 = ?"}], "label": "3", "images": []}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and prompts, which is the current one."""
    (tmp_path / "model").mkdir()
    model = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(model))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    for name in ("tokenizer.json", "processor_config.json"):
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "prompts.jsonl").write_text((json.dumps(ROW) + "\n") * 10)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def argv(**changes: str | None) -> list[str]:
    flags: dict[str, str | None] = {
        "hf-checkpoint": "model",
        "prompt-data": "prompts.jsonl",
        "input-key": "prompt",
        "label-key": "label",
        "rm-type": "math",
        "rollout-batch-size": "4",
        "n-samples-per-prompt": "2",
        "num-epoch": "2",
    }
    flags |= {name.replace("_", "-"): value for name, value in changes.items()}
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", value)]
    return [*words, "--apply-chat-template"]


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)


def test_help_and_refusals_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from relax.entrypoints.train import main\n"
        "codes = []\n"
        "for words in (['--help'], ['--lr', 'x'], ['--foo']):\n"
        "    try: codes.append(main(words))\n"
        "    except SystemExit as end: codes.append(end.code)\n"
        f"print('RESULT', codes, [m for m in {HEAVY} if m in sys.modules])"
    )
    done = run("-c", code, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "RESULT [0, 2, 2] []"
    assert "--rollout-batch-size" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["train.py", "relax/entrypoints/train.py"])
def test_both_scripts_start_without_an_installation(script: str, tmp_path: Path) -> None:
    for cwd, path in ((ROOT, script), (tmp_path, str(ROOT / script))):
        done = run("-S", "-c", "import sys; print(sys.prefix)", cwd=cwd)  # the interpreter itself works here
        assert done.returncode == 0
        done = run(path, "--num-rollouts", "3", cwd=cwd)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("ConfigError: --num-rollouts could mean two things")


def test_a_dry_run_prints_json_and_starts_nothing(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv(save="out", save_interval="2"), "--dry-run"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["batches"]["rollouts"] == 5  # 2 epochs x 10 rows // 4
    assert report["batches"]["samples"] == 40
    assert report["run"]["checkpoints"] == {"count": 3, "after_rollouts": [2, 4, 5]}
    assert report["config"]["checkpoint"]["save"] == {"value": "out", "origin": "flag"}
    assert not (work / "out").exists()


def test_a_dry_run_shows_the_architecture_that_follows_from_the_model(work: Path, capsys) -> None:
    assert main([*argv(), "--num-layers", "2", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == {"--num-layers": {"value": 2, "origin": "flag"}}
    assert main([*argv(), "--dry-run"]) == 0
    derived = {"--num-layers": {"value": 2, "origin": "config.json: num_hidden_layers"}}
    assert json.loads(capsys.readouterr().out)["architecture"] == derived


def test_a_dry_run_of_the_short_form_shows_what_became_of_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "--model_name_or_path model --dataset_name prompts.jsonl --multimodal_keys text,image --epochs 7 --dry-run"
    assert main([*short.split(), "--rollout-batch-size", "10", "--n-samples-per-prompt", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["data"]["multimodal_keys"] == {
        "value": {"image": "images"},
        "origin": "alias --multimodal_keys",
    }
    assert report["config"]["reward"]["rm_type"] == {"value": "math", "origin": "derived"}
    assert report["batches"]["rollouts"] == 7


WRONG: dict[str, tuple[list[str], str]] = {
    "a missing model folder": (argv(hf_checkpoint="modle"), "--hf-checkpoint modle is not a model folder"),
    "the nearest folder is named": (argv(hf_checkpoint="modle"), "has 'model'"),
    "a folder that is no model": (argv(hf_checkpoint="."), "--hf-checkpoint . holds no config.json"),
    "a missing reference": (argv(ref_load="./ref"), "--ref-load ./ref is not a model folder"),
    "missing prompts": (argv(prompt_data="prompt.jsonl"), "prompt.jsonl"),
    "a file where a folder must be": (argv(save="prompts.jsonl"), "--save prompts.jsonl must be a folder"),
    "a missing interpreter": (
        [*argv(sglang_python="/nowhere/python"), "--rollout-backend", "sglang"],
        "--sglang-python /nowhere/python is not a Python interpreter",
    ),
    "another model's script": ([*argv(), "--num-layers", "36"], "--num-layers 36: config.json has 2"),
    "a missing prompt column": (argv(input_key="promt"), "--input-key promt: prompts.jsonl has the columns prompt"),
    "a missing label column": (argv(label_key="answer"), "--label-key answer: prompts.jsonl has the columns"),
    "a missing media column": (
        [*argv(), "--multimodal-keys", '{"image": "image"}'],
        "--multimodal-keys image: prompts.jsonl has the columns prompt, label, images; did you mean images?",
    ),
    "an unknown reward": (argv(rm_type="maths"), "--rm-type maths is no built-in reward: did you mean math?"),
    "no reward": (argv(rm_type=None), "no reward is named"),
    "a missing evaluation set": (
        argv(eval_interval="1", eval_prompt_data="gone.jsonl"),
        "gone.jsonl",
    ),
    "messages without a template": (argv()[:-1], "needs a chat template to become text: add --apply-chat-template"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_ends_with_two_and_a_message(name: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, text = WRONG[name]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ConfigError: ")
    assert text in captured.err


def test_a_dry_run_describes_a_model_of_a_hub_that_cannot_be_asked(work: Path) -> None:
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(work / "cache"), "PYTHONPATH": str(ROOT)}
    words = argv(hf_checkpoint="Qwen/Qwen3-0.6B")
    dry = run("-m", "relax.entrypoints.train", *words, "--dry-run", cwd=work, **environment)
    assert dry.returncode == 0
    (note,) = [note for note in json.loads(dry.stdout)["notes"] if "Hub" in note]
    assert note.startswith("would not start now: --hf-checkpoint Qwen/Qwen3-0.6B is neither a folder here nor a model")
    start = run("-m", "relax.entrypoints.train", *words, cwd=work, **environment)
    assert (start.returncode, start.stdout) == (5, "")
    assert "The hub cannot be asked" in start.stderr


def test_a_reward_may_be_named_by_the_rows(work: Path) -> None:
    (work / "prompts.jsonl").write_text(json.dumps(ROW | {"metadata": {"rm_type": "math"}}) + "\n")
    assert main([*argv(rm_type=None, num_epoch="8"), "--dry-run"]) == 0


def test_a_bad_row_ends_with_two_and_its_place(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "prompts.jsonl").write_text("{broken\n")
    assert main([*argv(), "--dry-run"]) == 2
    assert "prompts.jsonl:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "kept"), [("http://127.0.0.1:8265", False), ("127.0.0.1:6379", True), ("auto", True), (None, False)]
)
def test_a_job_address_is_not_given_to_ray(address: str | None, kept: bool) -> None:  # C25
    environment = {} if address is None else {"RAY_ADDRESS": address}
    notes = list(drop_job_address(environment))
    assert ("RAY_ADDRESS" in environment) == kept
    assert [note.split("=")[1].split()[0] for note in notes] == ([address] if address and not kept else [])


def test_a_reader_that_stops_early_is_no_error(work: Path) -> None:
    command = f"{sys.executable} {ROOT / 'train.py'} {' '.join(argv())} --dry-run | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=work, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_distillation_is_shown_with_its_teacher(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*argv(), "--algorithm", "Distillation", "--teacher-hf-checkpoint", "model"]
    assert main([*words, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)["config"]["distillation"]
    assert shown["use_opd"] == {"value": True, "origin": "alias --algorithm"}
    assert shown["opd_type"] == {"value": "sglang", "origin": "derived"}
    assert shown["opd_kl_coef"] == {"value": 1.0, "origin": "derived"}
