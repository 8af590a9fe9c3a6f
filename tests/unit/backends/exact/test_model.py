# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The shared forward: bits of engine and trainer, media, and agreement with the models' own forward."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.media import PlacedItem
from relax.backends.exact.model import load_model
from relax.backends.exact.probe import probe
from relax.backends.exact.segments import Segment, build_plan, engine_plan
from relax.utils.errors import ConfigError, DataError
from tests.builders import MODEL_KINDS
from tests.unit.backends.training_cases import audio, folder_of, image, prompt_with


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(base):
    return {kind: load_model(folder_of(base, kind)).eval() for kind in MODEL_KINDS}


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_the_probe_finds_this_machine_exact(models, kind):
    exact, reason = probe(models[kind])
    assert exact, reason


def test_another_attention_is_reported_as_not_exact_and_agrees_to_rounding(models, base):
    fused = load_model(folder_of(base, "qwen3"), attn="sdpa").eval()
    assert probe(fused) == (False, "attention 'sdpa' is not the exact one")
    packed = build_plan([Segment(np.arange(20, 60)), Segment(np.arange(30, 35), 0)], multiple=fused.query_multiple)
    with torch.no_grad():
        a = fused.hidden(packed.tokens, packed.positions, packed.plan)
        b = models["qwen3"].hidden(packed.tokens, packed.positions, packed.plan)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def _responses(generator, count=5):
    return [generator.integers(20, 250, generator.integers(1, 9)) for _ in range(count)]


def _train(model, prompt, media, responses):
    """Hidden rows of each response token, from one packed forward; prompt media at their rows."""
    positions = model.positions(prompt, media)
    segments = [Segment(prompt, positions=positions), *(Segment(r, 0) for r in responses)]
    packed = build_plan(segments, multiple=model.query_multiple)
    placed = [
        PlacedItem(item, rows)
        for item, rows in zip(model.encode_media(media), model.media_rows(prompt, media), strict=True)
    ]
    hidden = model.hidden(packed.tokens, packed.positions, packed.plan, placed)
    return [hidden[packed.starts[i + 1] : packed.starts[i + 2]] for i in range(len(responses))]


def _serve(model, prompt, media, responses, split):
    """The same rows: prefill in two pieces, then one request after the other joins the decode batch."""
    pool = KVPool(model.num_layers, 600, model.num_kv_heads, model.head_dim)
    positions = model.positions(prompt, media)
    first = int(positions.max()) + 1
    shared = pool.alloc(len(prompt))
    encoded = [model.encode_media([item])[0] for item in media]
    rows = model.media_rows(prompt, media)
    for start, end in ((0, split), (split, len(prompt))):
        plan = engine_plan(
            pool, shared[None], np.asarray([end]), np.asarray([end - start]), multiple=model.query_multiple
        )
        placed = [
            PlacedItem(item, where - start)
            for item, where in zip(encoded, rows, strict=True)
            if start <= where[0] and where[-1] < end
        ]
        model.hidden(
            torch.from_numpy(prompt[start:end].astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(positions[..., start:end])),
            plan,
            placed,
        )
    table = np.stack([np.concatenate([shared, pool.alloc(10)]) for _ in responses])
    done = [0] * len(responses)
    out: list[list[torch.Tensor]] = [[] for _ in responses]
    for step in range(100):
        alive = [i for i, r in enumerate(responses) if i <= step and done[i] < len(r)]
        if not alive:
            break
        lengths = np.asarray([len(prompt) + done[i] + 1 for i in alive])
        plan = engine_plan(pool, table[alive], lengths, np.ones(len(alive), int), multiple=model.query_multiple)
        where = torch.tensor([first + done[i] for i in alive])
        where = where.expand(3, -1) if positions.ndim == 2 else where
        tokens = torch.tensor([int(responses[i][done[i]]) for i in alive])
        hidden = model.hidden(tokens, where, plan)
        for i, row in zip(alive, hidden, strict=False):
            out[i].append(row)
            done[i] += 1
    return [torch.stack(rows) for rows in out]


@pytest.mark.parametrize(
    ("kind", "media"),
    [
        ("qwen3", ()),
        ("qwen3_moe", ()),
        ("qwen3_omni", (image(1), audio(2, 70))),
        ("qwen3_omni", (audio(3, 230), image(4, (1, 8, 4)), image(5, (1, 2, 2)))),
        ("qwen3_vl", (image(6), image(7, (1, 6, 10)))),
    ],
)
def test_decode_in_changing_company_has_the_bits_of_the_training_forward(models, kind, media):
    generator = np.random.default_rng(3)
    prompt = prompt_with(media, generator)
    responses = _responses(generator)
    split = 2
    with torch.enable_grad():
        trained = _train(models[kind], prompt, media, responses)
    with torch.no_grad():
        served = _serve(models[kind], prompt, media, responses, split)
    for a, b in zip(trained, served, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_a_long_context_keeps_its_bits(models, kind):
    model = models[kind]
    tokens = np.random.default_rng(0).integers(20, 250, 450)
    with torch.no_grad():
        alone = build_plan([Segment(tokens)], multiple=model.query_multiple)
        right = model.hidden(alone.tokens, alone.positions, alone.plan)[:450]
        mixed = build_plan(
            [Segment(tokens[:7]), Segment(tokens), Segment(tokens[:333])], multiple=model.query_multiple
        )
        assert torch.equal(model.hidden(mixed.tokens, mixed.positions, mixed.plan)[7:457], right)
        pool = KVPool(model.num_layers, 450, model.num_kv_heads, model.head_dim)
        rows, start = pool.alloc(450), 0
        for end in (101, 102, 307, 449, 450):
            plan = engine_plan(
                pool, rows[None], np.asarray([end]), np.asarray([end - start]), multiple=model.query_multiple
            )
            part = model.hidden(torch.from_numpy(tokens[start:end]), torch.arange(start, end), plan)
            assert torch.equal(part[: end - start], right[start:end])
            start = end


def test_an_item_has_the_same_bits_alone_and_in_a_batch(models):
    model = models["qwen3_omni"]
    items = [image(1), audio(2, 30), image(3, (1, 2, 2)), audio(4, 230), audio(5, 100), image(6, (1, 8, 8))]
    with torch.no_grad():
        together = model.encode_media(items)
        for item, encoded in zip(items, together, strict=True):
            alone = model.encode_media([item])[0]
            assert encoded.kind == item.kind and len(encoded.embeds) == item.num_tokens
            assert torch.equal(alone.embeds, encoded.embeds)
            assert all(torch.equal(a, b) for a, b in zip(alone.deepstack, encoded.deepstack, strict=True))


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_packed_log_probs_equal_the_models_own_eager_forward(models, base, kind):
    """Oracle: transformers' eager attention and experts, each sequence alone."""
    import transformers

    own = transformers.AutoModelForCausalLM.from_pretrained(
        folder_of(base, kind), dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    generator = np.random.default_rng(1)
    prompt, responses = generator.integers(20, 250, 7), _responses(generator)
    model = models[kind]
    with torch.no_grad():
        for response, hidden in zip(responses, _train(model, prompt, (), responses), strict=True):
            ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
            right = own(input_ids=ids, use_cache=False).logits[0, len(prompt) :].double().log_softmax(-1)
            torch.testing.assert_close(model.distribution(hidden).double(), right, atol=1e-5, rtol=1e-5)


def test_omni_rows_equal_the_models_own_forward(models, base):
    import transformers

    own = transformers.Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
        folder_of(base, "qwen3_omni"), dtype=torch.float32
    )
    media = (image(1), audio(2, 200))
    generator = np.random.default_rng(5)
    prompt, responses = prompt_with(media, generator), _responses(generator, 2)
    model = models["qwen3_omni"]
    with torch.no_grad():
        for response, hidden in zip(responses, _train(model, prompt, media, responses), strict=True):
            ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
            right = own(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=torch.from_numpy(media[0].tensors["pixel_values"]),
                image_grid_thw=torch.from_numpy(media[0].tensors["image_grid_thw"])[None],
                input_features=torch.from_numpy(media[1].tensors["input_features"])[None],
                feature_attention_mask=torch.ones(1, 200, dtype=torch.long),
                use_cache=False,
            ).logits[0, len(prompt) :]
            right = right.double().log_softmax(-1)
            torch.testing.assert_close(model.distribution(hidden).double(), right, atol=2e-5, rtol=1e-5)


def test_placeholders_and_features_must_agree(models):
    model = models["qwen3_omni"]
    media = (image(1),)
    prompt = prompt_with(media, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"5 image placeholder tokens .* for image features of 4 tokens"):
        model.media_rows(np.append(prompt, model.placeholder_ids["image"]), media)
    with pytest.raises(DataError, match="image_grid_thw"):
        broken = image(1)
        broken.tensors.pop("image_grid_thw")
        model.positions(prompt, (broken,))


def test_a_full_omni_folder_loads_its_thinker(base, models, tmp_path):
    source = folder_of(base, "qwen3_omni")
    thinker = json.loads((source / "config.json").read_text())
    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": thinker,
        "enable_audio_output": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {f"thinker.{k}": v for k, v in load_file(source / "model.safetensors").items()}
    tensors["code2wav.weight"] = torch.ones(3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(tmp_path)
    right = dict(models["qwen3_omni"].named_parameters())
    assert all(torch.equal(p, right[n]) for n, p in loaded.named_parameters())


def test_folders_that_cannot_be_used_are_refused_with_their_flag(tmp_path, base):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "qwen3"}')
    with pytest.raises(ConfigError, match=r"--hf-checkpoint .* no class NoSuchModel"):
        load_model(tmp_path)
    source = folder_of(base, "qwen3")
    tensors = load_file(source / "model.safetensors")
    tensors.pop("lm_head.weight")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"miss 1 tensors .*lm_head.weight"):
        load_model(tmp_path)
