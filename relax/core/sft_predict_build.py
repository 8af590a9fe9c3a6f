# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rollout role of supervised fine-tuning, from a configuration."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from relax.config.run import RunConfig
from relax.core.build import InProcess, Wiring, hook_arguments, http_engines, remote_sender, rollout_options
from relax.core.sft_build import build_renderer
from relax.schedule.clock import RealClock
from relax.utils.types import Sample


class NoScores:
    """Predictions are kept, not scored."""

    async def score(self, samples: list[Sample]) -> None:
        return None


def build_predictor(config: RunConfig, wiring: Wiring, shared: InProcess | None = None) -> Any:
    from relax.components.engines import EngineFleet
    from relax.components.sft_predictor import SftPredictor
    from relax.engine.rollout.evaluate import EvalTask, evaluate
    from relax.engine.rollout.hooks import load_hook
    from relax.engine.rollout.state import sampling_options
    from relax.engine.router.workers import RouterWorkers

    clock = shared.clock if shared else RealClock()
    args = hook_arguments(config, wiring)
    fleet = EngineFleet(
        shared.engines if shared else http_engines(config, wiring),
        clock=clock,
        send=shared.send_weights if shared else remote_sender(wiring),
        workers=None if shared else RouterWorkers(f"http://{wiring.router_host}:{wiring.router_port}", clock=clock),
    )
    executor = ThreadPoolExecutor(1, thread_name_prefix="rollout")
    prompts = PredictionPrompts(config)
    params = sampling_options(args, evaluation=True).params()

    async def generate() -> Any:
        import asyncio

        sets = await asyncio.get_running_loop().run_in_executor(executor, prompts.sets)
        tasks = [EvalTask(name, rows, params) for name, rows in sets.items()]
        return await evaluate(
            tasks,
            args=args,
            hook=load_hook(None),
            options=rollout_options(config),
            scorer=NoScores(),
            clock=clock,
        )

    return SftPredictor(
        engines=fleet, generate=generate, folder=wiring.run_dir, clock=clock, close=fleet.close, executor=executor
    )


class PredictionPrompts:
    """Prompts of every evaluation row; read once."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._sets: dict[str, list[Sample]] | None = None

    def sets(self) -> dict[str, list[Sample]]:
        """{evaluation set: prompts}. Rows that the run leaves out are left out here too."""
        if self._sets is None:
            renderer = build_renderer(self._config)
            self._sets = {name: self._prompts(found) for name, found in renderer.evals.items()}
        return self._sets

    def _prompts(self, found: Any) -> list[Sample]:
        from relax.core.build import media_options
        from relax.data.media.processing import MediaProcessor
        from relax.data.model_files import load_processor, load_tokenizer
        from relax.engine.sft.predict import prediction_sample, row_media, usable

        path = self._config.checkpoint.hf_checkpoint
        tokenizer = load_tokenizer(path)  # type: ignore[arg-type]
        processor = None
        if self._config.data.multimodal_keys:
            processor = MediaProcessor(load_processor(path), media_options(self._config), tokenizer=tokenizer)  # type: ignore[arg-type]
        samples = []
        for place, row in enumerate(found.rows):
            example = usable(found.examples.example(int(row)))
            if example is not None:
                media = row_media(found.examples, int(row)) if example.media else []
                samples.append(
                    prediction_sample(example, media, tokenizer=tokenizer, processor=processor, group=place)
                )
        return samples
