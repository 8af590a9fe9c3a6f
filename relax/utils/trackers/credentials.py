# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether a tracker could log in from here. Without a key its rows are kept on the disk, to be sent later."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

WANDB_HOST = "https://api.wandb.ai"
OFFLINE = ("1", "true", "yes", "on", "y")


def wandb_mode(given: str | None, host: str | None, environment: Mapping[str, str]) -> str:
    """--wandb-mode, else WANDB_MODE, else online where a key is found and offline where none is."""
    chosen = given or environment.get("WANDB_MODE")
    return chosen or ("online" if has_wandb_key(host, environment) else "offline")


def has_wandb_key(host: str | None, environment: Mapping[str, str]) -> bool:
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    address = urlsplit(host or environment.get("WANDB_BASE_URL") or WANDB_HOST).hostname or ""
    path = Path(environment.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(path).authenticators(address) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def clearml_offline(environment: Mapping[str, str]) -> bool:
    """CLEARML_OFFLINE_MODE, else whether neither keys nor a configuration file are found."""
    chosen = environment.get("CLEARML_OFFLINE_MODE")
    if chosen is not None:
        return chosen.lower() in OFFLINE
    file = Path(environment.get("CLEARML_CONFIG_FILE") or "~/clearml.conf").expanduser()
    return not (environment.get("CLEARML_API_ACCESS_KEY") or file.is_file())
