# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checks of everything beside generation and weights: information, abort, pause, cache, memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from relax.backends.conformance.check import Check, named, refused, require
from relax.backends.conformance.context import Context, finish

CHECKS: list[Check] = []
check = named("control", CHECKS)
LONG = 300  # tokens of a request that is still running when the next call arrives
HELD_S = 0.3  # for which a paused server is watched


async def moment(context: Context) -> float:
    """Seconds in which this server samples a few tokens now."""
    start = time.perf_counter()
    await context.generate(n=4)
    return 2 * (time.perf_counter() - start)


async def running(context: Context, rid: str = "", **options: Any) -> asyncio.Task[Any]:
    """A long request, some tokens into its answer."""
    wait_s = await moment(context)
    task = context.start(LONG, rid, **options)
    await asyncio.sleep(wait_s)
    require(not task.done(), f"a request of {LONG} tokens runs for {wait_s:.2f} s")
    return task


@check
async def health_answers(context: Context) -> None:
    """GET /health and /health_generate answer 200."""
    await context.client.get("/health")
    await context.client.get("/health_generate")


@check
async def server_info_names_version_and_limits(context: Context) -> None:
    """GET /server_info has version, max_running_requests, dtype and model_path."""
    info = await context.client.get("/server_info")
    for key in ("version", "max_running_requests", "dtype", "model_path"):
        require(info.get(key) not in (None, ""), f"{key} in /server_info", info.get(key))


@check
async def model_info_names_folder_and_version(context: Context) -> None:
    """GET /model_info has model_path, tokenizer_path, is_generation and weight_version."""
    info = await context.client.get("/model_info")
    require(info["model_path"] == context.info.raw["model_path"], "model_path of /server_info", info["model_path"])
    require(info["is_generation"] is True, "is_generation", info["is_generation"])
    require(info["weight_version"] == context.info.weight_version, "weight_version", info["weight_version"])


@check
async def metrics_are_prometheus_text(context: Context) -> None:
    """GET /metrics counts generated tokens."""
    await context.generate(n=2)
    text = await context.client.get("/metrics")
    require(isinstance(text, str) and "# TYPE" in text, "Prometheus text", text)
    require("generation_tokens" in text, "a counter of generated tokens")


@check
async def an_unknown_route_is_not_found(context: Context) -> None:
    """HTTP 404."""
    await refused(context.client.post("/no_such_route"), "/no_such_route", range(404, 405))


@check
async def abort_ends_one_request_with_what_it_has(context: Context) -> None:
    """POST /abort_request {rid}: partial ids, finish_reason abort; the others go on."""
    one = await running(context, "abort.one")
    other = context.start(40, "abort.other", seed=8)
    await context.client.abort("abort.one")
    answer = await one
    require(finish(answer)["type"] == "abort", "finish_reason abort", finish(answer))
    require(0 < len(answer["output_ids"]) < LONG, "some of the tokens", len(answer["output_ids"]))
    require(len((await other)["output_ids"]) == 40, "the other request is whole")


@check
async def abort_all_ends_every_request(context: Context) -> None:
    """POST /abort_request {abort_all: true}."""
    tasks = [await running(context, f"all.{i}", seed=i) for i in range(3)]
    await context.client.abort()
    reasons = [finish(await task)["type"] for task in tasks]
    require(reasons == ["abort"] * 3, "three aborts", reasons)


@check
async def aborting_nothing_is_no_error(context: Context) -> None:
    """An unknown rid, and abort_all on an idle server."""
    await context.client.abort("nobody")
    await context.client.abort()


@check
async def flush_forgets_prefilled_prompts(context: Context) -> None:
    """POST /flush_cache: cached_tokens is 0 afterwards, and above 0 for a prompt that was just there."""
    prompt = context.prompt("Which digit is shown?")
    await context.client.flush()
    cached = [(await context.generate(prompt, n=2))["meta_info"]["cached_tokens"] for _ in range(2)]
    await context.client.flush()
    cached.append((await context.generate(prompt, n=2))["meta_info"]["cached_tokens"])
    require(cached[0] == cached[2] == 0 < cached[1], "cached_tokens 0, more, 0", cached)


@check
async def a_flush_under_running_requests_is_refused(context: Context) -> None:
    """HTTP 4xx: their keys and values are in the cache."""
    task = await running(context)
    await refused(context.client.flush(), "a flush under a running request")
    await context.client.abort()
    await task


async def _held_and_resumed(context: Context, mode: str) -> None:
    prompt = context.prompt()
    task = await running(context, ids=prompt, seed=21)
    await context.client.pause(mode)  # type: ignore[arg-type]
    waiting = context.start(4, seed=22)
    await asyncio.sleep(HELD_S)
    require(not task.done() and not waiting.done(), "neither the running nor a new request ends while paused")
    await context.client.resume()
    answer = await task
    require(len((await waiting)["output_ids"]) == 4, "the new request is whole")
    require(len(answer["output_ids"]) == LONG, f"all {LONG} tokens", len(answer["output_ids"]))
    context.require_expected(answer, prompt)


@check
async def pause_retract_holds_and_goes_on(context: Context) -> None:
    """POST /pause_generation {mode: retract}, then /continue_generation: all tokens, right log-probs."""
    await _held_and_resumed(context, "retract")


@check
async def pause_in_place_holds_and_goes_on(context: Context) -> None:
    """POST /pause_generation {mode: in_place}, then /continue_generation: all tokens, right log-probs."""
    await _held_and_resumed(context, "in_place")


@check
async def pause_abort_ends_running_requests(context: Context) -> None:
    """POST /pause_generation {mode: abort}: partial answers; the server serves again after /continue_generation."""
    task = await running(context)
    await context.client.pause("abort")
    answer = await task
    require(finish(answer)["type"] == "abort", "finish_reason abort", finish(answer))
    require(0 < len(answer["output_ids"]) < LONG, "some of the tokens", len(answer["output_ids"]))
    await context.client.resume()
    require(len((await context.generate(n=4))["output_ids"]) == 4, "a whole answer afterwards")


@check
async def an_unknown_pause_mode_is_refused(context: Context) -> None:
    """HTTP 4xx."""
    await refused(context.client.post("/pause_generation", {"mode": "nonsense"}), "mode nonsense")


@check
async def memory_is_given_back_and_taken_again(context: Context) -> None:
    """/release_memory_occupation and /resume_memory_occupation on an idle server: the same answer afterwards."""
    before = (await context.generate(temperature=0))["output_ids"]
    await context.client.pause("abort")
    await context.client.flush()
    await context.client.sleep()
    await context.client.wake(["weights"])
    await context.client.wake(["kv_cache"])
    await context.client.resume()
    after = (await context.generate(temperature=0))["output_ids"]
    require(after == before, "the same greedy answer", [before, after])
