# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Partial rollout: what an interrupted response keeps, where it goes on, what of it is trained. Virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relax.data.columns import group_columns
from relax.engine.rollout.attempts import GenerationOptions, mask_off_policy
from relax.engine.rollout.generate import end_at_stop, generate
from relax.engine.rollout.groups import AdmittedGroup, FinishedGroup, GroupGenerator
from relax.engine.rollout.hooks import load_hook, make_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.rng import stream_key
from relax.utils.types import Sample
from tests.builders import tiny_tokenizer
from tests.fake_engine import FakeEngine, log_prob_of, token_at
from tests.unit.engine.rollout.limits import NO_LIMITS

URL = "http://10.0.0.7:3000"
ARGS = SimpleNamespace(sglang_router_ip="10.0.0.7", sglang_router_port=3000, hf_checkpoint=None, **NO_LIMITS)
PROMPT = [2, 3, 4]
BUDGET = 8


@pytest.fixture(scope="module", autouse=True)
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    ARGS.hf_checkpoint = str(tmp_path_factory.mktemp("tokenizer"))
    tiny_tokenizer().save_pretrained(ARGS.hf_checkpoint)


@pytest.fixture
def engine():
    """A token a second, and no end but the budget's."""
    engine = FakeEngine(token_s=1.0, num_tokens=lambda payload: 1000)
    register_local(URL, engine)
    yield engine
    unregister_local(URL)


def make_generator(engine: FakeEngine, hook: Any = None, *, stop: tuple[str, ...] = (), **options: Any):
    return GroupGenerator(
        args=ARGS,
        hook=hook or load_hook(),
        sampling_params=SamplingOptions(max_response_len=BUDGET, stop=stop).params(),
        options=GenerationOptions(seed=1, max_response_len=BUDGET, partial_rollout=True, **options),
        clock=VirtualClock(),
        engines=engine,
    )


async def update(generator: GroupGenerator, engine: FakeEngine) -> int:
    """What the rollout role does for new weights -> interrupted requests."""
    generator.pause()
    number = await generator.interrupt()
    engine.version += 1
    generator.resume()
    return number


def run(engine: FakeEngine, *times: float, hook: Any = None, samples: int = 1, **options: Any) -> tuple:
    """One group, with weight updates at these times -> (finished group, interrupted requests by update)."""

    async def main() -> tuple[FinishedGroup, list[int]]:
        generator = make_generator(engine, hook, **options)
        generator.admit([AdmittedGroup(5, Sample(group_index=5, tokens=list(PROMPT), row=0), samples)])
        interrupted, now = [], 0.0
        for time in times:
            await asyncio.sleep(time - now)
            interrupted.append(await update(generator, engine))
            now = time
        return await generator.next_finished(), interrupted

    return run_virtual(main())


def test_an_interrupted_response_goes_on_under_new_weights_within_one_budget(engine):
    finished, interrupted = run(engine, 2.5, 5.2)
    # tokens end at 1, 2 | 3 is cut; it goes on at ~3 (the cut is seen at the next token), and so on: 8 in all
    (sample,) = finished.samples
    assert interrupted == [1, 1]
    assert (sample.response_length, len(sample.tokens)) == (BUDGET, len(PROMPT) + BUDGET)
    assert (sample.status, sample.finish_reason) == (Sample.Status.TRUNCATED, "length")
    assert (sample.abort_count, sample.attempt) == (2, 2)
    assert [r["rid"] for r in engine.requests] == ["g5.0.a0.t0", "g5.0.a1.t1", "g5.0.a2.t2"]
    # every request gets the tokens so far as its prompt, and what is left of the budget
    kept = [sample.weight_versions.count(v) for v in (0, 1, 2)]
    assert sample.weight_versions == [0] * kept[0] + [1] * kept[1] + [2] * kept[2]
    assert min(kept) > 0
    starts = [0, kept[0], kept[0] + kept[1]]
    assert [r["input_ids"] for r in engine.requests] == [sample.tokens[: len(PROMPT) + start] for start in starts]
    assert [r["sampling_params"]["max_new_tokens"] for r in engine.requests] == [BUDGET - start for start in starts]
    # token k of turn t: the fake engine's token under the key of that turn
    right = []
    for turn, (start, count) in enumerate(zip(starts, kept, strict=True)):
        key = stream_key(1, "sample", 5, 0, turn)
        right += [token_at(key, len(PROMPT) + start + place) for place in range(count)]
    assert sample.tokens[len(PROMPT) :] == right
    assert sample.rollout_log_probs == [log_prob_of(token) for token in right]
    assert sample.loss_mask == [1] * BUDGET
    assert finished.sampled_tokens == BUDGET  # nothing was thrown away


def test_the_oldest_token_decides_the_age_and_masked_tokens_keep_their_version(engine):
    finished, _ = run(engine, 2.5, 5.2, mask_off_policy=True)
    (sample,) = finished.samples
    assert sample.loss_mask == [int(version == 2) for version in sample.weight_versions]
    assert 0 < sum(sample.loss_mask) < BUDGET
    columns = group_columns(finished.samples, [0.0], [0.0])
    assert columns["weight_version"].min() == 0  # what the gate reads
    assert columns["rollout_logprobs"].tolist() == np.asarray(sample.rollout_log_probs, np.float32).tolist()


def test_a_mask_takes_versions_not_interruptions():
    """Interrupted without new weights (an engine left): nothing is off-policy."""

    def masked(versions: list[int], aborts: int, mask: list[int]) -> list[int]:
        sample = Sample(weight_versions=versions, loss_mask=mask, abort_count=aborts)
        mask_off_policy(sample)
        return sample.loss_mask

    assert masked([3, 3, 3], 1, [1, 1, 1]) == [1, 1, 1]
    assert masked([3, 3, 4], 1, [1, 1, 1]) == [0, 0, 1]
    assert masked([3, 3, 4], 0, [1, 1, 1]) == [1, 1, 1]  # went on in the engine: it was not resumed
    assert masked([3, 4, 4], 2, [1, 0, 1]) == [0, 0, 1]
    assert masked([], 1, []) == []


def test_a_response_that_was_interrupted_often_enough_is_left_to_run(engine):
    finished, interrupted = run(engine, 2.5, 4.5, 6.5, protected_after=1)
    (sample,) = finished.samples
    assert interrupted == [1, 0, 0]
    assert sample.abort_count == 1
    assert len(engine.requests) == 2
    assert sample.weight_versions[-1] == 3  # one request, in which the engine changed its weights twice
    assert sample.response_length == BUDGET


def test_a_users_function_is_not_interrupted(engine):
    async def own(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        return await generate(args, sample, sampling_params)

    finished, interrupted = run(engine, 2.5, hook=make_hook(own, "tests.own"))
    assert interrupted == [0]
    assert finished.samples[0].abort_count == 0
    assert finished.samples[0].weight_versions == [0, 0, 1, 1, 1, 1, 1, 1]


def test_all_samples_of_a_group_go_on(engine):
    finished, interrupted = run(engine, 3.5, samples=3)
    assert interrupted == [3]
    assert [s.index for s in finished.samples] == [0, 1, 2]
    assert all(s.response_length == BUDGET and set(s.weight_versions) == {0, 1} for s in finished.samples)


def test_media_go_along_with_every_request(engine):
    import base64
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    image = {"image": [f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"]}

    async def main() -> Sample:
        generator = make_generator(engine)
        prompt = Sample(group_index=5, tokens=[2, 9, 9, 4], rollout_tokens=[2, 9, 4], multimodal_inputs=image, row=0)
        engine.expanded_by = 1  # one placeholder stands for two tokens
        generator.admit([AdmittedGroup(5, prompt, 1)])
        await asyncio.sleep(2.5)
        await update(generator, engine)
        return (await generator.next_finished()).samples[0]

    sample = run_virtual(main())
    first, second = engine.requests
    assert first["image_data"] == second["image_data"]
    kept = sample.weight_versions.count(0)
    assert second["input_ids"] == [2, 9, 4, *sample.tokens[4 : 4 + kept]]  # unexpanded, then what was sampled
    assert sample.tokens[:4] == [2, 9, 9, 4]


# --------------------------------------------------------------------------- stop strings across the cut


def stopped(text: str, cut: int, *stops: str) -> tuple[str, str | int | None]:
    """One token a character; (response, matched stop)."""
    sample = Sample(
        tokens=[0, *map(ord, text)],
        response_length=len(text),
        loss_mask=[1] * len(text),
        rollout_log_probs=[-1.0] * len(text),
        weight_versions=[0] * cut + [1] * (len(text) - cut),
        status=Sample.Status.TRUNCATED,
    )
    end_at_stop(sample, cut, stops, lambda ids: "".join(map(chr, ids)))
    lengths = {len(sample.loss_mask), len(sample.rollout_log_probs), len(sample.weight_versions)}
    assert lengths == {sample.response_length} == {len(sample.tokens) - 1}
    return "".join(map(chr, sample.tokens[1:])), sample.matched_stop


def test_a_stop_string_that_lies_across_the_cut_ends_the_response():
    assert stopped("abc</end>xyz", 6, "</end>") == ("abc</end>", "</end>")
    assert stopped("abc</end>xyz", 4, "nothing", "</end>") == ("abc</end>", "</end>")
    assert stopped("a\n\nb", 2, "\n\n") == ("a\n\n", "\n\n")


def test_a_stop_string_behind_the_cut_is_the_engines_own_business():
    assert stopped("abc</end>", 3, "</end>") == ("abc</end>", None)
    assert stopped("abcdef", 3, "</end>") == ("abcdef", None)
    assert stopped("abcdef", 3) == ("abcdef", None)


def test_a_continued_response_ends_at_its_stop_string(engine):
    """Five tokens spell the string and the cut lies inside: what the engine samples behind it falls off."""
    tokenizer = tiny_tokenizer()
    spelled = [number for c in "Whats" for number in tokenizer.encode(c, add_special_tokens=False)]

    def edit(payload: Any, answer: dict[str, Any]) -> dict[str, Any]:
        """The response reads Whats, then what it was."""
        start = len(payload["input_ids"]) - len(PROMPT)
        ids = [spelled[start + k] if start + k < 5 else token for k, token in enumerate(answer["output_ids"])]
        answer["output_ids"] = ids
        answer["meta_info"]["output_token_logprobs"] = [[log_prob_of(token), token, None] for token in ids]
        return answer

    engine.edit = edit
    finished, _ = run(engine, 2.5, stop=("hats",))
    (sample,) = finished.samples
    assert sample.tokens[len(PROMPT) :] == spelled
    assert (sample.response, sample.matched_stop, sample.finish_reason) == ("Whats", "hats", "stop")
    assert sample.status is Sample.Status.COMPLETED
    assert finished.sampled_tokens == BUDGET  # three of them fell off, and are counted
