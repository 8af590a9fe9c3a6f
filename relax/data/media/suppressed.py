# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Ids of a model folder that are never sampled. `python -m relax.data.media.suppressed FOLDER` prints them."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def suppressed_ids_of(folder: Path) -> tuple[int, ...]:
    """Placeholder, start and end ids of every medium; empty for a text-only model."""
    from relax.data.media.processing import MediaProcessor
    from relax.data.model_files import load_processor, load_tokenizer

    return MediaProcessor(load_processor(folder), tokenizer=load_tokenizer(folder)).suppressed_ids


if __name__ == "__main__":
    print(json.dumps(suppressed_ids_of(Path(sys.argv[1]))))
