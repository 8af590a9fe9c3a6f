# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Other model families: exact here, equal to transformers' own eager forward, or refused with a reason."""

import numpy as np
import pytest
import torch

from relax.backends.exact.media import PlacedItem
from relax.backends.exact.model import ExactModel
from relax.backends.exact.probe import probe
from relax.backends.exact.segments import Segment, build_plan
from relax.utils.errors import ConfigError
from tests.builders import perturb_weights, tiny_tokenizer
from tests.unit.backends.training_cases import image, prompt_with

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}


def _build(family, **extra):
    import transformers

    config = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    config = config(**SIZES, **extra)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    perturb_weights(model)
    return model


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("Llama", {}),
        ("Qwen2", {}),
        ("Mistral", {"sliding_window": 6}),
        ("Gemma3", {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}),
        ("Mixtral", EXPERTS),
        ("Qwen2Moe", EXPERTS | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}),
    ],
)
def test_a_family_is_exact_and_equals_its_own_eager_forward(family, extra):
    model = _build(family, **extra)
    tokens = np.random.default_rng(0).integers(20, 300, 17)
    with torch.no_grad():
        right = model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0]
        exact = ExactModel(model)
        packed = build_plan([Segment(tokens[:9]), Segment(tokens[9:], 0)], multiple=exact.query_multiple)
        found = exact.logits(exact.hidden(packed.tokens, packed.positions, packed.plan)[:17])
    assert probe(exact)[0], probe(exact)[1]
    torch.testing.assert_close(found, right, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "extra", "reason"),
    [
        ("Gemma2", {"head_dim": 16}, "attn_logit_softcapping"),
        (
            "GptOss",
            EXPERTS | {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "has_bias",
        ),
        ("Qwen3Next", EXPERTS | {"head_dim": 16}, "linear_attention"),
    ],
)
def test_a_family_that_cannot_be_packed_is_refused_at_load(family, extra, reason):
    with pytest.raises(ConfigError, match=reason):
        ExactModel(_build(family, **extra))


def test_images_of_qwen2_5_vl_equal_its_own_forward():
    import transformers

    ids = tiny_tokenizer().convert_tokens_to_ids
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>"}
    text = SIZES | {"rope_parameters": ROPE | {"mrope_section": [4, 2, 2]}}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64}
    vision |= {"patch_size": 8, "window_size": 32, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, **{f"{k}_token_id": ids(v) for k, v in names.items()}
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    perturb_weights(model)
    media = (image(1, (1, 8, 8)), image(2, (1, 4, 6)))
    prompt = prompt_with(media, np.random.default_rng(0))
    tokens = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.no_grad():
        right = model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == config.image_token_id).int(),
            pixel_values=torch.cat([torch.from_numpy(m.tensors["pixel_values"]) for m in media]),
            image_grid_thw=torch.stack([torch.from_numpy(m.tensors["image_grid_thw"]) for m in media]),
            use_cache=False,
        ).logits[0]
        exact = ExactModel(model)
        packed = build_plan([Segment(prompt, positions=exact.positions(prompt, media))], multiple=exact.query_multiple)
        rows = exact.media_rows(prompt, media)
        placed = [PlacedItem(e, r) for e, r in zip(exact.encode_media(media), rows, strict=True)]
        found = exact.logits(exact.hidden(packed.tokens, packed.positions, packed.plan, placed)[: len(prompt)])
    torch.testing.assert_close(found, right, atol=2e-5, rtol=1e-5)
