# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the native engine's HTTP routes do, without HTTP: prompts in, answers out, pause, weights, memory."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.backends.base import PauseMode
from relax.backends.native.batch import Response
from relax.backends.native.chat import ChatCall, chat_answer, parse_chat
from relax.backends.native.input_scores import input_answer, input_asked
from relax.backends.native.loop import EngineLoop
from relax.backends.native.metrics import EngineMetrics
from relax.backends.native.model_runner import ModelRunner
from relax.backends.native.prompts import PromptReader
from relax.backends.native.protocol import GenerateRequest, RequestError, parse_generate, version_spans
from relax.backends.native.scheduler import Scheduler
from relax.backends.native.weights import WeightStaging
from relax.distributed.checkpoint_service.base import ADAPTER
from relax.distributed.checkpoint_service.checksums import tensor_checksum
from relax.utils.faults import pause_at

PAUSE_MODES = ("retract", "in_place", "abort")
MEMORY_TAGS = ("weights", "kv_cache")
GROUP_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ServiceOptions:
    """What an engine was started with."""

    model_path: str
    dtype: str
    device: str
    max_running_requests: int
    max_total_tokens: int
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    suppressed_ids: tuple[int, ...]
    exact: bool
    exact_reason: str


class NativeService:
    """One engine. Methods take and return JSON objects; `RequestError` is the caller's mistake."""

    def __init__(self, runner: ModelRunner, loop: EngineLoop, prompts: PromptReader, options: ServiceOptions) -> None:
        self.loop = loop
        self.options = options
        self.metrics = EngineMetrics()
        self._runner = runner
        self._prompts = prompts
        self._staging = WeightStaging(runner.layout(), runner.state)
        self._update = asyncio.Lock()
        self._asleep: set[str] = set()

    # ------------------------------------------------------------------ generation

    async def generate(self, body: Any) -> Any:
        call = parse_generate(body)
        responses = await self._responses(call.requests)
        for done in await self.loop.generate(responses):
            self.metrics.finished(done)
        answers = [self._answer(q, r) for q, r in zip(call.requests, responses, strict=True)]
        return answers if call.as_list else answers[0]

    async def chat(self, body: Mapping[str, Any]) -> tuple[ChatCall, dict[str, Any]]:
        """One chat completion; without a limit of its own it may fill the context."""
        call = parse_chat(body, self._prompts.render, model=self.options.model_path)
        if "max_new_tokens" not in call.generate["sampling_params"]:
            (first, *_) = parse_generate(call.generate).requests
            room = min(self.options.context_length, self.options.max_total_tokens)
            left = room - len(await self._prompts.read(first))
            call.generate["sampling_params"]["max_new_tokens"] = max(1, left)
        answers = await self.generate(call.generate)
        answers = answers if isinstance(answers, list) else [answers]
        decode = functools.partial(self._prompts.decode, skip_special_tokens=False)
        return call, chat_answer(call, answers, decode=decode, created=int(time.time()))

    async def _responses(self, requests: Sequence[GenerateRequest]) -> list[Response]:
        prompts: dict[str, Any] = {}
        responses = []
        for request in requests:
            if request.parent_rid not in prompts:
                prompts[request.parent_rid] = await self._prompts.read(request)
            prompt, params = prompts[request.parent_rid], request.params
            self.loop.scheduler.check_size(len(prompt), params.max_new_tokens)
            stops = params.stop_token_ids + (() if params.ignore_eos else self.options.eos_ids)
            responses.append(
                Response(
                    rid=request.rid,
                    parent_rid=request.parent_rid,
                    prompt=prompt,
                    params=params,
                    seed=request.seed,
                    stop_ids=tuple(dict.fromkeys(stops)),
                    asked=input_asked(request, len(prompt), self.options.vocab_size),
                )
            )
        return responses

    def _answer(self, request: GenerateRequest, response: Response) -> dict[str, Any]:
        ids = response.token_ids.tolist()
        spans = version_spans(response.version_starts, len(ids))
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": response.finish,
            "prompt_tokens": len(response.prompt),
            "completion_tokens": len(ids),
            "cached_tokens": response.cached_tokens,
            "weight_version": spans[-1]["version"] if spans else self.loop.scheduler.version,
            "weight_versions": spans,
            "sampling_seed": request.seed,
            "num_retractions": response.retractions,
            "e2e_latency": response.finished_at - response.submitted_at,
        }
        if request.return_logprob:
            meta["output_token_logprobs"] = [
                [score, token, None] for score, token in zip(response.log_probs.tolist(), ids, strict=True)
            ]
            if response.asked is not None and response.input_scores is not None:
                meta |= input_answer(response.asked, response.input_scores, response.prompt.ids)
        return {
            "text": self._prompts.text_of(ids, request.params, response.finish),
            "output_ids": ids,
            "meta_info": meta,
        }

    # ------------------------------------------------------------------ control

    async def pause(self, mode: str) -> None:
        if mode not in PAUSE_MODES:
            raise RequestError(f"mode {mode!r} is not one of {PAUSE_MODES}")
        pause_mode: PauseMode = mode  # type: ignore[assignment]
        await self.loop.run(lambda scheduler: scheduler.pause(pause_mode))

    async def resume(self) -> None:
        if self._asleep:
            raise RequestError(f"continue_generation: {sorted(self._asleep)} released; call /resume_memory_occupation")
        await self.loop.run(lambda scheduler: scheduler.resume())

    async def abort(self, rid: str | None) -> int:
        return await self.loop.run(lambda scheduler: scheduler.abort(rid))

    async def flush(self) -> None:
        await self.loop.run(lambda scheduler: scheduler.flush())

    async def sleep(self, tags: Sequence[str]) -> None:
        """Release memory: on a CPU nothing is freed, but the order of calls is checked."""
        self._check_tags(tags)

        def release(scheduler: Scheduler) -> None:
            if scheduler.batch.size or (scheduler.waiting and not scheduler.paused):
                raise RequestError("release_memory_occupation: requests are running; pause or abort them first")
            scheduler.prefixes.flush()
            scheduler.asleep = True

        await self.loop.run(release)
        self._asleep |= set(tags)

    async def wake(self, tags: Sequence[str]) -> None:
        """Take memory back, weights first; with everything back, generation goes on unless it is paused."""
        self._check_tags(tags)
        if "kv_cache" in tags and "weights" in self._asleep and "weights" not in tags:
            raise RequestError("resume_memory_occupation: resume 'weights' before 'kv_cache'")
        self._asleep -= set(tags)
        asleep = bool(self._asleep)
        await self.loop.run(lambda scheduler: setattr(scheduler, "asleep", asleep))

    @staticmethod
    def _check_tags(tags: Sequence[str]) -> None:
        unknown = sorted(set(tags) - set(MEMORY_TAGS))
        if unknown:
            raise RequestError(f"tags {unknown} are unknown; known are {MEMORY_TAGS}")

    # ------------------------------------------------------------------ weights

    async def weights_begin(self) -> None:
        if "weights" in self._asleep:
            raise RequestError("begin_weight_update: weights are released; call /resume_memory_occupation first")
        async with self._update:
            self._staging.begin()
        await pause_at("update_begin")

    async def weights_from_disk(self, body: Mapping[str, Any]) -> None:
        folder = Path(_text(body, "model_path"))
        version = body.get("weight_version")
        if not folder.is_dir():
            raise RequestError(f"model_path {folder} is not a folder on this machine")
        await self._stage(self._staging.stage_folder, folder, None if version is None else str(version))

    async def weights_from_tensor(self, body: Mapping[str, Any]) -> None:
        blobs = body.get("serialized_named_tensors")
        if body.get("load_format") != "safetensors":
            raise RequestError(
                "load_format must be 'safetensors' (base64 of safetensors bytes); pickled tensors are not accepted"
            )
        if not isinstance(blobs, list) or not blobs or not all(isinstance(blob, str) for blob in blobs):
            raise RequestError("serialized_named_tensors must be a non-empty list of base64 strings")
        await self._stage(self._staging.stage_blobs, blobs, body.get(ADAPTER))

    async def weights_from_distributed(self, body: Mapping[str, Any]) -> None:
        parts = [body.get(key) for key in ("names", "dtypes", "shapes")]
        if not all(isinstance(part, list) for part in parts):
            raise RequestError("names, dtypes and shapes must be lists")
        group = body.get("group_name", "weight_update_group")
        await self._stage(self._staging.stage_broadcast, group, *parts, body.get(ADAPTER))

    async def weights_end(self, version: str | None) -> str:
        """Switch to the staged weights between two decode steps; returns the version in force."""
        async with self._update:
            tensors = await asyncio.to_thread(self._staging.take)  # an adapter is merged here
            await pause_at("update_end")

            def switch(scheduler: Scheduler) -> str:
                self._runner.install(tensors)
                scheduler.switch_version(scheduler.version if version is None else version)
                return scheduler.version

            return await self.loop.run(switch)

    async def relabel(self, body: Mapping[str, Any]) -> str:
        """Another version number for the weights in force; returns it."""
        version = _text(body, "new_version")
        if body.get("abort_all_requests", True):
            await self.abort(None)
        async with self._update:
            await self.loop.run(lambda scheduler: scheduler.switch_version(version))
        return version

    async def _stage(self, function: Any, *arguments: Any) -> None:
        """Read in a thread, so that decoding goes on; a refused update is closed, the old weights stay."""
        async with self._update:
            try:
                await asyncio.to_thread(function, *arguments)
            except BaseException:
                self._staging.drop()
                raise

    async def open_group(self, body: Mapping[str, Any]) -> None:
        numbers = {key: body.get(key) for key in ("master_port", "rank_offset", "world_size")}
        for key, value in numbers.items():
            if type(value) is not int:
                raise RequestError(f"{key} must be an integer, got {value!r}")
        await asyncio.to_thread(
            self._staging.open_group,
            body.get("group_name", "weight_update_group"),
            _text(body, "master_address"),
            numbers["master_port"],
            numbers["rank_offset"],
            numbers["world_size"],
            body.get("backend", "gloo"),
            float(body.get("timeout_s", GROUP_TIMEOUT_S)),
        )

    async def close_group(self, name: str) -> None:
        async with self._update:
            self._staging.close_group(name)

    async def checksums(self) -> dict[str, str]:
        """Checksum of every tensor in force, by HF name."""
        return await self.loop.run(
            lambda _: {name: tensor_checksum(tensor) for name, tensor in self._runner.state().items()}
        )

    # ------------------------------------------------------------------ information

    def info(self) -> dict[str, Any]:
        """The answer of /server_info: SGLang's words first, then capabilities."""
        options, scheduler = self.options, self.loop.scheduler
        return {
            "backend": "native",
            "version": "native",
            "model_path": options.model_path,
            "served_model_name": options.model_path,
            "tokenizer_path": options.model_path,
            "dtype": options.dtype,
            "device": options.device,
            "tp_size": 1,
            "dp_size": 1,
            "context_length": options.context_length,
            "vocab_size": options.vocab_size,
            "max_running_requests": options.max_running_requests,
            "max_total_num_tokens": options.max_total_tokens,
            "weight_version": scheduler.version,
            "enable_deterministic_inference": True,
            "logprob_kind": "processed",
            "seeds": True,
            "version_spans": True,
            "n_copies_differ": True,
            "token_ids_per_position": True,
            "weight_tensor_format": "safetensors",
            "exact": options.exact,
            "exact_reason": options.exact_reason,
            "suppressed_ids": list(options.suppressed_ids),
            "eos_token_ids": list(options.eos_ids),
            "media": list(self._prompts.media_kinds),
            "paused": scheduler.paused,
            "asleep": sorted(self._asleep),
            "update_open": self._staging.is_open,
            "internal_states": [
                {
                    "num_running_reqs": scheduler.batch.size,
                    "num_queue_reqs": len(scheduler.waiting),
                    "last_gen_throughput": self.metrics.throughput(),
                    "decode_steps": scheduler.counters.decode_steps,
                    "generated_tokens": scheduler.counters.generated_tokens,
                    "busy_seconds": scheduler.counters.busy_seconds,
                }
            ],
        }

    def model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.options.model_path,
            "tokenizer_path": self.options.model_path,
            "is_generation": True,
            "weight_version": self.loop.scheduler.version,
            "has_image_understanding": "image" in self._prompts.media_kinds,
            "has_audio_understanding": "audio" in self._prompts.media_kinds,
        }

    def check_health(self) -> None:
        """Raise when the engine can no longer answer."""
        if self.loop.failed is not None:
            raise RequestError(f"the engine has stopped: {self.loop.failed!r}", status=503)

    def close(self) -> None:
        self.loop.close()


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key} must be a non-empty string, got {value!r}")
    return value
