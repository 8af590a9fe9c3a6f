# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether folders of further models (teacher, judges) are there and fit, without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from relax.config.external.describe import text_config
from relax.config.files import missing_path
from relax.config.flags import option_name
from relax.config.genrm_checks import judges
from relax.config.run import RunConfig


def judge_problems(config: RunConfig) -> Iterator[str]:
    """A judge's folder that is missing."""
    for judge in judges(config):
        if not (Path(judge.model_path).expanduser() / "config.json").is_file():
            yield missing_path(
                judge.model_path, "genrm_model_path", "a Hugging Face model folder (with a config.json)"
            )


def teacher_problems(config: RunConfig) -> Iterator[str]:
    """A teacher's folder that is missing, or whose ids mean other tokens than the student's."""
    opd = config.distillation
    for name in ("opd_teacher_load", "teacher_hf_checkpoint"):
        path = config.value(name)
        if not opd.use_opd or path is None:
            continue
        folder, student = Path(path).expanduser(), Path(config.checkpoint.hf_checkpoint or "").expanduser()
        if not (folder / "config.json").is_file():
            yield missing_path(path, name, "a Hugging Face model folder (with a config.json)")
        else:
            yield from _vocabulary(option_name(name), folder, student)


def _vocabulary(flag: str, folder: Path, student: Path) -> Iterator[str]:
    sizes = [_size(place) for place in (folder, student)]
    if sizes[0] is not None and sizes[1] is not None and sizes[0] < sizes[1]:
        yield (
            f"{flag} {folder} knows {sizes[0]} token ids, --hf-checkpoint has {sizes[1]}: a teacher must give a "
            "log-prob to every id of the student"
        )
    words = [_words(place) for place in (folder, student)]
    if words[0] and words[1]:
        wrong = [word for word, number in words[1].items() if words[0].get(word) != number]
        if wrong:
            word = min(wrong, key=words[1].__getitem__)
            yield (
                f"{flag} {folder} has another tokenizer than --hf-checkpoint: {len(wrong)} of {len(words[1])} tokens "
                f"have other ids, for example {word!r} {words[0].get(word)} there and {words[1][word]} here"
            )


def _size(folder: Path) -> int | None:
    try:
        return text_config(json.loads((folder / "config.json").read_text("utf-8"))).get("vocab_size")
    except (OSError, ValueError, AttributeError):  # told by the model's own check, or by the loader
        return None


def _words(folder: Path) -> dict[str, int]:
    """{token: id} of a fast tokenizer's file; {} where there is none."""
    try:
        content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    except (OSError, ValueError):  # as above
        return {}
    vocabulary = content.get("model", {}).get("vocab", {})
    return vocabulary if isinstance(vocabulary, dict) else {}
