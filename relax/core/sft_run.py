# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The loop of supervised fine-tuning from a configuration: fresh, or at the checkpoint that `--load` names."""

from __future__ import annotations

from relax.components.sft_messages import SftData, SftRoles
from relax.config.run import RunConfig
from relax.core.checkpoint import MODEL, REFERENCE
from relax.core.model_parts import supervised_options
from relax.core.resume import Resumption, find_resumption, set_results_aside, undone_lines
from relax.core.run_folder import RunFolder
from relax.core.sft_loop import SftLoop, SftSettings
from relax.core.sft_metrics import SftMetrics
from relax.core.sft_prediction import Prediction
from relax.core.sinks import make_sinks
from relax.schedule import events as ev
from relax.schedule.clock import Clock
from relax.schedule.journal import Journal
from relax.utils.console import Progress
from relax.utils.errors import ConfigError


async def make_sft_loop(
    config: RunConfig, folder: RunFolder, roles: SftRoles, journal: Journal, clock: Clock, run_id: str
) -> SftLoop:
    data = await roles.producers[0].data()
    settings = sft_settings(config, folder, data)
    resumption = find_resumption(config.checkpoint.load, config.rollout.start_rollout_id, data.digest)
    if resumption is None or resumption.run.root == folder.root:
        set_results_aside(None, folder.metrics / "metrics.jsonl", 0 if resumption is None else resumption.first)
    progress = Progress(settings.num_steps, now=clock.now, start=0 if resumption is None else resumption.first)
    metrics = SftMetrics(
        make_sinks(config, folder, None if resumption is None else resumption.first),
        clock,
        objective=await roles.actor.objective(),
        train_rows=data.train_rows,
        on_step=progress.step,
        on_eval=lambda step, values: progress.message(eval_text(step, values)),
    )
    loop = SftLoop(roles, journal, settings, data, clock, metrics)
    if roles.rollout is not None:
        loop.prediction = Prediction(roles, journal)
    started = ev.RunStarted(run_id, "sft", settings.batch, settings.in_flight - 1, settings.num_steps)
    loop.decide(started)
    if resumption is None:
        start_over(loop)
    else:
        await resume(loop, resumption)
    return loop


def sft_settings(config: RunConfig, folder: RunFolder, data: SftData) -> SftSettings:
    return SftSettings(
        num_steps=config.num_rollouts(data.rows),
        batch=config.global_batch_size,
        dp_size=config.data_parallel_size,
        max_tokens=config.supervised_capacity,
        balance=bool(config.sft.balance_data),
        in_flight=config.steps_in_flight,
        shards=config.sft_shards,
        packed=config.sft.sft_async_prepack,
        eval_interval=config.eval.eval_interval,
        eval_before_train=not config.eval.skip_eval_before_train,
        predict_interval=config.sft.sft_predict_interval,
        save_dir=folder.root if config.checkpoint.save else None,
        save_interval=config.checkpoint.save_interval,
        save_hf=config.checkpoint.save_hf,
        keeps_reference="ref_logprobs" in supervised_options(config).columns,
    )


async def resume(loop: SftLoop, resumption: Resumption) -> None:
    """Load the actor and put the loop where the checkpoint was written."""
    folder, state, first = resumption.folder, resumption.state, resumption.first
    if state.order != loop.data.order:
        raise ConfigError(
            "--load: the checkpoint drew its rows in another order: --seed or --eval-size has changed, so rows would "
            "be trained twice or never. Give the same values, or start a new run with --ref-load"
        )
    reference = str(folder / REFERENCE) if loop.settings.keeps_reference else None
    await loop.roles.actor.load(str(folder / MODEL), first, reference)
    for producer in loop.roles.producers:
        await producer.set_step(first)
    undone = {}
    if loop.settings.save_dir == resumption.run.root:
        undone = undone_lines({"driver": loop.journal.first_seq}, state.journal)
    loop.decide(ev.Resumed(first - 1, state.next_group, (), undone))
    loop.take_back(state)
    loop.trained = first
    print(f"resumed from {folder}: {state.rollout_id + 1} steps are contained", flush=True)


def start_over(loop: SftLoop) -> None:
    """Start without a checkpoint: what an earlier run has written to this folder counts no more."""
    if loop.journal.first_seq:
        loop.decide(ev.Resumed(-1, 0, (), {"driver": (0, loop.journal.first_seq)}))


def eval_text(step: int, values: dict[str, float]) -> str:
    hidden = ("eval/weight_version", "perf/eval_s")
    shown = [f"{name.removeprefix('eval/')} {value:.4g}" for name, value in values.items() if name not in hidden]
    return f"evaluation after {step} steps: {', '.join(shown)}"
