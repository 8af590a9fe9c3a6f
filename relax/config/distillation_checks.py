# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules of on-policy distillation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from relax.config.flags import option_name
from relax.config.sections.distillation import DistillationConfig

if TYPE_CHECKING:
    from relax.config.run import RunConfig

SAMPLED = ("reverse_kl", "low_var_kl")


def distillation(config: RunConfig) -> Iterator[str]:
    opd = config.distillation
    if not opd.use_opd:
        given = [f.name for f in fields(DistillationConfig) if config.origins.get(f.name) == "flag"]
        given = [name for name in given if name not in ("use_opd", "teacher_hf_checkpoint")]  # the latter: a note
        if given:
            yield f"{' and '.join(map(option_name, given))} has no effect without --use-opd: add it"
        if "teacher" in config.resource:
            yield 'the cards of "teacher" in --resource would stand idle: add --use-opd, or take the entry out'
        return
    yield from _teacher(config)
    yield from _divergence(config)
    yield from _order(config)


def _teacher(config: RunConfig) -> Iterator[str]:
    opd = config.distillation
    named = [n for n in ("opd_teacher_load", "teacher_hf_checkpoint", "opd_teacher_url") if config.value(n)]
    if not named:
        yield (
            "--use-opd needs a teacher: add --teacher-hf-checkpoint (engines of this run), --opd-teacher-load (the "
            "training backend) or --opd-teacher-url (a running engine)"
        )
        return
    if len(named) > 1:
        yield f"{' and '.join(map(option_name, named))} name several teachers: keep one"
        return
    wanted = "megatron" if named == ["opd_teacher_load"] else "sglang"
    if opd.opd_type != wanted:
        yield (
            f"{option_name(named[0])} is a teacher of --opd-type {wanted}, and --opd-type {opd.opd_type} is given: "
            "leave the latter out"
        )
    cards = config.resource["teacher"].gpus if "teacher" in config.resource else 0
    if named == ["opd_teacher_url"]:
        if cards:
            yield '--opd-teacher-url is an engine that runs already: take "teacher" out of --resource'
    elif not cards:
        yield f'--use-opd needs "teacher" in --resource, which has {", ".join(config.resource)}: add "teacher": [1, 1]'
    elif wanted == "megatron" and cards != 1:
        yield f'the teacher of --opd-teacher-load is one rank: give "teacher": [1, 1], not {cards} cards'
    elif wanted == "sglang" and cards % opd.teacher_num_gpus_per_engine:
        yield (
            f"--teacher-num-gpus-per-engine {opd.teacher_num_gpus_per_engine} does not divide the {cards} cards of "
            "teacher in --resource"
        )
    if wanted == "sglang" and config.data.multimodal_keys:
        yield "--multimodal-keys: an engine that is the teacher is sent ids alone; use a teacher by --opd-teacher-load"
    if opd.opd_teacher_url is not None and not opd.opd_teacher_url.startswith(("http://", "https://")):
        yield f"--opd-teacher-url {opd.opd_teacher_url} is no address: give http://HOST:PORT"
    if wanted == "sglang" and config.rollout.rollout_temperature != 1.0:
        yield (
            f"--rollout-temperature {config.rollout.rollout_temperature}: an engine gives a text's log-probs at "
            "temperature 1; use 1.0, or a teacher by --opd-teacher-load"
        )


def _divergence(config: RunConfig) -> Iterator[str]:
    opd = config.distillation
    if bool(opd.opd_kl_coef) == bool(opd.opd_loss_coef):
        yield (
            f"--opd-kl-coef {opd.opd_kl_coef:g} (in the advantages) and --opd-loss-coef {opd.opd_loss_coef:g} (as a "
            "loss): exactly one must be above 0"
        )
    sampled = opd.opd_token_selection == "student_sampled"
    if sampled and opd.opd_kl_type not in SAMPLED:
        yield (
            f"--opd-kl-type {opd.opd_kl_type} needs more than the sampled token: use {' or '.join(SAMPLED)}, or "
            "--opd-token-selection teacher_topk --opd-log-prob-top-k 16"
        )
    if not sampled and opd.opd_kl_type == "low_var_kl":
        yield "--opd-kl-type low_var_kl is an estimate from the sampled token: use reverse_kl with several ids"
    if not sampled and not opd.opd_log_prob_top_k:
        yield f"--opd-token-selection {opd.opd_token_selection} needs --opd-log-prob-top-k: how many ids a token"
    if sampled and opd.opd_log_prob_top_k:
        yield (
            f"--opd-log-prob-top-k {opd.opd_log_prob_top_k} has no effect on the sampled token alone: add "
            "--opd-token-selection teacher_topk"
        )
    if opd.opd_is_clip is not None and not (sampled and opd.opd_loss_coef):
        yield "--opd-is-clip bounds the ratio of sampled tokens in loss mode: add --opd-loss-coef, or leave it out"


def _order(config: RunConfig) -> Iterator[str]:
    """Student's ids come from the actor before the teacher is asked."""
    opd = config.distillation
    selection = f"--opd-token-selection {opd.opd_token_selection}"
    if opd.opd_token_selection in ("student_sampled", "teacher_topk"):
        return
    if opd.teacher_hf_checkpoint is not None and config.rollout.rollout_backend == "sglang":
        yield f"{selection} asks for other ids at each token, which SGLang does not take: use --opd-teacher-load"
    if config.parts_per_rollout > 1:
        yield f"{selection} asks the actor while it trains earlier parts: leave --num-iters-per-train-update out"


DISTILLATION_RULES = (distillation,)
