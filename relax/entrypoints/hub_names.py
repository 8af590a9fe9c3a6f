# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From names on the Hugging Face Hub to folders on this machine: small files at once, weights last of all."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from relax.config.frozen import FrozenDict
from relax.config.run import RunConfig, spelled
from relax.data.hub import Hub, names_a_dataset, names_a_model
from relax.entrypoints.preflight import first_row
from relax.utils.errors import InfrastructureError, RelaxError

T = TypeVar("T")
MODELS = ("hf_checkpoint", "ref_load")


def with_local_names(config: RunConfig, hub: Hub) -> RunConfig:
    """The configuration with folders in place of hub names; the origin of each tells where it is from.

    A dry run may be made where the hub cannot be asked: names stay names then, with a note.
    """
    try:
        return _with_local_names(config, hub)
    except InfrastructureError as error:
        if not config.cluster.dry_run:
            raise
        note = f"would not start now: {error}"
        return dataclasses.replace(config, input_notes=(*config.input_notes, note))


def _with_local_names(config: RunConfig, hub: Hub) -> RunConfig:
    changed: dict[str, Any] = {}
    for name in MODELS:
        value = config.value(name)
        if value is not None and names_a_model(value):
            changed[name] = str(_named(spelled(config, name), hub.model, value))
    data = config.data.prompt_data
    if data is not None and names_a_dataset(data):
        changed["prompt_data"] = _named(spelled(config, "prompt_data"), hub.dataset, data)
    if not changed:
        return config
    origins = {name: f"{config.origin(name)}, {config.value(name)} of the Hugging Face Hub" for name in changed}
    models = {name: value for name, value in changed.items() if name in MODELS}
    return dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(config.checkpoint, **models),
        data=dataclasses.replace(config.data, prompt_data=changed.get("prompt_data", data)),
        origins=FrozenDict({**config.origins, **origins}),
    )


def fetch_weights(given: RunConfig, hub: Hub) -> None:
    """The weights of the models that `given` names by their hub names. The last thing before the start."""
    for name in MODELS:
        value = given.value(name)
        if value is not None and names_a_model(value):
            print(f"fetching the weights of {value} unless they are in the cache", file=sys.stderr, flush=True)
            _named(spelled(given, name), hub.weights, value)


def local_first_row(hub: Hub, spec: str) -> Mapping[str, Any]:
    """`first_row` of a data set that may be named by its hub name."""
    return first_row(_named("--prompt-data", hub.dataset, spec))


def _named(flag: str, find: Callable[[str], T], value: str) -> T:
    """`find(value)`, whose errors then name the flag."""
    try:
        return find(value)
    except RelaxError as error:
        raise type(error)(f"{flag} {error}") from error
