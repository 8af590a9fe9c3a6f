# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Generated samples as JSON lines: `{run_dir}/rollout_result/{train,eval}/{id}.jsonl`, one line a sample."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relax.utils.jsonl import JsonlWriter, read_jsonl
from relax.utils.types import Sample


def result_path(run_dir: Path, kind: str, rollout_id: int) -> Path:
    """Where the samples of a rollout (`train`) or of an evaluation (`eval`) are written."""
    if kind not in ("train", "eval"):
        raise ValueError(f"rollout results are of kind train or eval, got {kind!r}")
    return run_dir / "rollout_result" / kind / f"{rollout_id}.jsonl"


def sample_row(sample: Sample, **extra: Any) -> dict[str, Any]:
    """What a reader needs to judge a sample; media and token ids stay in the trace."""
    versions = [v for v in sample.weight_versions if v >= 0]
    return {
        "group": sample.group_index,
        "index": sample.index,
        "part": sample.part,
        "attempt": sample.attempt,
        "epoch": sample.epoch,
        "row": sample.row,
        "prompt": readable(sample.prompt),
        "response": sample.response,
        "label": readable(sample.label),
        "reward": readable(sample.reward),
        "reward_parts": readable(sample.reward_parts),
        "prompt_tokens": sample.prompt_length,
        "response_tokens": sample.response_length,
        "sampled_tokens": sample.sampled_length,
        "status": sample.status.value,
        "finish_reason": sample.finish_reason,
        "matched_stop": sample.matched_stop,
        "first_version": min(versions, default=None),
        "last_version": max(versions, default=None),
        "removed": sample.remove_sample,
        "metadata": readable(sample.metadata),
        **extra,
    }


def readable(value: Any) -> Any:
    """Bytes as `{"$bytes": base64}` at any depth, and other foreign objects as their `repr`; the rest unchanged."""
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, Mapping):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)) or type(value).__module__ == "numpy":
        return value
    return repr(value)


def write_results(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Append rows to a result file -> how many."""
    count = 0
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.write(row)
            count += 1
    return count


def read_results(path: Path) -> list[dict[str, Any]]:
    """Rows of a result file."""
    return list(read_jsonl(path))
