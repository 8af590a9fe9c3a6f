# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a generate function needs besides its sample: tokenizer, processor, sampling parameters, permits."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from relax.config.external.describe import text_config
from relax.data.media.processing import MediaOptions, MediaProcessor
from relax.engine.rollout.sampling import SamplingOptions
from relax.utils.http_utils import post
from relax.utils.torchvision_shim import ensure_torchvision


class Permits(Protocol):
    """Bounds the requests (or whole calls) that run at a time; an `asyncio.Semaphore` is one."""

    async def acquire(self) -> Any: ...

    def release(self) -> None: ...


class GrowingPermits:
    """Permits whose number follows the engines. What is taken away comes out of permits as they are released."""

    def __init__(self, capacity: int) -> None:
        self._free, self._capacity, self._owed = asyncio.Semaphore(capacity), capacity, 0

    async def acquire(self) -> None:
        await self._free.acquire()

    def release(self) -> None:
        if self._owed:
            self._owed -= 1
        else:
            self._free.release()

    def resize(self, capacity: int) -> None:
        """Have `capacity` permits in all, held ones included."""
        change, self._capacity = capacity - self._capacity, capacity
        for _ in range(change):
            self.release()
        self._owed += max(0, -change)


class CallPermits:
    """Permits of one call of a generate function.

    A plain function holds one permit for its whole call. A function with the attribute
    `manages_inference_permit = True` holds none, and takes one for each engine request through `GenerateState`.
    """

    def __init__(self, permits: Permits, *, managed: bool) -> None:
        self.permits = permits
        self.managed = managed


current_call: ContextVar[CallPermits | None] = ContextVar("relax_current_call", default=None)
_holds_permit: ContextVar[bool] = ContextVar("relax_holds_permit", default=False)
_loop_permits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


@functools.cache
def load_tokenizer(path: str) -> Any:
    """The tokenizer of an HF folder, loaded once a process."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


@functools.cache
def load_processor(path: str) -> Any | None:
    """The multi-modal processor of an HF folder, or None for a text-only model. Loaded once a process."""
    if not any((Path(path) / name).exists() for name in ("preprocessor_config.json", "processor_config.json")):
        return None
    ensure_torchvision()
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(path, trust_remote_code=False)


@functools.cache
def media_processor(path: str, options: MediaOptions) -> MediaProcessor:
    """Features and placeholders of the model of an HF folder, as the engines read them. Made once a process."""
    return MediaProcessor(load_processor(path), options, tokenizer=load_tokenizer(path))


def media_options(args: Any) -> MediaOptions:
    """The run's limits on images, videos and audio, from the hooks' view."""
    names = [field.name for field in dataclasses.fields(MediaOptions) if field.name != "as_sglang"]
    return MediaOptions(**{name: getattr(args, name) for name in names}, as_sglang=args.rollout_backend == "sglang")


@functools.cache
def model_context(path: str) -> int | None:
    """Tokens that the model of an HF folder has positions for; None when its config.json does not say."""
    file = Path(path) / "config.json"
    config = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return text_config(config).get("max_position_embeddings") if config else None


class GenerateState:
    """`GenerateState(args)`: cheap to make in every call; what is heavy is loaded once a process, on first use.

    `args` is the hooks' view of the configuration.
    """

    def __init__(self, args: Any) -> None:
        self.args = args

    @property
    def tokenizer(self) -> Any:
        return load_tokenizer(str(self.args.hf_checkpoint))

    @property
    def processor(self) -> Any | None:
        return load_processor(str(self.args.hf_checkpoint))

    @property
    def media(self) -> MediaProcessor:
        """Extracts features and expands placeholders just as the run does for prompts."""
        return media_processor(str(self.args.hf_checkpoint), media_options(self.args))

    @property
    def context_limit(self) -> int | None:
        """Tokens of prompt and response together that an engine takes; None when nothing says."""
        args = self.args
        limits = [args.rollout_max_context_len or model_context(str(args.hf_checkpoint))]
        if args.rollout_backend == "native":
            limits.append(args.engine_max_total_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def sampling_params(self) -> dict[str, Any]:
        """A fresh dict of the training rollout's sampling parameters."""
        return sampling_options(self.args).params()

    @property
    def generate_url(self) -> str:
        return f"http://{self.args.sglang_router_ip}:{self.args.sglang_router_port}/generate"

    @asynccontextmanager
    async def inference_permit(self) -> AsyncIterator[None]:
        """Hold one permit for one engine request. Only in functions with `manages_inference_permit = True`."""
        call = current_call.get()
        if call is not None and not call.managed:
            raise RuntimeError(
                "inference_permit: this generate function holds a permit for its whole call; set its attribute "
                "manages_inference_permit = True to take one for each request"
            )
        if _holds_permit.get():
            raise RuntimeError("inference_permit: this task holds a permit already; do not nest")
        permits = call.permits if call is not None else _own_permits(self.capacity)
        await permits.acquire()
        token = _holds_permit.set(True)
        try:
            yield
        finally:
            _holds_permit.reset(token)
            permits.release()

    async def post_generate(self, payload: Mapping[str, Any], *, url: str | None = None) -> Any:
        """One engine request under one permit."""
        async with self.inference_permit():
            return await post(url or self.generate_url, payload)

    @property
    def capacity(self) -> int:
        """Requests that may run at a time over all engines: `--sglang-server-concurrency` times their number."""
        args = self.args
        engines = max(1, (args.rollout_num_gpus or 1) // args.rollout_num_gpus_per_engine)
        return engines * (args.sglang_server_concurrency or args.engine_max_running_requests)

    @property
    def semaphore(self) -> Permits:
        call = current_call.get()
        return call.permits if call is not None else _own_permits(self.capacity)


def _own_permits(capacity: int) -> asyncio.Semaphore:
    """Permits of calls made outside a rollout (a user's own script), one set for each event loop."""
    return _loop_permits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(capacity))


def sampling_options(args: Any, *, evaluation: bool = False) -> SamplingOptions:
    """Sampling options from the hooks' view; an evaluation option that is not set is the rollout's."""

    def either(eval_name: str, name: str) -> Any:
        value = getattr(args, eval_name) if evaluation else None
        return getattr(args, name) if value is None else value

    return SamplingOptions(
        max_response_len=either("eval_max_response_len", "rollout_max_response_len"),
        temperature=either("eval_temperature", "rollout_temperature"),
        top_p=either("eval_top_p", "rollout_top_p"),
        top_k=either("eval_top_k", "rollout_top_k"),
        min_new_tokens=args.eval_min_new_tokens if evaluation else 0,
        stop=tuple(args.rollout_stop or ()),
        stop_token_ids=tuple(args.rollout_stop_token_ids or ()),
        skip_special_tokens=args.rollout_skip_special_tokens,
    )
