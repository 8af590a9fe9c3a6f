# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Resume to the bit, refusal of foreign checkpoints, and exports that plain transformers loads."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.model import load_model
from relax.backends.exact.segments import engine_plan
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.fsdp.optimizer import learning_rate
from relax.utils.errors import ConfigError
from tests.builders import build_tiny_model, tiny_tokenizer
from tests.unit.backends.training_cases import ClippedPolicyLoss, folder_of, groups, image, one_part, opened

SPEC = OptimizerSpec(lr=3e-3, warmup_steps=3, decay_style="cosine", decay_steps=6, weight_decay=0.01)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def _train(backend, steps, media=None):
    for step in steps:
        backend.backward(one_part(groups(media if step != 1 else None, seed=step), 5), ClippedPolicyLoss())
        backend.step(20.0)
    return backend


@pytest.mark.parametrize(
    ("kind", "dtype", "media"),
    [("qwen3", "fp32", None), ("qwen3_moe", "bf16", None), ("qwen3_omni", "fp32", {0: (image(1),)})],
)
def test_four_steps_equal_two_and_a_resume_with_two(base, tmp_path, kind, dtype, media):
    folder = folder_of(base, kind)
    whole = _train(opened(folder, optimizer=SPEC, dtype=dtype), range(4), media)
    _train(opened(folder, optimizer=SPEC, dtype=dtype), range(2), media).save(tmp_path / "iter_0000002")
    assert [p.name for p in tmp_path.iterdir()] == ["iter_0000002"]
    resumed = opened(folder, optimizer=SPEC, dtype=dtype)
    resumed.load(tmp_path / "iter_0000002")
    _train(resumed, range(2, 4), media)
    for own, other in zip(resumed._shards, whole._shards, strict=True):
        assert torch.equal(own.master, other.master), own.name
    assert resumed.num_steps == 4


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_offloaded_optimizer_takes_the_same_steps_and_reads_either_checkpoint(base, tmp_path, dtype):
    folder, offloaded = folder_of(base, "qwen3"), replace(SPEC, offload=True)
    plain = _train(opened(folder, optimizer=SPEC, dtype=dtype), range(4))
    for first, second in ((SPEC, offloaded), (offloaded, SPEC), (offloaded, offloaded)):
        _train(opened(folder, optimizer=first, dtype=dtype), range(2)).save(tmp_path / "c")
        resumed = opened(folder, optimizer=second, dtype=dtype)
        resumed.load(tmp_path / "c")
        _train(resumed, range(2, 4))
        for own, other in zip(resumed._shards, plain._shards, strict=True):
            assert torch.equal(own.master, other.master), own.name
            pair = resumed._adam.moments(own), plain._adam.moments(other)
            assert all(torch.equal(pair[0][name], pair[1][name]) for name in ("exp_avg", "exp_avg_sq"))


def test_saving_over_a_checkpoint_replaces_it_whole(base, tmp_path):
    backend = opened(folder_of(base, "qwen3"), optimizer=SPEC)
    backend.save(tmp_path / "c")
    _train(backend, range(1)).save(tmp_path / "c")
    other = opened(folder_of(base, "qwen3"), optimizer=SPEC)
    other.load(tmp_path / "c")
    assert other.num_steps == 1 and [p.name for p in tmp_path.iterdir()] == ["c"]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(other.weights(), backend.weights(), strict=True))


def test_weights_alone_can_be_loaded_and_leave_a_fresh_optimizer(base, tmp_path):
    _train(opened(folder_of(base, "qwen3"), optimizer=SPEC), range(2)).save(tmp_path / "c")
    fresh = opened(folder_of(base, "qwen3"), optimizer=SPEC)
    fresh.load(tmp_path / "c", optimizer=False)
    assert fresh.num_steps == 0 and not fresh._adam.adam.state
    reference = FsdpBackend()
    reference.open(ModelSpec(folder_of(base, "qwen3"), trainable=False), None)
    reference.load(tmp_path / "c")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(reference.weights(), fresh.weights(), strict=True))


def test_a_checkpoint_of_another_model_is_refused_with_the_shapes(base, tmp_path):
    opened(folder_of(base, "qwen3"), optimizer=SPEC).save(tmp_path / "c")
    model = build_tiny_model("qwen3")
    model.config.intermediate_size = 96
    type(model)(model.config).save_pretrained(tmp_path / "other")
    other = opened(tmp_path / "other", optimizer=SPEC)
    with pytest.raises(ConfigError, match=r"gate_proj\.weight: checkpoint \[128, 64\], model \[96, 64\]"):
        other.load(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"patch_embed.* not in the checkpoint"):
        opened(folder_of(base, "qwen3_vl")).load(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"no relax\.json there"):
        other.load(tmp_path)


@pytest.mark.parametrize(("kind", "dtype"), [("qwen3", "fp32"), ("qwen3_moe", "fp32"), ("qwen3", "bf16")])
def test_an_engine_that_loads_the_export_decodes_with_the_bits_of_the_trainer(base, tmp_path, kind, dtype):
    backend = _train(opened(folder_of(base, kind), optimizer=SPEC, dtype=dtype), range(1))
    backend.export_hf(tmp_path / "out")
    engine = load_model(tmp_path / "out", dtype).eval()
    assert all(p.data_ptr() % 64 == 0 for p in engine.parameters())
    sequence = groups(num_groups=1, size=1, longest=30)[0]
    pool = KVPool(engine.num_layers, 100, engine.num_kv_heads, engine.head_dim, engine.head.weight.dtype)
    rows, start, found = pool.alloc(len(sequence.tokens)), 0, []
    for end in range(sequence.prompt_len, len(sequence.tokens)):
        counts = np.asarray([end]), np.asarray([end - start])
        plan = engine_plan(pool, rows[None], *counts, multiple=engine.query_multiple)
        tokens = torch.from_numpy(sequence.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            hidden = engine.hidden(tokens, torch.arange(start, end), plan)
            found.append(engine.distribution(hidden[end - start - 1 : end - start])[0, sequence.tokens[end]])
        start = end
    right = backend.score(one_part([sequence]), frozenset({"log_probs"}))[sequence.uid]["log_probs"]
    assert torch.equal(torch.stack(found), torch.from_numpy(right))


def _tied_folder(path):
    model = build_tiny_model("qwen3")
    model.config.tie_word_embeddings = True
    tied = type(model)(model.config)
    tied.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def test_tied_weights_are_given_once_and_exported_for_plain_transformers(tmp_path):
    import transformers

    backend = _train(opened(_tied_folder(tmp_path / "tied"), optimizer=SPEC), range(2))
    names = [n for n, _ in backend.weights()]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert len(names) == len(set(names))
    backend.export_hf(tmp_path / "out")
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert own.lm_head.weight is own.model.embed_tokens.weight
    weights = dict(backend.weights())
    assert all(torch.equal(p, weights[n]) for n, p in own.named_parameters())


def test_R9_tied_weights_are_one_tensor_after_a_resume_too(tmp_path):
    folder = _tied_folder(tmp_path / "tied")
    backend = _train(opened(folder, optimizer=SPEC), range(2))
    backend.save(tmp_path / "checkpoint")
    resumed = opened(folder, optimizer=SPEC)
    resumed.load(tmp_path / "checkpoint")
    hf = resumed.model.hf
    assert hf.lm_head.weight is hf.model.embed_tokens.weight
    _train(backend, range(2, 4)), _train(resumed, range(2, 4))
    for (name, whole), (_, tensor) in zip(backend.weights(), resumed.weights(), strict=True):
        assert torch.equal(whole, tensor), name


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "qwen3_omni", "qwen3_vl"])
def test_an_export_gives_plain_transformers_the_same_logits(base, tmp_path, kind):
    import transformers

    folder = folder_of(base, kind)
    backend = _train(opened(folder, optimizer=SPEC), range(1))
    backend.export_hf(tmp_path / "out")
    assert {p.name for p in folder.iterdir()} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "relax" not in (tmp_path / "out" / "config.json").read_text()
    own = getattr(transformers, type(backend.model.hf).__name__).from_pretrained(tmp_path / "out", dtype=torch.float32)
    sequence = groups()[0]
    ids = torch.from_numpy(sequence.tokens.astype("int64"))[None]
    with torch.no_grad():
        full = own(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].log_softmax(-1)
    places = torch.arange(sequence.prompt_len, ids.shape[1])
    right = full[places - 1, ids[0, places]]
    found = backend.score(one_part([sequence]), frozenset({"log_probs"}))[sequence.uid]["log_probs"]
    torch.testing.assert_close(torch.from_numpy(found), right, atol=1e-5, rtol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|im_end|>"


def test_a_thinker_is_exported_inside_its_full_folder(base, tmp_path):
    source = folder_of(base, "qwen3_omni")
    full = tmp_path / "full"
    full.mkdir()
    thinker = json.loads((source / "config.json").read_text())
    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": thinker,
        "enable_audio_output": False,
    }
    (full / "config.json").write_text(json.dumps(config))
    tensors = {f"thinker.{k}": v for k, v in load_file(source / "model.safetensors").items()}
    tensors["code2wav.weight"] = torch.arange(3.0)
    save_file(tensors, full / "model.safetensors", metadata={"format": "pt"})
    backend = _train(opened(full, optimizer=SPEC), range(1))
    backend.export_hf(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert sorted(written) == sorted(tensors)
    assert torch.equal(written["code2wav.weight"], torch.arange(3.0))
    again = opened(tmp_path / "out", optimizer=SPEC)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again.weights(), backend.weights(), strict=True))


def test_learning_rate_schedule_by_hand():
    spec = OptimizerSpec(lr=1.0, warmup_steps=4, decay_style="linear", decay_steps=8, min_lr=0.2)
    assert [learning_rate(spec, s) for s in range(9)] == pytest.approx([0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = OptimizerSpec(lr=1.0, decay_style="cosine", decay_steps=2)
    assert [learning_rate(cosine, s) for s in range(3)] == pytest.approx([0.5, 0.0, 0.0])
    assert learning_rate(OptimizerSpec(lr=0.3), 10**6) == 0.3
