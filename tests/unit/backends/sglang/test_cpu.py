# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The parts of the CPU launcher that run without SGLang."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import mmh3
import numpy as np
import torch

import relax.backends.sglang.cpu as package
from relax.backends.sglang.cpu.hashing import murmur_hash32
from relax.backends.sglang.cpu.shims import resample

FOLDER = Path(package.__file__).parent


def test_the_hash_is_murmur3_of_seed_position_and_column():
    seeds, positions, columns = (
        [0, 1, 42, (1 << 63) - 1, 1 << 33],
        [0, 7, 123_456, (1 << 31) - 1, 5],
        [0, 1, 319, 99_999],
    )
    got = murmur_hash32(torch.tensor(seeds), torch.tensor(positions), torch.tensor(columns))
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for place, column in enumerate(columns):
            key = struct.pack("<qii", seed, position, column)
            assert got[row, place].item() == mmh3.hash(key, seed=0, signed=False)


def test_resampling_keeps_a_tone():
    """A 200 Hz sine at 8 kHz, asked for at 16 kHz, is the same sine sampled twice as often."""
    low = np.sin(2 * np.pi * 200 * np.arange(4000) / 8000)
    high = np.sin(2 * np.pi * 200 * np.arange(8000) / 16000)
    got = resample(torch.tensor(low), 8000, 16000).numpy()
    assert got.dtype == np.float32 and len(got) == 8000
    assert np.abs(got - high)[200:-200].max() < 5e-3


PROBE = """
import importlib.metadata, sys
for name in [name for name in sys.modules if name.split(".")[0] == "relax"]:
    del sys.modules[name]  # of an environment that Relax is installed in
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("relax")]
runpy = __import__("runpy")
runpy.run_path({launch!r}, run_name="__mp_main__")
import relax, torch
points = importlib.metadata.entry_points(group="sglang.srt.platforms")
(point,) = [p for p in points if p.name == "relax_cpu"]
print(point.load()())
print(torch.__version__.startswith(importlib.metadata.version("torch")))
print(torch.zeros(2, pin_memory=True).tolist(), torch.ones(1).pin_memory().tolist())
import torchaudio.functional
print(torchaudio.functional.resample.__module__, any("backends/sglang" in p for p in sys.path))
"""


def test_a_worker_that_runs_the_launcher_sees_the_platform_without_an_installed_plug_in(tmp_path):
    """Started as in an environment without Relax, with CUDA hidden."""
    code = PROBE.format(launch=str(FOLDER / "launch.py"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "relax.backends.sglang.cpu.platform.RelaxCpuPlatform",
        "True",
        "[0.0, 0.0] [1.0]",
        "relax.backends.sglang.cpu.shims False",
    ]


def test_the_launcher_imports_nothing_of_relax_that_needs_its_requirements():
    """SGLang's environment has torch and scipy but none of Relax's other requirements at the versions it wants."""
    for name in ("aiohttp", "transformers", "ray", "sglang"):
        for file in ("launch", "entry_point", "shims", "hashing"):
            lines = (FOLDER / f"{file}.py").read_text().splitlines()
            assert not [line for line in lines if line.startswith((f"import {name}", f"from {name}"))]
