# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The documented multi-turn generate function runs as it is printed, under the tap."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax.engine.rollout.hooks import ActiveTime, GenerateFailed, call_generate, make_hook
from relax.engine.rollout.recorder import SampleRecorder
from relax.engine.rollout.sglang_rollout import GenerateState
from relax.utils.http_utils import post, register_local, unregister_local
from relax.utils.rng import stream_key
from relax.utils.types import Sample
from tests.builders import tiny_tokenizer
from tests.fake_engine import FakeEngine, log_prob_of, token_at

OBSERVATION = "The answer is 7."


class TwoTurnEnv:
    """Ends at the second turn."""

    def reset(self) -> None:
        self.turns = 0

    def step(self, response: str) -> tuple[str, bool, dict[str, Any]]:
        self.turns += 1
        return OBSERVATION, self.turns == 2, {}


def build_env(sample: Sample, args: Any) -> TwoTurnEnv:
    return TwoTurnEnv()


# --- the documented function, its code character for character
# fmt: off
# ruff: noqa: B007, E501, E701, E702, RUF059
async def generate(args, sample: Sample, sampling_params) -> Sample:
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    env = build_env(sample=sample, args=args); env.reset()
    prompt_ids = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
    sample.tokens, sample.loss_mask, sample.rollout_log_probs, response_tokens = list(prompt_ids), [], [], []
    for turn in range(args.max_turns):
        output = await post(url, {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True})
        new_tokens = [t[1] for t in output["meta_info"]["output_token_logprobs"]]
        new_probs = [t[0] for t in output["meta_info"]["output_token_logprobs"]]
        sample.tokens.extend(new_tokens); response_tokens.extend(new_tokens)                 # model output
        sample.loss_mask.extend([1] * len(new_tokens)); sample.rollout_log_probs.extend(new_probs)
        observation, done, info = env.step(output["text"])
        if done: break
        obs_ids = state.tokenizer.encode(observation, add_special_tokens=False)
        sample.tokens.extend(obs_ids); response_tokens.extend(obs_ids)                       # observation
        sample.loss_mask.extend([0] * len(obs_ids)); sample.rollout_log_probs.extend([0.0] * len(obs_ids))
    sample.response = state.tokenizer.decode(response_tokens, skip_special_tokens=False)
    sample.response_length = len(response_tokens)
    sample.status = Sample.Status.COMPLETED
    return sample
# fmt: on


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def engine():
    engine = FakeEngine()
    register_local("http://10.0.0.1:3000", engine)
    yield engine
    unregister_local("http://10.0.0.1:3000")


def make_args(folder: str) -> SimpleNamespace:
    return SimpleNamespace(hf_checkpoint=folder, sglang_router_ip="10.0.0.1", sglang_router_port=3000, max_turns=4)


async def call(function, args, sample, *, recorder=None, evaluation=False, timeout_s=60.0, permits=None):
    return await call_generate(
        make_hook(function, "user.generate"),
        args=args,
        sample=sample,
        sampling_params={"temperature": 1.0, "max_new_tokens": 100},
        evaluation=evaluation,
        recorder=recorder or SampleRecorder(seed=42, stream="sample", sample=sample),
        permits=permits or asyncio.Semaphore(4),
        timeout_s=timeout_s,
        active=ActiveTime(),
    )


async def test_documented_function_yields_a_trainable_sample(engine, tokenizer_folder):
    engine.version = 3
    sample = Sample(prompt="What is 3 plus 4?", group_index=7, index=2)
    (out,) = await call(generate, make_args(tokenizer_folder), sample)

    tokenizer = tiny_tokenizer()
    prompt = tokenizer.encode("What is 3 plus 4?", add_special_tokens=False)
    observation = tokenizer.encode(OBSERVATION, add_special_tokens=False)
    seeds = [stream_key(42, "sample", 7, 2, turn) for turn in (0, 1)]
    first = [token_at(seeds[0], len(prompt) + i) for i in range(4)] + [1]
    start = len(prompt) + 5 + len(observation)
    second = [token_at(seeds[1], start + i) for i in range(4)] + [1]

    assert out.tokens == prompt + first + observation + second
    assert out.response_length == 10 + len(observation)
    assert out.loss_mask == [1] * 5 + [0] * len(observation) + [1] * 5
    assert out.rollout_log_probs == [log_prob_of(t) for t in first] + [0.0] * len(observation) + [
        log_prob_of(t) for t in second
    ]
    assert out.weight_versions == [3] * 5 + [-1] * len(observation) + [3] * 5
    assert (out.finish_reason, out.matched_stop) == ("stop", 1)
    assert out.response == tokenizer.decode(first + observation + second, skip_special_tokens=False)


async def test_the_generate_function_of_the_extending_page_yields_a_trainable_sample(engine, tokenizer_folder):
    page = (Path(__file__).parents[4] / "docs/extending.md").read_text()
    (code,) = re.findall(r"^```python\n(# my_agent\.py.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    texts = iter(["I call add(3, 4)", "7"])
    engine.decode = lambda ids: next(texts)
    (out,) = await call(
        names["generate"], make_args(tokenizer_folder), Sample(prompt="3 plus 4?", group_index=7, index=2)
    )

    tokenizer = tiny_tokenizer()
    prompt, told = (tokenizer.encode(text, add_special_tokens=False) for text in ("3 plus 4?", " = 7\n"))
    assert out.loss_mask == [1] * 5 + [0] * len(told) + [1] * 5  # the fake engine answers with five tokens
    assert out.tokens[: len(prompt)] == prompt
    assert out.tokens[len(prompt) + 5 : -5] == told
    sampled = out.tokens[len(prompt) : len(prompt) + 5] + out.tokens[-5:]
    assert [p for p, mask in zip(out.rollout_log_probs, out.loss_mask, strict=True) if mask] == list(
        map(log_prob_of, sampled)
    )
    assert out.response_length == 10 + len(told)
    assert out.status == Sample.Status.COMPLETED


async def test_requests_of_a_user_function_carry_identity_and_seed(engine, tokenizer_folder):
    sample = Sample(prompt="What is 3 plus 4?", group_index=7, index=2, attempt=1)
    await call(generate, make_args(tokenizer_folder), sample)
    assert [r["rid"] for r in engine.requests] == ["g7.2.a1.t0", "g7.2.a1.t1"]
    assert [r["sampling_params"]["sampling_seed"] for r in engine.requests] == [
        stream_key(42, "sample", 7, 2, 0),
        stream_key(42, "sample", 7, 2, 1),
    ]


async def test_a_seed_and_a_rid_that_the_user_set_are_kept(engine):
    async def own(args, sample, sampling_params):
        params = {**sampling_params, "sampling_seed": 5}
        out = await post(
            "http://10.0.0.1:3000/generate", {"input_ids": [2, 3], "sampling_params": params, "rid": "mine"}
        )
        return fill(sample, [2, 3], out)

    await call(own, None, Sample(group_index=1, index=0))
    assert engine.requests[0]["rid"] == "mine"
    assert engine.requests[0]["sampling_params"]["sampling_seed"] == 5


async def test_the_users_payload_is_not_changed(engine):
    params = {"max_new_tokens": 3}
    payload = {"input_ids": [2, 3], "sampling_params": params}

    async def own(args, sample, sampling_params):
        return fill(sample, [2, 3], await post("http://10.0.0.1:3000/generate", payload))

    await call(own, None, Sample(group_index=1, index=0))
    assert payload == {"input_ids": [2, 3], "sampling_params": {"max_new_tokens": 3}}


def fill(sample: Sample, prompt: list[int], *outputs: dict[str, Any]) -> Sample:
    """A single-turn sample of all outputs, one after the other."""
    entries = [t for output in outputs for t in output["meta_info"]["output_token_logprobs"]]
    sample.tokens = prompt + [t[1] for t in entries]
    sample.rollout_log_probs = [t[0] for t in entries]
    sample.loss_mask = [1] * len(entries)
    sample.response_length = len(entries)
    sample.status = Sample.Status.COMPLETED
    return sample


def one_request(change):
    """A generate function that changes its sample after an honest single turn."""

    async def function(args, sample, sampling_params):
        out = await post("http://10.0.0.1:3000/generate", {"input_ids": [2, 3], "sampling_params": sampling_params})
        change(fill(sample, [2, 3], out))
        return sample

    return function


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (lambda s: s.rollout_log_probs.pop(), "missing_logprobs", "rollout_log_probs has 4 entries"),
        (lambda s: setattr(s, "rollout_log_probs", None), "missing_logprobs", "rollout_log_probs has None"),
        (lambda s: s.tokens.__setitem__(3, 99), "token_mismatch", "response token 1"),
        (lambda s: s.rollout_log_probs.__setitem__(4, -9.0), "logprob_mismatch", r"rollout_log_probs\[4\] is -9.0"),
        (lambda s: s.loss_mask.append(1), "bad_sample", "loss_mask has 6 entries for response_length 5"),
        (lambda s: setattr(s, "status", Sample.Status.PENDING), "bad_sample", "PENDING"),
        (lambda s: s.loss_mask.__setitem__(0, 2), "bad_sample", "other than 0 and 1"),
    ],
)
async def test_a_sample_that_is_not_what_the_engine_answered_is_refused(engine, change, reason, words):
    """P6 and the tap: function and sample are named."""
    with pytest.raises(GenerateFailed, match=words) as caught:
        await call(one_request(change), None, Sample(group_index=4, index=1))
    assert caught.value.reason == reason
    assert str(caught.value).startswith("user.generate (sample 4.1)")
    assert caught.value.path == "user.generate"


async def test_versions_that_a_function_fills_itself_excuse_no_check(engine):
    def change(sample):
        sample.tokens[3], sample.weight_versions = 99, [0] * 5

    with pytest.raises(GenerateFailed, match="response token 1"):
        await call(one_request(change), None, Sample(group_index=4, index=1))


async def test_masked_tokens_may_differ_and_have_no_version(engine):
    def change(sample):
        sample.tokens[3], sample.loss_mask[1], sample.rollout_log_probs[1] = 99, 0, 0.0

    with pytest.raises(GenerateFailed, match="response token 2"):  # what follows was sampled after another token
        await call(one_request(change), None, Sample(group_index=4, index=1))

    def mask_only(sample):
        sample.loss_mask[1] = 0

    (out,) = await call(one_request(mask_only), None, Sample(group_index=4, index=1))
    assert out.weight_versions == [0, -1, 0, 0, 0]


async def test_discarded_candidates_do_not_count(engine):
    async def best_of_two(args, sample, sampling_params):
        payload = {"input_ids": [2, 3], "sampling_params": sampling_params}
        outs = await asyncio.gather(*(post("http://10.0.0.1:3000/generate", payload) for _ in range(2)))
        return fill(sample, [2, 3], outs[1])

    (out,) = await call(best_of_two, None, Sample(group_index=4, index=1))
    assert [r["rid"] for r in engine.requests] == ["g4.1.a0.t0", "g4.1.a0.t1"]
    seed = stream_key(42, "sample", 4, 1, 1)
    assert out.tokens[2:6] == [token_at(seed, 2 + i) for i in range(4)]
    assert out.weight_versions == [0] * 5


async def test_versions_follow_the_engines_spans(engine):
    def edit(payload, answer):
        answer["meta_info"]["weight_versions"] = [
            {"version": "8", "start": 0, "end": 2},
            {"version": "9", "start": 2, "end": 5},
        ]
        return answer

    engine.edit = edit
    (out,) = await call(one_request(lambda s: None), None, Sample(group_index=4, index=1))
    assert out.weight_versions == [8, 8, 9, 9, 9]


async def test_fan_out_samples_are_numbered_and_checked_alone(engine):
    async def two_roles(args, sample, sampling_params):
        payload = {"input_ids": [2, 3], "sampling_params": sampling_params}
        outs = [await post("http://10.0.0.1:3000/generate", payload) for _ in range(2)]
        return [fill(Sample(), [2, 3], out) for out in outs]

    out = await call(two_roles, None, Sample(group_index=4, index=1, row=17))
    assert [(s.group_index, s.index, s.part, s.row) for s in out] == [(4, 1, 0, 17), (4, 1, 1, 17)]
    assert [s.weight_versions for s in out] == [[0] * 5, [0] * 5]


async def test_evaluation_is_passed_only_to_functions_that_have_it(engine):
    seen = []

    async def with_it(args, sample, sampling_params, evaluation=False):
        seen.append(evaluation)
        return await one_request(lambda s: None)(args, sample, sampling_params)

    await call(with_it, None, Sample(group_index=4, index=1), evaluation=True)
    await call(with_it, None, Sample(group_index=4, index=1), evaluation=False)
    await call(one_request(lambda s: None), None, Sample(group_index=4, index=1), evaluation=True)
    assert seen == [True, False]


async def test_an_exception_names_path_and_sample_and_keeps_its_cause(engine):
    async def broken(args, sample, sampling_params):
        return 1 / 0

    with pytest.raises(GenerateFailed, match=r"user.generate \(sample 4.1\): raised ZeroDivisionError") as caught:
        await call(broken, None, Sample(group_index=4, index=1))
    assert caught.value.reason == "user_error"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_function_that_never_returns_is_cancelled_at_its_time_limit(engine):
    ended = []

    async def endless(args, sample, sampling_params):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    with pytest.raises(GenerateFailed, match=r"0\.05 s of active time") as caught:
        await call(endless, None, Sample(group_index=4, index=1), timeout_s=0.05)
    assert caught.value.reason == "timeout"
    assert ended == [True]


async def test_a_time_out_inside_the_function_is_its_own_error(engine):
    async def impatient(args, sample, sampling_params):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(GenerateFailed, match="raised TimeoutError") as caught:
        await call(impatient, None, Sample(group_index=4, index=1))
    assert caught.value.reason == "user_error"


async def test_a_function_that_cancels_itself_fails_alone(engine):
    async def own(args, sample, sampling_params):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(GenerateFailed, match="cancelled its own task"):
        await call(own, None, Sample(group_index=4, index=1))


async def test_response_length_bounds_sampled_tokens_over_turns(engine, tokenizer_folder):
    """5 + 5 sampled tokens are wanted, 7 are allowed: the second turn is cut at 2, observations do not count."""
    sample = Sample(prompt="What is 3 plus 4?", group_index=7, index=2)
    recorder = SampleRecorder(seed=42, stream="sample", sample=sample, max_response_len=7)
    (out,) = await call(generate, make_args(tokenizer_folder), sample, recorder=recorder)
    assert sum(out.loss_mask) == 7
    assert out.finish_reason == "length"
    assert [r["sampling_params"]["max_new_tokens"] for r in engine.requests] == [7, 2]


async def test_used_up_response_length_answers_empty_without_a_request(engine, tokenizer_folder):
    sample = Sample(prompt="What is 3 plus 4?", group_index=7, index=2)
    recorder = SampleRecorder(seed=42, stream="sample", sample=sample, max_response_len=5)
    (out,) = await call(generate, make_args(tokenizer_folder), sample, recorder=recorder)
    assert len(engine.requests) == 1
    assert sum(out.loss_mask) == 5
    assert out.finish_reason == "length"


async def test_an_answer_cut_off_by_the_engine_makes_the_sample_aborted(engine):
    def edit(payload, answer):
        answer["meta_info"]["finish_reason"] = {"type": "abort", "message": "paused"}
        return answer

    engine.edit = edit
    (out,) = await call(one_request(lambda s: None), None, Sample(group_index=4, index=1))
    assert out.status is Sample.Status.ABORTED


async def test_an_answer_to_another_context_is_trained_as_sampled_and_reported(engine, caplog):
    """T1: the second turn's prompt was rendered anew and lost a token, so it does not extend the first turn."""

    async def rerender(args, sample, sampling_params):
        url = "http://10.0.0.1:3000/generate"
        first = await post(url, {"input_ids": [2, 3], "sampling_params": sampling_params})
        stripped = [2, 3, *first["output_ids"][1:]]
        second = await post(url, {"input_ids": stripped, "sampling_params": sampling_params})
        return fill(sample, [2, 3], first, second)

    (out,) = await call(rerender, None, Sample(group_index=4, index=1))
    assert out.weight_versions == [0] * 10
    assert out.train_metadata["prefix_breaks"] == 1
    assert "prefix break path=user.generate sample=4.1 turns=1" in caplog.text

    (whole,) = await call(one_request(lambda s: None), None, Sample(group_index=4, index=1))
    assert "prefix_breaks" not in whole.train_metadata


async def test_two_ids_stay_two_ids(engine, tokenizer_folder):
    """T5, T6: ids that the tokenizer would merge are kept as they were sampled."""
    tokenizer = tiny_tokenizer()
    merged = tokenizer.encode("What", add_special_tokens=False)
    split = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "What"]
    assert tokenizer.decode(split) == tokenizer.decode(merged)
    assert split != merged

    def edit(payload, answer):
        answer["output_ids"] = list(split)
        answer["meta_info"]["output_token_logprobs"] = [[-1.0, t, None] for t in split]
        answer["meta_info"]["weight_versions"] = [{"version": "0", "start": 0, "end": len(split)}]
        return answer

    engine.edit = edit
    (out,) = await call(generate, make_args(tokenizer_folder), Sample(prompt="5", group_index=0, index=0))
    sampled = [t for t, m in zip(out.tokens[out.prompt_length :], out.loss_mask, strict=True) if m]
    assert sampled == split + split
    prompt = len(tokenizer.encode("5", add_special_tokens=False))
    assert engine.requests[1]["input_ids"][prompt : prompt + len(split)] == split


async def test_a_plain_function_may_not_take_a_second_permit(engine):
    async def nested(args, sample, sampling_params):
        async with GenerateState(args).inference_permit():
            raise AssertionError("not reached")

    with pytest.raises(GenerateFailed, match="manages_inference_permit"):
        await call(nested, None, Sample(group_index=4, index=1))


async def test_A30_sessions_that_want_two_slots_at_once_share_two_of_them_and_all_end(engine):
    """A session can hold no slot while it waits for another, so the order in which they ask does not matter."""

    async def managed(args, sample, sampling_params):
        state, payload = GenerateState(args), {"input_ids": [2, 3], "sampling_params": sampling_params}
        out, _ = await asyncio.gather(state.post_generate(payload), state.post_generate(payload))
        return fill(sample, [2, 3], out)

    managed.manages_inference_permit = True
    args = SimpleNamespace(sglang_router_ip="10.0.0.1", sglang_router_port=3000)
    permits = asyncio.Semaphore(2)
    async with asyncio.timeout(30):
        sessions = [
            call(managed, args, Sample(group_index=4, index=i), permits=permits, timeout_s=25.0) for i in range(8)
        ]
        assert [len(samples) for samples in await asyncio.gather(*sessions)] == [1] * 8
    assert not permits.locked()

    async def nested(args, sample, sampling_params):
        async with GenerateState(args).inference_permit():
            return await managed(args, sample, sampling_params)

    nested.manages_inference_permit = True
    with pytest.raises(GenerateFailed, match="holds a permit already; do not nest"):
        await call(nested, args, Sample(group_index=4, index=9))


async def test_a_function_that_manages_permits_takes_one_a_request(engine):
    args = SimpleNamespace(sglang_router_ip="10.0.0.1", sglang_router_port=3000)

    async def managed(args, sample, sampling_params):
        payload = {"input_ids": [2, 3], "sampling_params": sampling_params}
        out = await GenerateState(args).post_generate(payload)
        return fill(sample, [2, 3], out)

    managed.manages_inference_permit = True
    (out,) = await call(managed, args, Sample(group_index=4, index=1))
    assert out.weight_versions == [0] * 5
