# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Continuous batching: who is prefetched, who decodes, who waits, and which weights made which token.

Plain synchronous code, owned by the engine's one worker thread; every public call happens between two decode steps.

    waiting  --admit: rows and a slot are free-->  running  --stop, length, abort-->  finished
    running  --retract: pause, or the pool is full-->  waiting (keeps its tokens, recomputes its KV)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from relax.backends.base import PauseMode
from relax.backends.exact.kv_pool import KVPool
from relax.backends.native.batch import Prompt, Response, RunningBatch
from relax.backends.native.input_scores import InputScores
from relax.backends.native.protocol import RequestError, finish_abort, finish_length, finish_stop
from relax.backends.native.rows import Prefix, PrefixCache
from relax.backends.native.sampler import sample
from relax.utils.types import MediaFeatures

HEADROOM_TOKENS = 32  # rows kept for each running response before another is admitted
MAX_PREFILL_TOKENS = 4096  # prompt tokens of one prefill forward, unless one prompt alone is longer


@dataclass(frozen=True)
class Segment:
    """Tokens to prefill: `rows` receive their KV, `parent` rows come before them and are filled."""

    ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T] or [3, T]
    rows: np.ndarray  # int64 [T]
    parent: np.ndarray  # int64 [P]
    media: tuple[MediaFeatures, ...] = ()
    every_row: bool = False  # return all hidden states, not the last


class Runner(Protocol):
    """The model and its KV pool. The scheduler hands out the pool's rows."""

    pool: KVPool

    def prefill(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Hidden states of each segment: [1, H] of its last token, or [T, H]."""
        ...

    def decode(self, ids: np.ndarray, positions: np.ndarray, keys: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Feed one token a response -> hidden [B, H]. `keys [B, C]` rows in order, own row at `lengths - 1`."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float32 [N, V]."""
        ...

    def input_scores(self, hidden: Tensor, targets: np.ndarray, top: int, ids: np.ndarray | None) -> InputScores:
        """Of `targets [N]` under hidden states `[N, H]`, of the `top` likeliest ids and of `ids [N, K]`."""
        ...


@dataclass
class Counters:
    """Totals since the start, for /metrics and /server_info."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    decode_steps: int = 0
    busy_seconds: float = 0.0


@dataclass(frozen=True)
class StopStrings:
    """Finds stop strings in the text of the last tokens; `decode` keeps special tokens out as asked."""

    decode: Callable[[Sequence[int], bool], str]

    def match(self, response: Response, ids: np.ndarray) -> str | None:
        strings = response.params.stop
        if not strings:
            return None
        # a token holds at least one byte, and a character at most four
        window = 4 * max(map(len, strings)) + 4
        text = self.decode(ids[-window:].tolist(), response.params.skip_special_tokens)
        return next((s for s in strings if s in text), None)


@dataclass
class Scheduler:
    """Owns the waiting queue, the running batch and the KV rows."""

    runner: Runner
    max_running: int
    context_length: int
    stop_strings: StopStrings
    suppressed: Tensor | None = None
    headroom: int = HEADROOM_TOKENS
    version: str = "default"
    paused: bool = False  # by /pause_generation
    asleep: bool = False  # by /release_memory_occupation
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.pool = self.runner.pool
        self.prefixes = PrefixCache(self.pool)
        self.batch = RunningBatch(self.max_running, self.pool.zero_row)
        self.waiting: list[Response] = []
        self._arrivals = 0
        self._done: list[Response] = []

    # ------------------------------------------------------------------ requests

    def check_size(self, prompt_length: int, max_new_tokens: int) -> None:
        """Raise `RequestError` when the request can never run here."""
        total = prompt_length + max_new_tokens
        limit = min(self.context_length, self.pool.num_rows)
        if total > limit:
            raise RequestError(
                f"input_ids ({prompt_length} tokens with media) and sampling_params.max_new_tokens ({max_new_tokens}) "
                f"add up to {total}, more than the {limit} tokens that this engine holds for one request; "
                f"lower max_new_tokens, or raise --context-length and --max-total-tokens"
            )

    def submit(self, response: Response) -> None:
        self.check_size(len(response.prompt), response.params.max_new_tokens)
        response.arrival = self._arrivals
        self._arrivals += 1
        response.submitted_at = time.monotonic()
        self.waiting.append(response)

    def abort(self, rid: str | None, message: str = "aborted by request") -> int:
        """End one request (or all, with None) with what it has; returns how many."""
        hit = lambda r: rid is None or rid in (r.rid, r.parent_rid)  # noqa: E731
        ended = [r for r in self.waiting if hit(r)]
        self.waiting = [r for r in self.waiting if not hit(r)]
        for slot in range(self.batch.size - 1, -1, -1):
            if hit(self.batch.responses[slot]):
                ended.append(self._take_out(slot))
        for response in ended:
            self._finish(response, finish_abort(message))
        self.counters.aborted += len(ended)
        return len(ended)

    def take_finished(self) -> list[Response]:
        done, self._done = self._done, []
        return done

    # ------------------------------------------------------------------ control

    def pause(self, mode: PauseMode) -> None:
        self.paused = True
        if mode == "abort":
            self.abort(None, "aborted by pause_generation")
        elif mode == "retract":
            self._retract(range(self.batch.size))

    def resume(self) -> None:
        self.paused = False

    def flush(self) -> None:
        """Forget all cached prompts. Raises `RequestError` while requests run."""
        if self.batch.size:
            raise RequestError(f"flush_cache: {self.batch.size} requests are running; pause or abort them first")
        self.prefixes.flush()

    def switch_version(self, version: str) -> None:
        """The runner has new weights: nothing prefilled before may serve new responses."""
        self.version = version
        self.prefixes.flush()
        for slot in range(self.batch.size):
            self.batch.responses[slot].version_starts.append((version, int(self.batch.place[slot])))

    @property
    def used_rows(self) -> int:
        return self.pool.num_rows - self.pool.num_free - self.prefixes.idle_rows

    @property
    def has_work(self) -> bool:
        return not (self.paused or self.asleep) and bool(self.waiting or self.batch.size)

    # ------------------------------------------------------------------ one step

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, then one decode step for everything that runs."""
        started = time.monotonic()
        self._admit()
        if self.batch.size:
            self._decode()
        self.counters.busy_seconds += time.monotonic() - started

    def _decode(self) -> None:
        batch = self.batch
        self._make_room(batch.size)
        if not batch.size:
            return
        batch.feed(self.pool.alloc(batch.size))
        size, keys = batch.size, batch.key_length()
        hidden = self.runner.decode(
            batch.token[:size], batch.position[:size], batch.keys[:size, :keys], batch.length[:size]
        )
        self.counters.decode_steps += 1
        self._sample(np.arange(size), self.runner.head(hidden))

    def _sample(self, slots: np.ndarray, logits: Tensor) -> None:
        """Draw a token for each slot and take out the responses that it ends."""
        batch = self.batch
        ids, log_probs = sample(logits, batch.sampling(slots), self.suppressed)
        stopped, full = batch.accept(slots, ids, log_probs)
        self.counters.generated_tokens += len(slots)
        texts = {
            slot: self.stop_strings.match(batch.responses[slot], batch.out_ids[slot, : batch.place[slot]])
            for slot in slots[batch.watches_text[slots]].tolist()
        }
        ended = dict(zip(slots[stopped | full].tolist(), stopped[stopped | full].tolist(), strict=True))
        ended |= {slot: ended.get(slot, False) for slot, text in texts.items() if text is not None}
        for slot in sorted(ended, reverse=True):
            token = int(batch.token[slot])
            response = self._take_out(slot)
            if ended[slot]:
                self._finish(response, finish_stop(token))
            elif texts.get(slot) is not None:
                self._finish(response, finish_stop(texts[slot]))
            else:
                self._finish(response, finish_length(len(response.token_ids)))

    # ------------------------------------------------------------------ admission

    def _admit(self) -> None:
        """Move waiting responses, oldest first, into the batch; one forward prefills what they need."""
        admitted: list[tuple[Response, np.ndarray]] = []
        new_prompts: list[tuple[Prefix, Response]] = []
        prefill_tokens = 0
        while self.waiting and self.batch.size + len(admitted) < self.max_running:
            response = self.waiting[0]
            prefix = self.prefixes.find(self.version, response.prompt.key)
            prompt_rows, own = 0 if prefix else len(response.prompt), len(response.token_ids)
            tokens = prompt_rows + own
            if prefill_tokens and prefill_tokens + tokens > MAX_PREFILL_TOKENS:
                break
            if prefix is not None:
                self.prefixes.hold(prefix)  # before eviction looks for idle prefixes
            if not self._fits(tokens, response, len(admitted)):
                if prefix is not None:
                    self.prefixes.release(prefix)
                break
            self.waiting.pop(0)
            if prefix is None:
                prefix = self.prefixes.add(self.version, response.prompt.key, len(response.prompt))
                self.prefixes.hold(prefix)
                new_prompts.append((prefix, response))
            else:
                response.cached_tokens = len(response.prompt)
            response.prefix = prefix
            admitted.append((response, self.pool.alloc(own)))
            prefill_tokens += tokens
        if admitted:
            self._prefill(new_prompts, admitted)

    def _fits(self, tokens: int, response: Response, admitted: int) -> bool:
        batch = self.batch
        left = batch.max_new[: batch.size] - batch.place[: batch.size]
        headroom = int(np.minimum(left, self.headroom).sum()) + admitted * self.headroom
        if batch.size + admitted:
            own_left = response.params.max_new_tokens - len(response.token_ids)
            headroom += min(own_left, self.headroom)
        else:
            headroom = 1 if response.params.max_new_tokens else 0  # alone it always fits
        wanted = tokens + headroom
        if self.pool.num_free < wanted:
            self.prefixes.evict(wanted)
        return self.pool.num_free >= wanted

    def _prefill(
        self, new_prompts: list[tuple[Prefix, Response]], admitted: list[tuple[Response, np.ndarray]]
    ) -> None:
        none = np.zeros(0, np.int64)
        segments = [
            Segment(r.prompt.ids, r.prompt.positions, p.rows, none, r.prompt.media, every_row=r.is_asked)
            for p, r in new_prompts
        ]
        if segments:
            for (prefix, response), hidden in zip(new_prompts, self.runner.prefill(segments), strict=True):
                prefix.hidden = hidden[-1:].clone() if response.is_asked else hidden
                self.counters.prompt_tokens += len(response.prompt)
                if response.is_asked:
                    self._score_input(response, hidden)
        longer = [(r, rows) for r, rows in admitted if len(rows)]
        tails = [Segment(r.token_ids, _positions(r.prompt, len(rows)), rows, r.prefix.rows) for r, rows in longer]
        resumed = dict(zip((id(r) for r, _ in longer), self.runner.prefill(tails) if tails else (), strict=True))
        now = time.monotonic()
        hidden = []
        for response, rows in admitted:
            self.counters.cached_tokens += response.cached_tokens
            response.admitted_at = response.admitted_at or now
            if response.is_asked:  # the prompt was there already
                self._score_input(response, self._prefilled_again(response))
            if response.params.max_new_tokens == 0:
                self.prefixes.release(response.prefix)
                self._finish(response, finish_length(0))
                continue
            response.version_starts.append((self.version, len(response.token_ids)))
            self.batch.add(response, response.prefix, rows)
            hidden.append(resumed.get(id(response), response.prefix.hidden))
        if hidden:
            count = len(hidden)
            slots = np.arange(self.batch.size - count, self.batch.size)
            self._sample(slots, self.runner.head(torch.cat(hidden)))
            now = time.monotonic()
            for response, _ in admitted:
                response.first_token_at = response.first_token_at or now

    def _prefilled_again(self, response: Response) -> Tensor:
        """Hidden states [P, H] of a prompt whose rows are filled."""
        prompt = response.prompt
        rows = response.prefix.rows  # same weights, same tokens: the same bits are written again
        none = np.zeros(0, np.int64)
        (hidden,) = self.runner.prefill(
            [Segment(prompt.ids, prompt.positions, rows, none, prompt.media, every_row=True)]
        )
        return hidden

    def _score_input(self, response: Response, hidden: Tensor) -> None:
        asked = response.asked
        assert asked is not None
        targets = response.prompt.ids[asked.first :]
        response.input_scores = self.runner.input_scores(
            hidden[asked.first - 1 : -1], targets, asked.top, asked.ids_at(len(targets))
        )

    # ------------------------------------------------------------------ leaving the batch

    def _make_room(self, rows: int) -> None:
        """Free rows for one decode step: idle prefixes first, then the youngest responses."""
        self.prefixes.evict(rows)
        while self.pool.num_free < rows and self.batch.size > 1:
            youngest = int(np.argmax(self.batch.arrival[: self.batch.size]))
            self._retract([youngest])
            self.prefixes.evict(self.batch.size)
            rows = self.batch.size

    def _retract(self, slots: Sequence[int]) -> None:
        taken = [self._take_out(slot) for slot in sorted(slots, reverse=True)]
        for response in taken:
            response.retractions += 1
        self.counters.retractions += len(taken)
        self.waiting = sorted(self.waiting + taken, key=lambda r: r.arrival)

    def _take_out(self, slot: int) -> Response:
        response, rows = self.batch.remove(slot)
        self.pool.free(rows)
        self.prefixes.release(response.prefix)
        response.prefix = None
        return response

    def _finish(self, response: Response, finish: dict) -> None:
        response.finish = finish
        response.finished_at = time.monotonic()
        self.counters.finished += 1
        self._done.append(response)


def _positions(prompt: Prompt, count: int) -> np.ndarray:
    """Rotary positions of the first `count` response tokens."""
    one = np.arange(prompt.next_position, prompt.next_position + count, dtype=np.int64)
    return one if prompt.positions.ndim == 1 else np.broadcast_to(one, (3, count))
