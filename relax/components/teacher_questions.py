# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What an engine that is the teacher is asked, and what its answers become. SGLang's words on both sides.

student_sampled   the sampled tokens' log-probs
teacher_topk      top_logprobs_num
student_topk      token_ids_logprob, a list for each position
union             both: the student's ids, then the teacher's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax.algorithms.distillation_options import AT_IDS, TEACHER, TEACHER_AT, DistillationOptions
from relax.components.student_ids import STUDENT_IDS
from relax.data.columns import TrainSequence
from relax.utils.errors import EngineLost

SPELLED = 'What is 7 plus 5? It is 12, says Zoe; ~{x_1} = "y" \u00e9\u4f60'  # words, digits, marks, long characters
Pair = tuple[np.ndarray, np.ndarray]  # ids, log-probs, both float32 [R, K]


@dataclass(frozen=True)
class Vocabulary:
    """What can be told of a vocabulary without its folder: its size, and the ids of a text ((): no tokenizer)."""

    size: int | None
    ids: tuple[int, ...]
    text: str = SPELLED


def spelling_request(text: str) -> dict[str, Any]:
    """A `/generate` call whose answer holds the ids of `text`."""
    return {
        "text": text,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def id_problem(student: Vocabulary, ids: Sequence[int] | None, size: int | None) -> str | None:
    """What is wrong with a teacher that reads the text as `ids` and knows `size` ids (None: it does not say)."""
    if ids is not None and tuple(ids) != student.ids:
        return f"has another tokenizer: it reads {student.text!r} with {_difference(ids, student.ids)}"
    if size is not None and student.size is not None and size < student.size:
        return f"knows {size} token ids, not {student.size}"
    return None


def _difference(found: Sequence[int], expected: Sequence[int]) -> str:
    """Of two lists of ids that are not equal."""
    place = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return f"{len(found)} tokens, not {len(expected)}"
    return f"id {found[place]}, not {expected[place]}, at token {place}"


def scoring_request(sequence: TrainSequence, options: DistillationOptions) -> dict[str, Any]:
    """A `/generate` call that prefills the sample. Log-probs start one token early: SGLang's first has none."""
    payload: dict[str, Any] = {
        "input_ids": sequence.tokens.tolist(),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": sequence.prompt_len - 1,
    }
    if options.token_selection in ("teacher_topk", "union"):
        payload["top_logprobs_num"] = options.top_k
    if options.needs_student_ids and len(sequence.columns[STUDENT_IDS]):
        ids = sequence.columns[STUDENT_IDS].astype(np.int64).tolist()
        payload["token_ids_logprob"] = [ids[0], *ids]
    return payload


def read_scores(
    answer: Mapping[str, Any], sequence: TrainSequence, options: DistillationOptions
) -> dict[str, np.ndarray]:
    """The columns of one sample. Raises EngineLost for an answer that is not about its tokens."""
    meta = answer["meta_info"]
    entries = meta.get("input_token_logprobs") or []
    ids = [int(entry[1]) for entry in entries[1:]]
    expected = sequence.tokens[sequence.prompt_len :].tolist()
    if ids != expected:
        raise EngineLost(f"the teacher scored other ids than those it was sent: {_difference(ids, expected)}")
    if not options.of_ids:
        return {TEACHER: np.asarray([entry[0] for entry in entries[1:]], np.float32)}
    pairs: list[Pair] = []
    if options.needs_student_ids:
        pairs.append(_at_student_ids(meta, sequence))
    if options.token_selection != "student_topk":
        pairs.append(_likeliest(meta, len(expected), options.top_k))
    at_ids, scores = (np.concatenate([pair[side] for pair in pairs], axis=1) for side in (0, 1))
    return {AT_IDS: at_ids, TEACHER_AT: scores}


def _at_student_ids(meta: Mapping[str, Any], sequence: TrainSequence) -> Pair:
    wanted = sequence.columns[STUDENT_IDS].astype(np.float32)
    rows = _rows(meta, "input_token_ids_logprobs", len(wanted))
    if any(len(row) != wanted.shape[1] for row in rows):
        raise EngineLost(f"the teacher gave {[len(row) for row in rows]} log-probs, not {wanted.shape[1]} a token")
    ids, scores = _pair(rows, wanted.shape[1])
    if not np.array_equal(ids, wanted):
        raise EngineLost("the teacher gave log-probs at other ids than those asked for at each token")
    return ids, scores


def _likeliest(meta: Mapping[str, Any], length: int, count: int) -> Pair:
    rows = _rows(meta, "input_top_logprobs", length)
    if any(len(row) < count for row in rows):
        raise EngineLost(f"the teacher gave no {count} likeliest ids of each token")
    return _pair([row[:count] for row in rows], count)


def _rows(meta: Mapping[str, Any], name: str, length: int) -> list[list[Any]]:
    """Of the response's tokens; the first row is that of the prompt's last token."""
    rows = (meta.get(name) or [])[1:]
    if len(rows) != length and length:
        raise EngineLost(f"the teacher's answer has {len(rows)} rows of {name} for {length} tokens")
    return [row or [] for row in rows[:length]]


def _pair(rows: Sequence[Sequence[Any]], count: int) -> Pair:
    shape = (len(rows), count)
    ids = np.asarray([[entry[1] for entry in row] for row in rows], np.float32).reshape(shape)
    return ids, np.asarray([[entry[0] for entry in row] for row in rows], np.float32).reshape(shape)
