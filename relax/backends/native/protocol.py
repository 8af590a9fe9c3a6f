# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""SGLang's `/generate` wire format: JSON in, checked requests out, and the answer object.

Everything that a request asks for is either honoured or refused with HTTP 400 naming the field; nothing is dropped.
"""

from __future__ import annotations

import difflib
import itertools
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from relax.utils.rng import stream_key

MAX_SEED = (1 << 63) - 1
NAMED_IDS = "token_ids_logprob"


class RequestError(ValueError):
    """The request is wrong; the text goes into the HTTP answer with `status`."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when a response ends. Field names and defaults are SGLang's."""

    temperature: float = 1.0  # 0: greedy, scored at temperature 1
    top_p: float = 1.0
    top_k: int = -1  # -1: the whole vocabulary
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False


@dataclass(frozen=True)
class GenerateRequest:
    """One response to make. `text` is tokenized by the server, which fills `input_ids`."""

    rid: str
    parent_rid: str  # the rid on the wire; equal to `rid` unless n > 1
    input_ids: tuple[int, ...]
    text: str | None
    params: SamplingParams
    seed: int
    return_logprob: bool = False
    logprob_start_len: int = -1  # first prompt position with an input log-prob; -1: none
    top_logprobs_num: int = 0  # likeliest ids of each such position
    token_ids_logprob: tuple[Any, ...] = ()  # ids of every such position, or a tuple of ids for each
    image_data: tuple[Any, ...] = ()
    audio_data: tuple[Any, ...] = ()
    video_data: tuple[Any, ...] = ()

    @property
    def has_media(self) -> bool:
        return bool(self.image_data or self.audio_data or self.video_data)


@dataclass(frozen=True)
class GenerateCall:
    """One HTTP call: its requests, and whether the answer is a list."""

    requests: tuple[GenerateRequest, ...]
    as_list: bool


# Keys that SGLang or its router sends; each value is what the native engine accepts beside null.
_NEUTRAL_SAMPLING: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "logit_bias": ({},),
    "stop_regex": ([],),
    "custom_params": ({},),
    "stream_interval": (1,),
}
_NEUTRAL_CALL: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "return_text_in_logprobs": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "input_embeds": (),
    "session_params": ({},),
    "lora_path": (),
    "lora_id": (),
    "custom_logit_processor": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "background": (False,),
    "return_bytes": (False,),
    "return_entropy": (False,),
}
_FREE_CALL = frozenset(  # carried for other layers; they do not change what is generated
    ("log_metrics", "model", "modalities", "priority", "extra_key", "data_parallel_rank", "no_logs", "conversation_id")
)
_OWN_CALL = frozenset(
    (
        "rid",
        "text",
        "input_ids",
        "sampling_params",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "image_data",
        "audio_data",
        "video_data",
    )
)
_SAMPLING_KEYS = frozenset(f.name for f in fields(SamplingParams))


def parse_generate(body: Any) -> GenerateCall:
    """Check one `/generate` body. Raises `RequestError` naming the field."""
    if not isinstance(body, Mapping):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
    _check_call_keys(body)
    prompts, batched = _prompts(body)
    sampling = body.get("sampling_params")
    as_list, requests = batched, []
    for place, (text, ids) in enumerate(prompts):
        params = parse_sampling(_item(sampling, place, len(prompts), batched, "sampling_params") or {})
        rid = _item(body.get("rid"), place, len(prompts), batched, "rid")
        if rid is None or (batched and isinstance(body.get("rid"), str)):
            rid = _fresh_rid() if rid is None else f"{rid}.p{place}"
        if not isinstance(rid, str):
            raise RequestError(f"rid must be a string, got {rid!r}")
        base = GenerateRequest(
            rid=rid,
            parent_rid=rid,
            input_ids=ids,
            text=text,
            params=params,
            seed=0,
            return_logprob=_flag(_item(body.get("return_logprob"), place, len(prompts), batched, "return_logprob")),
            logprob_start_len=_start_len(
                _item(body.get("logprob_start_len"), place, len(prompts), batched, "logprob_start_len")
            ),
            image_data=_media(body, "image_data", place, len(prompts), batched),
            audio_data=_media(body, "audio_data", place, len(prompts), batched),
            video_data=_media(body, "video_data", place, len(prompts), batched),
            **_rivals(body, place, len(prompts), batched),
        )
        _check_rivals(base)
        as_list = as_list or params.n > 1
        requests += _copies(base)
    return GenerateCall(tuple(requests), as_list)


def parse_sampling(raw: Any) -> SamplingParams:
    """Check `sampling_params`; an unknown key is refused with the nearest known one."""
    if not isinstance(raw, Mapping):
        raise RequestError(f"sampling_params must be an object, got {type(raw).__name__}")
    known = _SAMPLING_KEYS | set(_NEUTRAL_SAMPLING)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise RequestError(f"sampling_params has an unknown key {key!r}{_nearest(key, known)}")
        if value is None:
            continue
        if key in _NEUTRAL_SAMPLING:
            if value not in _NEUTRAL_SAMPLING[key]:
                raise RequestError(
                    f"sampling_params.{key}={value!r} is not supported by the native engine; leave it out"
                )
            continue
        values[key] = value
    return _checked(values)


def finish_stop(matched: int | str) -> dict[str, Any]:
    return {"type": "stop", "matched": matched}


def finish_length(length: int) -> dict[str, Any]:
    return {"type": "length", "length": length}


def finish_abort(message: str) -> dict[str, Any]:
    return {"type": "abort", "message": message}


def version_spans(starts: Sequence[tuple[str, int]], length: int) -> list[dict[str, Any]]:
    """`[(version, first token)]` in order -> SGLang's `[{version, start, end}]` without empty or repeated spans."""
    spans: list[dict[str, Any]] = []
    for place, (version, start) in enumerate(starts):
        end = starts[place + 1][1] if place + 1 < len(starts) else length
        if end <= start:
            continue
        if spans and spans[-1]["version"] == version:
            spans[-1]["end"] = end
        else:
            spans.append({"version": version, "start": start, "end": end})
    return spans


# --------------------------------------------------------------------------- pieces


_RID_PREFIX, _RID_NUMBERS = secrets.token_hex(6), itertools.count()


def _fresh_rid() -> str:
    """An id of this process. No random bytes a request: the system call gives up the interpreter's lock each time."""
    return f"{_RID_PREFIX}-{next(_RID_NUMBERS)}"


def _nearest(key: str, known: Any) -> str:
    match = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else f"; known keys are {sorted(_SAMPLING_KEYS)}"


def _check_call_keys(body: Mapping[str, Any]) -> None:
    known = _OWN_CALL | _FREE_CALL | set(_NEUTRAL_CALL)
    for key, value in body.items():
        if key not in known:
            match = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean {match[0]!r}?" if match else ""
            raise RequestError(f"the request has an unknown key {key!r}{hint}")
        if key in _NEUTRAL_CALL and value is not None and value not in _NEUTRAL_CALL[key]:
            raise RequestError(f"{key}={value!r} is not supported by the native engine; leave it out")


def _prompts(body: Mapping[str, Any]) -> tuple[list[tuple[str | None, tuple[int, ...]]], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise RequestError("give exactly one of text and input_ids")
    if text is not None:
        if isinstance(text, str):
            return [(text, ())], False
        if isinstance(text, list) and text and all(isinstance(t, str) for t in text):
            return [(t, ()) for t in text], True
        raise RequestError("text must be a string or a non-empty list of strings")
    if not isinstance(ids, list) or not ids:
        raise RequestError("input_ids must be a non-empty list of token ids, or a list of such lists")
    if isinstance(ids[0], list):
        return [(None, _token_ids(one, f"input_ids[{place}]")) for place, one in enumerate(ids)], True
    return [(None, _token_ids(ids, "input_ids"))], False


def _token_ids(ids: Any, name: str) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids:
        raise RequestError(f"{name} must be a non-empty list of token ids")
    for place, token in enumerate(ids):
        if type(token) is not int or token < 0:
            raise RequestError(f"{name}[{place}] must be a token id >= 0, got {token!r}")
    return tuple(ids)


def _item(value: Any, place: int, count: int, batched: bool, name: str) -> Any:
    """One prompt's share of a value that a batched call may give as a list."""
    if not batched or not isinstance(value, list):
        return value
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts")
    return value[place]


def _flag(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise RequestError(f"return_logprob must be true or false, got {value!r}")


def _start_len(value: Any) -> int:
    if value is None:
        return -1
    if type(value) is not int or value < -1:
        raise RequestError(f"logprob_start_len must be an integer >= -1, got {value!r}")
    return value


def _rivals(body: Mapping[str, Any], place: int, count: int, batched: bool) -> dict[str, Any]:
    """`top_logprobs_num` and `token_ids_logprob` of one prompt. In a batched call a flat list of ids is for all."""
    top, ids = _item(body.get("top_logprobs_num"), place, count, batched, "top_logprobs_num"), body.get(NAMED_IDS)
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        ids = _item(ids, place, count, batched, NAMED_IDS)
    if top is not None and (type(top) is not int or top < 0):
        raise RequestError(f"top_logprobs_num must be an integer >= 0, got {top!r}")
    if ids is not None and not isinstance(ids, list):
        raise RequestError(f"{NAMED_IDS} must be a list of token ids, or a list of such lists, got {ids!r}")
    if ids and isinstance(ids[0], list):
        lists = tuple(_token_ids(one, f"{NAMED_IDS}[{at}]") for at, one in enumerate(ids))
        if len({len(one) for one in lists}) > 1:
            raise RequestError(f"{NAMED_IDS}: the lists of the positions must have one length")
        return {"top_logprobs_num": top or 0, NAMED_IDS: lists}
    return {"top_logprobs_num": top or 0, NAMED_IDS: _token_ids(ids, NAMED_IDS) if ids else ()}


def _check_rivals(request: GenerateRequest) -> None:
    """Other ids than the prompt's own are told for the prompt alone, and not for tokens that are sampled."""
    for name in ("top_logprobs_num", NAMED_IDS):
        if not getattr(request, name):
            continue
        if not request.return_logprob or request.logprob_start_len < 0:
            raise RequestError(f"{name} needs return_logprob=true and a logprob_start_len >= 0")
        if request.params.max_new_tokens:
            raise RequestError(
                f"{name} is not supported by the native engine for sampled tokens: set sampling_params.max_new_tokens "
                f"to 0, got {request.params.max_new_tokens}"
            )


def _media(body: Mapping[str, Any], name: str, place: int, count: int, batched: bool) -> tuple[Any, ...]:
    value = _item(body.get(name), place, count, batched, name)
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, Mapping) and isinstance(item.get("url"), str):
            continue
        if not isinstance(item, str):
            raise RequestError(f"{name} entries must be a path, a data URI or a URL, got {type(item).__name__}")
    return tuple(item["url"] if isinstance(item, Mapping) else item for item in items)


def _copies(base: GenerateRequest) -> list[GenerateRequest]:
    """The n requests of one prompt. Copy 0 has the request's own seed; the others' seeds follow from it."""
    seed = base.params.sampling_seed
    if seed is None:
        seed = secrets.randbits(63)
    if base.params.n == 1:
        return [replace(base, seed=seed)]
    return [
        replace(base, rid=f"{base.rid}.p{i}", seed=seed if i == 0 else stream_key(seed, "sample", i))
        for i in range(base.params.n)
    ]


def _checked(values: dict[str, Any]) -> SamplingParams:
    for key in ("temperature", "top_p"):
        if key in values:
            values[key] = _number(values[key], key)
    for key in ("top_k", "max_new_tokens", "min_new_tokens", "sampling_seed", "n"):
        if key in values and type(values[key]) is not int:
            raise RequestError(f"sampling_params.{key} must be an integer, got {values[key]!r}")
    for key in ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"):
        if key in values and not isinstance(values[key], bool):
            raise RequestError(f"sampling_params.{key} must be true or false, got {values[key]!r}")
    if "stop" in values:
        values["stop"] = _stop_strings(values["stop"])
    if "stop_token_ids" in values:
        ids = values["stop_token_ids"]
        values["stop_token_ids"] = _token_ids(ids, "sampling_params.stop_token_ids") if ids else ()
    params = SamplingParams(**values)
    _require(params.temperature >= 0, "temperature", params.temperature, "must be >= 0 (0 is greedy)")
    _require(0 < params.top_p <= 1, "top_p", params.top_p, "must be in (0, 1]")
    _require(params.top_k >= -1, "top_k", params.top_k, "must be -1 or 0 (whole vocabulary) or >= 1")
    _require(params.max_new_tokens >= 0, "max_new_tokens", params.max_new_tokens, "must be >= 0")
    _require(
        0 <= params.min_new_tokens <= params.max_new_tokens,
        "min_new_tokens",
        params.min_new_tokens,
        f"must be between 0 and max_new_tokens ({params.max_new_tokens})",
    )
    _require(params.n >= 1, "n", params.n, "must be >= 1")
    if params.sampling_seed is not None:
        _require(0 <= params.sampling_seed <= MAX_SEED, "sampling_seed", params.sampling_seed, "must fit 63 bits")
    return replace(params, top_k=-1) if params.top_k == 0 else params


def _require(condition: bool, name: str, value: Any, what: str) -> None:
    if not condition:
        raise RequestError(f"sampling_params.{name} {what}, got {value!r}")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"sampling_params.{name} must be a finite number, got {value!r}")
    return float(value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise RequestError(f"sampling_params.stop must be a string or a list of strings, got {value!r}")
    return tuple(s for s in strings if s)
