# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The folder `lora_adapter/` in peft's form, and the merge of one into a Hugging Face folder, tensor by tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from relax.backends.additions import LoraSpec
from relax.backends.exact.low_rank import PEFT_PREFIX, A, B, is_adapter, merged_weight, peft_config, peft_name
from relax.utils.errors import ConfigError

FOLDER = "lora_adapter"
CONFIG, WEIGHTS, META = "adapter_config.json", "adapter_model.safetensors", "relax_lora_meta.json"
_SCHEMA = 1


def write_adapter(
    folder: Path, tensors: Mapping[str, Tensor], spec: LoraSpec, *, base: Path, step: int, head: str | None = None
) -> None:
    """Write adapters (names of the model, A and B of each matrix) so that peft loads them onto `base`.

    Args:
        head: first part of the names of a head that was trained too and belongs to the adapter: "score".
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    adapters = {name: tensor for name, tensor in tensors.items() if is_adapter(name)}
    chosen = {peft_name(name): tensor for name, tensor in adapters.items()}
    if head is not None:
        chosen |= {f"{PEFT_PREFIX}{n}": tensor for n, tensor in tensors.items() if n.startswith(f"{head}.")}
    config = peft_config(spec, adapters, base, head)
    meta = {
        "schema": _SCHEMA,
        "rank": spec.rank,
        "alpha": spec.alpha,
        "targets": list(spec.targets),
        "scope": spec.scope,
        "matrices": len(config["target_modules"]),
        "optimizer_steps": step,
    }
    save_file({n: t.detach().cpu().contiguous() for n, t in chosen.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n")


def merge_adapter(adapter: Path, source: Path, output: Path) -> int:
    """Write `source` with the adapter added into its matrices; returns how many changed. One tensor at a time.

    Each tensor keeps its type. Raises `ConfigError` when the adapter has a matrix that the folder has not.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    pairs, scale = _read_adapter(adapter)
    if output.exists():
        raise ConfigError(f"--output-dir {output} exists: name a new folder")
    shards = sorted(source.glob("*.safetensors"))
    if not shards:
        raise ConfigError(f"--hf-checkpoint {source} holds no .safetensors file")
    _check_names(adapter, source, shards, pairs)
    aside = output.with_name(output.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for shard in shards:
        tensors = {}
        with safe_open(shard, framework="pt") as file:
            metadata = file.metadata()
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                pair = pairs.get(name.removesuffix(".weight"))
                tensors[name] = merged_weight(tensor, *pair, scale) if pair else tensor
        save_file(tensors, aside / shard.name, metadata or {"format": "pt"})
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy2(path, aside / path.name)
    aside.rename(output)
    return len(pairs)


def _read_adapter(folder: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], float]:
    """({matrix: (A, B)}, scale)."""
    from safetensors.torch import load_file

    if not (folder / CONFIG).is_file():
        raise ConfigError(f"--adapter {folder}: no {CONFIG} there; give a lora_adapter folder")
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    tensors = {n.removeprefix(PEFT_PREFIX): t for n, t in load_file(folder / WEIGHTS).items()}
    pairs = {}
    for name, tensor in tensors.items():
        owner, _, leaf = name.removesuffix(".weight").rpartition(".")
        if leaf == A:
            pairs[owner] = (tensor, tensors[f"{owner}.{B}.weight"])
        elif leaf != B:
            raise ConfigError(f"--adapter {folder} holds {name}, a head of its own: export the checkpoint instead")
    if config.get("use_rslora") or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise ConfigError(f"--adapter {folder}: rank patterns and rslora are not supported")
    return pairs, float(config["lora_alpha"]) / int(config["r"])


def _check_names(adapter: Path, source: Path, shards: list[Path], pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Raise unless the folder is whole and has every matrix of the adapter, in its shape."""
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    index = source / "model.safetensors.index.json"
    if index.is_file():
        listed = json.loads(index.read_text())["weight_map"]
        gone = sorted(set(listed.values()) - {shard.name for shard in shards})
        gone += sorted(set(listed) - set(shapes))
        if gone:
            raise ConfigError(f"--hf-checkpoint {source} is not whole: {index.name} lists {gone[:3]}, which is absent")
    absent = sorted(owner for owner in pairs if f"{owner}.weight" not in shapes)
    if absent:
        raise ConfigError(
            f"--adapter {adapter} has {len(absent)} matrices that {source} has not, such as {absent[:3]}: it belongs "
            "to another model"
        )
    for owner, (a, b) in pairs.items():
        if shapes[f"{owner}.weight"] != [len(b), a.shape[1]] or len(a) != b.shape[1]:
            raise ConfigError(
                f"--adapter {adapter}: {owner} has A {list(a.shape)} and B {list(b.shape)} for a matrix of "
                f"{shapes[f'{owner}.weight']}: it belongs to another model"
            )
