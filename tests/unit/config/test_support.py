# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""No flag is accepted and ignored: each is read by the product, settled while configuring, or refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import relax
from relax.config.command_line import SECTION_OF
from relax.config.flags import option_name
from relax.config.support import PENDING, later_feature

# settled while the configuration is made: other values, properties of RunConfig or refusals follow from them
SETTLED = frozenset(
    """
    actor_num_nodes actor_num_gpus_per_node num_gpus_per_node train_backend bus
    num_steps_per_rollout true_on_policy_mode use_rollout_logprobs megatron_to_hf_mode qkv_format loss_type
    critic_num_nodes critic_num_gpus_per_node num_critic_only_steps critic_train_only
    genrm_model_path genrm_num_gpus genrm_num_gpus_per_engine genrm_engine_config genrm_sampling_config genrm_instances
    num_rollout num_epoch eval_prompt_data eval_config eval_input_key eval_label_key eval_tool_key custom_config_path
    lora_merge_mode calculate_per_token_loss
    custom_dataset_class sft_max_in_flight_steps sft_tq_shards
    """.split()  # noqa: SIM905
)
FOR_HOOKS = frozenset({"max_turns"})


def read_by_the_product() -> set[str]:
    """Flags that some file outside `relax/config` reads as an attribute or names as a text."""
    package = Path(relax.__path__[0])
    text = "\n".join(
        file.read_text() for file in package.rglob("*.py") if "config" not in file.relative_to(package).parts
    )
    return {name for name in SECTION_OF if re.search(rf'\.{name}\b|"{name}"', text)}


def test_a_flag_that_nothing_reads_is_refused() -> None:
    ignored = set(SECTION_OF) - read_by_the_product() - SETTLED - FOR_HOOKS - PENDING
    assert [option_name(name) for name in sorted(ignored)] == [], (
        "read them, or refuse them in relax/config/support.py"
    )


def test_a_flag_that_works_is_not_refused() -> None:
    works = PENDING & read_by_the_product()
    assert [option_name(name) for name in sorted(works)] == [], "remove them from PENDING in relax/config/support.py"


def texts_of_errors(tree: ast.AST) -> Iterator[str]:
    """Every text inside a `raise`; `...` stands where an f-string puts a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            inside = list(ast.walk(node))
            pieces = {id(part) for text in inside if isinstance(text, ast.JoinedStr) for part in text.values}
            for part in inside:
                if isinstance(part, ast.JoinedStr):
                    yield "".join(str(v.value) if isinstance(v, ast.Constant) else "..." for v in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in pieces:
                    yield part.value


def test_errors_name_flags_that_exist() -> None:
    package = Path(relax.__path__[0])
    known = {option_name(name) for name in SECTION_OF} | {option_name(f"no_{name}") for name in SECTION_OF}
    known |= {"--help", "--dry-run", "--head", "--resources"}  # the last two are of `ray start`
    known |= {"--run", "--step", "--sample", "--metric", "--row"}  # of `relax replay`, `relax why` and `relax render`
    known |= {"--run-dir", "--iteration", "--output-dir", "--adapter"}  # of tools that export and merge
    unknown = {}
    for file in package.rglob("*.py"):
        if {"native", "sglang", "conformance"} & set(file.parts):  # they name flags of commands of their own
            continue
        for text in texts_of_errors(ast.parse(file.read_text())):
            found = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-]|\.\.\.|\*)", text)
            found = [
                name for name in found if name not in known and later_feature(name) is None
            ]  # refused until it works
            unknown |= dict.fromkeys(found, str(file.relative_to(package)))
    assert unknown == {}
