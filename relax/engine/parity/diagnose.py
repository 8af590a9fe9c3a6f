# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Why engine and trainer differ: one thing is switched at a time, and the one that makes them agree is the cause.

    alignment       the engine's log-probs moved by one place
    version         the weights of another version that is at hand
    suppressed_ids  no suppressed ids, or the model's own list
    precision       a forward in the other type
    temperature     the temperature that fits best; tokens that were drawn at the trainer's own say that only the
                    log-probs are of another one (log_prob_kind)
    truncation      top-p and top-k that fit best, also where log-probs agree and only the tokens tell
    prompt          tokens cut off at an end, a BOS in front
    media           left out, blank, another order, another prompt's
    tokenization    where the disagreement begins, other ids that spell the same text
    weights         nothing of all this: the engine computes with other weights, or another forward

Collective: every decision is made from numbers that all ranks have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relax.backends.base import Part, ScoreSwitch, TrainBackend
from relax.data.columns import TrainSequence
from relax.engine.parity.difference import Compared, compare
from relax.engine.parity.sampling import distance_from_uniform, empty_tail, places
from relax.engine.parity.suspects import Suspects
from relax.engine.parity.variants import Vocabulary, shifted, try_media, try_other_cuts, try_prompts
from relax.engine.parity.verdict import Trial, Verdict

EXPLAINED = 0.25  # of the difference may be left by the switch that is named
CLEAR = 0.02  # so little is left that nothing else needs to be tried
TEMPERATURES = tuple(float(t) for t in np.geomspace(0.25, 4.0, 9))
TOP_PS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
TOP_KS = (1, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Facts:
    """What the trainer's side is, and what else the run knows to try."""

    temperature: float = 1.0
    suppressed_ids: tuple[int, ...] = ()
    model_suppressed_ids: tuple[int, ...] = ()  # of the model's own processor
    dtype: str = "fp32"
    vocabulary: Vocabulary | None = None
    open_vocabulary: Callable[[], Vocabulary | None] | None = None  # reads it from the model's folder, when needed
    other_tags: Mapping[str, str] | None = None  # {what: tag} of further weights that the backend keeps
    truncations: tuple[tuple[float, int], ...] = ()  # (top_p, top_k) that the model's folder suggests


def diagnose(
    backend: TrainBackend, compared: Sequence[Compared], tags: Mapping[int, str], facts: Facts, *, tolerance: float
) -> Verdict:
    """Name the cause of a difference. `tolerance`: a token that differs by less, in nats, agrees."""
    suspects = Suspects(backend, compared, tags)
    trials: list[Trial] = []
    searches: tuple[Callable[[Suspects, Facts], list[Trial]], ...] = (
        _alignment,
        _versions,
        _suppressed_ids,
        _precision,
        _temperature,
        _truncation,
        _prompts,
        _media,
    )
    for search in searches:
        trials += search(suspects, facts)
        best = min(trials, key=lambda t: t.after, default=None)
        if best is not None and best.after <= CLEAR * suspects.before:
            return _named(best, suspects, trials, facts)
    tokens = _tokenization(suspects, facts, trials, tolerance)
    if tokens is not None:
        return tokens
    best = min(trials, key=lambda t: t.after, default=None)
    if best is not None and best.after <= EXPLAINED * suspects.before:
        return _named(best, suspects, trials, facts)
    return _unexplained(suspects, trials, best, tolerance)


def sampled_suppressed(sequences: Iterable[TrainSequence], facts: Facts) -> tuple[int, int]:
    """(sampled tokens that the trainer holds impossible, all): placeholders among them cannot even be scored."""
    ids, found, count = sorted(facts.suppressed_ids), 0, 0
    for sequence in sequences:
        sampled = sequence.tokens[sequence.prompt_len :][sequence.loss_mask > 0]
        found, count = found + int(np.isin(sampled, ids).sum()), count + len(sampled)
    return found, count


def impossible_ids(number: int, count: int) -> Verdict:
    finding = f"{number} of {count} sampled tokens are ids that the trainer suppresses: it holds them impossible"
    return Verdict("suppressed_ids", finding, math.inf, 0.0)


def truncated_in_silence(backend: TrainBackend, compared: Sequence[Compared]) -> Verdict | None:
    """Log-probs that agree say nothing about what was sampled from: the tokens themselves do."""
    u = places(backend, compared)
    tail = empty_tail(u)
    if tail is None:
        return None
    sizes = [float(c.sizes.mean()) for c in compared if c.sizes.size]
    mean = float(np.mean(sizes)) if sizes else 0.0
    finding = (
        f"log-probs agree, but {tail.found} of {u.size} tokens lie in the last {1 - tail.start:.0%} of the "
        f"distribution that they are reported under, where {tail.expected:.0f} belong: the engine samples from a "
        "truncated or sharpened one"
    )
    return Verdict("truncation", finding, mean, mean)


# --------------------------------------------------------------------------- searches


def _alignment(suspects: Suspects, facts: Facts) -> list[Trial]:
    found = []
    for step in (1, -1):
        after = suspects.mean_with(lambda s, step=step: shifted(s, step) if s.response_len > 1 else None)
        if after is not None:
            word = "later" if step > 0 else "earlier"
            found.append(Trial("alignment", f"log-probs one place {word}", after))
    return found


def _versions(suspects: Suspects, facts: Facts) -> list[Trial]:
    others = {f"weights of version {v}": tag for v, tag in suspects.tags.items()} | dict(facts.other_tags or {})
    found = []
    for what, tag in others.items():
        if all(tag == own for own in suspects.tags.values()):
            continue
        after = suspects.mean_with(tags=dict.fromkeys(suspects.tags, tag))
        if after is not None:
            found.append(Trial("version", what, after))
    return found


def _suppressed_ids(suspects: Suspects, facts: Facts) -> list[Trial]:
    lists = {"no suppressed ids": (), "the model's suppressed ids": facts.model_suppressed_ids}
    found = []
    for what, ids in lists.items():
        if set(ids) == set(facts.suppressed_ids):
            continue
        after = suspects.mean_with(switch=ScoreSwitch(suppressed_ids=tuple(ids)))
        if after is not None:
            found.append(Trial("suppressed_ids", what, after))
    return found


def _precision(suspects: Suspects, facts: Facts) -> list[Trial]:
    other = "bf16" if facts.dtype == "fp32" else "fp32"
    after = suspects.mean_with(switch=ScoreSwitch(dtype=other))  # type: ignore[arg-type]
    return [] if after is None else [Trial("precision", f"a forward in {other}", after)]


def _temperature(suspects: Suspects, facts: Facts) -> list[Trial]:
    def after(value: float) -> float:
        mean = suspects.mean_with(switch=ScoreSwitch(temperature=value))
        return np.inf if mean is None else mean

    candidates = sorted({1.0, *TEMPERATURES} - {facts.temperature})
    means = {value: after(value) for value in candidates}
    if not np.isfinite(min(means.values())):
        return []
    means[facts.temperature] = suspects.before  # the search may begin there, too
    best = min(means, key=lambda value: means[value])
    for width in (1.19, 1.045, 1.011, 1.003):
        for value in (best / width, best / width**0.5, best * width**0.5, best * width):
            means.setdefault(value, after(value))
        best = min(means, key=lambda value: means[value])
    rounded = float(f"{best:.2g}")
    if rounded not in means:
        means[rounded] = after(rounded)
    del means[facts.temperature]
    best = min(means, key=lambda value: means[value])
    return [Trial("temperature", f"temperature {best:.3g}", means[best])]


def _truncation(suspects: Suspects, facts: Facts) -> list[Trial]:
    pairs = [*facts.truncations, *((p, -1) for p in TOP_PS), *((1.0, k) for k in TOP_KS)]
    means: dict[tuple[float, int], float] = {}
    for pair in dict.fromkeys(pairs):
        after = suspects.mean_with(switch=ScoreSwitch(top_p=pair[0], top_k=pair[1]))
        if after is None:
            return []
        means[pair] = after
    top_p, top_k = min(means, key=lambda pair: means[pair])
    if top_p < 1:  # the set changes at few values of p, so the neighbourhood needs few more
        for value in np.clip(np.asarray([-0.04, -0.02, -0.01, 0.01, 0.02, 0.04]) + top_p, 0.01, 1.0).tolist():
            after = suspects.mean_with(switch=ScoreSwitch(top_p=value, top_k=top_k))
            means[value, top_k] = np.inf if after is None else after
    best = min(means, key=lambda pair: means[pair])
    return [Trial("truncation", f"top-p {best[0]:g} and top-k {best[1]}", means[best])]


def _prompts(suspects: Suspects, facts: Facts) -> list[Trial]:
    found = try_prompts(suspects, facts.vocabulary) if facts.vocabulary else None
    return [] if found is None else [found]


def _media(suspects: Suspects, facts: Facts) -> list[Trial]:
    return try_media(suspects, facts.vocabulary) if facts.vocabulary else []


def _tokenization(suspects: Suspects, facts: Facts, trials: list[Trial], tolerance: float) -> Verdict | None:
    found = try_other_cuts(suspects, facts.vocabulary, tolerance) if facts.vocabulary else None
    if found is None or found[1] > EXPLAINED * found[0]:
        return None
    trials.append(Trial("tokenization", "text cut into other tokens", found[1]))
    finding = (
        "the response was tokenized again: what comes before the first token that disagrees agrees, and other ids "
        "that spell the same text have the engine's log-probs"
    )
    return Verdict("tokenization", finding, *found, tuple(trials))


# --------------------------------------------------------------------------- the verdict


def _named(best: Trial, suspects: Suspects, trials: Sequence[Trial], facts: Facts) -> Verdict:
    cause, finding = best.cause, f"with {best.what} engine and trainer agree"
    if cause == "temperature":
        value = float(best.what.rsplit(" ", 1)[1])
        cause = _what_is_hot(suspects, facts, value)
        finding = f"engine's log-probs are those of temperature {value:g}, the trainer's of {facts.temperature:g}"
        if cause == "log_prob_kind":
            finding += ", at which the tokens were drawn"
    return Verdict(cause, finding, suspects.before, best.after, tuple(trials))


def _what_is_hot(suspects: Suspects, facts: Facts, value: float) -> str:
    """Whether tokens were drawn at the log-probs' temperature or at the trainer's: which of both they fit better."""
    rows = tuple((c.sequence,) for c in suspects.compared)
    number = suspects.most(len(rows))
    part = Part(rows + ((),) * (number - len(rows)))
    other = compare(suspects.backend, part, suspects.tags, ScoreSwitch(temperature=value))
    own = distance_from_uniform(places(suspects.backend, suspects.compared))
    return "log_prob_kind" if own < distance_from_uniform(places(suspects.backend, other)) else "temperature"


def _unexplained(suspects: Suspects, trials: Sequence[Trial], best: Trial | None, tolerance: float) -> Verdict:
    after = suspects.before if best is None else min(best.after, suspects.before)
    gather = suspects.backend.gather
    with_media = np.concatenate(gather(np.asarray([c.mean for c in suspects.compared if c.sequence.media])))
    without = np.concatenate(gather(np.asarray([c.mean for c in suspects.compared if not c.sequence.media])))
    if with_media.size and without.size and without.max() <= tolerance < with_media.mean():
        finding = "only prompts with media differ, and none of the other media that were tried explains it"
        return Verdict("media", finding, suspects.before, after, tuple(trials))
    finding = "nothing that was switched explains it, so the engine computes with other weights or another forward"
    return Verdict("weights", finding, suspects.before, after, tuple(trials))
