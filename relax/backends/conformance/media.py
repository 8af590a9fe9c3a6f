# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checks of media: the server expands a prompt as the trainer does, and sees what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relax.backends.conformance.check import Check, named, require
from relax.backends.conformance.context import Context, scores
from relax.backends.conformance.samples import png, video, wav

CHECKS: list[Check] = []
check = named("media", CHECKS)
Media = Sequence[tuple[str, str]]


async def ask(context: Context, layout: str, media: Media, n: int = 12, **options: Any) -> tuple[list[int], Any]:
    """(unexpanded prompt, answer): one placeholder an item, the items beside it in order."""
    prompt = context.media_prompt(layout, [kind for kind, _ in media])
    items = context.media_items(media)
    data = {f"{kind}_data": [item.data_uri() for item in items if item.kind == kind] for kind in dict(media)}
    return prompt, await context.generate(prompt, n=n, call=data, **options)


async def require_seen(
    context: Context, layout: str, media: Media, *, folder: Path | None = None, **options: Any
) -> None:
    """Prompt length and log-probs are those of the trainer's own expansion and features."""
    prompt, answer = await ask(context, layout, media, **options)
    features = context.features(media)
    expanded = context.media.expand(prompt, features)
    counted = answer["meta_info"]["prompt_tokens"]
    require(counted == len(expanded), f"prompt_tokens {len(expanded)}, media expanded", counted)
    context.require_expected(answer, expanded, features=features, folder=folder)


@check
async def an_image_is_seen(context: Context) -> None:
    """One image between two texts: log-probs of a plain forward with its pixels."""
    await require_seen(context, "text M text", [("image", png(1))])


@check
async def images_of_different_sizes_keep_their_places(context: Context) -> None:
    """Three images of three sizes in one prompt."""
    sizes = ((32, 32), (48, 96), (64, 32))
    await require_seen(context, "M text M text M", [("image", png(i, *size)) for i, size in enumerate(sizes)])


@check
async def a_sound_is_heard(context: Context) -> None:
    """One sound between two texts."""
    await require_seen(context, "text M text", [("audio", wav(1))])


@check
async def a_sound_of_another_rate_is_heard(context: Context) -> None:
    """Stereo at 44.1 kHz."""
    await require_seen(context, "text M text", [("audio", wav(4, rate=44_100, channels=2))])


@check
async def sounds_of_different_lengths_keep_their_places(context: Context) -> None:
    """Two sounds of 1.3 and 2 seconds."""
    await require_seen(context, "M text M", [("audio", wav(1)), ("audio", wav(2, 2.0))])


@check
async def a_film_is_seen(context: Context) -> None:
    """A film of eight frames at the rate that frames are taken at."""
    await require_seen(context, "text M text", [("video", video(1, height=112, width=112))])


@check
async def a_film_is_thinned_out_and_sized_as_in_training(context: Context) -> None:
    """30 frames of 60 x 100 pixels at 10 a second: which frames, their size and their places in time."""
    await require_seen(context, "M text", [("video", video(2, 30, height=60, width=100, fps=10.0))])


@check
async def image_and_sound_stand_in_one_prompt(context: Context) -> None:
    """Both kinds, in another order than their lists are sent in."""
    await require_seen(context, "M text M", [("audio", wav(3)), ("image", png(3))])


@check
async def another_medium_gives_other_numbers(context: Context) -> None:
    """The same prompt with another image: the first token's log-prob, or the token, differs."""
    firsts = []
    for seed in (1, 2):
        _, answer = await ask(context, "text M text", [("image", png(seed))], n=1)
        firsts.append((answer["output_ids"][0], float(scores(answer)[0])))
    same = firsts[0][0] == firsts[1][0] and bool(np.abs(firsts[0][1] - firsts[1][1]) < context.tolerance)
    require(not same, "two images of noise give two answers", firsts)


@check
async def a_cached_text_does_not_hide_another_medium(context: Context) -> None:
    """Asked in a row, prompts with equal ids and different images are each answered for their own image."""
    for seed in (4, 5, 4):
        await require_seen(context, "text M text", [("image", png(seed))], n=4)
