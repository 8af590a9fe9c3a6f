# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where a critic's weights come from and go to. Actor and critic go on at one iteration, or both start anew.

--save/iter_N/critic/          the default: in the same checkpoint as the actor, so never of another iteration
--critic-save/iter_N/critic/   a folder of its own; a resume finds it by --critic-load
"""

from __future__ import annotations

from pathlib import Path

from relax.config.run import RunConfig
from relax.core.checkpoint import CRITIC, latest_checkpoint
from relax.utils.errors import ConfigError

META = "relax.json"  # of a checkpoint of one model


def critic_start(config: RunConfig) -> tuple[Path, Path | None]:
    """(model folder, checkpoint whose weights replace the folder's) of a critic that starts anew."""
    model = Path(config.initial_model)
    named = _named(config)
    if named is None or _iterations(named):
        return model, None
    return (model, named) if (named / META).is_file() else (named, None)


def critic_checkpoint(config: RunConfig, folder: Path) -> Path:
    """The critic that belongs to the run's checkpoint `folder`. Raises ConfigError when there is none."""
    own = folder / CRITIC
    if own.is_dir():
        return own
    number = folder.name
    named = [Path(name).expanduser() for name in (config.critic.critic_load, config.critic.critic_save) if name]
    if not named:
        raise ConfigError(
            f"--load goes on at {folder}, which holds no critic: name the folder of --critic-save by --critic-load, "
            "or start both anew by --ref-load"
        )
    found = next((place for name in named if (place := name / number / CRITIC).is_dir()), None)
    if found is None:
        there = ", ".join(_iterations(named[0])) or "no iteration"
        raise ConfigError(
            f"--load goes on at {number}, and --critic-load {named[0]} holds {there}: actor and critic must be of the "
            "same iteration"
        )
    return found


def check_critic_files(config: RunConfig) -> None:
    """Raise ConfigError, before anything starts, for what `critic_start` or `critic_checkpoint` would not find."""
    if not config.uses_critic:
        return
    named = _named(config)
    if named is not None:
        if not named.is_dir():
            raise ConfigError(f"--critic-load {named} is not a folder")
        if not (_iterations(named) or (named / META).is_file() or (named / "config.json").is_file()):
            raise ConfigError(
                f"--critic-load {named} is neither a Hugging Face folder (config.json), a checkpoint's critic/ folder "
                f"({META}) nor one that --critic-save wrote (iter_*)"
            )
    load = config.checkpoint.load
    found = latest_checkpoint(Path(load).expanduser()) if load else None
    if found is not None:
        critic_checkpoint(config, found[0])
    elif named is not None and (there := _iterations(named)):
        raise ConfigError(
            f"the actor starts anew and --critic-load {named} holds {', '.join(there)}: actor and critic must be of "
            f"the same iteration; to start the critic at weights alone, name {named / there[-1] / CRITIC}"
        )


def critic_target(critic_save: str | None, model_folder: str) -> Path:
    """Where the critic of the checkpoint that is being written to `model_folder` (iteration/model) goes."""
    aside = Path(model_folder).parent
    if critic_save is None:
        return aside / CRITIC
    iteration = aside.name.removeprefix(".").removesuffix(".partial")
    return Path(critic_save).expanduser() / iteration / CRITIC


def _named(config: RunConfig) -> Path | None:
    named = config.critic.critic_load
    return None if named is None else Path(named).expanduser()


def _iterations(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(f"iter_*/{CRITIC}"))


__all__ = ["check_critic_files", "critic_checkpoint", "critic_start", "critic_target"]
