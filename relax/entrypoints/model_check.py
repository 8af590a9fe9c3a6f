# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Looks at model folders and checkpoints without torch or transformers: what is missing, what does not fit."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relax.config.external.describe import text_config
from relax.config.files import is_hub_name
from relax.config.run import RunConfig
from relax.utils.errors import ConfigError

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_ENCODER = re.compile(r"visual|vision|audio|image")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
CHECKPOINT_META = Path("model") / "relax.json"  # below the folder of one checkpoint


def model_problems(config: RunConfig) -> Iterator[str]:
    """What would stop a role from loading the model; a hub name is left to the loader."""
    from relax.data.model_files import has_chat_template, has_processor, has_tokenizer

    name = config.checkpoint.hf_checkpoint or ""
    if is_hub_name(name):
        return
    folder, data = Path(name).expanduser(), config.data
    if not has_tokenizer(folder):
        yield f"--hf-checkpoint {name} has no tokenizer: copy the tokenizer files of the base model into it"
    elif data.apply_chat_template and not (
        data.chat_template or "chat_template" in data.apply_chat_template_kwargs or has_chat_template(folder)
    ):
        yield (
            f"--apply-chat-template: --hf-checkpoint {name} has no chat template: name one by --chat-template FILE, "
            "put a chat_template.jinja into the folder, or leave the flag out for prompts that are plain text"
        )
    if data.multimodal_keys and not has_processor(folder):
        kinds = ", ".join(data.multimodal_keys)
        yield f"--multimodal-keys names {kinds}, and --hf-checkpoint {name} has no processor: it is a text-only model"
    for kind in ("image", "video"):
        if kind in (data.multimodal_keys or ()):
            yield from _media_limits(config, folder, kind)
    problems = [*_class_problem(name, folder)]
    if not problems and config.rollout.rollout_backend == "sglang":
        problems += _servable_problem(folder)
    yield from problems
    fetched_later = folder.parent.name == "snapshots"  # of the hub's cache, see `relax.data.hub`
    if not fetched_later and not any(path.suffix in WEIGHT_SUFFIXES for path in folder.iterdir()):
        yield f"--hf-checkpoint {name} holds no weights (*.safetensors): was the download cut short?"


def _media_limits(config: RunConfig, folder: Path, kind: str) -> Iterator[str]:
    """A limit in tokens that contradicts the one that the folder's processor was saved with."""
    from relax.data.media.processing import limited_size
    from relax.data.model_files import saved_processor

    least, most = config.value(f"{kind}_min_tokens"), config.value(f"{kind}_max_tokens")
    if least is None and most is None:
        return
    try:
        saved = saved_processor(folder, kind)
    except (ValueError, AttributeError) as error:
        yield f"--hf-checkpoint {folder}: the files of its processor are not JSON objects ({error})"
        return
    size = saved.get("size")
    if not isinstance(size, Mapping) or not {"shortest_edge", "longest_edge"} <= set(size):
        return  # other kinds of processors say so themselves, when they load
    if not {"patch_size", "merge_size"} <= set(saved) or str(saved.get("video_processor_type")).startswith("Qwen3VL"):
        return  # the latter bound all frames of a video together, whose number is not known here
    try:
        limited_size(kind, size, (saved["patch_size"] * saved["merge_size"]) ** 2, least, most)
    except ConfigError as error:
        yield str(error)


def _class_problem(name: str, folder: Path) -> Iterator[str]:
    try:
        names = json.loads((folder / "config.json").read_text("utf-8")).get("architectures") or []
    except (ValueError, AttributeError) as error:
        yield f"--hf-checkpoint {name}: its config.json is not a JSON object ({error})"
        return
    if not names:
        yield f'--hf-checkpoint {name}: its config.json names no class: add "architectures": ["..."]'
    elif not known_class(names[0]):
        yield (
            f"--hf-checkpoint {name}: its config.json names the class {names[0]}, which the installed transformers "
            "does not have: update transformers, or use another model"
        )


def _servable_problem(folder: Path) -> Iterator[str]:
    from relax.backends.sglang.spec import check_servable

    try:
        check_servable(folder)
    except ConfigError as error:
        yield str(error)


def known_class(name: str) -> bool:
    """Whether transformers defines a model class of this name; its source is searched, not run."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return True  # the loader says that transformers is missing
    root = Path(spec.submodule_search_locations[0]) / "models"
    line = f"class {name}(".encode()
    return any(line in file.read_bytes() for file in root.glob("*/modeling_*.py"))


# --------------------------------------------------------------------------- --load


def checkpoint_problems(config: RunConfig, data_digest: str) -> Iterator[str]:
    """A checkpoint of another model, of other data, or none where one is asked for."""
    from relax.core.checkpoint import first_rollout, latest_checkpoint

    if config.checkpoint.load is None:
        return
    found = latest_checkpoint(Path(config.checkpoint.load).expanduser())
    try:
        first_rollout(config.rollout.start_rollout_id, found[1] if found else None)
    except ConfigError as error:
        yield str(error)
        return
    if found is None:
        return
    folder, state = found
    if state.dataset_digest != data_digest:
        yield (
            f"--load {config.checkpoint.load} was reading other data than --prompt-data {config.data.prompt_data} "
            "(its content, order or slice differs): give the same data, or start a new run at an export by --ref-load"
        )
    yield from _other_model(config, folder)
    if config.uses_kl and not state.reference_version:
        yield from _other_reference(config, state.reference)


def checkpoint_notes(config: RunConfig) -> Iterator[str]:
    """A --load that does not do what a reader expects."""
    from relax.core.checkpoint import first_rollout, latest_checkpoint

    load, rounds = config.checkpoint.load, config.rollout.num_rollout
    if load is None:
        return
    found = latest_checkpoint(Path(load).expanduser())
    if found is None:
        yield f"--load {load} holds no checkpoint: training starts at {config.checkpoint.ref_load}"
        return
    first = first_rollout(config.rollout.start_rollout_id, found[1])
    yield f"--load {load} goes on at rollout {first} with the weights of {found[0].name}, not with those of --ref-load"
    if rounds is not None and first >= rounds:
        yield f"--load {load} contains {first} rollouts and --num-rollout counts from the first: {rounds} are done"


def _other_model(config: RunConfig, checkpoint: Path) -> Iterator[str]:
    name = config.initial_model
    meta, model = checkpoint / CHECKPOINT_META, Path(name).expanduser() / "config.json"
    if not meta.is_file() or not model.is_file():  # the loader says what is missing
        return
    stored = dimensions_of_shapes(json.loads(meta.read_text("utf-8")).get("shapes", {}))
    wanted = dimensions_of_config(json.loads(model.read_text("utf-8")))
    different = [key for key in wanted if key in stored and stored[key] != wanted[key]]
    if different:
        numbers = "; ".join(f"{key} {stored[key]} there, {wanted[key]} here" for key in different)
        yield (
            f"--load {config.checkpoint.load} holds a checkpoint of another model than {name} ({numbers}): load a run "
            "of this model, or leave --load out"
        )


def _other_reference(config: RunConfig, stored: str) -> Iterator[str]:
    """A refreshed reference is in the checkpoint; the initial one is read again from its own folder."""
    from relax.core.checkpoint import weights_identity

    folder = Path(config.initial_model).expanduser()
    here = weights_identity(folder)
    if stored and here and stored != here:
        yield (
            f"--load {config.checkpoint.load} measured its KL to another reference than the weights of {folder}: give "
            "by --ref-load the model that the run started from, or start a new run at an export"
        )


def dimensions_of_shapes(shapes: Mapping[str, list[int]]) -> dict[str, int]:
    """Vocabulary, width and layers of the language model, as far as parameter names tell."""
    text = {name: shape for name, shape in shapes.items() if not _ENCODER.search(name)}
    found = {}
    for name, shape in text.items():
        if name.endswith("embed_tokens.weight"):
            found["vocab_size"], found["hidden_size"] = shape
    layers = [int(match[1]) for name in text if (match := _LAYER.search(name))]
    if layers:
        found["num_hidden_layers"] = max(layers) + 1
    return found


def dimensions_of_config(model: Mapping[str, Any]) -> dict[str, int]:
    """The same numbers by a config.json, whose language model may be nested."""
    text = text_config(model)
    names = ("vocab_size", "hidden_size", "num_hidden_layers")
    return {name: text[name] for name in names if isinstance(text.get(name), int)}


# --------------------------------------------------------------------------- sizes


def count_parameters(folder: Path) -> int | None:
    """Parameters of a model folder by the headers of its safetensors files, None without any."""
    files = sorted(folder.glob("*.safetensors"))
    return sum(map(_parameters_in, files)) if files else None


def _parameters_in(path: Path) -> int:
    with open(path, "rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise ConfigError(f"{path} is no safetensors file: it has {len(head)} bytes; download it again")
        (size,) = struct.unpack("<Q", head)
        try:
            header = json.loads(file.read(min(size, 1 << 28)))
        except ValueError as error:
            raise ConfigError(f"{path} is no whole safetensors file ({error}); download it again") from None
    total = 0
    for name, entry in header.items():
        if name != "__metadata__":
            count = 1
            for length in entry["shape"]:
                count *= length
            total += count
    return total
