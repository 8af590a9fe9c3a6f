# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax replay --regenerate`: samples drawn again by the native engine in this process.

Each sample is drawn under the weight version and the random key that it had, so tokens and log-probs come out again
bit for bit where engine and trainer are exact. A sample that saw several versions is left out: where in it the weights
changed depends on the moment of an install, not on the record of its tokens alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relax.components.engines import EngineFleet
from relax.core.build import Wiring, engine_config, rollout_options
from relax.core.inline import INLINE_HOST, INLINE_PORT
from relax.core.replay.compare import Check, Difference
from relax.core.replay.prompts import Prompts, compare_prompt
from relax.core.replay.record import RunRecord
from relax.distributed.bus.base import Block
from relax.distributed.checkpoint_service.base import WeightManifest
from relax.engine.rollout.groups import AdmittedGroup, GroupGenerator
from relax.engine.rollout.hooks import load_hook
from relax.engine.rollout.prompts import prompt_sample
from relax.engine.rollout.state import sampling_options
from relax.schedule.clock import RealClock
from relax.utils.errors import WeightSyncError
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.types import Sample

ENGINE_URL = f"http://{INLINE_HOST}:{INLINE_PORT}"


def why_not_regenerated(record: RunRecord, inexact: str) -> str:
    """Why no sample of the run can come out again bit for bit; "" when all must."""
    if record.config.rollout.rollout_backend != "native":
        return f"the run sampled with {record.config.rollout.rollout_backend}, which is another program"
    if not record.manifest.get("exact"):
        return f"engine and trainer were not exact: {record.manifest.get('exact_reason', 'not recorded')}"
    return inexact


def versions_of(block: Block) -> list[int | None]:
    """The weight version of each sample, None where it saw several."""
    ends = np.cumsum(block.columns["response_len"].astype(np.int64))
    pieces = np.split(block.columns["weight_version"], ends[:-1])
    found = [{int(version) for version in piece if version >= 0} for piece in pieces]
    return [versions.pop() if len(versions) == 1 else None for versions in found]


class Regenerator:
    """Draws the samples of `steps` when their version comes by. One engine; everything on one event loop."""

    def __init__(self, record: RunRecord, blocks: Mapping[int, Mapping[int, Block]], prompts: Prompts) -> None:
        """`blocks` are those of the steps that are asked for: {step: {group: block}}."""
        self._record, self._prompts = record, prompts
        self._engines: EngineFleet | None = None
        self._generator: GroupGenerator | None = None
        self.checks = {step: Check("regenerated") for step in blocks}
        self._waiting: dict[int, list[tuple[int, Block, list[int]]]] = {}  # version -> (step, block, places)
        for step, groups in blocks.items():
            for block in groups.values():
                self._add(step, block)

    def _add(self, step: int, block: Block) -> None:
        versions = versions_of(block)
        for version in {v for v in versions if v is not None}:
            places = [place for place, own in enumerate(versions) if own == version]
            self._waiting.setdefault(version, []).append((step, block, places))
        several = versions.count(None)
        if several:
            check = self.checks[step]
            before = int(check.skipped.split()[0]) if check.skipped else 0
            check.skipped = f"{before + several} samples saw several versions, or none"

    @property
    def first_version(self) -> int | None:
        return min(self._waiting, default=None)

    async def start(self, wiring: Wiring) -> None:
        from relax.backends.engine_client import AsgiEngineClient
        from relax.backends.native.build import EngineSettings, build_app

        config, clock = self._record.config, RealClock()
        app = await asyncio.to_thread(build_app, EngineSettings.from_config(engine_config(config)))
        client = AsgiEngineClient(app)
        register_local(ENGINE_URL, client)
        self._engines = EngineFleet({"engine-0": client}, clock=clock)
        args = config.flat().with_facts(
            sglang_router_ip=INLINE_HOST,
            sglang_router_port=INLINE_PORT,
            run_dir=str(wiring.run_dir),
            metrics_service_url=None,
        )
        self._generator = GroupGenerator(
            args=args,
            hook=load_hook(config.rollout.custom_generate_function_path),
            sampling_params=sampling_options(args).params(),
            options=rollout_options(config),
            clock=clock,
            engines=self._engines,
        )

    async def take(self, manifest: WeightManifest) -> None:
        """Install a version, and draw every sample that waits for it."""
        waiting = self._waiting.pop(manifest.version, [])
        if not waiting or self._engines is None or self._generator is None:
            return
        for status in await self._engines.install(manifest):
            if not status.ok:
                raise WeightSyncError(f"version {status.version} could not be installed here: {status.error}")
        for step, block, places in waiting:
            prepared = await self._prompts.prepare(block.uid)
            changed = compare_prompt(step, block, prepared)
            if changed:
                self.checks[step].differences += changed
                continue
            epoch, row = self._record.rows[block.uid]
            prompt = prompt_sample(prepared, group=block.uid, epoch=epoch, row=row)
            count = self._record.config.rollout.n_samples_per_prompt
            self._generator.admit([AdmittedGroup(block.uid, prompt, count)])
            finished = await self._generator.next_finished()
            if finished.accepted:
                compare_samples(self.checks[step], step, block, places, finished.samples)
            else:
                where = f"group g{block.uid}"
                self.checks[step].differences.append(
                    Difference(step, "regenerated group", where, "finished", f"dropped: {finished.reason}")
                )

    async def close(self) -> None:
        if self._generator is not None and self._engines is not None:
            unregister_local(ENGINE_URL)
            await self._generator.stop()
            await self._engines.close()


def compare_samples(check: Check, step: int, block: Block, places: Sequence[int], samples: Sequence[Sample]) -> None:
    """Ids and log-probs of the samples at `places`: the first token of each that is another one."""
    columns, ends = block.columns, np.cumsum(block.columns["response_len"].astype(np.int64)).tolist()
    if len(samples) != len(ends):
        where = f"group g{block.uid}"
        check.differences.append(Difference(step, "number of samples", where, str(len(ends)), str(len(samples))))
        return
    for place in places:
        length = int(columns["response_len"][place])
        last = int(columns["token_offsets"][place + 1])
        before: dict[str, Any] = {
            "sampled token": columns["tokens"][last - length : last],
            "rollout_logprobs": columns["rollout_logprobs"][ends[place] - length : ends[place]],
        }
        sample = samples[place]
        after = {
            "sampled token": np.asarray(sample.tokens[len(sample.tokens) - sample.response_length :], np.int32),
            "rollout_logprobs": np.asarray(sample.rollout_log_probs, np.float32),
        }
        for name, values in before.items():
            check.compared += 1
            difference = _first_token(step, name, f"sample g{block.uid}.{place}", values, after[name])
            if difference is not None:
                check.differences.append(difference)
                break  # the log-probs of other tokens say nothing more


def _first_token(step: int, name: str, sample: str, before: np.ndarray, after: np.ndarray) -> Difference | None:
    shorter = min(len(before), len(after))
    place = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    if place == len(before) == len(after):
        return None
    shown = [repr(values[place].item()) if place < len(values) else "the end" for values in (before, after)]
    return Difference(step, f"regenerated {name}", f"{sample} response token {place}", *shown)
