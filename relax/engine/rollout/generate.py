# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The default generate function: one turn, one engine request.

The engine takes unexpanded prompt ids plus media as data URIs and expands the placeholders itself; training takes
expanded ids. So `sample.rollout_tokens` holds the first kind and `sample.tokens` begins with the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax.engine.rollout.media_payload import media_payload
from relax.engine.rollout.recorder import parse_answer
from relax.engine.rollout.state import GenerateState
from relax.utils.errors import DataError, InfrastructureError
from relax.utils.http_utils import post
from relax.utils.types import Sample

STATUS_OF = {
    "stop": Sample.Status.COMPLETED,
    "length": Sample.Status.TRUNCATED,
    "abort": Sample.Status.ABORTED,
}


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Sample:
    """Generate one response, or go on with an interrupted one."""
    state = GenerateState(args)
    prepare_prompt(state, sample)
    done = sample.tokens[len(sample.tokens) - sample.response_length :] if sample.response_length else []
    params = dict(sampling_params)
    params["max_new_tokens"] = within_context(state, sample, params["max_new_tokens"] - sample.response_length)
    if done and params["max_new_tokens"] < 1:  # the context is full
        sample.status, sample.finish_reason = Sample.Status.TRUNCATED, "length"
        return sample
    payload: dict[str, Any] = {
        "input_ids": sample.rollout_tokens + done,
        "sampling_params": params,
        "return_logprob": True,
        **media_payload(sample.multimodal_inputs, where=f"sample {sample.group_index}.{sample.index}"),
    }
    answer = await post(state.generate_url, payload)
    check_prompt_length(sample, answer)
    append_answer(sample, payload, answer)
    if done:  # a character may be cut at the interruption, so the text is decoded from all ids
        skip = params.get("skip_special_tokens", False)
        end_at_stop(sample, len(done), params.get("stop") or (), lambda ids: decode(state, ids, skip))
        response = sample.tokens[len(sample.tokens) - sample.response_length :]
        sample.response = decode(state, response, skip)
    return sample


def within_context(state: GenerateState, sample: Sample, budget: int) -> int:
    """`budget` tokens, or what the context that the engine holds leaves after the sample's own.

    A prompt that leaves no room keeps its budget, so that the engine says how long it is.
    """
    limit = state.context_limit
    room = budget if limit is None else limit - len(sample.tokens)
    return min(budget, room) if room > 0 or sample.response_length else budget


def decode(state: GenerateState, ids: Sequence[int], skip_special_tokens: bool) -> str:
    return state.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def end_at_stop(sample: Sample, cut: int, stops: Sequence[str], text_of: Callable[[list[int]], str]) -> None:
    """End a continued response where a stop string that began before its interruption is complete.

    The engine looks for stop strings in what it samples for one request, so it misses one that lies across `cut`,
    the number of response tokens before the interruption. What came after the string falls off.
    """
    if not stops:
        return
    prompt = len(sample.tokens) - sample.response_length
    response = sample.tokens[prompt:]
    first = max(0, cut - 4 * max(map(len, stops)))  # a character has at most four tokens
    before = text_of(response[first:cut])
    for end in range(cut + 1, len(response) + 1):
        text = text_of(response[first:end])
        across = [s for s in stops if 0 <= text.find(s) < len(before)]
        if across:
            break
        if len(text) >= len(before) + max(map(len, stops)):
            return
    else:
        return
    sample.tokens, sample.response_length = sample.tokens[: prompt + end], end
    sample.loss_mask = (sample.loss_mask or [])[:end]
    sample.rollout_log_probs = (sample.rollout_log_probs or [])[:end]
    sample.weight_versions = sample.weight_versions[:end]
    sample.finish_reason, sample.matched_stop = "stop", across[0]
    sample.status = STATUS_OF["stop"]


def prepare_prompt(state: GenerateState, sample: Sample) -> None:
    """Fill `rollout_tokens` (as sent) and `tokens` (media expanded) where the data source has not."""
    if not sample.rollout_tokens:
        if sample.multimodal_inputs and any(sample.multimodal_inputs.values()):
            raise DataError(
                f"sample {sample.group_index}.{sample.index} has media but no prepared prompt ids; the data source "
                "fills rollout_tokens and tokens of multi-modal prompts"
            )
        sample.rollout_tokens = list(sample.tokens) or encode_prompt(state.tokenizer, sample)
    if not sample.tokens:
        sample.tokens = list(sample.rollout_tokens)


def encode_prompt(tokenizer: Any, sample: Sample) -> list[int]:
    """Ids of a text prompt, exactly as rendered: no special token is added."""
    if not isinstance(sample.prompt, str):
        raise DataError(
            f"the prompt of sample {sample.group_index}.{sample.index} is a message list; set --apply-chat-template"
        )
    return list(tokenizer.encode(sample.prompt, add_special_tokens=False))


def check_prompt_length(sample: Sample, output: Mapping[str, Any]) -> None:
    """Raise when the engine has expanded the media to another prompt than the one that is trained.

    An engine that reports no length, or that ended the request before it read the prompt, says nothing.
    """
    meta = output.get("meta_info") or {}
    counted, sampled = meta.get("prompt_tokens"), output.get("output_ids") or meta.get("output_token_logprobs")
    if counted is None or not sampled or counted == len(sample.tokens):
        return
    raise InfrastructureError(
        f"sample {sample.group_index}.{sample.index}: the engine's prompt has {counted} tokens, the trainer's "
        f"{len(sample.tokens)}, so their log-probs are of different prompts; both sides must read media with the same "
        "processor files and the same --image-*, --video-* and --audio-sample-rate"
    )


def append_answer(sample: Sample, payload: Mapping[str, Any], output: Mapping[str, Any]) -> None:
    """Append one engine answer to the response: ids, mask 1, log-probs, versions, text, stop and status."""
    answer = parse_answer(payload, output)
    if len(answer.log_probs) != len(answer.ids):
        raise InfrastructureError(
            f"the engine returned {len(answer.ids)} ids but {len(answer.log_probs)} log-probs for "
            f"{payload.get('rid', 'a request')}; a training rollout needs one for each"
        )
    sample.tokens = sample.tokens + list(answer.ids)
    sample.loss_mask = (sample.loss_mask or []) + [1] * len(answer.ids)
    sample.rollout_log_probs = (sample.rollout_log_probs or []) + list(answer.log_probs)
    sample.weight_versions = sample.weight_versions + list(answer.versions)
    sample.response += answer.text
    sample.response_length += len(answer.ids)
    sample.finish_reason, sample.matched_stop = answer.finish_reason, answer.matched_stop
    sample.status = STATUS_OF.get(answer.finish_reason or "", Sample.Status.FAILED)
