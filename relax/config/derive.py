# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Values that are not given follow from others. This happens once, before the frozen sections exist.

Every value that is filled in here gets the origin `derived`, which `--dry-run` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.algorithms.spec import ALGOS
from relax.config.external.rules import SGLANG_MAPPED
from relax.config.external.tables import ExternalFlag, ExternalFlags
from relax.config.flags import option_name
from relax.config.frozen import freeze
from relax.config.machine import Machine
from relax.config.resources import default_resource, parse_resource, split_over_nodes
from relax.config.sections.critic import CRITIC_ESTIMATORS
from relax.config.supervised import default_roles, derive_supervised, is_supervised
from relax.config.support import TRAIN_BACKENDS
from relax.utils.errors import ConfigError

FALLBACKS = {
    "over_sampling_batch_size": "rollout_batch_size",
    "eps_clip_high": "eps_clip",
    "log_probs_max_tokens_per_gpu": "max_tokens_per_gpu",
    "ref_load": "hf_checkpoint",
    "critic_lr": "lr",
    "rollout_dtype": "train_dtype",
    "sglang_server_concurrency": "engine_max_running_requests",
    "eval_input_key": "input_key",
    "eval_label_key": "label_key",
    "eval_tool_key": "tool_key",
    "eval_temperature": "rollout_temperature",
    "eval_top_p": "rollout_top_p",
    "eval_top_k": "rollout_top_k",
    "eval_max_response_len": "rollout_max_response_len",
    "eval_max_prompt_len": "rollout_max_prompt_len",
    "eval_max_context_len": "rollout_max_context_len",
    "eval_generate_function_path": "custom_generate_function_path",
    "eval_reward_key": "reward_key",
    "dynamic_filter_reward_key": "reward_key",
    "tb_experiment_name": "run_name",
}


class Values:
    """Flag values under construction, each with its origin."""

    def __init__(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        self.values = values
        self.origins = origins

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def fill(self, name: str, value: Any) -> None:
        """Set a value that nobody gave."""
        if self.values[name] is None and value is not None:
            self.values[name] = value
            self.origins[name] = "derived"


def derive(given: Values, external: ExternalFlags, machine: Machine) -> None:
    """Fill in every value that follows from the given ones, from external flags and from the machine."""
    _from_external(given, external)
    supervised = is_supervised(given.values)
    if supervised:
        derive_supervised(given, machine.sft_shards)
    _batch_sizes(given)
    _decay(given)
    _machine_defaults(given, machine)
    _algorithm(given)
    if not supervised:
        _log_prob_source(given)
        _distillation(given)
    elif given["resource"] is None:
        given.fill("resource", default_roles(machine.gpus, given["sft_predict_interval"] is not None))
    _resources(given, machine)
    if given["rollout_max_context_len"] is not None:
        given.fill("rollout_max_prompt_len", given["rollout_max_context_len"] - 1)
    given.fill("run_name", _run_name(given))
    for name, source in FALLBACKS.items():
        given.fill(name, given[source])


def _from_external(given: Values, external: ExternalFlags) -> None:
    """External flags that Relax has under its own name."""
    for flag in external.given:
        name = SGLANG_MAPPED.get(flag.name) if flag.table == "sglang" else None
        value = flag.value
        if flag.table == "megatron" and flag.name == "bf16":
            name, value = "train_dtype", "bf16"
        if name is None:
            continue
        if flag.table == "sglang":
            value = _whole_number(flag)
        if given.origins.get(name) == "flag" and given[name] != value:
            raise ConfigError(
                f"{flag} is {option_name(name)} {value}, and {option_name(name)} {given[name]} is given: keep one"
            )
        given.values[name] = value
        given.origins.setdefault(name, f"alias {flag.option}")


def _whole_number(flag: ExternalFlag) -> int:
    """The value of a flag that Relax has itself: SGLang's own spellings with a unit (`8k`) are not read."""
    try:
        return int(flag.value)
    except ValueError:
        raise ConfigError(
            f"{flag}: expected a whole number, for it is {option_name(SGLANG_MAPPED[flag.name])}"
        ) from None


def _batch_sizes(given: Values) -> None:
    """Complete rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout."""
    per_prompt = given["n_samples_per_prompt"]
    prompts, batch, steps = (given[n] for n in ("rollout_batch_size", "global_batch_size", "num_steps_per_rollout"))
    if prompts is None and batch is not None:
        prompts = _quotient(
            batch * (steps or 1), per_prompt, "--rollout-batch-size is not given, and --global-batch-size x steps"
        )
        given.fill("rollout_batch_size", prompts)
    if prompts is None:
        return
    if batch is None:
        batch = _quotient(prompts * per_prompt, steps or 1, "--rollout-batch-size x --n-samples-per-prompt")
        given.fill("global_batch_size", batch)
    if (prompts * per_prompt) % batch == 0:
        given.fill("num_steps_per_rollout", prompts * per_prompt // batch)


def _quotient(number: int, divisor: int, what: str) -> int:
    if number % divisor:
        raise ConfigError(f"{what} = {number} does not divide by {divisor}: choose batch sizes that do")
    return number // divisor


def _decay(given: Values) -> None:
    """A decay ends with the run where the number of its steps is known."""
    rounds, steps = given["num_rollout"], given["num_steps_per_rollout"]
    if (
        given["lr_decay_style"] != "constant"
        and rounds is not None
        and given["num_epoch"] is None
        and steps is not None
    ):
        given.fill("lr_decay_iters", rounds * steps)


def _machine_defaults(given: Values, machine: Machine) -> None:
    can_megatron = "megatron" in TRAIN_BACKENDS and machine.gpus > 0 and machine.megatron
    given.fill("train_backend", "megatron" if can_megatron else "fsdp")
    given.fill("train_dtype", "bf16" if machine.gpus else "fp32")
    can_sglang = machine.gpus > 0 and (machine.sglang or given["sglang_python"] is not None)
    given.fill("rollout_backend", "sglang" if can_sglang else "native")
    given.fill("num_gpus_per_node", machine.gpus or 8)
    given.fill("offload_train", given["colocate"])
    given.fill("offload_rollout", given["colocate"])
    given.fill("use_metrics_service", given["serve_http"] and not given["inline"])
    given.fill("bus", "local" if given["inline"] else "transfer_queue")


def _algorithm(given: Values) -> None:
    """What an estimator means besides its formula. An unknown one is refused by its flag's own check."""
    spec = ALGOS.get(given["advantage_estimator"])
    usual = (spec and spec.reduction) or "sample_mean"
    given.fill("loss_reduction", "token_mean" if given["calculate_per_token_loss"] else usual)
    given.fill("normalize_advantages", bool(spec and spec.requires_normalize_advantages))


def _log_prob_source(given: Values) -> None:
    """Old log-probs: the training forward itself where nothing is stale, else the engines' unless TIS corrects."""
    on_policy = given["max_staleness"] == 0 and given["num_steps_per_rollout"] == 1
    given.fill("true_on_policy_mode", on_policy and not given["use_rollout_logprobs"])
    forwarded = given["use_tis"] or "actor_fwd" in (given["resource"] or {})
    stale = given["max_staleness"] > 0 or given["fully_async"]
    given.fill("use_rollout_logprobs", stale and not forwarded and not given["true_on_policy_mode"])


def _distillation(given: Values) -> None:
    engine = given["opd_teacher_url"] is not None or given["teacher_hf_checkpoint"] is not None
    given.fill("opd_type", "sglang" if engine else "megatron")
    given.fill("opd_kl_coef", 0.0 if given["opd_loss_coef"] else 1.0)


def _judge_cards(given: Values) -> int:
    """Of all judges; what their JSON may hold wrongly is told by the checks."""
    instances = given["genrm_instances"]
    if instances:
        cards = [value.get("num_gpus", 1) if isinstance(value, Mapping) else 1 for value in instances.values()]
        return sum(number for number in cards if type(number) is int)
    return 0 if given["genrm_model_path"] is None else given["genrm_num_gpus"] or given["genrm_num_gpus_per_engine"]


def _resources(given: Values, machine: Machine) -> None:
    resource = given["resource"]
    if resource is None:
        proximal = not given["use_rollout_logprobs"] and not given["true_on_policy_mode"]
        resource = default_resource(
            machine.gpus,
            colocate=given["colocate"],
            fully_async=given["fully_async"],
            reference=given["use_kl_loss"] or given["kl_coef"] > 0,
            actor_fwd=proximal,
            rollout_gpus=given["rollout_num_gpus"],
            critic=given["advantage_estimator"] in CRITIC_ESTIMATORS,
            teacher=given["use_opd"] and given["opd_teacher_url"] is None,
            genrm=_judge_cards(given),
        )
        nodes, per_node = given["actor_num_nodes"], given["actor_num_gpus_per_node"]
        if per_node is not None:
            resource["actor"] = [1, (nodes or 1) * per_node]
        if "critic" in resource and given["critic_num_gpus_per_node"] is not None:
            resource["critic"] = [1, (given["critic_num_nodes"] or 1) * given["critic_num_gpus_per_node"]]
        given.fill("resource", freeze(resource))
    roles = parse_resource(given["resource"])
    if given["fully_async"] and "advantages" not in roles:
        given.values["resource"] = freeze({**given["resource"], "advantages": (1, 0)})
        given.origins["resource"] = f"{given.origins['resource']}, advantages derived"
    if "rollout" in roles:
        given.fill("rollout_num_gpus", roles["rollout"].gpus)
    if "actor" in roles and given["actor_num_nodes"] is None and given["actor_num_gpus_per_node"] is None:
        nodes, per_node = split_over_nodes(roles["actor"].gpus, given["num_gpus_per_node"])
        given.fill("actor_num_nodes", nodes)
        given.fill("actor_num_gpus_per_node", per_node)
    elif "actor" in roles and given["actor_num_gpus_per_node"] is not None:
        given.fill("actor_num_nodes", roles["actor"].gpus // given["actor_num_gpus_per_node"])


def _run_name(given: Values) -> str:
    """Model and data in a few letters, fit for a folder name."""
    words = [Path(given[name]).stem for name in ("hf_checkpoint", "prompt_data") if given[name]]
    text = "-".join(words) or "run"
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip("-.")[:80] or "run"
