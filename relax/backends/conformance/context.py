# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a check has at hand: the client, what the server says of itself, the plain forward, another set of weights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.base import EngineInfo
from relax.backends.conformance.check import NotAsked, NotOffered, require
from relax.backends.conformance.samples import prompt_ids
from relax.backends.engine_client import EngineRefused, HttpEngineClient
from relax.distributed.checkpoint_service.naming import THINKER, sglang_names
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.utils.errors import EngineLost

SENTENCE = "What is 7 plus 5?"
PLAIN_PROMPT = (20, 21, 22, 23, 40)  # without a tokenizer; ids that every vocabulary has
TOLERANCE = {"float32": 1e-4, "fp32": 1e-4}  # of a log-prob, in nats
COARSE_TOLERANCE = 0.1  # of a log-prob in bfloat16 or float16
NO_LOGIT = -1e9  # added to a logit, leaves a probability of zero
CHANGE = 0.3  # of a weight matrix in the second set of weights, in its own standard deviations
SECOND_VERSION = 7


class Context:
    """`folder`: the model that the server holds, readable here and there. `may_update`: checks may change weights."""

    def __init__(
        self, client: HttpEngineClient, info: EngineInfo, *, folder: Path | None, may_update: bool, work: Path
    ) -> None:
        self.client, self.info = client, info
        self._folder, self._may_update, self._work = folder, may_update, work
        self._models: dict[Path, Any] = {}
        self._changed = False

    # ------------------------------------------------------------------ what the server says

    def offers(self, word: str) -> None:
        """NotOffered unless the server's information has `word` with a true value."""
        if not self.info.raw.get(word):
            raise NotOffered(f"its information does not say {word}: true")

    def require_seeds(self) -> None:
        if not self.info.seeds:
            raise NotOffered("it ignores sampling_seed (SGLang needs --enable-deterministic-inference)")

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(str(self.info.raw.get("dtype")), COARSE_TOLERANCE)

    # ------------------------------------------------------------------ requests

    def prompt(self, sentence: str = SENTENCE) -> list[int]:
        return list(PLAIN_PROMPT) if self._folder is None else self.tokenizer(sentence)["input_ids"]

    def media_prompt(self, layout: str, kinds: Sequence[str]) -> list[int]:
        for kind in kinds:
            if kind not in self.media.kinds:
                raise NotOffered(f"the model's processor reads no {kind}")
        return prompt_ids(self.tokenizer, layout, kinds, SENTENCE)

    async def generate(
        self, ids: Sequence[int] | None = None, n: int = 12, *, seed: int | None = 5, call: Any = None, **sampling: Any
    ) -> Any:
        """One /generate call with log-probs; `call` holds keys beside the sampling parameters."""
        params = {"temperature": 1.0, "max_new_tokens": n, "ignore_eos": True, **sampling}
        if seed is not None:
            params["sampling_seed"] = seed
        if self.suppressed and self._told_ids() is None:
            params["logit_bias"] = {str(token): NO_LOGIT for token in self.suppressed}
        prompt = {"input_ids": self.prompt() if ids is None else list(ids)}
        return await self.client.generate(
            {**prompt, "sampling_params": params, "return_logprob": True, **(call or {})}
        )

    def start(self, n: int, rid: str = "", **options: Any) -> asyncio.Task[Any]:
        """A request of `n` tokens in flight."""
        call = {**options.pop("call", {}), **({"rid": rid} if rid else {})}
        return asyncio.create_task(self.generate(n=n, call=call, **options))

    async def calm_down(self) -> None:
        """Go on, end what runs, and put the first weights back. A server that refuses this fails the next check."""
        with contextlib.suppress(EngineRefused, EngineLost):
            await self.client.resume()
        with contextlib.suppress(EngineRefused, EngineLost):
            await self.client.abort()
        if self._changed:
            with contextlib.suppress(EngineRefused, EngineLost):
                await self.install_folder(self.folder, self.info.weight_version)
                self._changed = False

    # ------------------------------------------------------------------ the plain forward

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise NotAsked("needs the model folder (--model)")
        return self._folder

    @functools.cached_property
    def tokenizer(self) -> Any:
        from relax.data.model_files import load_tokenizer

        return load_tokenizer(self.folder)

    @functools.cached_property
    def media(self) -> Any:
        from relax.data.media.processing import MediaOptions, MediaProcessor
        from relax.data.model_files import load_processor

        options = MediaOptions(as_sglang=self.info.backend == "sglang")
        return MediaProcessor(load_processor(self.folder), options, tokenizer=self.tokenizer)

    @functools.cached_property
    def suppressed(self) -> tuple[int, ...]:
        """Ids that a training rollout never samples: those of media."""
        told = self._told_ids()
        return told if told is not None else () if self._folder is None else self.media.suppressed_ids

    def _told_ids(self) -> tuple[int, ...] | None:
        """Ids that the server keeps out by itself, as far as it says."""
        if "suppressed_ids" in self.info.raw:
            return tuple(self.info.raw["suppressed_ids"])
        bias = (self.info.raw.get("preferred_sampling_params") or {}).get("logit_bias")
        return None if bias is None else tuple(sorted(int(token) for token in bias))

    def media_items(self, media: Sequence[tuple[str, str]]) -> list[Any]:
        """(kind, data URI) as a run sends them to this server."""
        from relax.data.media.items import load_media

        items = (load_media(kind, uri, folder=Path(), where="check") for kind, uri in media)
        return [self.media.as_sent(item, where="check") for item in items]

    def features(self, media: Sequence[tuple[str, str]]) -> list[Any]:
        return [self.media.extract(item) for item in self.media_items(media)]

    def model(self, folder: Path) -> Any:
        from relax.backends.exact.model import load_hf

        if folder not in self._models:
            self._models[folder] = load_hf(folder).eval()
        return self._models[folder]

    def expected(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        *,
        temperature: float = 1.0,
        features: Sequence[Any] = (),
        folder: Path | None = None,
    ) -> np.ndarray:
        """Log-probs [R] of the response under the weights of `folder` (the server's first ones)."""
        from relax.backends.conformance.reference import hf_log_probs

        model = self.model(folder or self.folder)
        return hf_log_probs(model, prompt, features, response, temperature, self.suppressed)

    def require_expected(self, answer: Any, prompt: Sequence[int], **how: Any) -> None:
        """CheckFailed when a log-prob of the answer is not that of the plain forward."""
        difference = float(np.abs(scores(answer) - self.expected(prompt, answer["output_ids"], **how)).max())
        require(
            difference < self.tolerance,
            f"log-probs differ from a plain forward by at most {self.tolerance:g}",
            difference,
        )

    def prompt_distribution(self, prompt: Sequence[int]) -> np.ndarray:
        """Log-probs [P - 1, V] of the prompt's tokens from the second on, no id left out."""
        from relax.backends.conformance.reference import hf_logits

        return hf_logits(self.model(self.folder), prompt[:1], (), prompt[1:]).log_softmax(-1).numpy()

    def require_at(self, answer: Any, prompt: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """CheckFailed unless `input_token_ids_logprobs` is about `ids` [P, K] and has the plain forward's numbers."""
        rows = answer["meta_info"]["input_token_ids_logprobs"]
        require(len(rows) == len(prompt) and not rows[0], "a row for each prompt token, the first empty", rows)
        named = [[int(entry[1]) for entry in row] for row in rows[1:]]
        require(named == [list(row) for row in ids[1:]], "the ids that were named", named)
        got = np.asarray([[entry[0] for entry in row] for row in rows[1:]], np.float64)
        expected = np.take_along_axis(self.prompt_distribution(prompt), np.asarray(ids[1:]), 1)
        require(float(np.abs(got - expected).max()) < self.tolerance, "log-probs of a plain forward", got.tolist())

    # ------------------------------------------------------------------ other weights

    @property
    def second(self) -> Path:
        """A folder of the same model with other weights, made from the first ones."""
        if not self._may_update:
            raise NotAsked("changes the weights that are served (--update-weights)")
        self._changed = True
        return self._second

    @functools.cached_property
    def _second(self) -> Path:
        from safetensors.torch import load_file

        tensors = {
            name: t for file in sorted(self.folder.glob("*.safetensors")) for name, t in load_file(file).items()
        }
        manifest = SharedMemoryPublisher(self._work / "versions", self.folder).publish(
            SECOND_VERSION, changed(tensors).items()
        )
        return Path(str(manifest.folder))

    async def install_folder(self, folder: Path, version: str) -> None:
        body = {"model_path": str(folder), "weight_version": version, "flush_cache": True}
        await self.client.weights_begin()
        await self.client.post("/update_weights_from_disk", body)
        await self.client.post("/end_weight_update", {"weight_version": version})

    @property
    def name_map(self) -> Callable[[Any], Any] | None:
        """From the trainer's names in memory to those that the server loads; the native engine takes either."""
        if self.info.backend == "native":
            return None
        config = json.loads((self.folder / "config.json").read_text("utf-8"))
        return sglang_names(THINKER if "thinker_config" in config else "")

    def tensors_in_memory(self, folder: Path) -> list[tuple[str, Any]]:
        """(name, tensor) of a folder's model as a trainer sends them."""
        parameters = self.model(folder).named_parameters()
        return [(n, t.detach()) for n, t in (self.name_map(parameters) if self.name_map else parameters)]

    def tensor_body(self, tensors: Sequence[tuple[str, Any]], version: str) -> dict[str, Any]:
        """Body of /update_weights_from_tensor in the format that the server reads.

        SGLang's is a pickle. Plain pickle copies the bytes into it; torch's own multiprocessing pickle would point
        at shared memory that a process outside the server's family cannot hand over.
        """
        if self.info.raw.get("weight_tensor_format") == "safetensors":
            from safetensors.torch import save

            data, kind = save({name: tensor.contiguous() for name, tensor in tensors}), {"load_format": "safetensors"}
        else:
            data, kind = pickle.dumps([(name, tensor.clone()) for name, tensor in tensors]), {}
        ranks = int(self.info.raw.get("tp_size") or 1)
        blob = base64.b64encode(data).decode()
        return {"serialized_named_tensors": [blob] * ranks, "weight_version": version, **kind}


def changed(tensors: dict[str, Any]) -> dict[str, Any]:
    """Other weights of the same shapes: every matrix moved by noise from a fixed seed."""
    import torch

    generator = torch.Generator().manual_seed(1)
    out = {}
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        move = CHANGE * tensor.float().std() * noise if tensor.ndim > 1 and tensor.is_floating_point() else 0.0
        out[name] = (tensor.float() + move).to(tensor.dtype) if tensor.is_floating_point() else tensor
    return out


def scores(answer: Any) -> np.ndarray:
    """Log-probs [K] of the sampled tokens; CheckFailed unless there is one for each id."""
    entries = answer["meta_info"]["output_token_logprobs"]
    require([entry[1] for entry in entries] == list(answer["output_ids"]), "one log-prob for each of output_ids")
    return np.asarray([entry[0] for entry in entries], np.float64)


def finish(answer: Any) -> dict[str, Any]:
    reason = answer["meta_info"]["finish_reason"]
    return {"type": reason} if isinstance(reason, str) else dict(reason or {})
