# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where weights come from and where they are kept."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, at_least, flag


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    """Models, checkpoints and exports."""

    hf_checkpoint: str | None = flag(
        None,
        help="Hugging Face folder (or hub name) of tokenizer, processor and configuration; engines start from it.",
    )
    ref_load: str | None = flag(
        None, help="Reference model; initial weights where --load holds no checkpoint.", shown="hf_checkpoint"
    )
    load: str | None = flag(
        None, help="Run folder to resume from; without a checkpoint in it, training starts at --ref-load."
    )
    save: str | None = flag(
        None, help="Run folder: checkpoints, trace, journal and logs.", shown="runs/{run_name}-{time}-{id}"
    )
    save_interval: int | None = flag(
        None,
        help="Rollouts between two checkpoints (optimizer steps in SFT); the last is always written.",
        check=at_least(1),
    )
    exit_save_timeout: float = flag(
        120.0,
        help="Seconds that a run which a signal or a failure ends may take for a checkpoint of its last finished "
        "rollout; 0 writes none.",
        check=at_least(0),
    )
    save_hf: str | None = flag(
        None,
        help="Folder of a Hugging Face export, made when checkpoints are; {rollout_id} becomes the round's number.",
    )
