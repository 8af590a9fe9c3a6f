# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checks of new weights: three ways to send them, what is in flight meanwhile, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from relax.backends.conformance.check import Check, named, refused, require
from relax.backends.conformance.context import SECOND_VERSION, Context, scores
from relax.backends.conformance.control import LONG, running
from relax.backends.conformance.media import require_seen
from relax.backends.conformance.samples import png
from relax.distributed.checkpoint_service.gloo import GlooPublisher
from relax.distributed.checkpoint_service.updater import install_version
from relax.schedule.clock import RealClock

CHECKS: list[Check] = []
check = named("weights", CHECKS)
VERSION = str(SECOND_VERSION)
INSTALL_TIMEOUT_S = 60.0


async def require_second(context: Context, version: str = VERSION) -> None:
    """The server serves the second weights under `version`, and none of the first."""
    prompt = context.prompt()
    answer = await context.generate(prompt, n=24)
    context.require_expected(answer, prompt, folder=context.second)
    first = np.abs(scores(answer) - context.expected(prompt, answer["output_ids"])).max()
    require(first > 100 * context.tolerance, "the two sets of weights can be told apart", float(first))
    require(answer["meta_info"]["weight_version"] == version, f"weight_version {version}", answer["meta_info"])
    told = (await context.client.info()).weight_version
    require(told == version, f"weight_version {version} of the server", told)


@check
async def weights_come_from_a_folder(context: Context) -> None:
    """begin, /update_weights_from_disk, end: all log-probs are those of the new weights."""
    await context.install_folder(context.second, VERSION)
    await require_second(context)


@check
async def weights_come_as_tensors(context: Context) -> None:
    """begin, /update_weights_from_tensor in two parts, end; experts and encoders included."""
    tensors = context.tensors_in_memory(context.second)
    half = len(tensors) // 2
    await context.client.weights_begin()
    for part in (tensors[:half], tensors[half:]):
        await context.client.post("/update_weights_from_tensor", context.tensor_body(part, VERSION))
    await context.client.post("/end_weight_update", {"weight_version": VERSION})
    await require_second(context)


@check
async def weights_come_by_broadcast(context: Context) -> None:
    """A gloo group, /update_weights_from_distributed, and the group is left again; twice."""
    receiver = "native" if context.info.backend == "native" else "sglang"
    publisher = GlooPublisher(receiver=receiver, name_map=context.name_map)
    try:
        for version, folder in ((SECOND_VERSION + 1, context.folder), (SECOND_VERSION, context.second)):
            await _broadcast(context, publisher, version, list(context.model(folder).named_parameters()))
            require((await context.client.info()).weight_version == str(version), f"weight_version {version}")
    finally:
        publisher.close()
    await require_second(context)


async def _broadcast(context: Context, publisher: GlooPublisher, version: int, weights: Sequence[Any]) -> None:
    async def send(number: int, receivers: int, group: str) -> None:
        await asyncio.to_thread(publisher.send, number, receivers, group)

    manifest = publisher.publish(version, weights)
    report = await install_version(
        manifest, [context.client], clock=RealClock(), timeout_s=INSTALL_TIMEOUT_S, pause_mode="retract", send=send
    )
    report.check()


@check
async def tensors_without_a_begin_are_refused(context: Context) -> None:
    """HTTP 4xx, and the weights stay."""
    tensors = context.tensors_in_memory(context.second)
    body = context.tensor_body(tensors[:1], VERSION)
    await refused(context.client.post("/update_weights_from_tensor", body), "tensors without begin_weight_update")
    prompt = context.prompt()
    context.require_expected(await context.generate(prompt), prompt)


@check
async def an_end_without_a_begin_is_refused(context: Context) -> None:
    """HTTP 4xx."""
    _ = context.second
    end = context.client.post("/end_weight_update", {"weight_version": VERSION})
    await refused(end, "end_weight_update without begin_weight_update")


@check
async def an_update_that_was_left_open_does_not_block_the_next(context: Context) -> None:
    """A sender that dies after begin: the next begin, folder and end serve."""
    _ = context.second
    await context.client.weights_begin()
    await context.install_folder(context.second, VERSION)
    await require_second(context)


@check
async def a_missing_folder_is_refused_and_the_weights_stay(context: Context) -> None:
    """HTTP 4xx for a folder that is not there; version and log-probs are the old ones."""
    folder = context.second.parent / "nowhere"
    await context.client.weights_begin()
    body = {"model_path": str(folder), "weight_version": VERSION}
    await refused(context.client.post("/update_weights_from_disk", body), "a folder that is not there")
    prompt = context.prompt()
    answer = await context.generate(prompt)
    context.require_expected(answer, prompt)
    require(answer["meta_info"]["weight_version"] == context.info.weight_version, "the old version")


@check
async def a_prompt_is_prefilled_again_after_an_update(context: Context) -> None:
    """Keys and values of the old weights serve nothing: cached_tokens is 0."""
    prompt = context.prompt("Which digit is shown?")
    for _ in range(2):
        await context.generate(prompt, n=2)
    await context.install_folder(context.second, VERSION)
    answer = await context.generate(prompt, n=12)
    require(answer["meta_info"]["cached_tokens"] == 0, "cached_tokens 0", answer["meta_info"]["cached_tokens"])
    context.require_expected(answer, prompt, folder=context.second)


@check
async def an_image_is_encoded_again_after_an_update(context: Context) -> None:
    """The same image before and after: what the encoder made of it under the old weights serves nothing."""
    media = [("image", png(6))]
    await require_seen(context, "text M text", media)
    await context.install_folder(context.second, VERSION)
    await require_seen(context, "text M text", media, folder=context.second)


async def _in_flight(context: Context, mode: str) -> tuple[np.ndarray, np.ndarray, int]:
    """A request over which an update went: its tokens' differences to the old and to the new weights' log-probs, and
    the first token of the new version."""
    if not context.info.version_spans:
        context.offers("version_spans")
    second, prompt = context.second, context.prompt()
    task = await running(context, ids=prompt, seed=31)
    await context.client.pause(mode)  # type: ignore[arg-type]
    await context.client.weights_begin()
    await context.client.weights_from_disk(second, SECOND_VERSION, flush=mode != "in_place")
    await context.client.weights_end(SECOND_VERSION)
    await context.client.resume()
    answer = await task
    spans = answer["meta_info"]["weight_versions"]
    versions = [span["version"] for span in spans]
    require(versions == [context.info.weight_version, VERSION], "spans of the two versions in order", spans)
    edges = [spans[0]["start"], spans[0]["end"], spans[1]["start"], spans[1]["end"]]
    cut = edges[1]
    require(edges == [0, cut, cut, LONG] and 0 < cut < LONG, f"spans that cover {LONG} tokens without gap", spans)
    expected = [context.expected(prompt, answer["output_ids"], folder=folder) for folder in (None, second)]
    before, after = (np.abs(scores(answer) - values) for values in expected)
    return before, after, cut


@check
async def retracted_requests_go_on_under_the_new_weights(context: Context) -> None:
    """pause retract, update, resume: each token's log-prob is that of the version that its span names."""
    first, second, cut = await _in_flight(context, "retract")
    require(first[:cut].max() < context.tolerance, "old log-probs before the update", float(first[:cut].max()))
    require(second[cut:].max() < context.tolerance, "new log-probs after it", float(second[cut:].max()))


@check
async def requests_in_place_go_on_with_their_old_cache(context: Context) -> None:
    """pause in_place, update, resume: spans name both versions; old keys and values stay in use."""
    first, second, cut = await _in_flight(context, "in_place")
    require(first[:cut].max() < context.tolerance, "old log-probs before the update", float(first[:cut].max()))
    require(second[cut:].max() > 100 * context.tolerance, "log-probs of the new weights on old keys and values")
