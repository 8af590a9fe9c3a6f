# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""On-policy distillation from a configuration: the teacher role, and the loss of the actor around it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.algorithms.distillation_options import PER_POSITION, DistillationOptions
from relax.algorithms.loss import LossFunction
from relax.backends.base import EngineClient
from relax.config.flags import option_name
from relax.config.run import RunConfig
from relax.core.build import (
    STATE_DEADLINE_S,
    InProcess,
    Wiring,
    batch_settings,
    build_bus,
    model_spec,
    train_backend,
)
from relax.core.run_folder import RunFolder
from relax.core.served_models import served_models
from relax.schedule.clock import RealClock

if TYPE_CHECKING:
    from relax.components.teacher_questions import Vocabulary

OLD_COLUMN = {"rollout": "rollout_logprobs", "old": "old_logprobs", "current": None}


def distillation_options(config: RunConfig) -> DistillationOptions | None:
    """None without --use-opd."""
    opd = config.distillation
    if not opd.use_opd:
        return None
    assert opd.opd_kl_coef is not None
    return DistillationOptions(
        kl_coef=opd.opd_kl_coef,
        loss_coef=opd.opd_loss_coef,
        token_selection=opd.opd_token_selection,
        top_k=opd.opd_log_prob_top_k,
        kl_type=opd.opd_kl_type,
        jsd_alpha=opd.opd_jsd_alpha,
        norm_mode=opd.opd_norm_mode,
        per_token_clip=opd.opd_per_token_clip,
        is_clip=opd.opd_is_clip,
        only=opd.opd_only_reward,
    )


def distilled(loss: LossFunction, config: RunConfig) -> LossFunction:
    """The actor's loss with the teacher's term, when there is one."""
    options = distillation_options(config)
    if options is None:
        return loss
    from relax.algorithms.distilled_loss import DistilledLoss

    return DistilledLoss(loss, options, OLD_COLUMN[config.old_log_probs])


def build_teacher(
    config: RunConfig,
    wiring: Wiring,
    shared: InProcess | None = None,
    engines: Mapping[str, EngineClient] | None = None,
) -> Any:
    """The teacher role. `engines` of an inline run live in this process; others are found by their addresses."""
    from relax.components.engine_teacher import EngineTeacher
    from relax.components.teacher import LocalTeacher

    options, opd = distillation_options(config), config.distillation
    assert options is not None
    clock = shared.clock if shared else RealClock()
    if opd.opd_type == "sglang":
        return EngineTeacher(
            flag=option_name("opd_teacher_url" if opd.opd_teacher_url else "teacher_hf_checkpoint"),
            vocabulary=student_vocabulary(config) if opd.opd_teacher_url else None,
            ids_per_position=os.environ.get(PER_POSITION) == "1",
            engines=list((engines or teacher_engines(config, wiring)).values()),
            options=options,
            bus=build_bus(config, wiring, shared),
            clock=clock,
            deadline_s=STATE_DEADLINE_S,
            timeout_s=opd.opd_teacher_timeout_s,
        )
    assert opd.opd_teacher_load is not None
    folder = Path(opd.opd_teacher_load).expanduser()
    return LocalTeacher(
        backend=train_backend(config),
        model=replace(model_spec(config, trainable=False), hf_path=folder, num_top=options.top_k, lora=None, mtp=None),
        options=options,
        settings=batch_settings(config),
        bus=build_bus(config, wiring, shared),
        clock=clock,
        deadline_s=STATE_DEADLINE_S,
        executor=ThreadPoolExecutor(1, thread_name_prefix="teacher"),
    )


def student_vocabulary(config: RunConfig) -> Vocabulary:
    """What an engine at a URL is compared with."""
    from relax.components.teacher_questions import SPELLED, Vocabulary
    from relax.config.external.describe import text_config
    from relax.data.model_files import has_tokenizer, load_tokenizer

    folder = Path(config.checkpoint.hf_checkpoint or "").expanduser()
    size = text_config(json.loads((folder / "config.json").read_text("utf-8"))).get("vocab_size")
    ids = load_tokenizer(folder)(SPELLED)["input_ids"] if has_tokenizer(folder) else ()
    return Vocabulary(size, tuple(ids))


def teacher_engines(config: RunConfig, wiring: Wiring) -> dict[str, EngineClient]:
    """The engines of this run that serve the teacher, or the one at --opd-teacher-url."""
    from relax.backends.engine_client import HttpEngineClient

    opd, folder = config.distillation, RunFolder(wiring.run_dir)
    if opd.opd_teacher_url is not None:
        return {"teacher": HttpEngineClient(opd.opd_teacher_url.rstrip("/"), timeout_s=opd.opd_teacher_timeout_s)}
    names = [name for model in served_models(config) if model.role == "teacher" for name in model.engines]
    return {
        name: HttpEngineClient(
            wiring.served_urls[name], timeout_s=opd.opd_teacher_timeout_s, log_path=folder.log(f"{name}-process")
        )
        for name in names
    }
