# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What an external flag means to a backend that is not its own.

On FSDP a Megatron flag is mapped when it has a meaning, passes when its value changes nothing, and is refused
otherwise. On the native engine the same holds for SGLang's flags. Flags that only steer card memory, speed or logs
pass with a note. Flags that Relax sets itself are refused everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax.config.external.architecture import ARCHITECTURE
from relax.config.external.tables import ExternalFlag, ExternalFlags, table, version
from relax.config.support import LATER_FLAGS

# Megatron flags whose job the fsdp backend does by itself or by a Relax setting; the text says how
FSDP_MEANING: Mapping[str, str] = {
    "recompute-granularity": "gradient checkpointing of every layer",
    "recompute-activations": "gradient checkpointing of every layer",
    "recompute-method": "with --recompute-granularity every layer is computed again by itself",
    "recompute-num-layers": "with --recompute-granularity every layer is computed again by itself",
    "tensor-model-parallel-size": "FSDP splits parameters over all training ranks, and each computes whole layers",
    "pipeline-model-parallel-size": "FSDP splits parameters over all training ranks, and each computes all layers",
    "expert-model-parallel-size": "FSDP splits experts over all training ranks, and each computes what it needs",
    "use-distributed-optimizer": "FSDP splits the optimizer state by itself",
    "optimizer-cpu-offload": "Adam's moments and its update are in main memory",
    "overlap-cpu-optimizer-d2h-h2d": "with --optimizer-cpu-offload gradients and weights are copied tensor by tensor",
    "use-precision-aware-optimizer": "moments and masters stay in float32",
    "accumulate-allreduce-grads-in-fp32": "gradients are summed in float32 anyway",
    "attention-softmax-in-fp32": "attention's softmax is in float32 anyway",
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
    "moe-router-load-balancing-type": ("none", "aux_loss", "seq_aux_loss", "global_aux_loss"),  # losses of weight 0
    "moe-token-drop-policy": ("probs", "position"),  # none is dropped without a capacity
    "moe-aux-loss-coeff": (0.0,),
    "moe-z-loss-coeff": (0.0,),
    "moe-router-bias-update-rate": (0.0,),
}

# Megatron flags that choose among kernels, communication or logs of Megatron's own: what is computed is the same
FSDP_HINTS = frozenset(
    """
    attention-backend transformer-impl use-flash-attn use-mcore-models no-rope-fusion no-masked-softmax-fusion
    no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-gradient-accumulation-fusion
    no-persist-layer-norm cross-entropy-loss-fusion cross-entropy-fusion-impl tp-comm-overlap overlap-grad-reduce
    overlap-param-gather overlap-moe-expert-parallel-comm moe-grouped-gemm moe-permute-fusion moe-router-fusion
    moe-token-dispatcher-type moe-enable-deepep moe-flex-dispatcher-backend moe-shared-expert-overlap ddp-bucket-size
    manual-gc manual-gc-interval no-create-attention-mask-in-dataloader log-interval log-throughput timing-log-level
    """.split()  # noqa: SIM905
)

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
    "preferred-sampling-params": "the sampling flags (--rollout-temperature, ...)",
}
ROUTER_OWN: Mapping[str, str] = {
    "worker-urls": "the engines' own addresses",
    "host": "the router's own address",
    "port": "the router's own port",
    "prometheus-port": "a free port of its own",
}

ROUTER_OFF = "retry-"  # retries are off: --rollout-failure-policy decides what is tried again

# SGLang flags that Relax has under its own name
SGLANG_MAPPED: Mapping[str, str] = {
    "max-running-requests": "engine_max_running_requests",
    "max-total-tokens": "engine_max_total_tokens",
    "context-length": "rollout_max_context_len",
}

# SGLang flags that change nothing at these values where an engine is one process
NATIVE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "dp-size": ONE,
    "data-parallel-size": ONE,
    "ep-size": ONE,
    "expert-parallel-size": ONE,
    "pp-size": ONE,
    "pipeline-parallel-size": ONE,
}

# SGLang flags about card memory, speed or logs: the native engine gives the same answers without them
NATIVE_HINTS = frozenset(
    """
    mem-fraction-static cuda-graph-bs cuda-graph-max-bs cuda-graph-max-bs-decode disable-cuda-graph
    chunked-prefill-size max-prefill-tokens schedule-policy schedule-conservativeness watchdog-timeout log-level
    sleep-on-idle disable-radix-cache enable-metrics attention-backend mm-attention-backend sampling-backend
    load-format skip-server-warmup enable-memory-saver decode-log-interval page-size trust-remote-code
    disable-custom-all-reduce enable-deterministic-inference enable-torch-compile log-requests show-time-cost
    """.split()  # noqa: SIM905
)


class Refusals:
    """Problems and notes found in the external flags."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []


@dataclass(frozen=True)
class Backends:
    """What the rules depend on."""

    train: str
    rollout: str
    router: bool  # a router process stands before the engines


def judge(external: ExternalFlags, backends: Backends) -> Refusals:
    """Apply the rules of the chosen backends to every external flag."""
    found = Refusals()
    rules = {"megatron": _megatron, "sglang": _sglang, "router": _router}
    idle: dict[str, list[str]] = {}  # {to whom: flags that it does not need}
    last = {(flag.table, flag.name): flag for flag in external.given}  # of a repeated flag the last counts
    for flag in last.values():
        problem, note, whom = rules[flag.table](flag, backends)
        if problem:
            found.problems.append(problem)
        if note:
            found.notes.append(note)
        if whom:
            idle.setdefault(whom, []).append(str(flag))
    found.notes += [f"without effect {whom}: {', '.join(flags)}" for whom, flags in idle.items()]
    return found


Verdict = tuple[str | None, str | None, str | None]  # problem, note, to whom the flag says nothing
PASSES: Verdict = (None, None, None)


def _refused(text: str) -> Verdict:
    return text, None, None


def _noted(text: str) -> Verdict:
    return None, text, None


def _idle(whom: str) -> Verdict:
    return None, None, whom


def _megatron(flag: ExternalFlag, backends: Backends) -> Verdict:
    if backends.train != "fsdp" or flag.name in ARCHITECTURE or flag.value in FSDP_NEUTRAL.get(flag.name, ()):
        return PASSES
    if flag.name in FSDP_MEANING:
        return _noted(f"{flag} on the fsdp backend: {FSDP_MEANING[flag.name]}")
    if flag.name in FSDP_HINTS:
        return _idle("on --train-backend fsdp")
    if flag.name in FSDP_NEUTRAL:
        allowed = " or ".join(str(value) for value in FSDP_NEUTRAL[flag.name])
        return _refused(f"{flag} has no counterpart on --train-backend fsdp: use {allowed}, or leave it out")
    if flag.name in LATER_FLAGS:
        feature = LATER_FLAGS[flag.name]
        return _refused(f"{flag} is not available on --train-backend fsdp in this version: it belongs to {feature}")
    return _refused(f"{flag} is a Megatron flag that has no counterpart on --train-backend fsdp: leave it out")


def _sglang(flag: ExternalFlag, backends: Backends) -> Verdict:
    if flag.name in SGLANG_OWN:
        return _refused(f"{flag} is set by Relax: use {SGLANG_OWN[flag.name]}")
    if flag.name in SGLANG_MAPPED:
        return PASSES
    if backends.rollout == "native":
        if flag.value in NATIVE_NEUTRAL.get(flag.name, ()):
            return PASSES
        if flag.name in NATIVE_HINTS:
            return _idle("on --rollout-backend native")
        return _refused(
            f"{flag} has no counterpart on --rollout-backend native: leave it out, or use --rollout-backend sglang"
        )
    until = table("sglang").get(flag.name, {}).get("until")
    if until:
        return _noted(f"{flag.option} exists in SGLang {until} and no longer in {version('sglang')}")
    return PASSES


def _router(flag: ExternalFlag, backends: Backends) -> Verdict:
    if flag.name in ROUTER_OWN:
        return _refused(f"{flag} is set by Relax: use {ROUTER_OWN[flag.name]}")
    if flag.name.startswith(ROUTER_OFF):
        return _refused(f"{flag}: the router does not retry, for --rollout-failure-policy decides; leave it out")
    return PASSES if backends.router else _idle("with --inline, which has no router")
