# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The flags of every supervised training script train two steps with tiny models, in one process.

What is given besides: batch sizes, and one card for each role of the script's own `--resource`. Data is in the form of
the data sets themselves: text columns, image structs with `<image>` at the end, classes made by the prepare tool.
Where Qwen3.5 is expected, a Qwen3 stands in: the native engine, which predicts here, has no linear attention.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_tiny_model_folder
from tests.service.training_run import ROOT, Finished, inline
from tests.unit.backends.fsdp.mtp_models import with_mtp

pytestmark = pytest.mark.service

SFT, EXAMPLE = ROOT / "scripts/training/sft", ROOT / "examples/seq_cls_sft"
SCRIPTS = [*sorted(SFT.glob("run-*.sh")), *sorted(EXAMPLE.glob("run-*.sh"))]
MODEL_FILES = {"qwen3.5-9B": "Qwen3.5-9B", "qwen3-vl-4B": "Qwen3-VL-4B-Instruct", "qwen3.5-35B-A3B": "Qwen3.5-35B-A3B"}
SMALL = """
    --num-rollout 2 --global-batch-size 4 --max-tokens-per-gpu 256 --num-data-storage-units 1
    --expert-model-parallel-size 1 --no-use-tensorboard --serve-port 0 --save-interval 2 --eval-interval 2
""".split()  # noqa: SIM905
SMALL_PREDICTIONS = [
    "--sft-predict-interval",
    "2",
    "--eval-max-response-len",
    "4",
    "--rollout-num-gpus-per-engine",
    "1",
]


def prepare(folder: Path) -> None:
    """Models, model files and data under the names that the scripts expect."""
    (folder / "model_files").mkdir()
    build_tiny_model_folder(folder / "Qwen3.5-9B")
    build_tiny_model_folder(folder / "Qwen3-VL-4B-Instruct", "qwen3_vl")
    with_mtp(folder).rename(folder / "Qwen3.5-35B-A3B")
    for file, model in MODEL_FILES.items():
        tool = [sys.executable, ROOT / "scripts/tools/make_model_args.py", folder / model, "-o"]
        subprocess.run([*map(str, tool), folder / "model_files" / f"{file}.sh"], check=True, capture_output=True)
    sums = [{"problem": f"{a} + {b}?", "generated_solution": str(a + b)} for a in range(6) for b in range(6)]
    write(folder / "sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet", sums)
    for language in ("en", "zh"):
        captions = [caption(n, f"It is {n}. ({language})") for n in range(12)]
        write(folder / f"sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_{language}.parquet", captions)
    films = [{"idx": n, "sentence": f"film {n}", "label": n % 2} for n in range(300)]
    feelings = [{"text": f"feeling {n}", "labels": [n % 28], "id": str(n)} for n in range(300)]
    for split in ("train", "validation"):
        write(folder / f"source/sst2/data/{split}-00000-of-00001.parquet", films)
        write(folder / f"source/go_emotions/simplified/{split}-00000-of-00001.parquet", feelings)
    for name in ("sst2", "go_emotions"):
        words = f"--dataset {name} --subset smoke --global-batch-size 4 --output-dir {folder}/sft/seq_cls"
        tool = EXAMPLE / "tools/prepare_classification_sft_data.py"
        command = [sys.executable, str(tool), *words.split(), "--source-dir", str(folder / "source")]
        subprocess.run(command, check=True, capture_output=True)


def caption(number: int, text: str) -> dict[str, Any]:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (48, 40), (20 * number, 30, 200 - 10 * number)).save(out, "PNG")
    turns = [{"from": "human", "value": "What is this?<image>"}, {"from": "gpt", "value": text}]
    return {"conversations": turns, "images": [{"bytes": out.getvalue(), "path": None}]}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("workspace")
    prepare(made)
    return made


def flags_for(script: Path) -> list[str]:
    """The script's roles with one card each, and small batches."""
    text = script.read_text()
    roles = json.loads(re.search(r"--resource '(.*)'", text)[1])  # type: ignore[index]
    resource = json.dumps({role: [1, min(cards, 1)] for role, (_, cards) in roles.items()})
    return [*SMALL, *(SMALL_PREDICTIONS if "PREDICT_ARGS" in text else ()), "--resource", resource]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_flags_of_a_script_train_two_steps_in_one_process(script: Path, folder: Path, tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[2:]))\n")
    stand_in.chmod(0o755)
    told = {"DATA_SUBSET": "smoke", "PYTHON": str(stand_in)}
    paths = {"MODEL_DIR": folder, "DATA_DIR": folder, "EXP_DIR": tmp_path, "MODEL_CONFIG_DIR": folder / "model_files"}
    done = subprocess.run(
        ["bash", str(script), "--dry-run", *flags_for(script)],
        env={**os.environ, **told, **{name: str(path) for name, path in paths.items()}},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    flags = [word for word in json.loads(done.stdout) if word != "--dry-run"]
    finished = inline(flags).ok()
    assert len(finished.metrics("train/loss")) == 2
    predicts = "PREDICT_ARGS" in script.read_text()
    assert bool(list(finished.folder.glob("predict/predictions_step_*.jsonl"))) == predicts


@pytest.mark.slow
def test_the_script_for_one_card_trains_as_a_job_on_a_ray_of_its_own(folder: Path, tmp_path: Path) -> None:
    script = SFT / "run-qwen3-vl-4B-pokemon-1xgpu.sh"
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RELAX_ENTRYPOINT")}
    (ray_folder := Path(f"/var/tmp/rlxs-{os.getpid()}")).mkdir()
    paths = {"MODEL_DIR": folder, "DATA_DIR": folder, "EXP_DIR": tmp_path, "MODEL_CONFIG_DIR": folder / "model_files"}
    told = {"NUM_GPUS": "1", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(ray_folder)}
    try:
        done = subprocess.run(
            ["bash", str(script), *flags_for(script)],
            env={**kept, **told, **{name: str(path) for name, path in paths.items()}},
            capture_output=True, text=True, timeout=900, cwd=ROOT,
        )  # fmt: skip
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "starting Ray on this machine with 1 cards" in done.stderr
    assert "relax: job relax-" in done.stderr
    assert "step 2/2" in done.stdout
    (run,) = {path.parent.parent for path in tmp_path.glob("*/*/journal/driver.jsonl")}
    assert Finished(run, 0, "", "").reason == "finished"
