# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every training script trains two steps as it stands, with tiny models in MODEL_DIR and slots instead of GPUs.

What is given besides: batch sizes, and one card for each role of the script's own `--resource`. All scripts run one
after the other on one Ray that `local.sh` starts. Where Qwen3.5-9B is expected, a Qwen3-VL stands in: the native
engine has no linear attention, which Qwen3.5 needs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import ROOT, Finished

pytestmark = [pytest.mark.slow, pytest.mark.service]

TRAINING = sorted(path for kind in ("text", "multimodal") for path in (ROOT / "scripts/training" / kind).glob("*.sh"))
MODELS = {  # folder: kind of the tiny model, model files that describe it
    "Qwen3-4B": ("qwen3", ("qwen3-4B",)),
    "Qwen3-VL-4B-Instruct": ("qwen3_vl", ("qwen3-vl-4B",)),
    "Qwen3.5-9B": ("qwen3_vl", ("qwen35-9B",)),
    "Qwen3-Omni-30B-A3B-Instruct": ("qwen3_omni_moe", ("qwen3-30B-A3B-omni",)),
}
SMALL = """
    --num-rollout 2 --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4 --rollout-max-response-len 4
    --rollout-num-gpus-per-engine 1 --expert-model-parallel-size 1 --no-use-tensorboard --serve-port 0
""".split()  # noqa: SIM905
SMALL_EVALUATION = ["--eval-interval", "2", "--eval-max-response-len", "4", "--n-samples-per-eval-prompt", "1"]


def prepare(folder: Path) -> None:
    """Models, model files and data under the names that the scripts expect."""
    (folder / "model_files").mkdir()
    for name, (kind, files) in MODELS.items():
        model = build_tiny_model_folder(folder / name, kind)
        for file in files:
            tool = [sys.executable, ROOT / "scripts/tools/make_model_args.py", model, "-o"]
            subprocess.run([*map(str, tool), folder / "model_files" / f"{file}.sh"], check=True, capture_output=True)
    sums = [row(f"{a} + {b}?", str(a + b)) for a in range(4) for b in range(4)]
    write(folder / "dapo-math-17k/dapo-math-17k.jsonl", sums)
    write(folder / "aime-2024/aime-2024.jsonl", sums[:2])
    write_media(folder / "media")
    image, audio = [str(folder / "media/a.png")], [str(folder / "media/a.wav")]
    seen = [row(f"<image>{n}?", "<answer>B</answer>", image=image) for n in range(8)]
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "multimodal-open-r1-8k-verified/data/train-00000-of-00001-test.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(seen), path)
    heard = [row(f"<image><audio>{n}?", "<answer>B</answer>", image=image, audio=audio) for n in range(8)]
    write(folder / "AVQA-R1-6K/AVQA_R1/train/omni_rl_format_train_test.jsonl", heard)
    film = [str(folder / "media/a.mkv")]
    write(folder / "NextQA/train.jsonl", [row(f"<video>{n}?", "B", video=film) for n in range(8)])


def row(text: str, label: str, **media: list[str]) -> dict[str, object]:
    return {"prompt": [{"role": "user", "content": text}], "label": label, **media}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True)
    write_jsonl(path, rows)


def write_media(folder: Path) -> None:
    import av
    from PIL import Image

    folder.mkdir()
    random = np.random.RandomState(0)
    Image.fromarray(random.randint(0, 255, (40, 48, 3), dtype=np.uint8)).save(folder / "a.png")
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes((1000 * np.sin(np.arange(4000) / 9)).astype("<i2").tobytes())
    with av.open(str(folder / "a.mkv"), "w") as film:
        stream = film.add_stream("ffv1", rate=4)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in range(8):
            picture = random.randint(0, 255, (32, 32, 3), dtype=np.uint8)
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        film.mux(stream.encode(None))


def flags_for(script: Path) -> list[str]:
    """The script's roles with one card each, and small batches."""
    text = script.read_text()
    roles = json.loads(re.search(r"--resource '(.*)'", text)[1])  # type: ignore[index]
    resource = {role: [1, min(cards, 1)] for role, (_, cards) in roles.items()}
    return [*SMALL, *(SMALL_EVALUATION if "VAL_ARGS" in text else ()), "--resource", json.dumps(resource)]


def test_every_training_script_trains_two_steps(tmp_path: Path) -> None:
    prepare(tmp_path)
    lines = ["set -u"]
    for script in TRAINING:
        words = " ".join(f"'{word}'" for word in flags_for(script))
        log = tmp_path / f"{script.stem}.log"
        lines.append(f"EXP_DIR={tmp_path}/out/{script.stem} bash {script} {words} >{log} 2>&1; echo $? >>{log}")
    (tmp_path / "all.sh").write_text("\n".join(lines) + "\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RELAX_ENTRYPOINT")}
    (ray_folder := Path(f"/var/tmp/rlxs-{os.getpid()}")).mkdir()
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
        "RAY_TMPDIR": str(ray_folder),
        "MODEL_DIR": str(tmp_path),
        "DATA_DIR": str(tmp_path),
        "MODEL_CONFIG_DIR": str(tmp_path / "model_files"),
    }
    with open(tmp_path / "all.log", "wb") as log:
        done = subprocess.run(
            ["bash", str(ROOT / "scripts/entrypoint/local.sh"), str(tmp_path / "all.sh")],
            env=environment, stdout=log, stderr=log, timeout=1500, cwd=ROOT,
        )  # fmt: skip
    subprocess.run(["rm", "-rf", str(ray_folder)], check=False)
    assert done.returncode == 0, (tmp_path / "all.log").read_text(errors="replace")[-3000:]
    failed = []
    for script in TRAINING:
        text = (tmp_path / f"{script.stem}.log").read_text(errors="replace")
        if not text.rstrip().endswith("\n0") or "step 2/2" not in text:
            failed.append(f"{script.stem}: {text[-1500:]}")
    assert not failed, "\n\n".join(failed)
    for script in TRAINING:
        (folder,) = {path.parent.parent for path in (tmp_path / "out" / script.stem).glob("*/*/journal/driver.jsonl")}
        assert Finished(folder, 0, "", "").reason == "finished"
