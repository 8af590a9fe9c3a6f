# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Prometheus text of an engine, under SGLang's metric names."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque

from relax.backends.native.batch import Response
from relax.backends.native.scheduler import Scheduler

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
THROUGHPUT_WINDOW_S = 10.0


class Histogram:
    """Cumulative buckets of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        out, total = [f"# TYPE {name} histogram"], 0
        for bound, count in zip([*map(str, SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*out, f"{name}_sum {self._sum:.6f}", f"{name}_count {total}"]


class EngineMetrics:
    """Latencies of finished responses; gauges are read from the scheduler when asked."""

    def __init__(self) -> None:
        self._first_token = Histogram()
        self._end_to_end = Histogram()
        self._queue = Histogram()
        self._between = Histogram()
        self._recent: deque[tuple[float, int]] = deque(maxlen=4096)  # (monotonic seconds, tokens generated)

    def finished(self, response: Response) -> None:
        if response.finished_at is None:
            return
        self._end_to_end.add(response.finished_at - response.submitted_at)
        if response.admitted_at is not None:
            self._queue.add(response.admitted_at - response.submitted_at)
        if response.first_token_at is not None:
            self._first_token.add(response.first_token_at - response.submitted_at)
            if len(response.token_ids) > 1:
                self._between.add((response.finished_at - response.first_token_at) / (len(response.token_ids) - 1))
        self._recent.append((response.finished_at, len(response.token_ids)))

    def throughput(self) -> float:
        """Tokens a second of the responses that ended in the last ten seconds."""
        since = time.monotonic() - THROUGHPUT_WINDOW_S
        return sum(tokens for at, tokens in self._recent if at >= since) / THROUGHPUT_WINDOW_S

    def text(self, scheduler: Scheduler) -> str:
        counters = scheduler.counters
        known = counters.prompt_tokens + counters.cached_tokens
        gauges = {
            "num_running_reqs": scheduler.batch.size,
            "num_queue_reqs": len(scheduler.waiting),
            "num_used_tokens": scheduler.used_rows,
            "max_total_num_tokens": scheduler.pool.num_rows,
            "token_usage": scheduler.used_rows / max(scheduler.pool.num_rows, 1),
            "gen_throughput": self.throughput(),
            "cache_hit_rate": counters.cached_tokens / known if known else 0.0,
            "num_retracted_reqs": counters.retractions,
        }
        totals = {
            "prompt_tokens_total": known,
            "cached_tokens_total": counters.cached_tokens,
            "generation_tokens_total": counters.generated_tokens,
            "num_requests_total": counters.finished,
            "num_aborted_requests_total": counters.aborted,
        }
        histograms = {
            "time_to_first_token_seconds": self._first_token,
            "e2e_request_latency_seconds": self._end_to_end,
            "queue_time_seconds": self._queue,
            "inter_token_latency_seconds": self._between,
        }
        lines = [f"# TYPE sglang:{name} gauge\nsglang:{name} {value}" for name, value in gauges.items()]
        lines += [f"# TYPE sglang:{name} counter\nsglang:{name} {value}" for name, value in totals.items()]
        for name, histogram in histograms.items():
            lines += histogram.lines(f"sglang:{name}")
        return "\n".join(lines) + "\n"
