# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules between flags. Each rule only rejects; all that are broken are told together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.run import RunConfig


def check_run(config: RunConfig) -> None:
    """Raise ConfigError with every broken rule."""
    missing = [name for name in ("hf_checkpoint", "prompt_data", "rollout_batch_size") if config.value(name) is None]
    if missing:
        raise ConfigError("missing flags: " + ", ".join("--" + name.replace("_", "-") for name in missing))
