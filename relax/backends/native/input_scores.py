# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Log-probs of a prompt's own tokens, of their likeliest rivals, and at ids that the caller names.

SGLang's words: `logprob_start_len`, `top_logprobs_num` and `token_ids_logprob` in the request, `input_token_logprobs`,
`input_top_logprobs` and `input_token_ids_logprobs` in the answer. Beyond SGLang, `token_ids_logprob` may hold one list
for each position from `logprob_start_len` on, all of one length; /server_info says `token_ids_per_position`.

Shapes: P = prompt tokens, N = positions from max(start, 1) on, K = ids of a position. Log-probs in nats, at
        temperature 1, of the model's whole vocabulary: ids that are never sampled count, as in SGLang.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relax.backends.native.protocol import GenerateRequest, RequestError


@dataclass(frozen=True)
class InputAsked:
    """What a request wants to know of its prompt."""

    start: int  # first position that is answered; position 0 has no log-prob
    top: int = 0
    ids: np.ndarray | None = None  # int64 [K] of every position, or [P - start, K]

    @property
    def first(self) -> int:
        """First position with a log-prob."""
        return max(self.start, 1)

    def ids_at(self, positions: int) -> np.ndarray | None:
        """`[N, K]` of the last `positions` positions."""
        if self.ids is None or self.ids.ndim == 2:
            return None if self.ids is None else self.ids[len(self.ids) - positions :]
        return np.broadcast_to(self.ids, (positions, len(self.ids)))


@dataclass(frozen=True)
class InputScores:
    """float32 log-probs; the pairs are (ids int64, log-probs) `[N, K]`."""

    own: np.ndarray  # [N]
    top: tuple[np.ndarray, np.ndarray] | None = None
    at: tuple[np.ndarray, np.ndarray] | None = None


def input_asked(request: GenerateRequest, prompt_length: int, vocab_size: int) -> InputAsked | None:
    """None when nothing is asked. Raises `RequestError` for what does not fit the prompt or the vocabulary."""
    start, top, ids = request.logprob_start_len, request.top_logprobs_num, request.token_ids_logprob
    if start >= prompt_length:
        raise RequestError(f"logprob_start_len={start} lies behind the prompt's {prompt_length} tokens")
    if not request.return_logprob or start < 0:
        return None
    if top > vocab_size:
        raise RequestError(f"top_logprobs_num={top}: the vocabulary has {vocab_size} ids")
    if not ids:
        return InputAsked(start, top)
    array = np.asarray(ids, np.int64)
    if array.max() >= vocab_size:
        raise RequestError(f"token_ids_logprob holds {int(array.max())}; the vocabulary has {vocab_size} ids")
    if array.ndim == 2 and len(array) != prompt_length - start:
        raise RequestError(
            f"token_ids_logprob has {len(array)} lists for the {prompt_length - start} positions from "
            f"logprob_start_len={start} to the prompt's end"
        )
    return InputAsked(start, top, array)


def input_answer(asked: InputAsked, scores: InputScores, prompt_ids: np.ndarray) -> dict[str, Any]:
    """What `meta_info` says of the prompt. Entries are [log-prob, id, null]; position 0 has none."""
    blank = asked.start == 0
    own = [None] * blank + scores.own.tolist()
    answer: dict[str, Any] = {
        "input_token_logprobs": [
            [score, token, None] for score, token in zip(own, prompt_ids[asked.start :].tolist(), strict=True)
        ]
    }
    for name, pair in (("input_top_logprobs", scores.top), ("input_token_ids_logprobs", scores.at)):
        if pair is not None:
            answer[name] = [None] * blank + _entries(*pair)
    return answer


def _entries(ids_NK: np.ndarray, scores_NK: np.ndarray) -> list[list[list[Any]]]:
    rows = zip(scores_NK.tolist(), ids_NK.tolist(), strict=True)
    return [[[score, token, None] for score, token in zip(scores, ids, strict=True)] for scores, ids in rows]
