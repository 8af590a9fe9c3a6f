# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A raw row to a prompt: messages, rendered text, token ids, media, label, metadata and tools.

Placeholders `<image>`, `<audio>`, `<video>` in text become typed content parts; the k-th placeholder of a modality
takes the k-th entry of the row's column for it. Typed parts in the OpenAI forms are accepted too and carry their own
medium, or, when they name none, take the next entry of the column. Only modalities named in `--multimodal-keys` are
read, and a count that does not come out even is a DataError, whichever side has more.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from relax.data.datasets import RawRow
from relax.data.media.items import FetchPolicy, MediaAccess, MediaItem, load_media
from relax.data.media.processing import MediaProcessor
from relax.data.model_files import tokenizer_lock
from relax.utils.errors import ConfigError, DataError, MediaError, UserCodeError
from relax.utils.types import MODALITIES, MediaFeatures

log = logging.getLogger(__name__)

Overlong = Literal["error", "truncate_left", "truncate_right"]

# Content-part types in use, and the modality of each.
_PART_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}
_TEMPLATE_OPTIONS = "apply_chat_template_kwargs"  # key of a row's metadata
_SNIPPET = 120  # characters of text that an error shows


class OverlongPrompt(DataError):
    """A prompt has more tokens than `--rollout-max-prompt-len`. The caller decides to skip the row or to stop."""

    def __init__(self, length: int, limit: int, *, where: str) -> None:
        super().__init__(f"the prompt has {length} tokens, --rollout-max-prompt-len allows {limit}", where=where)
        self.length = length
        self.limit = limit


@dataclass
class PreparedPrompt:
    """What a row gives to a `Sample`."""

    prompt_text: str | None  # rendered; None when messages are not rendered (no --apply-chat-template)
    messages: list[dict[str, Any]] | None  # canonical, with typed parts; None for a plain string prompt
    token_ids: list[int]  # as sent to the engine, media unexpanded; [] when prompt_text is None
    expanded_ids: list[int]  # as the model sees it
    media: list[MediaItem]  # in order of appearance over all modalities
    features: list[MediaFeatures]  # of `media`, one by one
    label: Any  # the row's own value
    metadata: dict[str, Any]
    tools: list[Any] | None
    where: str = field(default="", compare=False)

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """For `Sample.prompt`."""
        return self.prompt_text if self.prompt_text is not None else (self.messages or [])

    def multimodal_inputs(self) -> dict[str, list[MediaItem]] | None:
        """For `Sample.multimodal_inputs`: the items by modality, or None without media."""
        kinds = [kind for kind in MODALITIES if any(item.kind == kind for item in self.media)]
        return {kind: [item for item in self.media if item.kind == kind] for kind in kinds} or None


@dataclass(frozen=True)
class ReadRow:
    """A row before tokenizer and media are asked."""

    prompt: Any
    messages: list[dict[str, Any]] | None
    label: Any
    tools: list[Any] | None
    metadata: dict[str, Any]
    media: list[tuple[str, Any]]  # (kind, value) in order of appearance


class PromptBuilder:
    """Builds prompts for one model and one set of data flags. Deterministic; safe to call from threads.

    Without a tokenizer (None) it only checks rows.
    `processor` is the model's MediaProcessor, or its HF processor, or None for a text-only model. `max_prompt_len`
    counts the expanded tokens; `overlong` says what happens above it: raise OverlongPrompt, or cut. A cut never falls
    inside a medium: the whole medium goes. The chat template comes from the row's metadata, else from the
    `chat_template` key of `chat_template_kwargs`, else from `chat_template`, else from the model folder.
    """

    def __init__(
        self,
        tokenizer: Any,
        processor: Any | None = None,
        *,
        input_key: str = "input",
        label_key: str | None = None,
        metadata_key: str | None = "metadata",
        tool_key: str | None = "tools",
        multimodal_keys: Mapping[str, str | None] | Sequence[str] | str | None = None,
        system_prompt: str | None = None,
        apply_chat_template: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        custom_prompt: Callable[[Any, Mapping[str, Any]], Any] | None = None,
        max_prompt_len: int | None = None,
        overlong: Overlong = "error",
        access: MediaAccess | None = None,
        fetch: FetchPolicy | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        wrapped = processor is None or isinstance(processor, MediaProcessor)
        self._media: MediaProcessor | None = processor if wrapped else MediaProcessor(processor, tokenizer=tokenizer)
        self._input_key = input_key
        self._label_key = label_key
        self._metadata_key = metadata_key
        self._tool_key = tool_key
        self._keys = parse_multimodal_keys(multimodal_keys)
        self._system_prompt = system_prompt
        self._apply = apply_chat_template
        self._options = dict(chat_template_kwargs or {})
        self._template = self._options.pop("chat_template", None) or chat_template
        self._custom_prompt = custom_prompt
        self._max_prompt_len = max_prompt_len
        self._overlong = overlong
        self._access = access
        self._fetch = fetch
        self._told: set[str] = set()  # template origins already logged
        if apply_chat_template and tokenizer is not None and self._default_template() is None:
            raise ConfigError(
                "--apply-chat-template: neither the tokenizer nor the processor has a chat template; give one with "
                "--chat-template FILE"
            )

    def build(self, row: RawRow) -> PreparedPrompt:
        """Prepare one row. Blocking (reads, decodes and fetches media); never changes the row."""
        read, where = self.read(row), row.where
        media = [
            load_media(kind, value, folder=row.folder, where=where, access=self._access, fetch=self._fetch)
            for kind, value in read.media
        ]
        prompt_text = self._render(read.prompt, read.messages, read.tools, read.metadata, where)
        prepared = PreparedPrompt(
            prompt_text, read.messages, [], [], media, [], read.label, read.metadata, read.tools, where
        )
        return prepared if prompt_text is None else self._tokenise(prepared)

    def check(self, row: RawRow) -> list[tuple[str, Any]]:
        """What of `build` needs no model: columns, messages, as many media as placeholders.

        Returns the row's media as (kind, value), unread. Raises what `build` would.
        """
        return self.read(row).media

    def read(self, row: RawRow) -> ReadRow:
        """Messages, tools, metadata and media of a row; the media unread."""
        values, where = row.values, row.where
        prompt = plain(self._column(values, self._input_key, "--input-key", where))
        if self._custom_prompt is not None:
            prompt = plain(edited_prompt(self._custom_prompt, prompt, values, where))
        label = self._column(values, self._label_key, "--label-key", where) if self._label_key else None
        tools = self._tools(values, where)
        metadata = self._metadata(values, tools, where)
        slots = _Slots(self._row_media(values, where), where)
        messages = self._messages(prompt, slots, where)
        slots.finish(_snippet(prompt))
        return ReadRow(prompt, messages, label, tools, metadata, slots.used)

    # ----------------------------------------------------------------- columns

    def _column(self, values: Mapping[str, Any], key: str, flag: str, where: str) -> Any:
        if key not in values or (values[key] is None and flag == "--input-key"):
            near = difflib.get_close_matches(key, list(values), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{flag} {key!r} is not in the row, whose columns are {sorted(values)}{hint}", where=where)
        return values[key]

    def _tools(self, values: Mapping[str, Any], where: str) -> list[Any] | None:
        found = plain(values.get(self._tool_key)) if self._tool_key else None
        if isinstance(found, str):
            found = _json(found, f"--tool-key {self._tool_key!r}", where) if found.strip() else None
        if found is None or found == []:
            return None
        if isinstance(found, dict):
            found = [found]
        if not isinstance(found, list):
            raise DataError(f"--tool-key {self._tool_key!r} must hold a list, got {type(found).__name__}", where=where)
        flag = f"--tool-key {self._tool_key!r}"
        return [_json(tool, flag, where) if isinstance(tool, str) else tool for tool in found]

    def _metadata(self, values: Mapping[str, Any], tools: list[Any] | None, where: str) -> dict[str, Any]:
        """The row's metadata, its tools, and every column that no other key names and that holds no bytes."""
        found = plain(values.get(self._metadata_key)) if self._metadata_key else None
        if isinstance(found, str):
            found = _json(found, f"--metadata-key {self._metadata_key!r}", where) if found.strip() else None
        if found is not None and not isinstance(found, dict):
            raise DataError(
                f"--metadata-key {self._metadata_key!r} must hold an object, got {type(found).__name__}", where=where
            )
        metadata = dict(found or {})
        if tools is not None:
            metadata.setdefault("tools", tools)
        media_columns = self._media_columns(values, where).values()
        taken = {self._input_key, self._label_key, self._metadata_key, self._tool_key, *media_columns}
        for name, value in values.items():
            if name not in taken and not _holds_bytes(value):
                metadata.setdefault(name, plain(value))
        return metadata

    def _media_columns(self, values: Mapping[str, Any], where: str) -> dict[str, str]:
        return {kind: name or _column_of(kind, values, where) for kind, name in self._keys.items()}

    def _row_media(self, values: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
        """The row's values by mapped modality; a bare scalar is a list of one, null and absent are none."""
        return {kind: _media_list(kind, values.get(name)) for kind, name in self._media_columns(values, where).items()}

    # ----------------------------------------------------------------- messages

    def _messages(self, prompt: Any, slots: _Slots, where: str) -> list[dict[str, Any]] | None:
        if isinstance(prompt, str):
            if not self._apply:
                if self._system_prompt:
                    raise DataError(
                        "a plain text has no place for --system-prompt; add --apply-chat-template",
                        where=where,
                    )
                slots.take_all()  # a ready-made prompt; its pad ids are counted after tokenising
                return None
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, list) or not prompt:
            raise DataError(
                f"--input-key {self._input_key!r} must hold a string or a list of messages, got "
                f"{type(prompt).__name__ if prompt != [] else 'an empty list'}",
                where=where,
            )
        messages = [_message(message, place, slots, where) for place, message in enumerate(prompt)]
        if self._system_prompt:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return messages

    # ----------------------------------------------------------------- text and ids

    def _default_template(self) -> str | None:
        processor = getattr(self._media, "processor", None)
        return self._template or self._tokenizer.chat_template or getattr(processor, "chat_template", None)

    def _render(
        self, prompt: Any, messages: list[dict[str, Any]] | None, tools: list[Any] | None, metadata: dict, where: str
    ) -> str | None:
        if not self._apply:
            return prompt if isinstance(prompt, str) else None
        own = plain(metadata.get(_TEMPLATE_OPTIONS)) or {}
        if isinstance(own, str):
            own = _json(own, f"metadata.{_TEMPLATE_OPTIONS}", where)
        options = {"add_generation_prompt": True} | self._options | dict(own)
        options.pop("tokenize", None)
        own_template = options.pop("chat_template", None) or metadata.get("chat_template")
        self._tell_template("the row's metadata" if own_template else "the run's flags or the model folder")
        template = own_template or self._default_template()
        try:
            with tokenizer_lock(self._tokenizer):
                return self._tokenizer.apply_chat_template(
                    messages, tools=tools, chat_template=template, tokenize=False, **options
                )
        except Exception as error:
            # Templates raise whatever they like; the row's owner is told which row it was.
            message = f"the chat template fails on this row: {type(error).__name__}: {error}"
            raise DataError(message, where=where) from error

    def _tell_template(self, origin: str) -> None:
        if origin not in self._told:
            self._told.add(origin)
            log.info("chat template origin=%s", origin)

    def _tokenise(self, prepared: PreparedPrompt) -> PreparedPrompt:
        assert prepared.prompt_text is not None
        ids = self._ids(prepared.prompt_text)
        media = self._media
        if prepared.media and media is None:
            raise DataError(
                f"the row has {len(prepared.media)} media, but the model folder has no processor", where=prepared.where
            )
        if media is not None:
            prepared.media = [media.as_sent(item, where=prepared.where) for item in prepared.media]
            prepared.features = [media.extract(item, where=prepared.where) for item in prepared.media]
            try:
                expanded = media.expand(ids, prepared.features)
            except DataError as error:
                raise DataError(f"{error}; text: {_snippet(prepared.prompt_text)}", where=prepared.where) from error
            costs = media.spans(ids, prepared.features)
        else:
            expanded, costs = list(ids), [1] * len(ids)
        prepared.token_ids, prepared.expanded_ids = ids, expanded
        if self._max_prompt_len is not None and len(expanded) > self._max_prompt_len:
            return self._shorten(prepared, costs)
        return prepared

    def _ids(self, text: str) -> list[int]:
        """A rendered template brings its own BOS; a plain text gets the tokenizer's, once."""
        bos = self._tokenizer.bos_token
        special = not self._apply and not (bos and text.startswith(bos))
        with tokenizer_lock(self._tokenizer):
            return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def _shorten(self, prepared: PreparedPrompt, costs: list[int]) -> PreparedPrompt:
        limit = self._max_prompt_len or 0
        if self._overlong == "error":
            raise OverlongPrompt(len(prepared.expanded_ids), limit, where=prepared.where)
        kept = kept_range(costs, limit, side=self._overlong)
        ids = prepared.token_ids[kept.start : kept.stop]
        if not ids:
            raise OverlongPrompt(len(prepared.expanded_ids), limit, where=prepared.where)
        media = self._media
        if media is not None:
            pads = set(media.placeholder_ids.values())
            first = sum(token in pads for token in prepared.token_ids[: kept.start])
            count = sum(token in pads for token in ids)
            prepared.media = prepared.media[first : first + count]
            prepared.features = prepared.features[first : first + count]
            prepared.expanded_ids = media.expand(ids, prepared.features, where=prepared.where)
        else:
            prepared.expanded_ids = list(ids)
        prepared.token_ids = ids
        return prepared


def edited_prompt(edit: Callable[[Any, Mapping[str, Any]], Any], prompt: Any, values: Any, where: str) -> Any:
    """The prompt as the function of `--custom-prompt-path` returns it."""
    path = f"{getattr(edit, '__module__', '?')}.{getattr(edit, '__qualname__', edit)}"
    try:
        edited = edit(prompt, values)
    except Exception as error:
        # A user's function raises what it likes; its owner is told the path and the row.
        raise UserCodeError(f"{type(error).__name__}: {error}", path=path, sample=where) from error
    if edited is None:
        raise UserCodeError("returned None; it must return the prompt", path=path, sample=where)
    return edited


def kept_range(costs: Sequence[int], limit: int, *, side: str) -> range:
    """The longest run of ids, at the end (`truncate_left`) or start, whose costs sum to at most `limit`.

    A medium is one id with the cost of its whole expansion, so it stays whole or goes whole.
    """
    order = range(len(costs) - 1, -1, -1) if side == "truncate_left" else range(len(costs))
    total = count = 0
    for place in order:
        if total + costs[place] > limit:
            break
        total += costs[place]
        count += 1
    return range(len(costs) - count, len(costs)) if side == "truncate_left" else range(count)


# --------------------------------------------------------------------------- media slots


class _Slots:
    """Hands out the row's media in order, and counts both sides."""

    def __init__(self, columns: Mapping[str, list[Any]], where: str) -> None:
        self._left = {kind: list(values) for kind, values in columns.items()}
        self._given = {kind: len(values) for kind, values in columns.items()}
        self._asked = dict.fromkeys(columns, 0)
        self._where = where
        self.used: list[tuple[str, Any]] = []
        self.kinds = tuple(columns)

    def take(self, kind: str) -> None:
        """The next entry of the column; a missing one is reported by `finish`, with the totals."""
        self._asked[kind] += 1
        if self._left[kind]:
            self.used.append((kind, self._left[kind].pop(0)))

    def inline(self, kind: str, value: Any) -> None:
        """A medium that its content part carries itself."""
        self.used.append((kind, value))

    def take_all(self) -> None:
        for kind, values in self._left.items():
            self._asked[kind] += len(values)
            self.used.extend((kind, value) for value in values)
            values.clear()

    def finish(self, snippet: str) -> None:
        for kind in self.kinds:
            if self._asked[kind] != self._given[kind]:
                raise MediaError(
                    f"the text has {self._asked[kind]} <{kind}> placeholders, the row has {self._given[kind]} {kind} "
                    f"entries; text: {snippet}",
                    where=self._where,
                )

    def refuse(self, kind: str) -> MediaError:
        return MediaError(
            f"the messages have a part of type {kind}, but --multimodal-keys does not name {kind}", where=self._where
        )


def _message(message: Any, place: int, slots: _Slots, where: str) -> dict[str, Any]:
    """A new message with canonical content and tool calls."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        keys = sorted(message) if isinstance(message, dict) else type(message).__name__
        raise DataError(f"message {place} is no object with a role; it is {keys}", where=where)
    out = dict(message)
    content = message.get("content")
    if content is None:
        out["content"] = ""
    elif isinstance(content, str):
        parts = _text_parts(content, slots)
        out["content"] = parts if any(part["type"] != "text" for part in parts) else content
    elif isinstance(content, list):
        out["content"] = [part for item in content for part in _part(item, place, slots, where)]
    else:
        raise DataError(f"the content of message {place} is a {type(content).__name__}", where=where)
    if message.get("tool_calls"):
        out["tool_calls"] = [canonical_call(call) for call in message["tool_calls"]]
    return out


def _text_parts(text: str, slots: _Slots) -> list[dict[str, Any]]:
    """Cut text at the placeholders of the mapped modalities."""
    if not slots.kinds:
        return [{"type": "text", "text": text}] if text else []
    parts: list[dict[str, Any]] = []
    for piece in re.split(rf"(<(?:{'|'.join(slots.kinds)})>)", text):
        kind = piece[1:-1]
        if piece.startswith("<") and piece.endswith(">") and kind in slots.kinds:
            slots.take(kind)
            parts.append({"type": kind})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def _part(part: Any, place: int, slots: _Slots, where: str) -> list[dict[str, Any]]:
    if isinstance(part, str):
        return _text_parts(part, slots)
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise DataError(f"message {place} has a content part without a type: {_snippet(part)}", where=where)
    if part["type"] in ("text", "input_text", "output_text"):
        return _text_parts(part.get("text") or "", slots)
    kind = _PART_KINDS.get(part["type"])
    if kind is None:
        raise DataError(
            f"message {place} has a content part of the unknown type {part['type']!r}; known are text, "
            f"{', '.join(_PART_KINDS)}",
            where=where,
        )
    if kind not in slots.kinds:
        raise slots.refuse(kind)
    value = _part_value(part, kind)
    if value is None:
        slots.take(kind)
    else:
        slots.inline(kind, value)
    return [{"type": kind}]


def _part_value(part: Mapping[str, Any], kind: str) -> Any:
    """The medium that a typed part carries, None when it is a bare place."""
    for key in (part["type"], kind, f"{kind}_url", "url", "path", "bytes", "data"):
        if key != "type" and part.get(key) is not None:
            return part[key]
    return None


def canonical_call(call: Any) -> Any:
    """A tool call whose arguments are an object, as templates want it.

    Arguments come as a JSON string, as an object, or as a list of pairs or of {name|key, value}. Text that is not
    JSON is left as it is.
    """
    if not isinstance(call, dict):
        return call
    out = dict(call)
    if isinstance(out.get("function"), dict):
        out["function"] = canonical_call(out["function"])
    if "arguments" in out:
        out["arguments"] = _arguments(out["arguments"])
    return out


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        try:
            parsed = json.loads(value) if value.strip() else {}
        except json.JSONDecodeError:
            return value
        return value if isinstance(parsed, str) else _arguments(parsed)
    if isinstance(value, list):
        if all(isinstance(item, (list, tuple)) and len(item) == 2 for item in value):
            return {str(name): item for name, item in value}
        if all(isinstance(item, dict) and "value" in item and ("name" in item or "key" in item) for item in value):
            return {str(item.get("name", item.get("key"))): item["value"] for item in value}
    return {} if value is None else value


# --------------------------------------------------------------------------- keys and values


def parse_multimodal_keys(value: Mapping[str, str | None] | Sequence[str] | str | None) -> dict[str, str | None]:
    """`--multimodal-keys` as a map of modality to column; None for a column that is to be found in the row.

    Takes a map, or a list of modalities, each also as text. The word `text` is accepted and means nothing. Unknown
    modalities are a ConfigError.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(("{", "[")):
            try:
                value = json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigError(f"--multimodal-keys {text!r} is not JSON: {error}") from error
        else:
            value = [word.strip() for word in text.split(",") if word.strip()]
    found = dict(value) if isinstance(value, Mapping) else dict.fromkeys(value or ())
    unknown = sorted(set(found) - {*MODALITIES, "text"})
    if unknown:
        raise ConfigError(f"--multimodal-keys names {unknown}; known are {', '.join(MODALITIES)} (and text)")
    bad = {kind: name for kind, name in found.items() if not (name is None or (isinstance(name, str) and name))}
    if bad:
        raise ConfigError(f"--multimodal-keys must map a modality to one column name, got {bad}")
    return {kind: name for kind, name in found.items() if kind != "text"}


def _column_of(kind: str, values: Mapping[str, Any], where: str) -> str:
    """Column of a modality that --multimodal-keys names without one: `kind`, else `kinds` or `kind_key`."""
    if kind in values:
        return kind
    found = [name for name in (f"{kind}s", f"{kind}_key") if name in values]
    if len(found) > 1:
        raise DataError(
            f"--multimodal-keys names {kind} without a column and the row has {found}; "
            f'write --multimodal-keys \'{{"{kind}": "{found[0]}"}}\'',
            where=where,
        )
    return found[0] if found else kind


def _media_list(kind: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return [item for item in value.tolist() if item is not None]
        return [value]
    if isinstance(value, (list, tuple)):
        if kind == "audio" and value and all(isinstance(item, (int, float)) for item in value):
            return [list(value)]  # the samples of one clip
        return [item for item in value if item is not None]
    return [value]


def plain(value: Any) -> Any:
    """Lists and dicts all the way down; numpy scalars and one-dimensional arrays too. Pixels and bytes stay."""
    if isinstance(value, np.ndarray):
        return value if value.ndim > 1 and value.dtype != object else [plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_bytes(item) for item in value)
    return isinstance(value, (bytes, bytearray, memoryview)) or hasattr(value, "tobytes")


def _json(text: str, what: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{what} is not JSON: {error}; it starts with {_snippet(text)}", where=where) from error


def _snippet(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= _SNIPPET else text[:_SNIPPET] + "...")
