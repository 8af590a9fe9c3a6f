# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Prompts as the model sees them: text to ids, media to features, one placeholder to many; and ids back to text."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.native.batch import Prompt
from relax.backends.native.protocol import GenerateRequest, RequestError, SamplingParams
from relax.data.media.items import MediaAccess, MediaItem, load_media
from relax.data.media.processing import MediaProcessor
from relax.utils.errors import DataError
from relax.utils.types import MODALITIES, MediaFeatures

READ_PROMPTS = 64  # prompts with media kept, so that a group's later members cost nothing

Positions = Callable[[np.ndarray, Sequence[MediaFeatures]], np.ndarray]


class PromptReader:
    """Turns requests into prompts. Media are read in a thread; plain token ids cost no thread."""

    def __init__(
        self,
        tokenizer: Any,
        processor: MediaProcessor,
        positions: Positions,
        vocab_size: int,
        access: MediaAccess | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._positions = positions
        self._vocab_size = vocab_size
        self._access = access or MediaAccess()
        self._placeholders = np.asarray(sorted(processor.placeholder_ids.values()), np.int64)
        self._read: OrderedDict[Any, Prompt] = OrderedDict()
        self._by_text: OrderedDict[Hashable, Prompt] = OrderedDict()
        self._reading: dict[Hashable, asyncio.Future[Prompt]] = {}
        self._lock = threading.Lock()

    @property
    def media_kinds(self) -> tuple[str, ...]:
        return self._processor.kinds

    async def read(self, request: GenerateRequest) -> Prompt:
        """The prompt of a request; `RequestError` when ids, media or their counts are wrong."""
        ids = self._ids(request)
        if not request.has_media:
            if len(self._placeholders) and np.isin(ids, self._placeholders).any():
                raise RequestError(
                    "input_ids holds media placeholder ids, but image_data, audio_data and video_data are empty"
                )
            return Prompt(ids, np.arange(len(ids), dtype=np.int64), len(ids), ids.tobytes())
        key = _content_key(ids, request)
        if key is None:
            return await asyncio.to_thread(self._read_media, ids, request)
        return await self._read_once(key, ids, request)

    async def _read_once(self, key: Hashable, ids: np.ndarray, request: GenerateRequest) -> Prompt:
        """A group's members send the same text at the same time: the first is read, the others wait for it."""
        if key in self._by_text:
            self._by_text.move_to_end(key)
            return self._by_text[key]
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(asyncio.to_thread(self._read_media, ids, request))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._have_read(key, done))
        return await asyncio.shield(reading)

    def _have_read(self, key: Hashable, reading: asyncio.Future[Prompt]) -> None:
        del self._reading[key]
        if reading.cancelled() or reading.exception() is not None:  # whoever waits for it is told
            return
        self._by_text[key] = reading.result()
        while len(self._by_text) > READ_PROMPTS:
            self._by_text.popitem(last=False)

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None, options: Mapping[str, Any]) -> list[int]:
        """Ids of a chat by the folder's own template, media unexpanded; the answer's start is part of them."""
        processor = getattr(self._processor, "processor", None)
        template = getattr(self._tokenizer, "chat_template", None) or getattr(processor, "chat_template", None)
        if template is None:
            raise RequestError("the model folder has no chat template; send input_ids")
        options = {"add_generation_prompt": True, "chat_template": template, **options, "tokenize": False}
        try:
            with self._lock:
                text = self._tokenizer.apply_chat_template(messages, tools=tools, **options)
                return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception as error:  # templates raise whatever they like; the caller's messages are at fault
            raise RequestError(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from error

    def text_of(self, ids: Sequence[int], params: SamplingParams, finish: Mapping[str, Any] | None) -> str:
        """The response as text, without the stop token or string that ended it unless `no_stop_trim`."""
        matched = (finish or {}).get("matched")
        if isinstance(matched, int) and not params.no_stop_trim:
            ids = ids[:-1]
        text = self.decode(ids, params.skip_special_tokens)
        if isinstance(matched, str) and not params.no_stop_trim:
            text = text[: text.find(matched)] if matched in text else text
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        if self._tokenizer is None:
            return ""
        fast = getattr(self._tokenizer, "_tokenizer", None)
        if fast is not None:
            return fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    # ------------------------------------------------------------------ pieces

    def _ids(self, request: GenerateRequest) -> np.ndarray:
        if request.text is not None:
            if self._tokenizer is None:
                raise RequestError("text needs a tokenizer in the model folder; send input_ids")
            with self._lock:
                found = self._tokenizer(request.text)["input_ids"]
            if not found:
                raise RequestError("text has no tokens")
            return np.asarray(found, np.int64)
        ids = np.asarray(request.input_ids, np.int64)
        if ids.max() >= self._vocab_size:
            raise RequestError(f"input_ids holds {int(ids.max())}; the vocabulary has {self._vocab_size} ids")
        return ids

    def _read_media(self, ids: np.ndarray, request: GenerateRequest) -> Prompt:
        try:
            items = self._in_order(ids, request)
            key = (ids.tobytes(), tuple((item.kind, item.sha256) for item in items))
            with self._lock:
                if key in self._read:
                    self._read.move_to_end(key)
                    return self._read[key]
            features = tuple(self._processor.extract(item, where=f"request {request.rid}") for item in items)
            expanded = np.asarray(self._processor.expand(ids.tolist(), features), np.int64)
            positions = np.asarray(self._positions(expanded, features), np.int64)
        except DataError as error:
            raise RequestError(f"image_data, audio_data or video_data: {error}") from error
        prompt = Prompt(expanded, positions, int(positions.max()) + 1, key, features)
        with self._lock:
            self._read[key] = prompt
            while len(self._read) > READ_PROMPTS:
                self._read.popitem(last=False)
        return prompt

    def _in_order(self, ids: np.ndarray, request: GenerateRequest) -> list[MediaItem]:
        """The three lists merged by the order of their placeholders in the prompt."""
        given = {"image": request.image_data, "audio": request.audio_data, "video": request.video_data}
        kinds = {token: kind for kind, token in self._processor.placeholder_ids.items()}
        order = [kinds[token] for token in ids.tolist() if token in kinds]
        for kind in MODALITIES:
            if order.count(kind) != len(given[kind]):
                raise RequestError(
                    f"{kind}_data has {len(given[kind])} items, but the prompt has {order.count(kind)} {kind} "
                    f"placeholders; send prompts unexpanded, one placeholder an item"
                )
        queues = {kind: iter(values) for kind, values in given.items()}
        return [
            load_media(
                kind, next(queues[kind]), folder=Path.cwd(), where=f"request {request.rid}", access=self._access
            )
            for kind in order
        ]


def _content_key(ids: np.ndarray, request: GenerateRequest) -> Hashable | None:
    """Equal for prompts with the same ids and data URIs; None when a file or URL could change between two requests."""
    lists = (request.image_data, request.audio_data, request.video_data)
    if not all(isinstance(item, str) and item[:5].lower() == "data:" for items in lists for item in items):
        return None
    return ids.tobytes(), *(tuple(hashlib.sha256(item.encode()).digest() for item in items) for items in lists)
