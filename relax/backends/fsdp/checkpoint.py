# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training checkpoints (any number of ranks may load them) and export in Hugging Face form.

A folder is written beside its final name, synced, then renamed: a checkpoint that exists is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from relax.backends.fsdp.distributed import Ranks
from relax.backends.fsdp.optimizer import Shard, ShardedAdamW, local
from relax.utils.errors import ConfigError, InfrastructureError

SCHEMA = 1
_META = "relax.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")


def save_checkpoint(
    folder: Path,
    shards: list[Shard],
    adam: ShardedAdamW | None,
    ranks: Ranks,
    *,
    part: bool = False,
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Write weights (float32) and optimizer state. Collective.

    Args:
        part: the shards are not the whole model.
        beside: collective too; writes more into the folder before it gets its name.
    """
    folder = Path(folder)
    aside = folder.with_name(folder.name + ".partial")
    if ranks.is_main:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    ranks.barrier()
    _quiet_save({**_weights(shards), **_optimizer_state(shards, adam)}, aside, ranks)
    if beside is not None:
        beside(aside)
    if ranks.is_main:
        meta = {
            "schema": SCHEMA,
            **({"part": True} if part else {}),
            "step": adam.num_steps if adam else 0,
            "optimizer": adam is not None,
            "shapes": {s.name: list(s.parameter.shape) for s in shards},
        }
        (aside / _META).write_text(json.dumps(meta))
        _publish(aside, folder)
    ranks.barrier()


def load_checkpoint(folder: Path, shards: list[Shard], adam: ShardedAdamW | None, ranks: Ranks) -> None:
    """Read what `save_checkpoint` wrote, whatever its number of ranks. `adam` None: weights only. Collective."""
    folder = Path(folder)
    meta = read_meta(folder)
    _check_shapes(folder, meta["shapes"], shards)
    if adam is not None and not meta["optimizer"]:
        raise ConfigError(
            f"--load {folder}: the checkpoint holds no optimizer state; start a new run at an export by --ref-load"
        )
    state: dict[str, Tensor] = _weights(shards)
    if adam is not None:
        _prepare_optimizer(folder, shards, adam)
        state.update(_optimizer_state(shards, adam))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on single-process use; errors still raise
        dcp.load(state, checkpoint_id=str(folder), no_dist=ranks.world_size == 1)
    for shard in shards:
        shard.publish()
    if adam is not None:
        _take_moments(shards, adam, state)
        adam.read_masters()
        adam.num_steps = int(meta["step"])


def read_meta(folder: Path) -> dict[str, Any]:
    """The checkpoint's own description: schema, step, optimizer, shapes."""
    path = Path(folder) / _META
    if not path.is_file():
        raise ConfigError(f"--load {folder}: no {_META} there; give a checkpoint folder that --save wrote")
    meta = json.loads(path.read_text())
    if meta.get("schema") != SCHEMA:
        raise ConfigError(f"--load {folder}: schema {meta.get('schema')}, this version reads {SCHEMA}")
    return meta


def _quiet_save(state: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in load_checkpoint
        try:
            dcp.save(dict(state), checkpoint_id=str(folder), no_dist=ranks.world_size == 1)
        except CheckpointException as error:  # a BaseException: it would pass every handler of errors
            first = next(iter(error.failures.values()))[0]
            raise InfrastructureError(f"checkpoint {folder} was not written: {first!r}") from error


def _weights(shards: list[Shard]) -> dict[str, Tensor]:
    return {f"model.{s.name}": _global(s, s.master.detach()) for s in shards}


def _global(shard: Shard, piece: Tensor) -> Tensor:
    """A rank's piece as part of the whole tensor, laid out as the parameter is."""
    parameter = shard.parameter
    if not isinstance(parameter, DTensor):
        return piece
    return DTensor.from_local(
        piece,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _optimizer_state(shards: list[Shard], adam: ShardedAdamW | None) -> dict[str, Tensor]:
    """Moments as whole tensors, and each parameter's own step count: an unused encoder has taken none."""
    state: dict[str, Tensor] = {}
    for shard in shards if adam else []:
        own = adam.moments(shard)
        if own:
            state[f"optimizer.{shard.name}.step"] = own["step"]
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"optimizer.{shard.name}.{moment}"] = _global(shard, own[moment])
    return state


def _prepare_optimizer(folder: Path, shards: list[Shard], adam: ShardedAdamW) -> None:
    """Give exactly the parameters that have state in the checkpoint empty state to load into."""
    stored = dcp.FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    adam.start_moments([shard for shard in shards if f"optimizer.{shard.name}.step" in stored])


@torch.no_grad()
def _take_moments(shards: list[Shard], adam: ShardedAdamW, state: Mapping[str, Tensor]) -> None:
    """A piece in main memory has no place in a tensor of a device mesh, which holds a copy of it then."""
    for shard in shards if adam.spec.offload else ():
        for moment in ("exp_avg", "exp_avg_sq"):
            if own := adam.moments(shard):
                own[moment].copy_(local(state[f"optimizer.{shard.name}.{moment}"]))


def _check_shapes(folder: Path, stored: dict[str, list[int]], shards: list[Shard]) -> None:
    own = {s.name: list(s.parameter.shape) for s in shards}
    wrong = [f"{n}: checkpoint {stored[n]}, model {own[n]}" for n in own if n in stored and stored[n] != own[n]]
    wrong += [f"{n}: not in the checkpoint" for n in own if n not in stored]
    wrong += [f"{n}: not in the model" for n in stored if n not in own]
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ConfigError(
            f"--load {folder} is a checkpoint of another model than --hf-checkpoint: {'; '.join(wrong[:8])}{more}"
        )


def _publish(aside: Path, folder: Path) -> None:
    """Sync every file and folder of `aside`, then give it its final name."""
    for path in sorted(aside.rglob("*")):
        _sync(path)
    _sync(aside)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --------------------------------------------------------------------------- export


def export_hf(hf: nn.Module, weights: dict[str, Tensor], source: Path, folder: Path) -> None:
    """Write `weights` (HF names, tied tensors once) as a folder that transformers loads, in the layout of `source`.

    Tokenizer, processor and generation files are copied from `source`. Where `source` holds a thinker beside other
    models, those keep their weights.
    """
    source, folder = Path(source), Path(folder)
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights = _with_tied(hf, weights)
    if "thinker_config" in json.loads((source / "config.json").read_text()):
        _save_thinker(hf, weights, source, aside)
    else:
        hf.save_pretrained(aside, state_dict=weights)
        _copy_files(source, aside, keep={"config.json"})
    _publish(aside, folder)


def _with_tied(hf: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the second names of tied tensors, pointing at the same storage."""
    first: dict[int, str] = {}
    out = dict(weights)
    for name, parameter in hf.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner in weights:
            out[name] = weights[owner]
    return out


def _copy_files(source: Path, folder: Path, keep: set[str]) -> None:
    """Copy every small file of `source` but weights; files named in `keep` stay as they are in `folder`."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in keep and not path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copy2(path, folder / path.name)


def _save_thinker(hf: nn.Module, weights: dict[str, Tensor], source: Path, folder: Path) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers.core_model_loading import revert_weight_conversion

    # Depending on the folder it was loaded from, transformers has put the prefix back already.
    reverted = revert_weight_conversion(hf, weights)
    tensors = {f"thinker.{name.removeprefix('thinker.')}": tensor for name, tensor in reverted.items()}
    tied = getattr(hf, "_tied_weights_keys", None) or {}
    if getattr(hf.config.get_text_config(), "tie_word_embeddings", False):
        tensors = {k: v for k, v in tensors.items() if k.removeprefix("thinker.") not in tied}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors.update({k: file.get_tensor(k) for k in file.keys() if not k.startswith("thinker.")})  # noqa: SIM118
    plan = split_torch_state_dict_into_shards(tensors)
    for name, keys in plan.filename_to_tensors.items():
        save_file({k: tensors[k].contiguous() for k in keys}, folder / name, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    _copy_files(source, folder, keep=set())


__all__ = ["export_hf", "load_checkpoint", "local", "read_meta", "save_checkpoint"]
