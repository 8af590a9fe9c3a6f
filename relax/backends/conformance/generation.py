# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checks of /generate: what is sampled, how it is scored, when it ends, what is refused."""

from __future__ import annotations

import asyncio

import numpy as np

from relax.backends.conformance.check import Check, named, refused, require
from relax.backends.conformance.context import SENTENCE, Context, finish, scores

CHECKS: list[Check] = []
check = named("generate", CHECKS)
SHORT = 6
PLAIN = {"ignore_eos": False, "temperature": 0, "no_stop_trim": True}  # greedy, and stops count


@check
async def an_answer_has_ids_text_and_counts(context: Context) -> None:
    """output_ids, text, finish_reason, prompt_tokens and completion_tokens, which agree."""
    prompt = context.prompt()
    answer = await context.generate(prompt)
    meta = answer["meta_info"]
    require(isinstance(answer["text"], str), "text is a string", answer["text"])
    require(len(answer["output_ids"]) == 12, "12 output_ids for max_new_tokens=12", answer["output_ids"])
    counts = (meta["prompt_tokens"], meta["completion_tokens"])
    require(counts == (len(prompt), 12), f"prompt_tokens {len(prompt)} and completion_tokens 12", counts)
    require(len(scores(answer)) == 12, "12 log-probs")


@check
async def log_probs_are_those_of_a_plain_forward(context: Context) -> None:
    """The sampled tokens' log-probs at temperature 1 equal a Hugging Face forward."""
    prompt = context.prompt()
    context.require_expected(await context.generate(prompt, n=24), prompt)


@check
async def log_probs_follow_the_temperature(context: Context) -> None:
    """At temperature 0.6 they are of logits / 0.6, the distribution that was sampled from."""
    prompt = context.prompt()
    context.require_expected(await context.generate(prompt, n=24, temperature=0.6), prompt, temperature=0.6)


@check
async def greedy_takes_the_likeliest_token(context: Context) -> None:
    """Temperature 0 samples the argmax at every position."""
    from relax.backends.conformance.reference import hf_logits

    prompt = context.prompt()
    ids = (await context.generate(prompt, n=24, temperature=0))["output_ids"]
    logits = hf_logits(context.model(context.folder), prompt, (), ids)
    logits[:, list(context.suppressed)] = -np.inf
    require(logits.argmax(-1).tolist() == ids, "the argmax at every position", ids)


@check
async def greedy_is_scored_at_temperature_one(context: Context) -> None:
    """Log-probs of a greedy answer are those of temperature 1."""
    prompt = context.prompt()
    context.require_expected(await context.generate(prompt, n=24, temperature=0), prompt)


@check
async def prompt_log_probs_are_returned_from_the_start(context: Context) -> None:
    """logprob_start_len=0: one entry a prompt token, the first without a value, the others those of the forward."""
    prompt = context.prompt()
    answer = await context.generate(prompt, n=1, call={"logprob_start_len": 0})
    entries = answer["meta_info"]["input_token_logprobs"]
    require([entry[1] for entry in entries] == prompt, "an entry for each prompt token", entries)
    require(entries[0][0] is None, "nothing precedes the first token", entries[0])
    got = np.asarray([entry[0] for entry in entries[1:]], np.float64)
    from relax.backends.conformance.reference import hf_log_probs

    expected = hf_log_probs(context.model(context.folder), prompt[:1], (), prompt[1:], 1.0)
    require(
        float(np.abs(got - expected).max()) < context.tolerance, "prompt log-probs of a plain forward", got.tolist()
    )


@check
async def the_likeliest_ids_of_prompt_tokens_are_returned(context: Context) -> None:
    """top_logprobs_num=3 without generation: three ids a position, the likeliest first, as in the forward."""
    prompt = context.prompt()
    answer = await context.generate(prompt, n=0, call={"logprob_start_len": 0, "top_logprobs_num": 3})
    rows = answer["meta_info"]["input_top_logprobs"]
    require(len(rows) == len(prompt) and not rows[0], "a row for each prompt token, the first empty", rows)
    got = np.asarray([[entry[0] for entry in row] for row in rows[1:]], np.float64)
    right = -np.sort(-context.prompt_distribution(prompt), 1)[:, :3]  # values: near ties may stand in any order
    require(got.shape == right.shape, "three ids a position", got.shape)
    require(float(np.abs(got - right).max()) < context.tolerance, "log-probs of a plain forward", got.tolist())


@check
async def log_probs_at_given_ids_are_returned(context: Context) -> None:
    """token_ids_logprob: the log-probs of these ids at each prompt position."""
    prompt, ids = context.prompt(), [5, 9]
    answer = await context.generate(prompt, n=0, call={"logprob_start_len": 0, "token_ids_logprob": ids})
    context.require_at(answer, prompt, [ids] * len(prompt))


@check
async def each_position_may_have_ids_of_its_own(context: Context) -> None:
    """token_ids_logprob as one list a position."""
    context.offers("token_ids_per_position")
    prompt = context.prompt()
    ids = [[place % 7, 9] for place in range(len(prompt))]
    answer = await context.generate(prompt, n=0, call={"logprob_start_len": 0, "token_ids_logprob": ids})
    context.require_at(answer, prompt, ids)


@check
async def a_seed_repeats_its_tokens(context: Context) -> None:
    """The same sampling_seed twice gives the same tokens."""
    context.require_seeds()
    first, second = [(await context.generate(seed=11, n=24))["output_ids"] for _ in range(2)]
    require(first == second, "the same tokens for the same seed", [first, second])


@check
async def seeds_differ(context: Context) -> None:
    """Eight seeds of one prompt give eight answers, as a group of samples needs."""
    context.require_seeds()
    answers = await asyncio.gather(*(context.generate(seed=seed, n=24) for seed in range(8)))
    require(len({tuple(a["output_ids"]) for a in answers}) == 8, "eight different answers")


@check
async def a_seed_gives_the_same_tokens_in_company(context: Context) -> None:
    """Tokens of a seed do not depend on what else runs."""
    context.require_seeds()
    alone = (await context.generate(seed=3, n=24))["output_ids"]
    others = [context.start(30, ids=context.prompt("a" * (1 + i)), seed=100 + i) for i in range(8)]
    company = (await context.generate(seed=3, n=24))["output_ids"]
    await asyncio.gather(*others)
    require(alone == company, "the same tokens alone and in company", [alone, company])


@check
async def a_large_seed_is_taken(context: Context) -> None:
    """Seeds of 63 bits, as a counter-based run makes them."""
    context.require_seeds()
    first, second = [(await context.generate(seed=(1 << 62) + i, n=24))["output_ids"] for i in range(2)]
    require(first != second, "other tokens for another large seed", first)


@check
async def n_copies_of_a_request_differ(context: Context) -> None:
    """sampling_params.n answers with a list of n answers, which are not copies of one another."""
    context.offers("n_copies_differ")
    params = {"n": 3, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 4}
    answers = await context.client.generate({"input_ids": context.prompt(), "sampling_params": params})
    require(isinstance(answers, list) and len(answers) == 3, "a list of three answers", type(answers).__name__)
    require(len({tuple(a["output_ids"]) for a in answers}) == 3, "three different answers")


@check
async def the_length_limit_is_the_finish_reason(context: Context) -> None:
    """finish_reason {type: length, length: n} after max_new_tokens."""
    reason = finish(await context.generate(n=SHORT))
    require((reason["type"], reason.get("length")) == ("length", SHORT), "type length, length 6", reason)


@check
async def a_stop_id_ends_and_is_named(context: Context) -> None:
    """stop_token_ids: the id stays the last of output_ids, finish_reason is {type: stop, matched: id}."""
    free = (await context.generate(n=12, **{**PLAIN, "ignore_eos": True}))["output_ids"]
    end = free.index(free[5]) + 1
    answer = await context.generate(n=12, **PLAIN, stop_token_ids=[free[5]])
    require(answer["output_ids"] == free[:end], "the ids up to and with the stop id", answer["output_ids"])
    require(finish(answer) == {"type": "stop", "matched": free[5]}, "the matched id", finish(answer))


@check
async def a_stop_string_ends_and_is_named(context: Context) -> None:
    """stop: generation ends with the token that completes the string, which finish_reason names."""
    free = await context.generate(n=24, **{**PLAIN, "ignore_eos": True})
    word = next((c for c in free["text"][2:] if c.isalnum()), None)
    require(word is not None, "the greedy text of 24 tokens holds a letter or digit", free["text"])
    answer = await context.generate(n=24, **PLAIN, stop=[word])
    require(finish(answer) == {"type": "stop", "matched": word}, f"matched {word!r}", finish(answer))
    ids = answer["output_ids"]
    require(ids == free["output_ids"][: len(ids)] and len(ids) < 24, "ids cut where the string is complete", ids)
    require(word in answer["text"], "with no_stop_trim the text holds the string", answer["text"])


@check
async def the_end_token_ends_unless_it_is_ignored(context: Context) -> None:
    """A sampled end token ends the answer and stays its last id; with ignore_eos every answer has full length."""
    eos = context.tokenizer.eos_token_id
    answers = await asyncio.gather(
        *(context.generate(seed=seed, n=150, temperature=3.0, ignore_eos=False) for seed in range(16))
    )
    ended = [a for a in answers if finish(a)["type"] == "stop"]
    require(bool(ended), "some of 16 answers of 150 tokens at temperature 3 end by themselves")
    for answer in ended:
        ids = answer["output_ids"]
        require(ids[-1] == eos and eos not in ids[:-1], f"ids end at the end token {eos}", ids[-3:])
        require(finish(answer)["matched"] == eos, f"matched {eos}", finish(answer))


@check
async def the_request_id_is_echoed(context: Context) -> None:
    """meta_info.id is the rid that was sent."""
    answer = await context.generate(n=2, call={"rid": "g3.1.a0.t0"})
    require(answer["meta_info"]["id"] == "g3.1.a0.t0", "meta_info.id g3.1.a0.t0", answer["meta_info"]["id"])


@check
async def a_list_of_prompts_answers_in_order(context: Context) -> None:
    """input_ids as a list of lists: one answer each, with its own rid and parameters."""
    prompts = [context.prompt(), context.prompt("12 plus 30"), context.prompt("a")]
    params = [{"max_new_tokens": 2 + i, "ignore_eos": True} for i in range(3)]
    rids = ["list.0", "list.1", "list.2"]
    answers = await context.client.generate({"input_ids": prompts, "sampling_params": params, "rid": rids})
    got = [(a["meta_info"]["id"], a["meta_info"]["prompt_tokens"], len(a["output_ids"])) for a in answers]
    require(got == [(rids[i], len(prompts[i]), 2 + i) for i in range(3)], "answers in order", got)


@check
async def a_text_prompt_is_the_same_as_its_ids(context: Context) -> None:
    """text is tokenized as the model's tokenizer does."""
    params = {"temperature": 0, "max_new_tokens": SHORT, "ignore_eos": True}
    context.prompt()
    by_text = await context.client.generate({"text": SENTENCE, "sampling_params": params})
    by_ids = await context.client.generate(
        {"input_ids": context.tokenizer(SENTENCE)["input_ids"], "sampling_params": params}
    )
    require(by_text["output_ids"] == by_ids["output_ids"], "equal greedy answers", by_text["output_ids"])


@check
async def many_requests_at_once_keep_their_own_numbers(context: Context) -> None:
    """32 requests of different lengths in flight: own rid, own length, own log-probs."""
    prompts = [context.prompt("12 plus 30"[: 1 + i % 9]) for i in range(32)]
    answers = await asyncio.gather(
        *(context.generate(p, n=4 + i, seed=i, call={"rid": f"many.{i}"}) for i, p in enumerate(prompts))
    )
    for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        got = (answer["meta_info"]["id"], len(answer["output_ids"]))
        require(got == (f"many.{place}", 4 + place), "own rid and length", got)
        context.require_expected(answer, prompt)


@check
async def ids_of_media_are_never_sampled(context: Context) -> None:
    """Placeholders are kept out by the server itself, or by logit_bias, and log-probs leave them out."""
    prompt, media = context.prompt(), set(context.suppressed)
    answers = await asyncio.gather(*(context.generate(prompt, n=60, seed=s, temperature=3.0) for s in range(8)))
    found = media & {token for answer in answers for token in answer["output_ids"]}
    require(not found, "no id of media", sorted(found))
    context.require_expected(answers[0], prompt, temperature=3.0)


@check
async def a_call_without_a_prompt_is_refused(context: Context) -> None:
    """HTTP 4xx, and the server lives."""
    await refused(context.client.generate({"sampling_params": {"max_new_tokens": 2}}), "a call without a prompt")
    await context.generate(n=2)


@check
async def bad_sampling_parameters_are_refused(context: Context) -> None:
    """A negative temperature, a negative length, top_p above 1: HTTP 4xx."""
    for name, value in (("temperature", -1), ("max_new_tokens", -1), ("top_p", 2)):
        body = {"input_ids": context.prompt(), "sampling_params": {name: value}}
        words = await refused(context.client.generate(body), f"{name}={value}")
        require(name in words, f"the refusal names {name}", words)


@check
async def an_unknown_sampling_parameter_is_refused(context: Context) -> None:
    """A misspelt name is not dropped in silence."""
    body = {"input_ids": context.prompt(), "sampling_params": {"temprature": 0.5}}
    words = await refused(context.client.generate(body), "sampling_params.temprature")
    require("temprature" in words, "the refusal names it", words)


@check
async def a_prompt_beyond_the_context_is_refused(context: Context) -> None:
    """HTTP 4xx instead of a silent cut."""
    limit = int(context.info.raw.get("max_total_num_tokens") or 1 << 20)
    body = {"input_ids": list(context.prompt()) * (limit // len(context.prompt()) + 1)}
    await refused(context.client.generate({**body, "sampling_params": {"max_new_tokens": 2}}), "too long a prompt")
    await context.generate(n=2)
