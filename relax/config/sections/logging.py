# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a run tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, flag


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Section):
    """Metrics, dumps and the view that user hooks get."""

    use_tensorboard: bool = flag(True, help="Write TensorBoard files.")
    tb_project_name: str | None = flag(
        None, help="Folder of TensorBoard files.", shown="tensorboard below the run folder"
    )
    tb_experiment_name: str | None = flag(None, help="Name of the run below that folder.", shown="run_name")
    use_wandb: bool = flag(False, help="Log to Weights & Biases.")
    wandb_project: str | None = flag(None, help="Project there.", shown="relax")
    wandb_dir: str | None = flag(None, help="Folder of its files.", shown="the run folder")
    log_passrate: bool = flag(False, help="Log pass@k of evaluations.")
    dump_details: str | None = flag(
        None,
        help="Folder for rollout_data/N.safetensors (samples of round N as released) and train_data/N.safetensors "
        "(the same with the columns that roles added).",
    )
    rollout_result_dir: str | None = flag(
        None,
        help="Folder of readable samples, one line each; an empty text switches them off.",
        shown="rollout_result below the run folder",
    )
    custom_config_path: str | None = flag(None, help="YAML file whose keys user hooks read as attributes of args.")
