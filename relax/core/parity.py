# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The comparison of engine and trainer, from a configuration. Imported by the actor's process only."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from relax.config.run import RunConfig
from relax.core.build import media_options, suppressed_ids
from relax.data.media.processing import MediaProcessor
from relax.engine.parity.diagnose import Facts
from relax.engine.parity.gate import ParityGate, ParitySettings
from relax.engine.parity.variants import Vocabulary


def build_parity(config: RunConfig) -> ParityGate:
    train, rollout = config.train, config.rollout
    settings = ParitySettings(
        interval=train.parity_interval,
        limit=train.parity_limit,
        policy=train.parity_policy,  # type: ignore[arg-type]
        max_staleness=config.cluster.max_staleness,
        same_forward=rollout.rollout_backend == "native" and rollout.rollout_dtype == train.train_dtype,
    )
    return ParityGate(settings, functools.partial(parity_facts, config))


def parity_facts(config: RunConfig) -> Facts:
    ids = suppressed_ids(config)
    folder = Path(config.checkpoint.hf_checkpoint)  # type: ignore[arg-type]
    return Facts(
        temperature=config.rollout.rollout_temperature,
        suppressed_ids=ids,
        model_suppressed_ids=ids,
        dtype=config.train.train_dtype,  # type: ignore[arg-type]
        open_vocabulary=functools.partial(vocabulary, config),
        truncations=generation_defaults(folder),
    )


def vocabulary(config: RunConfig) -> Vocabulary | None:
    """Tokenizer and processor of the model's folder; None without a tokenizer."""
    from relax.backends.native.build import load_processor, load_tokenizer

    folder = Path(config.checkpoint.hf_checkpoint)  # type: ignore[arg-type]
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        return None
    processor = MediaProcessor(load_processor(folder), media_options(config), tokenizer=tokenizer)
    return Vocabulary(
        tokenizer.get_vocab(),
        bos_id=tokenizer.bos_token_id,
        placeholder_ids=frozenset(processor.placeholder_ids.values()),
        media_ids=frozenset(processor.suppressed_ids),
    )


def generation_defaults(folder: Path) -> tuple[tuple[float, int], ...]:
    """The (top_p, top_k) that the model's own generation_config.json suggests, which some engines take by default."""
    path = folder / "generation_config.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    pair = (float(found.get("top_p") or 1.0), int(found.get("top_k") or -1))
    return () if pair == (1.0, -1) else (pair,)
