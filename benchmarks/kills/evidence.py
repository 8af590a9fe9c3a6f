# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a line of runs should have trained, from the data set, and what it has trained, by the trainer's own account.

The account lies with the weights of a checkpoint: it goes where the weights go, and neither the driver's journal nor
its list of open prompts has a part in it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.utils.types import Sample

# Of the data set: prompts are met again in a second epoch, and those drawn in place of forgotten ones are others.
ROWS = 11


def remainder_reward(args: Any, sample: Sample, **_: Any) -> float:
    """Differs between samples, and is a function of their tokens alone."""
    return float(sum(sample.tokens[sample.prompt_length :]) % 7)


@dataclass(frozen=True)
class Inputs:
    """One model and one data set for all runs of the harness."""

    model: Path
    prompts: Path


def make_inputs(folder: Path) -> Inputs:
    """An untrained tiny model of the quick start, and sums that are all different."""
    from examples.quickstart.model import build_model

    model, prompts = folder / "model", folder / "prompts.jsonl"
    if not prompts.exists():
        build_model(model, seed=0, layers=1)
        prompts.write_text("".join(json.dumps({"input": text}) + "\n" for text in texts()))
    return Inputs(model, prompts)


def texts() -> list[str]:
    return [f"What is {number} plus {7 * number % 10}?" for number in range(ROWS)]


def expected(inputs: Inputs, groups: int) -> Counter[int]:
    """{hash of the prompt's tokens: how often} over the first `groups` draws of an unshuffled run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inputs.model)
    hashes = []
    for text in texts():
        tokens = np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], "<i4")
        hashes.append(int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest(), "little"))
    if len(set(hashes)) != ROWS:
        raise SystemExit("two prompts of the harness have the same tokens")
    return Counter(hashes[draw % ROWS] for draw in range(groups))


@dataclass(frozen=True)
class Count:
    """Prompts of one line of runs."""

    lost: int  # expected, not trained
    doubled: int  # trained more often than expected


def count(checkpoint: Path, wanted: Counter[int], samples: int) -> Count:
    """Compare a checkpoint's own account with what should be in it. A group counts by its samples."""
    rows = np.concatenate([np.load(path) for path in sorted((checkpoint / "model").glob("trained-*.npy"))])
    got: Counter[int] = Counter()
    for group in np.unique(rows["group"]):
        own = rows[rows["group"] == group]
        whole, rest = divmod(int(own["samples"].sum()), samples)
        got[int(own["prompt"][0])] += whole + bool(rest)
    return Count((wanted - got).total(), (got - wanted).total())


def weight_hash(checkpoint: Path) -> str:
    """Of all float32 weights of a checkpoint, by name."""
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    folder = checkpoint / "model"
    shapes = json.loads((folder / "relax.json").read_text())["shapes"]
    state = {f"model.{name}": torch.zeros(shape) for name, shape in sorted(shapes.items())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on single-process use
        dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
