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
        None,
        help="Folder of TensorBoard files, and the project in ClearML.",
        shown="tensorboard below the run folder; project relax",
    )
    tb_experiment_name: str | None = flag(
        None, help="Name of the run: below that folder, in Weights & Biases and in ClearML.", shown="run_name"
    )
    use_wandb: bool = flag(False, help="Send metrics to Weights & Biases (extra: wandb).")
    wandb_mode: str | None = flag(
        None,
        choices=("online", "offline", "disabled"),
        help="Send rows, or keep them for `wandb sync`.",
        shown="WANDB_MODE, else online where a key is found and offline where none is",
    )
    wandb_project: str | None = flag(None, help="Project there.", shown="relax")
    wandb_team: str | None = flag(None, help="Team (entity) there.", shown="that of the key")
    wandb_group: str | None = flag(None, help="Group of runs there.")
    wandb_run_id: str | None = flag(
        None, help="Run there that this one goes on in.", shown="a new one, which a resume in the same folder keeps"
    )
    wandb_host: str | None = flag(None, help="Address of the server.", shown="WANDB_BASE_URL, else api.wandb.ai")
    wandb_dir: str | None = flag(None, help="Folder of its files.", shown="the run folder")
    use_clearml: bool = flag(False, help="Send metrics to ClearML (extra: clearml); without keys they are kept.")
    use_metrics_service: bool | None = flag(
        None,
        help="Collect metrics from all roles over HTTP and answer for them at /metrics.",
        shown="on with --serve-http, off with --inline",
    )
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
