# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Judges as the flags describe them, and the rules of those flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from relax.config.flags import nearest, option_name
from relax.config.sections.genrm import GenrmConfig

if TYPE_CHECKING:
    from relax.config.run import RunConfig

DEFAULT = "__default__"
JUDGE_REWARD = "dapo-genrm"  # the built-in reward that asks the judge
SAMPLING: dict[str, Any] = {
    "temperature": 0.1,
    "top_p": 1.0,
    "top_k": -1,
    "max_response_len": 4096,
    "chat_template_kwargs": {},
}
ENGINE = ("max_context_len", "max_total_tokens", "max_running_requests")
INSTANCE = ("model_path", "num_gpus", "num_gpus_per_engine", "engine_config", "sampling_config")
MAX_CONTEXT = 8192


@dataclass(frozen=True)
class JudgeConfig:
    """One judge. `sampling` is complete; `engine` has the keys of `ENGINE` that were given."""

    key: str
    model_path: str
    num_gpus: int
    num_gpus_per_engine: int
    engine: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


def judges(config: RunConfig) -> tuple[JudgeConfig, ...]:
    """The judges of a checked configuration; () without any."""
    own = config.genrm
    if own.genrm_instances:
        return tuple(_instance(key, value) for key, value in own.genrm_instances.items())
    if own.genrm_model_path is None:
        return ()
    return (
        JudgeConfig(
            DEFAULT,
            own.genrm_model_path,
            config.resource["genrm"].gpus,
            own.genrm_num_gpus_per_engine,
            dict(own.genrm_engine_config),
            SAMPLING | dict(own.genrm_sampling_config),
        ),
    )


def _instance(key: str, value: Mapping[str, Any]) -> JudgeConfig:
    return JudgeConfig(
        key,
        value["model_path"],
        value.get("num_gpus", 1),
        value.get("num_gpus_per_engine", 1),
        dict(value.get("engine_config", {})),
        SAMPLING | dict(value.get("sampling_config", {})),
    )


def genrm(config: RunConfig) -> Iterator[str]:
    own, roles = config.genrm, config.resource
    if own.genrm_model_path is None and not own.genrm_instances:
        yield from _without_judge(config)
        return
    problems = [*_names(own)]
    yield from problems
    if problems:
        return
    if "genrm" not in roles:
        yield f'a judge needs "genrm" in --resource, which has {", ".join(roles)}: add "genrm": [1, 1]'
        return
    cards = roles["genrm"].gpus
    if own.genrm_num_gpus not in (None, cards):
        yield f"--genrm-num-gpus {own.genrm_num_gpus} contradicts --resource, which gives genrm {cards}"
    every = judges(config)
    if sum(judge.num_gpus for judge in every) != cards:
        asked = " + ".join(str(judge.num_gpus) for judge in every)
        yield f"the judges of --genrm-instances take {asked} cards, and --resource gives genrm {cards}"
    for judge in every:
        if judge.num_gpus % judge.num_gpus_per_engine:
            yield (
                f"judge {judge.key}: engines of {judge.num_gpus_per_engine} cards do not divide its "
                f"{judge.num_gpus} cards"
            )


def _names(own: GenrmConfig) -> Iterator[str]:
    """Keys and kinds of the JSON values."""
    if not own.genrm_instances:
        yield from _known("--genrm-engine-config", own.genrm_engine_config, ENGINE)
        yield from _known("--genrm-sampling-config", own.genrm_sampling_config, tuple(SAMPLING))
        return
    if own.genrm_model_path is not None:
        yield "--genrm-instances and --genrm-model-path both name judges: keep one"
    for key, value in own.genrm_instances.items():
        where = f"--genrm-instances {key!r}"
        if not isinstance(value, Mapping) or not isinstance(value.get("model_path"), str):
            yield f"{where} must be an object with a model_path, got {value!r}"
            continue
        yield from _known(where, value, INSTANCE)
        for name in ("num_gpus", "num_gpus_per_engine"):
            if type(value.get(name, 1)) is not int or value.get(name, 1) < 1:
                yield f"{where}: {name} must be a whole number >= 1, got {value[name]!r}"
        for name, known in (("engine_config", ENGINE), ("sampling_config", tuple(SAMPLING))):
            inner = value.get(name, {})
            if not isinstance(inner, Mapping):
                yield f"{where}: {name} must be an object, got {inner!r}"
            else:
                yield from _known(f"{where} {name}", inner, known)


def _known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[str]:
    for key in given:
        if key not in known:
            near = nearest(key, known)
            yield f"{where} has the unknown key {key!r}: {f'did you mean {near!r}?' if near else ', '.join(known)}"


def _without_judge(config: RunConfig) -> Iterator[str]:
    given = [f.name for f in fields(GenrmConfig) if config.origins.get(f.name) == "flag"]
    if given:
        yield f"{' and '.join(map(option_name, given))} has no effect without --genrm-model-path: add it"
    if "genrm" in config.resource:
        yield 'the cards of "genrm" in --resource would stand idle: add --genrm-model-path, or take the entry out'
    if config.reward.rm_type == JUDGE_REWARD:
        yield f"--rm-type {JUDGE_REWARD} asks a judge: add --genrm-model-path, the folder of its model"


GENRM_RULES = (genrm,)
