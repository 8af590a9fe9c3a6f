# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A model's `config.json` in Megatron's words: the architecture flags of its language part.

What the configuration names, it decides. What Hugging Face writes into a model's class instead of its configuration
(norms of queries and keys, gates, biases) stands here in `FAMILIES`, one line a model type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from relax.utils.errors import ConfigError

Config = Mapping[str, Any]


class Fact(NamedTuple):
    """The value of one flag (True and False for a switch), and where it comes from."""

    value: Any
    source: str  # where config.json says so: a key, and its value where that is not the fact itself


@dataclass(frozen=True)
class Family:
    """What a model type means beyond its configuration."""

    qkv_bias: bool = False  # where the configuration has no attention_bias
    qk_norm: bool = False
    zero_centred_norm: bool = False  # norms multiply by 1 + weight
    output_gate: bool = False  # attention output times a gate of its input
    shared_expert_gate: bool = False
    expert_bias: bool = False  # a bias that balances experts enters their choice
    tied: bool = False  # where the configuration has no tie_word_embeddings
    untold: tuple[str, ...] = ()  # what no flag can say


QWEN3 = Family(qk_norm=True)
QWEN3_5 = Family(qk_norm=True, zero_centred_norm=True, output_gate=True, shared_expert_gate=True)
LATENT = Family(qk_norm=True, expert_bias=True)  # multi-latent attention of DeepSeek V3
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "dots_ocr": Family(qkv_bias=True),
    "qwen2_5_vl": Family(qkv_bias=True),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
    "qwen3_omni_moe": QWEN3,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
    "deepseek_v3": LATENT,
    "kimi_k2": LATENT,
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "deepseek_v4": Family(
        qk_norm=True,
        expert_bias=True,
        untold=("compressed sparse attention", "hyper-connections", "the router's sqrtsoftplus scores"),
    ),
    "kimi_linear": Family(
        qk_norm=True,
        expert_bias=True,
        output_gate=True,
        untold=("layers of Kimi delta attention", "the SiTU activation", "attention over earlier layers"),
    ),
    "gemma4": Family(
        qk_norm=True,
        tied=True,
        untold=(
            "the gated GELU",
            "norms after attention and MLP",
            "sliding windows, and head sizes and rotary bases that differ between layers",
        ),
    ),
}


def text_config(config: Config) -> Config:
    """The part of a model's configuration that describes its language model."""
    for key in ("thinker_config", "text_config", "llm_config"):
        if isinstance(config.get(key), Mapping):
            tied = {k: config[k] for k in ("tie_word_embeddings",) if config.get(k) is not None}
            return text_config(tied | dict(config[key]))
    return config


def model_type(config: Config) -> str:
    """The type of the language model, `qwen3_vl` for `qwen3_vl_text`."""
    return str(config.get("model_type", "")).removesuffix("_text")


def describe(config: Config) -> dict[str, Fact]:
    """{flag without dashes: fact} in the order of a model file. A flag that the configuration leaves open is absent.

    A model type that is not in `FAMILIES` is described by its numbers alone.
    """
    text = text_config(config)
    family = FAMILIES.get(model_type(text))
    facts: dict[str, Fact] = {}
    for part in (_size, _attention, _positions, _norms, _latent, _linear_attention, _experts):
        facts.update(part(text, family))
    return {flag: facts[flag] for flag in sorted(facts, key=ORDER.index)}


def untold(config: Config) -> list[str]:
    """What the flags cannot say about a model; Megatron Bridge reads it from config.json."""
    text = text_config(config)
    family = FAMILIES.get(model_type(text), Family())
    found = list(family.untold)
    if text.get("output_gate_type", "sigmoid") != "sigmoid":
        found.append(f"the {text['output_gate_type']} of the attention's output gate")
    return found


def known(config: Config) -> None:
    """Raise ConfigError for a model type that has no entry in `FAMILIES`."""
    kind = model_type(text_config(config))
    if kind not in FAMILIES:
        raise ConfigError(
            f"model_type {kind!r} is not one whose architecture flags can be told ({', '.join(FAMILIES)}): write the "
            "model file by hand, or add the type to FAMILIES in relax/config/external/describe.py"
        )


# --------------------------------------------------------------------------- parts, each {flag: Fact}

Facts = Iterator[tuple[str, Fact]]


def _size(text: Config, family: Family | None) -> Facts:
    yield from _numbers(
        text,
        {
            "num-layers": ("num_hidden_layers",),
            "hidden-size": ("hidden_size",),
            "ffn-hidden-size": ("intermediate_size",),
            "vocab-size": ("vocab_size",),
        },
    )
    activation = text.get("hidden_act") or text.get("hidden_activation")
    if activation is not None:
        yield "swiglu", Fact(activation == "silu", f"hidden_act = {activation}")
    if family:
        tied = bool(text.get("tie_word_embeddings", family.tied))
        yield "untie-embeddings-and-output-weights", Fact(not tied, f"tie_word_embeddings = {tied}")
        yield "disable-bias-linear", Fact(not text.get("mlp_bias", False), f"mlp_bias = {text.get('mlp_bias', False)}")


def _attention(text: Config, family: Family | None) -> Facts:
    heads, groups = text.get("num_attention_heads"), text.get("num_key_value_heads")
    yield from _numbers(text, {"num-attention-heads": ("num_attention_heads",)})
    if family:
        bias = bool(text.get("attention_bias", family.qkv_bias))
        yield "add-qkv-bias", Fact(bias, f"attention_bias = {bias}")
        yield "qk-layernorm", Fact(family.qk_norm, f"model_type = {text['model_type']}")
        yield "attention-output-gate", Fact(family.output_gate, f"model_type = {text['model_type']}")
    if "kv_lora_rank" in text:
        return
    if groups is not None and heads is not None:
        yield "group-query-attention", Fact(groups != heads, f"num_key_value_heads = {groups}")
        yield "num-query-groups", Fact(groups, "num_key_value_heads")
    width = text.get("head_dim")
    if width is not None:
        yield "kv-channels", Fact(width, "head_dim")
    elif heads and text.get("hidden_size"):
        yield "kv-channels", Fact(text["hidden_size"] // heads, "hidden_size / num_attention_heads")


def _positions(text: Config, family: Family | None) -> Facts:
    if text.get("mla_use_nope"):
        yield "position-embedding-type", Fact("none", "mla_use_nope = True")
        return
    rope = _rope(text)
    base, share = rope.get("rope_theta"), rope.get("partial_rotary_factor")
    kind, section = rope.get("rope_type") or rope.get("type"), rope.get("mrope_section")
    if base is not None:
        yield "rotary-base", Fact(int(base), "rope_theta")
    if share is not None:
        yield "rotary-percent", Fact(float(share), "partial_rotary_factor")
    if section:
        yield "position-embedding-type", Fact("mrope", "mrope_section")
        yield "mrope-section", Fact(tuple(section), "mrope_section")
    elif family:
        yield "use-rotary-position-embeddings", Fact(True, f"model_type = {text['model_type']}")
    if kind == "llama3" and rope.get("factor") is not None:
        yield "use-rope-scaling", Fact(True, "rope_type = llama3")
        yield "rope-scaling-factor", Fact(float(rope["factor"]), "rope_scaling.factor")
    if "kv_lora_rank" in text:
        yield "rope-type", Fact("yarn" if kind == "yarn" else "rope", f"rope_type = {kind}")
        for flag, key in YARN.items() if kind == "yarn" else ():
            if rope.get(key) is not None:
                yield flag, Fact(float(rope[key]), f"rope_scaling.{key}")


YARN = {"rotary-scaling-factor": "factor", "mscale": "mscale", "mscale-all-dim": "mscale_all_dim"}


def _rope(text: Config) -> dict[str, Any]:
    """Rotary settings, wherever a version of transformers has put them; none where layers differ in them."""
    rope = {key: text[key] for key in ("rope_theta", "partial_rotary_factor") if text.get(key) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        given = text.get(key)
        if isinstance(given, Mapping):
            rope |= given
    return rope


def _norms(text: Config, family: Family | None) -> Facts:
    yield from _numbers(text, {"norm-epsilon": ("rms_norm_eps", "layer_norm_eps")})
    if "rms_norm_eps" in text:
        yield "normalization", Fact("RMSNorm", f"rms_norm_eps = {text['rms_norm_eps']}")
    if family:
        yield "apply-layernorm-1p", Fact(family.zero_centred_norm, f"model_type = {text['model_type']}")


def _latent(text: Config, family: Family | None) -> Facts:
    """Multi-latent attention, and the index that chooses its keys."""
    if "kv_lora_rank" not in text:
        return
    yield "multi-latent-attention", Fact(True, f"kv_lora_rank = {text['kv_lora_rank']}")
    yield from _numbers(
        text,
        {
            "q-lora-rank": ("q_lora_rank",),
            "kv-lora-rank": ("kv_lora_rank",),
            "qk-head-dim": ("qk_nope_head_dim",),
            "qk-pos-emb-head-dim": ("qk_rope_head_dim",),
            "v-head-dim": ("v_head_dim",),
            "dsa-indexer-n-heads": ("index_n_heads",),
            "dsa-indexer-head-dim": ("index_head_dim",),
            "dsa-indexer-topk": ("index_topk",),
        },
    )
    if "index_topk" in text:
        yield "experimental-attention-variant", Fact("dsa", f"index_topk = {text['index_topk']}")


def _linear_attention(text: Config, family: Family | None) -> Facts:
    """Layers of gated delta nets between those of full attention."""
    if "linear_num_value_heads" not in text:
        return
    yield "experimental-attention-variant", Fact("gated_delta_net", "linear_num_value_heads is there")
    yield from _numbers(
        text,
        {
            "linear-conv-kernel-dim": ("linear_conv_kernel_dim",),
            "linear-key-head-dim": ("linear_key_head_dim",),
            "linear-value-head-dim": ("linear_value_head_dim",),
            "linear-num-key-heads": ("linear_num_key_heads",),
            "linear-num-value-heads": ("linear_num_value_heads",),
        },
    )
    types, interval = text.get("layer_types"), text.get("full_attention_interval")
    if types:
        kinds = [int(kind == "linear_attention") for kind in types]
        full = kinds.index(0) + 1 if 0 in kinds else 0
        regular = full and kinds == [int(layer % full != 0) for layer in range(1, len(kinds) + 1)]
        yield "linear-attention-freq", Fact(str(full) if regular else str(kinds), "layer_types")
    elif interval:
        yield "linear-attention-freq", Fact(str(interval), "full_attention_interval")


def _experts(text: Config, family: Family | None) -> Facts:
    numbers = {
        "num-experts": ("num_experts", "n_routed_experts", "num_local_experts"),
        "moe-router-topk": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        "moe-ffn-hidden-size": ("moe_intermediate_size",),
        "moe-latent-size": ("routed_expert_hidden_size",),
        "moe-shared-expert-intermediate-size": ("shared_expert_intermediate_size",),
        "moe-router-topk-scaling-factor": ("routed_scaling_factor",),
    }
    found = dict(_numbers(text, numbers))
    if "num-experts" not in found:
        return
    yield from found.items()
    shared = text.get("n_shared_experts") or text.get("num_shared_experts")
    if shared and "moe-ffn-hidden-size" in found:
        width = shared * found["moe-ffn-hidden-size"].value
        yield "moe-shared-expert-intermediate-size", Fact(width, f"{shared} shared experts x moe_intermediate_size")
    if (text.get("n_group") or 1) > 1:
        yield from _numbers(text, {"moe-router-num-groups": ("n_group",), "moe-router-group-topk": ("topk_group",)})
    layers = _expert_layers(text)
    if layers:
        yield "moe-layer-freq", layers
    if family:
        score = text.get("scoring_func") or text.get("moe_router_activation_func")
        score = score or ("sigmoid" if family.expert_bias else "softmax")
        if score in ("softmax", "sigmoid"):
            yield "moe-router-score-function", Fact(score, "scoring_func")
        if score == "softmax" and "norm_topk_prob" in text:
            normed = text["norm_topk_prob"]
            yield "moe-router-pre-softmax", Fact(not normed, f"norm_topk_prob = {normed}")
        kind = f"model_type = {text['model_type']}"
        yield "moe-router-enable-expert-bias", Fact(family.expert_bias, kind)
        yield "moe-shared-expert-gate", Fact(family.shared_expert_gate, kind)


def _expert_layers(text: Config) -> Fact | None:
    """Which layers have experts, `[0]*3+[1]*75`; None where all have."""
    layers, dense = text.get("num_hidden_layers") or 0, text.get("first_k_dense_replace") or 0
    if text.get("mlp_layer_types"):
        kinds, source = [int(kind != "dense") for kind in text["mlp_layer_types"]], "mlp_layer_types"
    elif dense:
        kinds, source = [0] * dense + [1] * (layers - dense), f"first_k_dense_replace = {dense}"
    else:
        step, only = text.get("decoder_sparse_step") or 1, text.get("mlp_only_layers") or ()
        kinds = [int((layer + 1) % step == 0 and layer not in only) for layer in range(layers)]
        source = f"decoder_sparse_step = {step}, mlp_only_layers = {list(only)}"
    if all(kinds):
        return None
    first = kinds.index(1) if 1 in kinds else len(kinds)
    if kinds == [0] * first + [1] * (len(kinds) - first):
        return Fact(f"[0]*{first}+[1]*{len(kinds) - first}", source)
    return Fact(str(kinds).replace(" ", ""), source)


def _numbers(text: Config, flags: Mapping[str, tuple[str, ...]]) -> Facts:
    """Flags that hold the number of the first key that the configuration has."""
    for flag, keys in flags.items():
        key = next((key for key in keys if text.get(key) is not None), None)
        if key is not None:
            yield flag, Fact(text[key], key)


# The order of a model file; every architecture flag is in it.
ORDER: tuple[str, ...] = tuple(
    """
    swiglu num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention num-query-groups
    multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim
    position-embedding-type mrope-section use-rotary-position-embeddings disable-bias-linear add-qkv-bias normalization
    norm-epsilon rotary-base rotary-percent use-rope-scaling rope-scaling-factor rope-type rotary-scaling-factor mscale
    mscale-all-dim vocab-size kv-channels qk-layernorm apply-layernorm-1p attention-output-gate
    untie-embeddings-and-output-weights experimental-attention-variant linear-attention-freq linear-conv-kernel-dim
    linear-key-head-dim linear-value-head-dim linear-num-key-heads linear-num-value-heads dsa-indexer-n-heads
    dsa-indexer-head-dim dsa-indexer-topk num-experts moe-ffn-hidden-size moe-latent-size moe-router-topk
    moe-layer-freq moe-shared-expert-intermediate-size moe-shared-expert-gate moe-router-score-function
    moe-router-pre-softmax moe-router-topk-scaling-factor moe-router-enable-expert-bias moe-router-num-groups
    moe-router-group-topk
    """.split()  # noqa: SIM905
)
