# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag


@dataclass(frozen=True, kw_only=True)
class MtpConfig(Section):
    """MTP: layers of the checkpoint that predict the token after the next."""

    enable_mtp_training: bool = flag(False, help="Train the MTP layers of the checkpoint with the model.")
    mtp_num_layers: int | None = flag(None, help="MTP layers to train, at most those of the model.", check=at_least(1))
    mtp_loss_scaling_factor: float = flag(0.2, help="Weight of the MTP loss beside the main one.", check=above(0))
    mtp_detach_paths: tuple[str, ...] = flag(
        ("embedding", "backbone", "lm-head"),
        choices=("embedding", "backbone", "lm-head", "none"),
        help="Where the MTP loss does not reach the model: none trains all of it.",
    )
    mtp_only_training: bool = flag(False, help="Train the MTP layers and nothing else (SFT).")
