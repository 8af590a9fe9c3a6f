# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Renders a supervised sample with the model's chat template, and marks the tokens that are trained.

The text is rendered once and tokenised once. Which characters are trained follows from renders of the dialogue's
prefixes (`relax.engine.sft.dataset.spans`), and tokens follow from characters by the tokenizer's offsets.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relax.data.chat import plain
from relax.data.model_files import tokenizer_lock
from relax.engine.sft.dataset.chat_template_patch import TEMPLATE_KEY, TemplatePatcher, patched_template
from relax.engine.sft.dataset.deepseek_chat_template_patch import try_patch_deepseek_chat_template
from relax.engine.sft.dataset.message_form import MessageForm, message_form
from relax.engine.sft.dataset.qwen_chat_template_patch import try_patch_qwen_chat_template
from relax.engine.sft.dataset.sample import CanonicalSample
from relax.engine.sft.dataset.shown import check_shown
from relax.engine.sft.dataset.spans import Span, TemplateRefusal, supervised_spans
from relax.engine.sft.dataset.token_mask import masked_tokens
from relax.engine.sft.dataset.turn_shape import TurnShape, turn_shape
from relax.utils.errors import ConfigError, DataError

log = logging.getLogger(__name__)

KWARGS_KEY = "apply_chat_template_kwargs"  # of a row's metadata

_CHAT_TEMPLATE_PATCHERS: tuple[TemplatePatcher, ...] = (
    try_patch_qwen_chat_template,
    try_patch_deepseek_chat_template,
)


@dataclass(frozen=True)
class Rendered:
    """A rendered sample and the half-open character ranges of it that are trained, in order."""

    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class MaskedTokens:
    """Token ids [T] (int32, media unexpanded) and whether each is trained [T] (uint8)."""

    token_ids: np.ndarray
    loss_mask: np.ndarray


def render_to_text(
    sample: CanonicalSample,
    tokenizer: Any,
    *,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = False,
) -> str:
    """The sample's text. Arguments as in `ChatRenderer`."""
    renderer = ChatRenderer(tokenizer, chat_template=chat_template, chat_template_kwargs=chat_template_kwargs)
    return renderer.text(sample, add_generation_prompt=add_generation_prompt)


def render_with_loss_mask(
    sample: CanonicalSample,
    tokenizer: Any,
    *,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> MaskedTokens:
    """The tokens of `render_to_text`, and which of them are trained. Arguments as in `ChatRenderer`."""
    renderer = ChatRenderer(tokenizer, chat_template=chat_template, chat_template_kwargs=chat_template_kwargs)
    return renderer.masked(sample)


class ChatRenderer:
    """Renders samples for one tokenizer and one set of flags. Deterministic; safe to call from threads.

    The effective template is the first of: `chat_template` among the arguments in the sample's metadata, the same key
    in `chat_template_kwargs` (`--apply-chat-template-kwargs`), `chat_template` (the text of `--chat-template`), the
    tokenizer's own, `model_template` (the processor's). Arguments of the sample win over those of the run, null too.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        model_template: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._model_template = model_template
        self._kwargs = dict(plain(chat_template_kwargs or {}))
        self._shapes: dict[str, TurnShape | None] = {}
        self._forms: dict[str, MessageForm] = {}
        self._told: set[str] = set()  # lines already logged

    def text(self, sample: CanonicalSample, *, add_generation_prompt: bool = False) -> str:
        return self._call(sample).render(sample.messages, add_generation_prompt)

    def rendered(self, sample: CanonicalSample) -> Rendered:
        """The text and its trained characters. Raises DataError when they cannot be told without doubt."""
        call = self._call(sample)
        learned = sample.learned
        text, spans = supervised_spans(
            call.render,
            sample.messages,
            learned,
            shape=lambda: self._shape(call),
            special=self._special_tokens,
            where=sample.where,
        )
        check_shown(sample, text, dict(zip(learned, spans, strict=True)))
        shape = self._shape(call)
        if learned and shape is not None and not shape.end:
            self._tell(
                logging.WARNING,
                "the chat template closes an assistant's turn with no token of its own: training does not teach when "
                "to stop",
            )
        return Rendered(text, tuple(spans))

    def masked(self, sample: CanonicalSample) -> MaskedTokens:
        rendered = self.rendered(sample)
        token_ids, mask = masked_tokens(self._tokenizer, rendered.text, rendered.spans)
        return MaskedTokens(token_ids, mask)

    # ----------------------------------------------------------------- one call of the template

    def _call(self, sample: CanonicalSample) -> _Call:
        own = _own_kwargs(sample)
        merged = {**self._kwargs, **own}
        explicit = merged.get(TEMPLATE_KEY) or self._template
        if explicit:
            merged[TEMPLATE_KEY] = explicit
        else:
            merged.pop(TEMPLATE_KEY, None)
        self._tell_origin(own, explicit)
        template = explicit or self._tokenizer.chat_template or self._model_template
        if template is None:
            raise ConfigError(
                "--hf-checkpoint: the tokenizer has no chat template; give one with --chat-template FILE"
            )
        if not explicit and self._tokenizer.chat_template is None:
            merged[TEMPLATE_KEY] = template
        if "strftime_now" in template and "date_string" not in merged:
            self._tell(
                logging.WARNING,
                "the chat template writes today's date: the same row has other tokens tomorrow. Give one by "
                '--apply-chat-template-kwargs \'{"date_string": "26 Jul 2024"}\'',
            )
        _, kwargs = patched_template(sample, template, merged, _CHAT_TEMPLATE_PATCHERS)
        call = _Call(self._tokenizer, kwargs, sample.tools, sample.where)
        return replace(call, form=self._form(call))

    def _tell_origin(self, own: Mapping[str, Any], explicit: str | None) -> None:
        if own.get(TEMPLATE_KEY):
            origin = "the row's metadata"
        elif self._kwargs.get(TEMPLATE_KEY):
            origin = "--apply-chat-template-kwargs"
        else:
            origin = "--chat-template" if explicit else "the model folder"
        self._tell(logging.INFO, f"sft chat template origin={origin}")

    def _tell(self, level: int, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.log(level, line)

    def _shape(self, call: _Call) -> TurnShape | None:
        if call.key not in self._shapes:
            self._shapes[call.key] = turn_shape(call.render)
        return self._shapes[call.key]

    def _form(self, call: _Call) -> MessageForm:
        if call.key not in self._forms:
            self._forms[call.key] = message_form(call.render)
        return self._forms[call.key]

    @functools.cached_property
    def _special_tokens(self) -> tuple[str, ...]:
        added = getattr(self._tokenizer, "added_tokens_decoder", {}).values()
        return tuple({*self._tokenizer.all_special_tokens, *(str(token) for token in added if token.special)})


@dataclass(frozen=True)
class _Call:
    """The template with its arguments fixed; only the messages differ between calls."""

    tokenizer: Any
    kwargs: dict[str, Any]
    tools: tuple[Any, ...] | None
    where: str
    form: MessageForm = field(default_factory=MessageForm)

    @functools.cached_property
    def key(self) -> str:
        """Equal for calls of which the template shows messages alike."""
        return json.dumps([self.kwargs, bool(self.tools)], sort_keys=True, default=repr)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """Raises TemplateRefusal, which names the row."""
        options = {**self.kwargs, "tokenize": False, "add_generation_prompt": add_generation_prompt}
        shown = [self.form.of(message) for message in messages]
        tools = list(self.tools) if self.tools else None
        try:
            with tokenizer_lock(self.tokenizer):
                return self.tokenizer.apply_chat_template(shown, tools=tools, **options)
        except Exception as error:
            # Templates raise whatever they like; the row's owner is told which row it was.
            message = f"the chat template fails on this row: {type(error).__name__}: {error}"
            raise TemplateRefusal(message, where=self.where) from error


def _own_kwargs(sample: CanonicalSample) -> dict[str, Any]:
    own = plain(sample.metadata.get(KWARGS_KEY)) or {}
    if isinstance(own, str):
        try:
            own = json.loads(own)
        except json.JSONDecodeError as error:
            raise DataError(f"metadata.{KWARGS_KEY} is not JSON: {error}", where=sample.where) from error
    if not isinstance(own, dict):
        raise DataError(f"metadata.{KWARGS_KEY} must be an object, got {type(own).__name__}", where=sample.where)
    return own
