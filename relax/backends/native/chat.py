# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""OpenAI's `/v1/chat/completions` on the native engine: a chat becomes a `/generate` call, its answer a completion.

With SGLang's additions: `input_ids` stands for the rendered messages, `return_token_ids` and `return_meta_info` give
ids, log-probs and weight versions of every token, and `metadata` always carries the versions. What cannot be honoured
is refused by name. A streamed answer is sent in one piece, once it is whole.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax.backends.native.protocol import RequestError

Render = Callable[[list[dict[str, Any]], list[Any] | None, Mapping[str, Any]], list[int]]

_SAMPLING = {  # of a chat -> of /generate
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "n": "n",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "min_tokens": "min_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "sampling_seed": "sampling_seed",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "no_stop_trim": "no_stop_trim",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "regex": "regex",
    "ebnf": "ebnf",
}
_OWN = frozenset(
    [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "input_ids",
        "rid",
        "return_token_ids",
        "return_meta_info",
        "response_format",
    ]
)
_FREE = frozenset(  # carried for other layers; they do not change what is generated
    [
        "user",
        "metadata",
        "parallel_tool_calls",
        "separate_reasoning",
        "stream_reasoning",
        "store",
        "service_tier",
        "priority",
        "session_id",
        "data_parallel_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    ]
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # what is accepted beside null
    "continue_final_message": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "lora_path": (),
    "session_params": ({},),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "reasoning_effort": (),
    "verbosity": (),
    "modalities": (["text"],),
}
_KINDS = {
    "image_url": "image",
    "image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
}


@dataclass(frozen=True)
class ChatCall:
    """A checked request: the body of `/generate`, and what the answer is to show."""

    generate: dict[str, Any]  # without max_new_tokens where the chat names none
    model: str
    logprobs: bool
    token_ids: bool
    meta_info: bool
    stream: bool
    usage_chunk: bool  # of a stream


def parse_chat(body: Mapping[str, Any], render: Render, *, model: str) -> ChatCall:
    """Check one body and render its messages. Raises `RequestError` naming the field."""
    known = _OWN | _FREE | set(_SAMPLING) | set(_NEUTRAL)
    for key, value in body.items():
        if key not in known:
            match = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.5)
            raise RequestError(f"unknown key {key!r}{f'; did you mean {match[0]!r}?' if match else ''}")
        if key in _NEUTRAL and value is not None and value not in _NEUTRAL[key]:
            raise RequestError(f"{key}={value!r} is not supported by the native engine; leave it out")
    flags = {key: _flag(body, key) for key in ("logprobs", "return_token_ids", "return_meta_info", "stream")}
    if flags["stream"] and flags["return_token_ids"]:
        raise RequestError("return_token_ids is not supported with streaming on /v1/chat/completions")
    if body.get("top_logprobs"):
        raise RequestError("top_logprobs is not supported by the native engine: it gives the sampled token's alone")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise RequestError("tool_choice must be auto or none: the native engine forces no tool call")
    if (body.get("response_format") or {}).get("type", "text") != "text":
        raise RequestError("response_format must be text: the native engine knows no grammar")
    ids = body.get("input_ids")
    messages, media = _messages(body.get("messages"), needed=ids is None)
    if ids is None:
        options = _object(body, "chat_template_kwargs")
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        ids = render(messages, tools, options)
    sampling = {_SAMPLING[key]: body[key] for key in _SAMPLING if body.get(key) is not None}
    generate: dict[str, Any] = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
    generate |= {f"{kind}_data": values for kind, values in media.items() if values}
    if body.get("rid") is not None:
        generate["rid"] = body["rid"]
    return ChatCall(
        generate=generate,
        model=str(body.get("model") or model),
        logprobs=flags["logprobs"],
        token_ids=flags["return_token_ids"],
        meta_info=flags["return_meta_info"],
        stream=flags["stream"],
        usage_chunk=bool(_object(body, "stream_options").get("include_usage")),
    )


def chat_answer(call: ChatCall, answers: Sequence[Mapping[str, Any]], *, decode: Any, created: int) -> dict[str, Any]:
    """The completion. `decode(ids)` gives the text of ids, `created` is in seconds since 1970."""
    metas = [answer["meta_info"] for answer in answers]
    prompt, completed = metas[0]["prompt_tokens"], sum(meta["completion_tokens"] for meta in metas)
    return {
        "id": metas[0]["id"],
        "object": "chat.completion",
        "created": created,
        "model": call.model,
        "choices": [_choice(call, place, answer, decode) for place, answer in enumerate(answers)],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completed, "total_tokens": prompt + completed},
        "metadata": {
            "weight_version": metas[0]["weight_version"],
            "weight_versions": [meta["weight_versions"] for meta in metas]
            if len(metas) > 1
            else metas[0]["weight_versions"],
        },
    }


def chat_chunks(call: ChatCall, answer: Mapping[str, Any]) -> bytes:
    """A whole answer as server-sent events: role and text of each choice, then its end, then `[DONE]`."""
    head = {
        "id": answer["id"],
        "object": "chat.completion.chunk",
        "created": answer["created"],
        "model": answer["model"],
    }
    lines = []
    for choice in answer["choices"]:
        first = {
            "index": choice["index"],
            "delta": choice["message"],
            "logprobs": choice["logprobs"],
            "finish_reason": None,
        }
        last = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        last["matched_stop"] = choice["matched_stop"]
        lines += [{**head, "choices": [part]} for part in (first, last)]
    if call.usage_chunk:
        lines.append({**head, "choices": [], "usage": answer["usage"]})
    events = [json.dumps(line, separators=(",", ":")) for line in lines]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


# --------------------------------------------------------------------------- pieces


def _choice(call: ChatCall, place: int, answer: Mapping[str, Any], decode: Any) -> dict[str, Any]:
    meta = answer["meta_info"]
    finish = meta["finish_reason"]
    choice: dict[str, Any] = {
        "index": place,
        "message": {"role": "assistant", "content": answer["text"], "tool_calls": None},
        "logprobs": None,
        "finish_reason": finish["type"],
        "matched_stop": finish.get("matched"),
    }
    if call.logprobs:
        choice["logprobs"] = {
            "content": [_token(score, token, decode) for score, token, _ in meta["output_token_logprobs"]]
        }
    if call.token_ids:
        choice["prompt_token_ids"] = list(call.generate["input_ids"])
        choice["response_token_ids"] = answer["output_ids"]
    if call.meta_info:
        choice["meta_info"] = meta
    return choice


def _token(score: float, token: int, decode: Any) -> dict[str, Any]:
    text = decode([token])
    return {"token": text, "logprob": score, "bytes": list(text.encode()), "top_logprobs": []}


def _messages(messages: Any, *, needed: bool) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """(messages as a template takes them, {kind: media in order})."""
    messages = [] if messages is None and not needed else messages
    if not isinstance(messages, list) or (needed and not messages):
        raise RequestError("messages must be a non-empty list")
    media: dict[str, list[str]] = {"image": [], "audio": [], "video": []}
    out = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{place}] must be an object with a role")
        content = message.get("content")
        if isinstance(content, list):
            content = [_part(part, f"messages[{place}].content[{i}]", media) for i, part in enumerate(content)]
        elif content is None and message.get("tool_calls"):
            content = ""
        elif not isinstance(content, str):
            raise RequestError(f"messages[{place}].content must be a string or a list of parts, got {content!r}")
        out.append({**message, "content": content})
    return out, media


def _part(part: Any, where: str, media: dict[str, list[str]]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in _KINDS:
        raise RequestError(f"{where} has the type {kind!r}; known are text, {', '.join(_KINDS)}")
    value = part.get(kind)
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        value = f"data:{_KINDS[kind]}/{value.get('format', 'wav')};base64,{value['data']}"
    elif isinstance(value, Mapping):
        value = value.get("url")
    if not isinstance(value, str):
        raise RequestError(f"{where}.{kind} must hold a URL, a data URI or a path")
    media[_KINDS[kind]].append(value)
    return {"type": _KINDS[kind]}


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise RequestError(f"{key} must be true or false, got {value!r}")


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise RequestError(f"{key} must be an object, got {value!r}")
