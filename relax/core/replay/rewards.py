# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rewards of a trained rollout, computed again by the run's own reward functions from the recorded text."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relax.config.run import RunConfig
from relax.core.build import build_scorer
from relax.core.replay.compare import Check, Difference
from relax.core.replay.record import RunRecord, StepRecord
from relax.core.rollout_parts import post_process, sample_filter
from relax.data.columns import FINISH, STATUS
from relax.distributed.bus.base import Block
from relax.engine.rewards.builtin import REMOTE
from relax.engine.rewards.score import ERROR_KEY
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError, UserCodeError
from relax.utils.types import Sample

Row = Mapping[str, Any]  # of `results.sample_row`, as the trace notes it


async def compare_rewards(record: RunRecord, step: StepRecord, blocks: Mapping[int, Block]) -> Check:
    """`reward`, `raw_reward` and `removed` of every sample. What cannot be asked again is skipped, with its name."""
    check, config = Check("rewards"), record.config
    rows = {group: notes["rows"] for group, notes in record.notes(step.groups).items() if "rows" in notes}
    args = config.flat().with_facts(
        sglang_router_ip="replay.invalid",
        sglang_router_port=0,
        run_dir=str(record.folder.root),
        metrics_service_url=None,
    )
    scorer = build_scorer(config, args, RealClock())
    try:
        for group in step.groups:
            reason = _not_again(config, rows.get(group, []), blocks[group])
            if reason:
                check.skipped = reason
                continue
            samples = recorded_samples(blocks[group], rows[group])
            try:
                await scorer.score(samples)
            except (UserCodeError, ConfigError) as error:
                check.skipped = f"group {group} could not be scored again: {error}"
                continue
            _compare(check, step.rollout_id, blocks[group], samples, *_shaped(config, args, samples))
    finally:
        await scorer.close()
    return check


def _shaped(config: RunConfig, args: Any, samples: list[Sample]) -> tuple[Sequence[float], Sequence[float]]:
    """(raw rewards, rewards) as the rollout role makes them of scored samples."""
    filtered, shaped = sample_filter(config, args), post_process(config, args)
    if filtered is not None:
        filtered([samples])
    raw = [sample.get_reward(config.reward.reward_key) for sample in samples]
    return shaped(samples) if shaped is not None else (raw, raw)


def _compare(
    check: Check, step: int, block: Block, samples: list[Sample], raw: Sequence[float], rewards: Sequence[float]
) -> None:
    removed = [float(sample.remove_sample) for sample in samples]
    for name, values in (("raw_reward", raw), ("reward", rewards), ("removed", removed)):
        for place, (before, after) in enumerate(zip(block.columns[name].tolist(), values, strict=True)):
            check.compared += 1
            if np.float64(before).tobytes() != np.float64(after).tobytes():
                why = samples[place].train_metadata.get(ERROR_KEY, "").strip().rpartition("\n")[2]
                found = f"{after!r} ({why})" if why else repr(after)
                check.differences.append(Difference(step, name, f"sample g{block.uid}.{place}", repr(before), found))


def _not_again(config: RunConfig, rows: Sequence[Row], block: Block) -> str:
    """Why a group's rewards are not asked for again, "" when they are."""
    if len(rows) != len(block.columns["index"]):
        return f"group {block.uid} has no text in the trace for {len(block.columns['index'])} samples"
    names = {(row.get("metadata") or {}).get("rm_type") or config.reward.rm_type for row in rows}
    if config.reward.custom_rm_path is None and REMOTE in names:
        return f"{REMOTE} at {config.reward.rm_url} is another program, which may have changed"
    if config.has_judge:
        return "a judge model may have scored it, and replay loads none"
    return ""


def recorded_samples(block: Block, rows: Sequence[Row]) -> list[Sample]:
    """The samples of a group as they were before scoring: numbers from its block, text from its notes."""
    columns, samples = block.columns, []
    ends = np.cumsum(columns["response_len"].astype(np.int64)).tolist()
    for place, (end, row) in enumerate(zip(ends, rows, strict=True)):
        length = int(columns["response_len"][place])
        first, last = columns["token_offsets"][place : place + 2].tolist()
        aligned = {name: columns[name][end - length : end].tolist() for name in ("loss_mask", "weight_version")}
        log_probs = columns["rollout_logprobs"][end - length : end].tolist()
        samples.append(
            Sample(
                group_index=block.uid,
                index=int(columns["index"][place]),
                attempt=row["attempt"],
                part=row["part"],
                epoch=row["epoch"],
                row=row["row"],
                prompt=written_back(row["prompt"]),
                label=written_back(row["label"]),
                metadata=written_back(row["metadata"]),
                tokens=columns["tokens"][first:last].tolist(),
                response=row["response"],
                response_length=length,
                loss_mask=aligned["loss_mask"],
                rollout_log_probs=log_probs,
                weight_versions=aligned["weight_version"],
                status=STATUS[columns["status"][place]],
                finish_reason=FINISH[columns["finish"][place]],
                matched_stop=row["matched_stop"],
                remove_sample=bool(columns["removed"][place]),
            )
        )
    return samples


def written_back(value: Any) -> Any:
    """Inverse of `results.readable` for bytes."""
    if isinstance(value, dict):
        if set(value) == {"$bytes"}:
            return base64.b64decode(value["$bytes"])
        return {key: written_back(item) for key, item in value.items()}
    return [written_back(item) for item in value] if isinstance(value, list) else value
