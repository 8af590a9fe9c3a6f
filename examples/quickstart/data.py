# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Real data in files: handwritten digits (images), spoken digits (audio), sums (text).

    data/{modality}-train.jsonl, data/{modality}-heldout.jsonl     {"prompt": ..., "image": [...], "label": "7"}
    data/images/*.png, data/audio/*.wav

Images: the UCI handwritten digits inside scikit-learn, 1,400 to train on and 397 that training never sees. Audio: ten
recordings of one speaker; "held-out" clips are new variations of the same recordings, so they show learning, not that
other speakers would be understood. Text: a + b; 15 % of the pairs are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from relax.utils.jsonl import JsonlWriter

RECORDINGS = Path(__file__).parent / "audio"
TRAIN_IMAGES = 1400
IMAGE_SIZE = 32  # pixels
TRAIN_CLIPS, HELDOUT_CLIPS = 1500, 500
SAMPLE_RATE = 16_000  # Hz, of the clips written
CLIP_SECONDS = 1.0
SUM_LIMIT = 30  # a, b < SUM_LIMIT

Row = dict[str, Any]


def write_data(modality: str, folder: Path) -> tuple[Path, Path]:
    """Write the data set of `modality`; return the paths of its training and held-out rows."""
    train, heldout = WRITERS[modality](folder)
    return _write_rows(folder / f"{modality}-train.jsonl", train), _write_rows(
        folder / f"{modality}-heldout.jsonl", heldout
    )


def _write_rows(path: Path, rows: Iterable[Row]) -> Path:
    path.unlink(missing_ok=True)
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return path


def image_rows(folder: Path) -> tuple[list[Row], list[Row]]:
    """Digit images as PNG files; the split is by image."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    pixels = (digits.images * 15.9375).astype(np.uint8)  # 0 .. 16 -> 0 .. 255
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for place, number in enumerate(order.tolist()):
        path = folder / "images" / f"{place:04d}.png"
        image = Image.fromarray(pixels[number]).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
        image.convert("RGB").save(path)
        rows.append(_row("<image>", str(digits.target[number]), image=[str(path.relative_to(folder))]))
    return rows[:TRAIN_IMAGES], rows[TRAIN_IMAGES:]


def audio_rows(folder: Path) -> tuple[list[Row], list[Row]]:
    """Variations of ten recordings as 16 kHz WAV files."""
    import soundfile

    recordings = [_read_recording(digit) for digit in range(10)]
    (folder / "audio").mkdir(parents=True, exist_ok=True)

    def clips(split: str, number: int, seed: int) -> list[Row]:
        random = np.random.RandomState(seed)
        rows = []
        for place in range(number):
            path = folder / "audio" / f"{split}-{place:04d}.wav"
            soundfile.write(path, vary(recordings[place % 10], random), SAMPLE_RATE, subtype="PCM_16")
            rows.append(_row("<audio>", str(place % 10), audio=[str(path.relative_to(folder))]))
        return rows

    return clips("train", TRAIN_CLIPS, 1), clips("heldout", HELDOUT_CLIPS, 2)


def _read_recording(digit: int) -> np.ndarray:
    import soundfile

    samples, rate = soundfile.read(RECORDINGS / f"{digit}.wav", dtype="float32")
    if rate != 8000 or samples.ndim != 1:
        raise ValueError(f"{RECORDINGS / f'{digit}.wav'}: expected 8 kHz mono, got {rate} Hz, shape {samples.shape}")
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    return samples[max(0, loud[0] - 200) : loud[-1] + 200]


def vary(recording: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """One second at 16 kHz: speed and pitch +-12 %, loudness, position, noise 20 to 35 dB below the voice."""
    from scipy.signal import resample

    length = int(SAMPLE_RATE * CLIP_SECONDS)
    voice = np.asarray(resample(recording, int(len(recording) * 2 * random.uniform(0.88, 1.12))))[:length]
    start = random.randint(0, length - len(voice) + 1)
    clip = np.zeros(length, np.float32)
    clip[start : start + len(voice)] = voice * random.uniform(0.5, 1.0) / max(1e-6, float(np.abs(voice).max()))
    noise = np.sqrt((voice**2).mean()) * 10 ** (-random.uniform(20, 35) / 20)
    return np.clip(clip + random.randn(length) * noise, -1.0, 1.0).astype(np.float32)


def text_rows(folder: Path) -> tuple[list[Row], list[Row]]:
    """Sums of two numbers; 15 % of the ordered pairs are held out."""
    held = np.random.RandomState(777).rand(100, 100) < 0.15
    rows: tuple[list[Row], list[Row]] = ([], [])
    for a in range(SUM_LIMIT):
        for b in range(SUM_LIMIT):
            rows[int(held[a, b])].append(_row(f"{a}+{b}=", str(a + b)))
    return rows


def _row(content: str, label: str, **media: list[str]) -> Row:
    return {"prompt": [{"role": "user", "content": content}], **media, "label": label}


WRITERS: dict[str, Callable[[Path], tuple[list[Row], list[Row]]]] = {
    "image": image_rows,
    "audio": audio_rows,
    "text": text_rows,
}


def wrong_answer(modality: str, label: str) -> str:
    """The systematic error of a wrong demonstration: one too many (digits wrap at 9)."""
    return str(int(label) + 1) if modality == "text" else str((int(label) + 1) % 10)
