# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Other prompts, media and tokens that an engine may have seen in place of a sequence's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relax.data.columns import TrainSequence
from relax.engine.parity.difference import Compared, Uid
from relax.engine.parity.suspects import Suspects, with_prompt
from relax.engine.parity.verdict import Trial
from relax.utils.types import MediaFeatures

MAX_CUT_FRONT = 64  # tokens that a prompt may have lost at its start
MAX_CUT_END = 16
MAX_CUTS = 24  # ids that may begin the text of a token that disagrees
MAX_OTHERS = 8  # other prompts' media that are tried


@dataclass(frozen=True)
class Vocabulary:
    """What the variants need to know of the tokenizer and the processor."""

    ids: Mapping[str, int]  # token string -> id
    bos_id: int | None = None
    placeholder_ids: frozenset[int] = frozenset()
    media_ids: frozenset[int] = frozenset()  # placeholders and the tokens around them


# --------------------------------------------------------------------------- prompts


def prompt_variants(sequence: TrainSequence, vocabulary: Vocabulary) -> list[tuple[str, np.ndarray]]:
    """(what was changed, other prompt); none where media would move."""
    if sequence.media:
        return []
    prompt = sequence.tokens[: sequence.prompt_len]
    found = [
        (f"prompt without its first {cut}", prompt[cut:]) for cut in range(1, min(len(prompt), MAX_CUT_FRONT + 1))
    ]
    found += [(f"prompt without its last {cut}", prompt[:-cut]) for cut in range(1, min(len(prompt), MAX_CUT_END + 1))]
    if vocabulary.bos_id is not None:
        found.append(("prompt behind a BOS", np.concatenate([[vocabulary.bos_id], prompt])))
    return found


def try_prompts(suspects: Suspects, vocabulary: Vocabulary) -> Trial | None:
    """All variants on the shortest suspect of each rank at once; the best one on all of them."""
    plain = [s for s in suspects.sequences() if not s.media]
    rows, names = [], []
    if plain:
        shortest = min(plain, key=lambda s: (len(s.tokens), s.uid))
        for number, (name, prompt) in enumerate(prompt_variants(shortest, vocabulary)):
            rows.append(replace(with_prompt(shortest, prompt), place=number))
            names.append(name)
    scored = suspects.score(rows) or {}
    means = [(scored[row.uid].mean, name) for row, name in zip(rows, names, strict=True)]
    best = min(suspects.backend.gather(min(means, default=(np.inf, ""))))
    if not best[1]:
        return None

    def change(sequence: TrainSequence) -> TrainSequence | None:
        prompt = dict(prompt_variants(sequence, vocabulary)).get(best[1])
        return None if prompt is None else with_prompt(sequence, prompt)

    after = suspects.mean_with(change)
    return None if after is None else Trial("prompt", best[1], after)


# --------------------------------------------------------------------------- media


def try_media(suspects: Suspects, vocabulary: Vocabulary) -> list[Trial]:
    """Media left out, blank, in another order, of another prompt."""
    if not any(suspects.backend.gather(any(s.media for s in suspects.sequences()))):
        return []
    changes = {
        "media left out": lambda s: _without(s, vocabulary.placeholder_ids),
        "media and their marks left out": lambda s: _without(s, vocabulary.media_ids),
        "blank media": lambda s: replace(s, media=tuple(_blank(m) for m in s.media)) if s.media else None,
        "media in reverse order": _reversed,
    }
    trials = [(name, suspects.mean_with(change)) for name, change in changes.items()]
    trials.append(("media of another prompt", suspects.mean_with_best(_with_other_media(suspects))))
    return [Trial("media", name, after) for name, after in trials if after is not None]


def _without(sequence: TrainSequence, ids: frozenset[int]) -> TrainSequence | None:
    if not sequence.media:
        return None
    prompt = sequence.tokens[: sequence.prompt_len]
    kept = prompt[~np.isin(prompt, sorted(ids))]
    if not len(kept):
        return None
    return replace(with_prompt(sequence, kept), media=())


def _blank(item: MediaFeatures) -> MediaFeatures:
    tensors = {
        name: np.zeros_like(array) if array.dtype.kind == "f" and array.ndim > 1 else array
        for name, array in item.tensors.items()
    }
    return replace(item, tensors=tensors, sha256="0" * 64)


def _same_place(one: MediaFeatures, other: MediaFeatures) -> bool:
    """Whether an item could stand where the other does: the prompt's tokens stay as they are."""
    shapes = [{name: array.shape for name, array in item.tensors.items()} for item in (one, other)]
    return one.kind == other.kind and one.num_tokens == other.num_tokens and shapes[0] == shapes[1]


def _reversed(sequence: TrainSequence) -> TrainSequence | None:
    other = tuple(reversed(sequence.media))
    fits = all(_same_place(a, b) for a, b in zip(sequence.media, other, strict=True))
    return replace(sequence, media=other) if len(other) > 1 and fits else None


def _with_other_media(suspects: Suspects) -> dict[Uid, list[TrainSequence]]:
    """Each suspect with the media of other prompts of the probe that could stand in its place."""
    rows = [c.sequence.media for c in suspects.compared if c.sequence.media]
    distinct = list({tuple((m.kind, m.sha256) for m in media): media for media in rows}.values())
    return {
        s.uid: [
            replace(s, media=media)
            for media in distinct
            if len(media) == len(s.media)
            and all(_same_place(a, b) for a, b in zip(media, s.media, strict=True))
            and any(a.sha256 != b.sha256 for a, b in zip(media, s.media, strict=True))
        ][:MAX_OTHERS]
        for s in suspects.sequences()
        if s.media
    }


# --------------------------------------------------------------------------- tokens


def shifted(sequence: TrainSequence, step: int) -> TrainSequence:
    """The engine's log-probs moved by `step` places; the places that nothing reaches are left out."""
    log_probs = sequence.columns["rollout_logprobs"]
    moved, mask = np.roll(log_probs, step), sequence.loss_mask.copy()
    mask[:step] = 0 if step > 0 else mask[:step]
    if step < 0:
        mask[step:] = 0
    return replace(sequence, loss_mask=mask, columns={**sequence.columns, "rollout_logprobs": moved})


def beginnings(text: str, vocabulary: Vocabulary) -> list[int]:
    """Ids that spell a beginning of `text`, the shortest first."""
    return [vocabulary.ids[text[:end]] for end in range(1, len(text) + 1) if text[:end] in vocabulary.ids]


def try_other_cuts(suspects: Suspects, vocabulary: Vocabulary, tolerance: float) -> tuple[float, float] | None:
    """Cut the text where each suspect's disagreement begins in another way: mean over two tokens (before, after).

    A text that is tokenized again is cut at other places than were sampled. What comes before the first of them
    agrees; from there on some two ids that spell the same text must have the engine's next two log-probs.
    """
    strings = {number: text for text, number in vocabulary.ids.items()}
    begun = [(c, start) for c in suspects.worst if (start := _first_break(c.differences, tolerance)) is not None]
    before = {c.sequence.uid: _sizes_at(c, start, 2) for c, start in begun}
    texts = {c.sequence.uid: _text_from(c.sequence, start, strings) for c, start in begun}
    first = {uid: beginnings(text, vocabulary) for uid, text in texts.items()}
    chosen = _best_id(suspects, begun, {uid: () for uid in texts}, first)
    rest = {uid: texts[uid][len(strings[found[0]]) :] if found else "" for uid, found in chosen.items()}
    chosen = _best_id(suspects, begun, chosen, {uid: beginnings(text, vocabulary) for uid, text in rest.items()})
    rows = {c.sequence.uid: _with_ids(c.sequence, start, chosen[c.sequence.uid]) for c, start in begun}
    scored = suspects.score(list(rows.values())) or {}
    after = {
        c.sequence.uid: min(before[c.sequence.uid], _sizes_at(scored[c.sequence.uid], start, 2)) for c, start in begun
    }
    inside = sum(start > 0 for _, start in begun)
    here = (sum(before.values()), sum(after.values()), len(begun), inside)
    total_before, total_after, count, inside = np.sum(suspects.backend.gather(here), axis=0).tolist()
    if not count or inside < count / 2:  # a disagreement from the first token on is of another kind
        return None
    return total_before / count, total_after / count


def _best_id(
    suspects: Suspects,
    begun: Sequence[tuple[Compared, int]],
    chosen: Mapping[Uid, tuple[int, ...]],
    candidates: Mapping[Uid, Sequence[int]],
) -> dict[Uid, tuple[int, ...]]:
    """Each suspect's ids so far, and the candidate behind them that fits the engine's log-prob best."""
    best: dict[Uid, tuple[float, tuple[int, ...]]] = {uid: (np.inf, ids) for uid, ids in chosen.items()}
    for number in range(min(MAX_CUTS, suspects.most(max(map(len, candidates.values()), default=0)))):
        ids = {uid: (*chosen[uid], found[number]) for uid, found in candidates.items() if number < len(found)}
        uids = {c.sequence.uid: (c, start) for c, start in begun}
        scored = suspects.score([_with_ids(uids[uid][0].sequence, uids[uid][1], new) for uid, new in ids.items()])
        for uid, found in (scored or {}).items():
            size = _sizes_at(found, uids[uid][1] + len(chosen[uid]), 1)
            best[uid] = min(best[uid], (size, ids[uid]))
    return {uid: ids for uid, (_, ids) in best.items()}


def _text_from(sequence: TrainSequence, start: int, strings: Mapping[int, str]) -> str:
    place = sequence.prompt_len + start
    return "".join(strings.get(token, "") for token in sequence.tokens[place : place + 3].tolist())


def _first_break(differences: np.ndarray, tolerance: float) -> int | None:
    places = np.flatnonzero(np.abs(np.nan_to_num(differences)) > tolerance)
    return int(places[0]) if places.size else None


def _sizes_at(found: Compared, start: int, number: int) -> float:
    sizes = np.abs(found.differences[start : start + number])
    return float(np.nanmean(sizes)) if sizes.size else 0.0


def _with_ids(sequence: TrainSequence, start: int, ids: tuple[int, ...]) -> TrainSequence:
    """The response with other ids from `start` on; what follows them keeps its place."""
    tokens, place = sequence.tokens.copy(), sequence.prompt_len + start
    ids = ids[: len(tokens) - place]
    tokens[place : place + len(ids)] = ids
    return replace(sequence, tokens=tokens)
