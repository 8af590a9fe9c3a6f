# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The two protocols that every backend implements: training and inference.

`TrainBackend` is one object a rank; its calls are collective and blocking. `EngineClient` talks to one engine (or
to the router in front of several) in SGLang's wire format; `EngineSpec` says how to start one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from relax.algorithms.loss import LossFunction as LossFunction
from relax.algorithms.loss import Term as Term
from relax.algorithms.loss import TokenBatch as TokenBatch
from relax.backends.additions import ClassHead, LoraSpec, MtpSpec
from relax.data.columns import TrainSequence
from relax.data.media.processing import MediaOptions

if TYPE_CHECKING:
    from torch import Tensor

WeightPart = Literal["merged", "frozen", "adapters"]

# --------------------------------------------------------------------------- training


@dataclass(frozen=True)
class ModelSpec:
    """What a train backend loads: an HF folder and how to compute with it."""

    hf_path: Path
    dtype: Literal["fp32", "bf16"] = "fp32"
    temperature: float = 1.0  # of the log-probs, equal to the sampling temperature
    suppressed_ids: tuple[int, ...] = ()  # never sampled, masked in log-probs alike
    gradient_checkpointing: bool = False
    logprob_chunk: int = 1024  # rows of logits that exist at a time
    num_top: int = 0  # likeliest ids that `score` gives as `top_ids` and `top_log_probs`
    trainable: bool = True  # False: forward only (reference, actor_fwd)
    head: ClassHead | None = None  # in place of the vocabulary head
    lora: LoraSpec | None = None  # adapters are trained, the model is not
    mtp: MtpSpec | None = None  # layers that predict the token after the next


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW with warm-up and decay. A step is an optimizer step."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    warmup_steps: int = 0
    decay_style: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int | None = None  # steps to reach min_lr, warm-up included
    min_lr: float = 0.0
    offload: bool = False  # moments and the update in main memory


@dataclass(frozen=True)
class RankInfo:
    rank: int
    world_size: int
    dp_rank: int
    dp_size: int
    device: str
    exact: bool  # bit-equal to the native engine on this machine
    exact_reason: str
    num_parameters: int


@dataclass(frozen=True)
class ScoreSwitch:
    """One departure from the `ModelSpec` in how log-probs are scored; what is None or off stays as it is.

    The parity check switches one of them at a time to find out what an engine does otherwise.
    """

    temperature: float | None = None
    suppressed_ids: tuple[int, ...] | None = None
    top_p: float = 1.0  # log-probs of the distribution that is left, renormalised; -inf outside
    top_k: int = -1
    dtype: Literal["fp32", "bf16"] | None = None  # of the forward


@dataclass(frozen=True)
class Part:
    """Sequences of one optimizer step (or a streamed piece of it) on one rank, cut into micro-batches.

    Every rank has the same number of micro-batches; a rank with fewer sequences has empty ones.
    """

    micro_batches: tuple[tuple[TrainSequence, ...], ...]


@dataclass
class StepStats:
    """What `backward` and `step` measured, of all ranks."""

    terms: dict[str, list[float]] = field(default_factory=dict)  # total of each micro-batch that was not empty
    counts: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None  # after division by the divisor, before the clip
    gradient: dict[str, float] = field(default_factory=dict)  # norm of each tensor on this rank, undivided
    lr: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sums(self) -> dict[str, float]:
        """Rounded once, so they do not depend on ranks or on the pieces in which a step came."""
        return {name: math.fsum(values) for name, values in self.terms.items()}

    def means(self) -> dict[str, float]:
        return {name: total / self.counts[name] for name, total in self.sums.items() if self.counts.get(name)}

    def add(self, other: StepStats) -> None:
        """Take in what another part of the same step measured."""
        for name, values in other.terms.items():
            self.terms.setdefault(name, []).extend(values)
        for into, values in ((self.counts, other.counts), (self.seconds, other.seconds)):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + value


class TrainBackend(Protocol):
    """One rank of training. Calls are collective (every rank makes the same calls) and blocking."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken, a loaded checkpoint's included."""
        ...

    def open(self, model: ModelSpec, optimizer: OptimizerSpec | None) -> RankInfo: ...

    def score(
        self, part: Part, needs: frozenset[str], tag: str = "actor", switch: ScoreSwitch | None = None
    ) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        """Forward only: {uid of the sequence: {"log_probs": float32 [R], "entropy": ...}} under the weights `tag`.

        "class_logits" is `[R, K]`. "mass_above" is the probability of all ids that are more likely than the token.
        "log_probs_at" are those at the ids of the column `at_ids`, "top_ids" and "top_log_probs" the likeliest
        `num_top` ones, each `[R, K]`. Raises `NotImplementedError` for a switch that this backend, or this layout of
        ranks, does not have.
        """
        ...

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        """Accumulate gradients of sum(objective terms), undivided. May be called several times before `step`."""
        ...

    def measure(self, part: Part, loss: LossFunction) -> StepStats:
        """The terms of a loss over the part under the current weights, without gradients. Collective."""
        ...

    def step(self, divisor: float) -> StepStats:
        """Sum gradients over ranks, divide by `divisor` once, clip, update, zero. Raises `Divergence` on NaN."""
        ...

    def weights(self, part: WeightPart = "merged") -> Iterator[tuple[str, Tensor]]:
        """(HF name, full tensor) of every parameter and persistent buffer, tied tensors once. Collective.

        merged    adapters are added into their matrices (a model without adapters has nothing else)
        frozen    matrices without their adapters
        adapters  A and B alone
        """
        ...

    def keep(self, tag: str) -> None:
        """Remember the current weights under `tag` (ref, old, teacher)."""
        ...

    def forget(self, tag: str) -> None:
        """Free what `keep` remembered; an unknown tag is a no-op."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in rank order."""
        ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def save(self, folder: Path, tag: str = "actor") -> None:
        """Write a checkpoint; of weights kept under another tag, the weights alone."""
        ...

    def load(self, folder: Path, *, optimizer: bool = True) -> None: ...

    def export_hf(self, folder: Path) -> None: ...

    def close(self) -> None: ...


# --------------------------------------------------------------------------- inference

PauseMode = Literal["retract", "in_place", "abort"]


@dataclass(frozen=True)
class EngineConfig:
    """One inference engine, whatever its backend."""

    model_path: Path
    dtype: Literal["fp32", "bf16"] = "fp32"
    tensor_parallel: int = 1
    max_running_requests: int = 256
    max_total_tokens: int = 65536  # rows of the KV pool
    context_length: int | None = None
    seed: int = 0
    suppressed_ids: tuple[int, ...] | None = None  # None: the media ids of the folder's own processor
    media_options: MediaOptions = field(default_factory=MediaOptions)  # must be those of the rollout role
    extra_args: tuple[str, ...] = ()  # `--sglang-*` flags without their prefix, for the SGLang backend
    log_path: Path | None = None


@dataclass(frozen=True)
class EngineCommand:
    """How to start an engine process."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # additions to the environment
    ready_path: str = "/health"


class EngineSpec(Protocol):
    name: str

    def command(
        self, config: EngineConfig, *, host: str, port: int, gpus: Sequence[int], node_rank: int
    ) -> EngineCommand: ...


@dataclass(frozen=True)
class EngineInfo:
    """Capabilities of an engine, asked, never assumed."""

    backend: str
    url: str
    weight_version: str
    seeds: bool  # honours sampling_params.sampling_seed
    version_spans: bool  # reports meta_info.weight_versions
    exact: bool
    exact_reason: str
    logprob_kind: str  # "processed": of the distribution really sampled from; "raw" otherwise
    max_running_requests: int
    running_requests: int | None = None  # running and waiting now; None: the engine does not tell
    raw: Mapping[str, Any] = field(default_factory=dict)


class EngineClient(Protocol):
    """One engine (or the router) over HTTP or in process. Payloads and answers are SGLang's JSON objects."""

    url: str

    async def info(self) -> EngineInfo: ...

    async def generate(self, payload: Mapping[str, Any]) -> dict[str, Any]: ...

    async def abort(self, rid: str | None = None) -> None:
        """Abort one request, or all of them."""
        ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def flush(self) -> None: ...

    async def weights_begin(self) -> None: ...

    async def weights_from_disk(self, folder: Path, version: int, *, flush: bool = True) -> None: ...

    async def weights_end(self, version: int) -> None: ...

    async def sleep(self, tags: Iterable[str] = ("weights", "kv_cache")) -> None: ...

    async def wake(self, tags: Iterable[str] = ("weights", "kv_cache")) -> None: ...

    async def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Any other route of the engine."""
        ...

    async def close(self) -> None: ...
