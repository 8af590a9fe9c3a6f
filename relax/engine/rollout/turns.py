# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Responses of several turns: what the engine answers is trained, what an environment says in between is not.

    turns = Turns(args, sample)
    while not turns.ended:
        text = await turns.ask(sampling_params)
        ...
        await turns.observe({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "..."}]}, [image])
    return turns.sample

An observation may hold images. They go the way of the prompt's own: extracted once, one id each for the engine,
expanded for training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax.data.media.items import MediaItem, load_media
from relax.data.model_files import tokenizer_lock
from relax.engine.rollout.generate import append_answer, check_prompt_length, prepare_prompt, within_context
from relax.engine.rollout.media_payload import media_payload
from relax.engine.rollout.state import GenerateState
from relax.utils.http_utils import post
from relax.utils.types import MediaFeatures, Sample

_MARK = "0123456789"  # what an answer is in the rendered text; templates do not hold it


class Turns:
    """One sample on its way. Its fields always agree: after any turn it may be returned as it is."""

    def __init__(self, args: Any, sample: Sample) -> None:
        self.state, self.sample = GenerateState(args), sample
        prepare_prompt(self.state, sample)
        self._context = list(sample.rollout_tokens)  # ids as the engine gets them, one a medium

    @property
    def ended(self) -> bool:
        """The last answer was cut off, by its length or by the engine, or the context is full."""
        return self.sample.status in (Sample.Status.TRUNCATED, Sample.Status.ABORTED, Sample.Status.FAILED)

    async def ask(self, sampling_params: Mapping[str, Any]) -> str:
        """One engine request about everything so far -> its text. The answer is part of the response, mask 1."""
        sample, where = self.sample, f"sample {self.sample.group_index}.{self.sample.index}"
        params = dict(sampling_params)
        if "max_new_tokens" in params:
            params["max_new_tokens"] = within_context(self.state, sample, params["max_new_tokens"])
        payload: dict[str, Any] = {
            "input_ids": list(self._context),
            "sampling_params": params,
            "return_logprob": True,
            **media_payload(sample.multimodal_inputs, where=where),
        }
        answer = await post(self.state.generate_url, payload)
        check_prompt_length(sample, answer)
        length = len(sample.tokens)
        append_answer(sample, payload, answer)
        self._context += sample.tokens[length:]
        return answer.get("text", "")

    async def observe(self, message: Mapping[str, Any], images: Sequence[Any] = ()) -> bool:
        """Append a message by the chat template, and the start of the next answer; all of it with mask 0.

        `images` fill the message's image parts: PIL images, bytes, paths or URIs. False, and status TRUNCATED, when
        the context has no room for it and one more token.
        """
        text = self._rendered(message)
        ids, expanded, items, features = await asyncio.to_thread(self._read, text, images)
        sample, limit = self.sample, self.state.context_limit
        if limit is not None and len(sample.tokens) + len(expanded) >= limit:
            sample.status, sample.finish_reason = Sample.Status.TRUNCATED, "length"
            return False
        self._context += ids
        sample.tokens = sample.tokens + expanded
        sample.loss_mask = (sample.loss_mask or []) + [0] * len(expanded)
        sample.rollout_log_probs = (sample.rollout_log_probs or []) + [0.0] * len(expanded)
        sample.weight_versions = sample.weight_versions + [-1] * len(expanded)
        sample.response_length += len(expanded)
        sample.response += text
        if items:  # new objects: the samples of a group share those of the prompt
            held = sample.multimodal_inputs or {}
            sample.multimodal_inputs = {**held, "image": [*held.get("image", ()), *items]}
            sample.multimodal_train_inputs = [*(sample.multimodal_train_inputs or ()), *features]
        return True

    def _read(
        self, text: str, images: Sequence[Any]
    ) -> tuple[list[int], list[int], list[MediaItem], list[MediaFeatures]]:
        """Ids for the engine, ids for training, items and features of an observation. Blocking."""
        where = f"sample {self.sample.group_index}.{self.sample.index}, observation"
        tokenizer = self.state.tokenizer
        with tokenizer_lock(tokenizer):
            ids = list(tokenizer.encode(text, add_special_tokens=False))
        if not images:
            return ids, list(ids), [], []
        media = self.state.media
        items = [load_media("image", image, folder=Path(), where=where) for image in images]
        features = [media.extract(item, where=where) for item in items]
        return ids, media.expand(ids, features, where=where), items, features

    def _rendered(self, message: Mapping[str, Any]) -> str:
        """What follows the last answer: its end, where the answer lacks it, the message, the next answer's start."""
        tokenizer, args = self.state.tokenizer, self.state.args
        options = dict(args.apply_chat_template_kwargs or {})
        template = options.pop("chat_template", None) or self._template()
        chat = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, message]
        options = {"add_generation_prompt": True, **options, "chat_template": template, "tokenize": False}
        with tokenizer_lock(tokenizer):
            text = tokenizer.apply_chat_template(chat, **options).rpartition(_MARK)[2]
            last = tokenizer.decode(self.sample.tokens[-1:], skip_special_tokens=False)
        return text.removeprefix(last) if last else text

    def _template(self) -> str | None:
        path = self.state.args.chat_template
        if path:
            return Path(path).expanduser().read_text("utf-8")
        return self.state.tokenizer.chat_template or getattr(self.state.processor, "chat_template", None)
