# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The tap on user functions: stamps each engine request, records each answer, and checks what came out of it.

A user function may send any number of requests for one sample: turns, retries, candidates that it throws away. When
it returns, the recorded ids are found again in `sample.tokens`, which fills the weight version of every trained token
and proves that ids and log-probs are the engine's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relax.utils.errors import InfrastructureError
from relax.utils.ids import RequestId
from relax.utils.rng import stream_key
from relax.utils.types import Sample

# cut: a request may be cut off, because the response goes on afterwards; protected: it was cut often enough and runs
# to its end; none: it belongs to a call that cannot go on in the middle.
Interruption = Literal["cut", "protected", "none"]

LOGPROB_TOLERANCE = 1e-5  # a float32 round trip of the engine's number passes, another token's number does not


class MismatchError(Exception):
    """A sample's trained tokens are not what the engine answered. `reason` is the counter's name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """One recorded `/generate` answer. `K` = sampled tokens."""

    input_ids: tuple[int, ...] | None  # as sent, media unexpanded; None when the prompt was text
    ids: tuple[int, ...]  # [K]
    log_probs: tuple[float, ...]  # [K], nats; shorter when the engine left some out
    versions: tuple[int, ...]  # [K]
    finish_reason: str | None
    matched_stop: int | str | None
    text: str


def version_number(word: Any) -> int:
    """The weight version as a number; SGLang calls the weights that it started with `default`."""
    if word == "default":
        return 0
    try:
        return int(word)
    except (TypeError, ValueError):
        raise InfrastructureError(f"the engine reports weight version {word!r}, which is not a number") from None


def token_versions(meta: Mapping[str, Any], length: int) -> tuple[int, ...]:
    """Version of each of `length` sampled tokens from `weight_versions` spans, else from `weight_version`."""
    spans = meta.get("weight_versions")
    if not spans:
        return (version_number(meta.get("weight_version", "default")),) * length
    out: list[int] = []
    for span in spans:
        if span["start"] != len(out):
            raise InfrastructureError(f"the engine's weight version spans leave a gap or overlap: {spans}")
        out.extend([version_number(span["version"])] * (span["end"] - span["start"]))
    if len(out) < length:
        raise InfrastructureError(f"the engine's weight version spans {spans} do not cover {length} tokens")
    return tuple(out[:length])


def parse_answer(payload: Mapping[str, Any], answer: Mapping[str, Any]) -> Answer:
    """Read one answer in SGLang's format."""
    meta = answer.get("meta_info") or {}
    entries = meta.get("output_token_logprobs") or []
    ids = answer.get("output_ids")
    ids = tuple(ids) if ids is not None else tuple(entry[1] for entry in entries)
    finish = meta.get("finish_reason") or {}
    finish = {"type": finish} if isinstance(finish, str) else finish
    sent = payload.get("input_ids")
    return Answer(
        input_ids=None if sent is None else tuple(sent),
        ids=ids,
        log_probs=tuple(entry[0] for entry in entries if entry[0] is not None),
        versions=token_versions(meta, len(ids)),
        finish_reason=finish.get("type"),
        matched_stop=finish.get("matched"),
        text=answer.get("text", ""),
    )


class SampleRecorder:
    """Recorder of one call of a generate function, for one attempt at one sample.

    Args:
        seed: the run's seed.
        stream: "sample" for training, "eval" for evaluation.
        sample: gives group, index and attempt.
        max_response_len: bound on the sampled tokens of the sample over its turns; None: unbounded.
        gate: awaited before every request; holds requests back while the rollout is paused.
        first_turn: turns of earlier calls, when an interrupted response is continued.
        interruption: what a weight update may do to its requests.
        lora_path: name of the engine's adapter that every request asks for.
    """

    def __init__(
        self,
        *,
        seed: int,
        stream: str,
        sample: Sample,
        max_response_len: int | None = None,
        gate: Callable[[], Awaitable[None]] | None = None,
        first_turn: int = 0,
        interruption: Interruption = "none",
        lora_path: str | None = None,
    ) -> None:
        self._lora_path = lora_path
        self._seed, self._stream, self._max_response_len, self._gate = seed, stream, max_response_len, gate
        self._group, self._index, self._attempt = sample.group_index or 0, sample.index or 0, sample.attempt
        self._turn = first_turn
        self.interruption = interruption
        self._carried = sample.response_length  # response tokens of earlier calls
        self.answers: list[Answer] = []
        self.prefix_breaks = 0  # used answers whose input was not the tokens in front of them
        self.in_flight: set[str] = set()

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the engine sampled for this call, thrown away ones included."""
        return sum(len(answer.ids) for answer in self.answers)

    async def before(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        if self._gate is not None:
            await self._gate()
        turn, self._turn = self._turn, self._turn + 1
        params = payload.setdefault("sampling_params", {})
        if isinstance(params, list):
            raise InfrastructureError("the router takes one sampling_params dict a request; send one request a sample")
        payload.setdefault("rid", str(RequestId(self._group, self._index, self._attempt, turn)))
        params.setdefault("sampling_seed", stream_key(self._seed, self._stream, self._group, self._index, turn))
        payload.setdefault("return_logprob", True)
        if self._lora_path is not None:
            payload["lora_path"] = self._lora_path
        if self._max_response_len is not None:
            left = self._max_response_len - self._carried - self._sampled_before(payload.get("input_ids"))
            if left <= 0:
                return _empty_answer(payload["rid"])
            params["max_new_tokens"] = min(left, params.get("max_new_tokens", left))
        self.in_flight.add(str(payload["rid"]))
        return None

    def after(self, payload: Mapping[str, Any], answer: Any) -> None:
        self.in_flight.discard(str(payload["rid"]))
        for part in answer if isinstance(answer, list) else [answer]:  # `n` > 1 answers as a list
            self.answers.append(parse_answer(payload, part))

    def failed(self, payload: Mapping[str, Any]) -> None:
        self.in_flight.discard(str(payload["rid"]))

    def _sampled_before(self, input_ids: Sequence[int] | None) -> int:
        """Sampled tokens that this request continues: those of recorded answers that lie inside its input."""
        if input_ids is None:
            return sum(len(a.ids) for a in self.answers)
        sampled, spans = 0, set()
        for answer in self.answers:
            start = len(answer.input_ids or ())
            span = (start, start + len(answer.ids))
            if span not in spans and tuple(input_ids[span[0] : span[1]]) == answer.ids:
                spans.add(span)
                sampled += len(answer.ids)
        return sampled

    # ------------------------------------------------------------------ after the function has returned

    def settle(self, sample: Sample) -> bool:
        """Fill versions (and the stop, where the function left it open), check trained tokens -> whether aborted.

        Aborted means that the engine cut off one of the answers that the sample is made of. Raises `MismatchError`
        when a trained token is not in any answer or its log-prob is another one.
        """
        length, mask = sample.response_length, sample.loss_mask or []
        response = sample.tokens[len(sample.tokens) - length :] if length else []
        given = list(sample.rollout_log_probs or [])
        recorded: list[float | None] = list(given)  # places outside all answers have nothing to differ from
        versions: list[int | None] = [None] * length
        versions[: self._carried] = sample.weight_versions[: self._carried]  # checked by the call that sampled them
        self.prefix_breaks = 0
        placed = self._placed(sample, response)
        for start, answer in placed:
            end = start + _common(answer.ids, response[start:])
            versions[start:end] = answer.versions[: end - start]
            recorded[start:end] = _aligned_log_probs(answer)[: end - start]
        if None in versions:
            self._check_found(response, mask, versions)
        if recorded != given:
            _check_log_probs(response, mask, given, recorded)
        filled = [-1 if version is None else version for version in versions]
        sample.weight_versions = (
            filled if 0 not in mask else [v if m else -1 for v, m in zip(filled, mask, strict=True)]
        )
        used = [answer for _, answer in placed]
        if self.answers and not self.answers[-1].ids:  # cut off before its first token, or no length left
            used.append(self.answers[-1])
        if used and sample.finish_reason is None:
            sample.finish_reason, sample.matched_stop = used[-1].finish_reason, used[-1].matched_stop
        return any(answer.finish_reason == "abort" for answer in used)

    def _placed(self, sample: Sample, response: Sequence[int]) -> list[tuple[int, Answer]]:
        """(place in the response, answer) of every answer that was used, in order of place."""
        best: dict[int, tuple[tuple[int, int], Answer]] = {}  # a place may have candidates that were thrown away
        cursor = 0
        for answer in self.answers:
            if not answer.ids:
                continue
            exact = _exact_place(answer, sample, response)
            start = _search_place(answer.ids, response, sample.loss_mask or [], cursor) if exact is None else exact
            if start is None:
                continue
            common = _common(answer.ids, response[start:])
            if not common:
                continue
            # where media are expanded between turns, the input cannot be compared by place
            if exact is None and answer.input_ids is not None and not sample.multimodal_inputs:
                self.prefix_breaks += 1
            rank = (_agreement(answer, sample, start, common), common)
            if start not in best or rank >= best[start][0]:
                best[start] = (rank, answer)
                cursor = max(cursor, start + common)
        return [(start, best[start][1]) for start in sorted(best)]

    def _check_found(self, response: Sequence[int], mask: Sequence[int], versions: Sequence[int | None]) -> None:
        for place, (trained, version) in enumerate(zip(mask, versions, strict=True)):
            if trained and version is None:
                raise MismatchError(
                    "token_mismatch",
                    f"response token {place} (id {response[place]}) has loss_mask 1 but is in none of the "
                    f"{len(self.answers)} engine answers at this place; append the answer's ids as they are, and "
                    "mask every other token with 0",
                )


def _check_log_probs(
    response: Sequence[int], mask: Sequence[int], given: Sequence[float], recorded: Sequence[float | None]
) -> None:
    for place, (trained, mine, engine) in enumerate(zip(mask, given, recorded, strict=True)):
        if not trained:
            continue
        if engine is None:
            raise MismatchError("missing_logprobs", f"the engine gave no log-prob for response token {place}")
        if not _close(mine, engine):
            raise MismatchError(
                "logprob_mismatch",
                f"rollout_log_probs[{place}] is {mine!r}, the engine answered {engine!r} for token "
                f"{response[place]}; copy the first entries of meta_info.output_token_logprobs",
            )


def _aligned_log_probs(answer: Answer) -> Sequence[float | None]:
    """One entry for each id; all None when the engine left any out, because then none can be placed."""
    return answer.log_probs if len(answer.log_probs) == len(answer.ids) else [None] * len(answer.ids)


def _exact_place(answer: Answer, sample: Sample, response: Sequence[int]) -> int | None:
    """Where an answer starts in the response, when its input is the prompt plus a beginning of the response."""
    sent = answer.input_ids
    if sent is None:
        return None
    prompt = sample.tokens[: len(sample.tokens) - len(response)]
    for begin in (prompt, sample.rollout_tokens):
        place = len(sent) - len(begin)
        if begin and 0 <= place <= len(response) and sent[: len(begin)] == tuple(begin):
            return place if sent[len(begin) :] == tuple(response[:place]) else None
    return None


def _search_place(ids: Sequence[int], response: Sequence[int], mask: Sequence[int], cursor: int) -> int | None:
    """First place from `cursor` on that holds all ids, one where they are trained before one where they are not (an
    observation may hold a short answer too); else the trained place that begins the longest part of them."""
    places = [p for p in range(cursor, len(response)) if response[p] == ids[0]] if ids else []
    untrained = None
    for place in places:
        if _common(ids, response[place : place + len(ids)]) == len(ids):
            if all(mask[place : place + len(ids)]):
                return place
            untrained = place if untrained is None else untrained
    if untrained is not None:
        return untrained
    trained = [p for p in places if mask[p]]
    return max(trained, key=lambda p: _common(ids, response[p:]), default=None)


def _agreement(answer: Answer, sample: Sample, start: int, common: int) -> int:
    """How many of the `common` first ids also have the sample's log-prob, or are masked."""
    mask, log_probs = sample.loss_mask or [], sample.rollout_log_probs or []
    if tuple(log_probs[start : start + common]) == answer.log_probs[:common]:
        return common
    for offset in range(common):
        place = start + offset
        if mask[place] and (offset >= len(answer.log_probs) or not _close(log_probs[place], answer.log_probs[offset])):
            return offset
    return common


def _close(given: float, recorded: float) -> bool:
    return abs(given - recorded) <= LOGPROB_TOLERANCE * max(1.0, abs(recorded))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(left), len(right))
    if tuple(left[:length]) == tuple(right[:length]):
        return length
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _empty_answer(rid: str) -> dict[str, Any]:
    """What a request gets when the sample's response length is used up."""
    meta = {
        "id": rid,
        "finish_reason": {"type": "length", "length": 0},
        "output_token_logprobs": [],
        "completion_tokens": 0,
        "weight_versions": [],
        "weight_version": "default",
    }
    return {"text": "", "output_ids": [], "meta_info": meta}
