# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What an external flag means to a backend that is not its own.

On FSDP a Megatron flag is mapped when it has a meaning, passes when its value changes nothing, and is refused
otherwise. On the native engine the same holds for SGLang's flags, and flags that only steer card memory or speed pass
with a note. Flags that Relax sets itself are refused everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relax.config.external.architecture import ARCHITECTURE
from relax.config.external.tables import ExternalFlag, ExternalFlags, table, version

# Megatron flags whose job FSDP does by itself or by a Relax setting; the text says how
FSDP_MEANING: Mapping[str, str] = {
    "recompute-granularity": "gradient checkpointing of every layer",
    "recompute-method": "gradient checkpointing of every layer",
    "recompute-num-layers": "gradient checkpointing of every layer",
    "tensor-model-parallel-size": "FSDP splits parameters over all training ranks, and each computes whole layers",
    "expert-model-parallel-size": "FSDP splits experts over all training ranks, and each computes what it needs",
    "use-distributed-optimizer": "FSDP splits the optimizer state by itself",
    "bf16": "--train-dtype bf16",
}

# Megatron flags that change nothing at these values
ONE = (1,)
FSDP_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tensor-model-parallel-size": ONE,
    "pipeline-model-parallel-size": ONE,
    "context-parallel-size": ONE,
    "expert-model-parallel-size": ONE,
    "expert-tensor-parallel-size": ONE,
    "sequence-parallel": (True,),  # splits activations of tensor-parallel ranks, of which there is one
    "attention-dropout": (0.0,),
    "hidden-dropout": (0.0,),
    "attention-backend": ("auto",),
    "transformer-impl": ("local", "transformer_engine"),
}

# neutral where the optimizer is on the CPU already
FSDP_NEUTRAL_ON_CPU = ("optimizer-cpu-offload", "overlap-cpu-optimizer-d2h-h2d", "use-precision-aware-optimizer")

# SGLang flags that are Relax's own; the text names the Relax flag
SGLANG_OWN: Mapping[str, str] = {
    "model-path": "--hf-checkpoint",
    "model": "--hf-checkpoint",
    "tp-size": "--rollout-num-gpus-per-engine",
    "tensor-parallel-size": "--rollout-num-gpus-per-engine",
    "dtype": "--rollout-dtype",
    "random-seed": "--rollout-seed",
    "host": "the engines' own addresses",
    "port": "the engines' own ports",
    "nnodes": "--resource",
    "node-rank": "--resource",
    "dist-init-addr": "--resource",
    "base-gpu-id": "--resource",
    "weight-version": "the published weight version",
}
ROUTER_OWN: Mapping[str, str] = {
    "worker-urls": "the engines' own addresses",
    "host": "the router's own address",
    "port": "the router's own port",
}

# SGLang flags that Relax has under its own name
SGLANG_MAPPED: Mapping[str, str] = {
    "max-running-requests": "engine_max_running_requests",
    "max-total-tokens": "engine_max_total_tokens",
}

# SGLang flags about card memory, speed or logs: the native engine gives the same answers without them
NATIVE_HINTS = frozenset(
    """
    mem-fraction-static cuda-graph-bs cuda-graph-max-bs cuda-graph-max-bs-decode disable-cuda-graph
    chunked-prefill-size max-prefill-tokens schedule-policy schedule-conservativeness watchdog-timeout log-level
    sleep-on-idle disable-radix-cache enable-metrics attention-backend mm-attention-backend sampling-backend
    load-format skip-server-warmup enable-memory-saver decode-log-interval page-size
    """.split()  # noqa: SIM905
)


class Refusals:
    """Problems and notes found in the external flags."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []


def judge(external: ExternalFlags, *, train_backend: str, rollout_backend: str, cuda: bool) -> Refusals:
    """Apply the rules of the chosen backends to every external flag."""
    found = Refusals()
    rules: dict[str, Callable[[ExternalFlag], str | None]] = {
        "megatron": lambda flag: _on_fsdp(flag, cuda, found.notes) if train_backend == "fsdp" else None,
        "sglang": lambda flag: _sglang(flag, rollout_backend, found.notes),
        "router": lambda flag: _own(flag, ROUTER_OWN),
    }
    last = {(flag.table, flag.name): flag for flag in external.given}  # of a repeated flag the last counts
    for flag in last.values():
        problem = rules[flag.table](flag)
        if problem:
            found.problems.append(problem)
    return found


def _on_fsdp(flag: ExternalFlag, cuda: bool, notes: list[str]) -> str | None:
    if flag.name in ARCHITECTURE or flag.value in FSDP_NEUTRAL.get(flag.name, ()):
        return None
    if flag.name in FSDP_MEANING:
        notes.append(f"{flag} on the fsdp backend: {FSDP_MEANING[flag.name]}")
        return None
    if flag.name in FSDP_NEUTRAL_ON_CPU and not cuda:
        notes.append(f"{flag} changes nothing without CUDA: the optimizer is on the CPU")
        return None
    if flag.name in FSDP_NEUTRAL:
        allowed = " or ".join(str(value) for value in FSDP_NEUTRAL[flag.name])
        return f"{flag} has no counterpart on --train-backend fsdp: use {allowed}, or leave it out"
    return f"{flag} is a Megatron flag that has no counterpart on --train-backend fsdp: leave it out"


def _sglang(flag: ExternalFlag, backend: str, notes: list[str]) -> str | None:
    owned = _own(flag, SGLANG_OWN)
    if owned or flag.name in SGLANG_MAPPED:
        return owned
    if backend == "native":
        if flag.name not in NATIVE_HINTS:
            return (
                f"{flag} has no counterpart on --rollout-backend native: leave it out, or use --rollout-backend sglang"
            )
        notes.append(f"{flag} says nothing to --rollout-backend native")
        return None
    until = table("sglang").get(flag.name, {}).get("until")
    if until:
        notes.append(f"{flag.option} exists in SGLang {until} and no longer in {version('sglang')}")
    return None


def _own(flag: ExternalFlag, owned: Mapping[str, str]) -> str | None:
    return f"{flag} is set by Relax: use {owned[flag.name]}" if flag.name in owned else None
