# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Recorded answers are found again in any sample that was honestly built from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax.engine.rollout.recorder import SampleRecorder
from relax.utils.types import Sample

Turn = tuple[list[int], list[int], bool, int]  # sampled ids, observation, thrown away?, tokens masked at the front
ids = st.lists(st.integers(0, 2), max_size=4)  # few ids, so that wrong places look right
turns = st.lists(st.tuples(ids, ids, st.booleans(), st.integers(0, 2)), min_size=1, max_size=6)


def answer(sampled: list[int], log_probs: list[float], version: int) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": [[p, t, None] for p, t in zip(log_probs, sampled, strict=True)],
        "weight_version": str(version),
    }
    return {"text": "", "output_ids": sampled, "meta_info": meta}


async def play(episode: list[Turn], prompt: list[int], expansion: int) -> tuple[Sample, SampleRecorder, list[int]]:
    """Run turns through a recorder -> sample, recorder, expected versions. Turn t samples at version t.

    `expansion` more ids stand in front of the trained prompt than were sent, as with media.
    """
    sample = Sample(group_index=1, index=0, rollout_tokens=list(prompt))
    recorder = SampleRecorder(seed=1, stream="sample", sample=sample)
    response: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    versions: list[int] = []
    for turn, (sampled, observation, thrown_away, masked) in enumerate(episode):
        payload = {"input_ids": prompt + response, "sampling_params": {}}
        assert await recorder.before(payload) is None
        numbers = [-(turn * 10 + place + 1) / 64 for place in range(len(sampled))]
        recorder.after(payload, answer(sampled, numbers, turn))
        if thrown_away:
            continue
        hidden = min(masked, len(sampled))
        response = response + sampled + observation
        mask += [0] * hidden + [1] * (len(sampled) - hidden) + [0] * len(observation)
        log_probs += numbers + [0.0] * len(observation)
        versions += [-1] * hidden + [turn] * (len(sampled) - hidden) + [-1] * len(observation)
    sample.tokens = [9] * expansion + prompt + response
    sample.loss_mask, sample.rollout_log_probs, sample.response_length = mask, log_probs, len(response)
    if expansion:
        sample.multimodal_inputs = {"image": [b""]}
    return sample, recorder, versions


@given(episode=turns, expansion=st.sampled_from([0, 3]))
@example(episode=[([1, 2], [], True, 0), ([1], [2], False, 0)], expansion=0)  # a candidate longer than the answer
@settings(max_examples=300)
async def test_versions_are_those_of_the_turn_that_sampled_the_token(episode, expansion):
    """Candidates that begin like the answer that was kept do not take its place."""
    sample, recorder, versions = await play(episode, [7, 8], expansion)
    recorder.settle(sample)
    assert sample.weight_versions == versions


async def test_a_resumed_response_keeps_the_versions_of_its_first_part():
    """Tokens of an earlier call are not in this call's answers; they were checked then."""
    sample = Sample(group_index=1, index=0, rollout_tokens=[7], tokens=[7, 1, 2], response_length=2)
    sample.weight_versions = [5, 5]
    recorder = SampleRecorder(seed=1, stream="sample", sample=sample, first_turn=1)
    payload = {"input_ids": [7, 1, 2], "sampling_params": {}}
    await recorder.before(payload)
    recorder.after(payload, answer([3], [-3.0], 6))
    sample.tokens, sample.weight_versions = [7, 1, 2, 3], [5, 5, 6]
    sample.loss_mask, sample.rollout_log_probs, sample.response_length = [1, 1, 1], [-1.0, -2.0, -3.0], 3
    recorder.settle(sample)
    assert payload["rid"] == "g1.0.a0.t1"
    assert sample.weight_versions == [5, 5, 6]


async def test_a_list_of_sampling_params_is_refused():
    recorder = SampleRecorder(seed=1, stream="sample", sample=Sample(group_index=1, index=0))
    with pytest.raises(Exception, match="one request a sample"):
        await recorder.before({"sampling_params": [{}, {}]})


async def test_every_request_asks_for_the_policys_adapter_where_there_is_one():
    sample = Sample(group_index=1, index=0)
    for name in (None, "relax_policy_lora"):
        recorder = SampleRecorder(seed=1, stream="sample", sample=sample, lora_path=name)
        payload: dict[str, Any] = {"input_ids": [1], "sampling_params": {}}
        await recorder.before(payload)
        assert payload.get("lora_path") == name
