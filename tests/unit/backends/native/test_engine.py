# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine on a real tiny model, through its routes: exactness, seeds, pauses, updates."""

from __future__ import annotations

import asyncio
import json
import shutil

import numpy as np
import pytest
import torch

from relax.backends.engine_client import EngineRefused
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher

PROMPT = [20, 21, 22, 23, 40]


async def generate(client, ids=PROMPT, n=12, seed=5, **sampling):
    extra = {k: sampling.pop(k) for k in ("rid", "logprob_start_len") if k in sampling}
    params = {"temperature": 0.6, "max_new_tokens": n, "sampling_seed": seed, "ignore_eos": True, **sampling}
    return await client.generate({"input_ids": ids, "sampling_params": params, "return_logprob": True, **extra})


def scored(answer):
    return answer["meta_info"]["output_token_logprobs"]


def hf_log_probs(folder, prompt, ids, temperature=1.0, suppressed=()):
    """Log-probs of `ids` by an ordinary HF forward with SDPA and no cache."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    logits[:, list(suppressed)] = -torch.inf
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()


async def test_log_probs_are_those_of_an_hf_forward(engine, text_folder):
    client = engine()
    answer = await generate(client, n=40)
    got = [score for score, _, _ in scored(answer)]
    expected = hf_log_probs(text_folder, PROMPT, answer["output_ids"], temperature=0.6)
    assert np.abs(np.asarray(got) - expected).max() < 1e-5


async def test_P12_alone_in_a_batch_joined_late_and_after_a_retract_are_equal_to_the_bit(engine):
    client = engine()
    alone = await generate(client, n=40)
    await client.flush()
    others = [
        asyncio.create_task(generate(client, ids=[30 + i, 40, 50][: 1 + i % 3], n=10 + 5 * i, seed=i))
        for i in range(9)
    ]
    await asyncio.sleep(0.05)
    joined = asyncio.create_task(generate(client, n=40))
    await asyncio.sleep(0.01)
    await client.pause("retract")
    await client.flush()
    await client.resume()
    batched = await joined
    await asyncio.gather(*others)
    assert batched["output_ids"] == alone["output_ids"]
    assert scored(batched) == scored(alone)


async def test_a_retract_in_the_middle_changes_no_bit(engine):
    client = engine()
    alone = await generate(client, n=400)
    await client.flush()
    again = asyncio.create_task(generate(client, n=400))
    retractions = 0
    while not again.done() and retractions < 5:
        await asyncio.sleep(0.02)
        await client.pause("retract")
        await client.flush()
        await client.resume()
        retractions += 1
    answer = await again
    assert answer["meta_info"]["num_retractions"] >= 1
    assert scored(answer) == scored(alone)


async def test_a_small_pool_queues_and_changes_no_bit(engine):
    wide, narrow = engine(), engine(max_total_tokens=96, max_running_requests=3)
    calls = [{"ids": [30 + i, 40, 50 + i], "n": 20 + 3 * i, "seed": i} for i in range(8)]
    expected = await asyncio.gather(*(generate(wide, **call) for call in calls))
    got = await asyncio.gather(*(generate(narrow, **call) for call in calls))
    assert [scored(a) for a in got] == [scored(a) for a in expected]
    with pytest.raises(EngineRefused, match="max_new_tokens"):
        await generate(narrow, n=100)


async def test_n_responses_share_one_prefill_and_differ(engine):
    client = engine()
    answers = await client.generate(
        {
            "input_ids": PROMPT,
            "rid": "g1.0.a0.t0",
            "sampling_params": {"n": 4, "max_new_tokens": 8, "sampling_seed": 5, "ignore_eos": True},
        }
    )
    assert [a["meta_info"]["id"] for a in answers] == [f"g1.0.a0.t0.p{i}" for i in range(4)]
    assert [a["meta_info"]["cached_tokens"] for a in answers] == [0, 5, 5, 5]
    assert len({tuple(a["output_ids"]) for a in answers}) == 4
    single = await client.generate(
        {
            "input_ids": PROMPT,
            "sampling_params": {
                "max_new_tokens": 8,
                "sampling_seed": answers[2]["meta_info"]["sampling_seed"],
                "ignore_eos": True,
            },
        }
    )
    assert single["output_ids"] == answers[2]["output_ids"]


async def test_a_request_without_a_seed_reports_the_one_it_drew(engine):
    client = engine()
    params = {"max_new_tokens": 8, "ignore_eos": True}
    first = await client.generate({"input_ids": PROMPT, "sampling_params": params})
    second = await client.generate({"input_ids": PROMPT, "sampling_params": params})
    assert first["output_ids"] != second["output_ids"]
    again = await client.generate(
        {"input_ids": PROMPT, "sampling_params": {**params, "sampling_seed": first["meta_info"]["sampling_seed"]}}
    )
    assert again["output_ids"] == first["output_ids"]


async def test_input_log_probs_are_those_of_the_prompt_at_temperature_one(engine, text_folder):
    client = engine()
    answer = await generate(client, n=3, logprob_start_len=0)
    entries = answer["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in entries] == PROMPT
    assert entries[0][0] is None
    expected = hf_log_probs(text_folder, PROMPT[:1], PROMPT[1:])
    assert np.abs(np.asarray([score for score, _, _ in entries[1:]]) - expected).max() < 1e-5
    assert scored(answer) == scored(await generate(client, n=3))


async def score(client, ids=PROMPT, start=0, **asked):
    answer = await client.generate(
        {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            **asked,
        }
    )
    return answer["meta_info"]


def hf_distribution(folder, prompt):
    """float64 [P - 1, V] of the prompt's tokens from the second on."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    with torch.no_grad():
        return model(torch.tensor([prompt]), use_cache=False).logits[0, :-1].double().log_softmax(-1)


async def test_the_likeliest_ids_of_each_prompt_position_are_those_of_an_hf_forward(engine, text_folder):
    meta = await score(engine(), top_logprobs_num=4)
    expected = hf_distribution(text_folder, PROMPT).topk(4, dim=1)
    first, *rows = meta["input_top_logprobs"]
    assert first is None
    assert [[token for _, token, _ in row] for row in rows] == expected.indices.tolist()
    got = np.asarray([[value for value, _, _ in row] for row in rows])
    assert np.abs(got - expected.values.numpy()).max() < 1e-5


async def test_log_probs_at_given_ids_are_those_of_an_hf_forward_and_of_the_prompts_own_tokens(engine, text_folder):
    client = engine()
    right = hf_distribution(text_folder, PROMPT)
    same = await score(client, token_ids_logprob=[7, 9])
    assert same["input_token_ids_logprobs"][0] is None
    got = np.asarray([[value for value, _, _ in row] for row in same["input_token_ids_logprobs"][1:]])
    assert np.abs(got - right[:, [7, 9]].numpy()).max() < 1e-5
    ids = [[token, 9] for token in PROMPT[2:]]
    own = await score(client, start=2, token_ids_logprob=ids, top_logprobs_num=right.shape[1])
    rows = own["input_token_ids_logprobs"]
    assert [[token for _, token, _ in row] for row in rows] == ids
    assert [row[0][0] for row in rows] == [value for value, _, _ in own["input_token_logprobs"]]
    likely = [{token: value for value, token, _ in row} for row in own["input_top_logprobs"]]
    assert [row[1][0] for row in rows] == [there[9] for there in likely], "the same bits by either question"


async def test_a_scored_prompt_has_the_same_bits_alone_in_company_and_again(engine):
    client = engine()
    prompts = [PROMPT, [30, 31, *PROMPT], PROMPT * 9, [5, 6]]
    asked = {"top_logprobs_num": 3, "token_ids_logprob": [1, 2]}
    names = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
    alone = []
    for prompt in prompts:
        alone.append(await score(client, prompt, **asked))
        await client.flush()
    company = await asyncio.gather(*(score(client, prompt, **asked) for prompt in prompts))
    again = await asyncio.gather(*(score(client, prompt, **asked) for prompt in prompts))
    for one, two, three in zip(alone, company, again, strict=True):
        assert [one[name] for name in names] == [two[name] for name in names] == [three[name] for name in names]
        assert three["cached_tokens"] == three["prompt_tokens"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"token_ids_logprob": [10_000]}, "token_ids_logprob holds 10000; the vocabulary has"),
        ({"token_ids_logprob": [[1], [2]]}, "2 lists for the 5 positions"),
        ({"top_logprobs_num": 10_000}, "top_logprobs_num=10000: the vocabulary has"),
        ({"start": 5, "top_logprobs_num": 1}, "lies behind the prompt's 5 tokens"),
    ],
)
async def test_ids_that_do_not_fit_the_model_or_the_prompt_are_refused(engine, asked, words):
    with pytest.raises(EngineRefused, match=words):
        await score(engine(), **asked)


async def test_P10_stop_string_stop_id_and_eos_end_the_text_as_sglang_does(engine):
    client = engine()
    free = await client.generate(
        {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
    )
    ids = free["output_ids"]
    by_id = await client.generate(
        {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 12, "stop_token_ids": [ids[4]]}}
    )
    end = ids.index(ids[4]) + 1
    assert by_id["output_ids"] == ids[:end]
    assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[4]}
    untrimmed = await client.generate(
        {
            "input_ids": PROMPT,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": 12,
                "stop_token_ids": [ids[4]],
                "no_stop_trim": True,
            },
        }
    )
    assert untrimmed["text"].startswith(by_id["text"]) and len(untrimmed["text"]) > len(by_id["text"])
    assert free["meta_info"]["finish_reason"] == {"type": "length", "length": 12}


async def test_abort_returns_what_was_made(engine):
    client = engine()
    task = asyncio.create_task(generate(client, n=1500, rid="g4.0.a0.t0"))
    await asyncio.sleep(0.1)
    await client.abort("g4.0.a0.t0")
    answer = await task
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    count = len(answer["output_ids"])
    assert 0 < count < 1500 and len(scored(answer)) == count
    await client.abort()  # nothing runs: no error


async def publish(folder, root, version):
    from safetensors.torch import load_file

    return SharedMemoryPublisher(root).publish(version, load_file(folder / "model.safetensors").items())


async def install(client, manifest):
    await client.weights_begin()
    await client.weights_from_disk(manifest.folder, manifest.version)
    await client.weights_end(manifest.version)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_an_update_in_flight_labels_each_token_with_its_weights(
    engine, text_folder, other_text_folder, tmp_path, mode
):
    client = engine()
    manifest = await publish(other_text_folder, tmp_path / "versions", 7)
    task = asyncio.create_task(generate(client, n=600))
    await asyncio.sleep(0.1)
    await client.pause(mode)
    await install(client, manifest)
    await client.resume()
    answer = await task
    spans = answer["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "7"]
    cut = spans[0]["end"]
    assert 0 < cut < 600 and spans == [
        {"version": "default", "start": 0, "end": cut},
        {"version": "7", "start": cut, "end": 600},
    ]
    ids, got = answer["output_ids"], np.asarray([score for score, _, _ in scored(answer)])
    old = hf_log_probs(text_folder, PROMPT, ids[:cut], 0.6)
    assert np.abs(got[:cut] - old).max() < 1e-4
    new = hf_log_probs(other_text_folder, PROMPT, ids, 0.6)
    if mode == "retract":
        assert np.abs(got[cut:] - new[cut:]).max() < 1e-4
    else:  # old keys and values stay by design: no single version's forward has these numbers
        assert np.abs(got[cut:] - new[cut:]).max() > 1e-3
    assert (await client.info()).weight_version == "7"


async def test_an_update_without_begin_is_refused(engine, other_text_folder, tmp_path):
    client = engine()
    manifest = await publish(other_text_folder, tmp_path / "versions", 1)
    for call in (client.weights_from_disk(manifest.folder, 1), client.weights_end(1)):
        with pytest.raises(EngineRefused, match="between /begin_weight_update and /end_weight_update") as caught:
            await call
        assert caught.value.status == 400
    await install(client, manifest)
    assert (await client.info()).weight_version == "1"


def broken_copies(folder, root):
    """(name, folder, words of the refusal) of wrong updates."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(n for n in weights if n.endswith("down_proj.weight"))
    wrong = {
        "shape": ({**weights, name: weights[name][:, :-1].contiguous()}, [name, "shape"]),
        "unknown": ({**weights, "model.extra": weights[name].clone()}, ["model.extra"]),
        "missing": ({k: v for k, v in weights.items() if k != name}, [name, "lacks"]),
    }
    for kind, (tensors, words) in wrong.items():
        (root / kind).mkdir(parents=True)
        save_file(tensors, root / kind / "model.safetensors")
        yield root / kind, words
    SharedMemoryPublisher(root / "torn").publish(1, weights.items())
    file = root / "torn" / "v1" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    yield root / "torn" / "v1", ["checksum"]


async def test_a_wrong_update_leaves_the_old_weights_whole(engine, other_text_folder, tmp_path):
    client = engine()
    before = await generate(client)
    sums = await client.post("/weights_checker", {"action": "checksum"})
    for folder, words in broken_copies(other_text_folder, tmp_path):
        await client.weights_begin()
        with pytest.raises(EngineRefused) as caught:
            await client.weights_from_disk(folder, 1)
        for word in words:
            assert word in str(caught.value)
        assert await client.post("/weights_checker", {"action": "checksum"}) == sums
    await client.flush()
    after = await generate(client)
    assert scored(after) == scored(before)
    assert after["meta_info"]["weight_version"] == "default"


async def test_a_folder_of_another_version_than_asked_is_refused(engine, other_text_folder, tmp_path):
    client = engine()
    manifest = await publish(other_text_folder, tmp_path / "versions", 3)
    await client.weights_begin()
    with pytest.raises(EngineRefused, match="version 3"):
        await client.weights_from_disk(manifest.folder, 4)


async def test_tensors_as_safetensors_text_are_taken_whole_or_not_at_all(engine, other_text_folder):
    import base64

    from safetensors.torch import load_file, save

    client = engine()
    weights = load_file(other_text_folder / "model.safetensors")
    half = dict(list(weights.items())[:10])
    blob = lambda tensors: base64.b64encode(save(tensors)).decode()  # noqa: E731
    payload = lambda *blobs: {"serialized_named_tensors": list(blobs), "load_format": "safetensors"}  # noqa: E731
    with pytest.raises(EngineRefused, match="load_format"):
        await client.post("/update_weights_from_tensor", {"serialized_named_tensors": ["gASV"]})
    await client.weights_begin()
    await client.post("/update_weights_from_tensor", payload(blob(half)))
    with pytest.raises(EngineRefused, match="were not sent"):
        await client.weights_end(2)
    await client.weights_begin()
    rest = {name: tensor for name, tensor in weights.items() if name not in half}
    await client.post("/update_weights_from_tensor", payload(blob(half), blob(rest)))
    await client.weights_end(2)
    fresh = engine(other_text_folder)
    assert scored(await generate(client)) == scored(await generate(fresh))


async def test_sleep_and_wake_keep_the_order_of_colocated_training(engine, other_text_folder, tmp_path):
    client = engine()
    manifest = await publish(other_text_folder, tmp_path / "versions", 4)
    task = asyncio.create_task(generate(client, n=1000))
    await asyncio.sleep(0.05)
    with pytest.raises(EngineRefused, match="running"):
        await client.sleep()
    await client.pause("abort")
    await task
    await client.flush()
    await client.sleep()
    with pytest.raises(EngineRefused, match="resume_memory_occupation"):
        await client.resume()
    with pytest.raises(EngineRefused, match="weights"):
        await client.weights_begin()
    with pytest.raises(EngineRefused, match="before 'kv_cache'"):
        await client.wake(["kv_cache"])
    await client.wake(["weights"])
    await install(client, manifest)
    await client.wake(["kv_cache"])
    await client.resume()
    assert (await generate(client))["meta_info"]["weight_version"] == "4"


async def test_A15_while_paused_nothing_is_generated_and_new_requests_wait(engine):
    client = engine()
    await client.pause("in_place")
    task = asyncio.create_task(generate(client))
    await asyncio.sleep(0.1)
    state = (await client.info()).raw["internal_states"][0]
    assert (state["generated_tokens"], state["num_queue_reqs"]) == (0, 1)
    await client.resume()
    assert len((await task)["output_ids"]) == 12


async def test_A15_a_pause_holds_chats_back_as_well(engine):
    client = engine()
    await client.pause("in_place")
    body = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 3, "ignore_eos": True}
    task = asyncio.create_task(client.post("/v1/chat/completions", body))
    await asyncio.sleep(0.1)
    assert (await client.info()).raw["internal_states"][0]["generated_tokens"] == 0
    assert not task.done()
    await client.resume()
    assert (await task)["usage"]["completion_tokens"] == 3


async def test_the_event_loop_runs_while_the_model_works(engine):
    client = engine()
    tasks = [asyncio.create_task(generate(client, ids=[20 + i] * 50, n=60, seed=i)) for i in range(16)]
    turns = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns += 1
    steps = (await client.info()).raw["internal_states"][0]["decode_steps"]
    assert steps >= 59  # the first token comes from the prefill
    assert turns > 2 * steps  # a loop that waited for the model would turn once a step at most


async def test_info_health_metrics_and_errors(engine):
    client = engine()
    await generate(client)
    info = await client.info()
    assert (info.backend, info.seeds, info.version_spans, info.logprob_kind) == ("native", True, True, "processed")
    assert info.exact is True and "bit" in info.exact_reason
    metrics = await client.get("/metrics")
    assert "sglang:generation_tokens_total 12" in metrics
    assert 'sglang:e2e_request_latency_seconds_bucket{le="+Inf"} 1' in metrics
    for path in ("/health", "/health_generate"):
        await client.get(path)
    assert (await client.get("/get_model_info"))["is_generation"] is True
    assert (await client.get("/v1/models"))["data"][0]["object"] == "model"
    with pytest.raises(EngineRefused, match="the vocabulary has"):
        await generate(client, ids=[10_000])
    with pytest.raises(EngineRefused, match="mode"):
        await client.post("/pause_generation", {"mode": "softly"})
    with pytest.raises(EngineRefused, match="rid"):
        await client.post("/abort_request", {})


async def test_the_model_folder_without_a_tokenizer_serves_ids(engine, text_folder, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(text_folder / name, folder / name)
    client = engine(folder)
    answer = await generate(client)
    assert answer["text"] == "" and len(answer["output_ids"]) == 12
    with pytest.raises(EngineRefused, match="tokenizer"):
        await client.generate({"text": "hello"})
    assert json.loads((folder / "config.json").read_text())["vocab_size"]
