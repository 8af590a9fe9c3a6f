# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Adapters against autograd on merged matrices and against peft, whose files we write."""

import json

import numpy as np
import pytest
import torch
import transformers

from relax.backends.additions import ClassHead, LoraSpec
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.exact.low_rank import merged_weight
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.fsdp.lora import LoraLinear
from relax.backends.fsdp.lora_files import merge_adapter
from relax.utils.cores import CoreShare
from relax.utils.errors import ConfigError
from tests.unit.backends.training_cases import (
    LogProbLoss,
    folder_of,
    gradients,
    groups,
    one_part,
    worst_difference,
)

LOG_PROBS = frozenset({"log_probs"})
ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
SPEC = LoraSpec(4, 16.0, ALL, seed=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def opened(folder, spec: LoraSpec | None = SPEC, *, cores: CoreShare | None = None, **more) -> FsdpBackend:
    backend = FsdpBackend(cores=cores)
    backend.open(ModelSpec(folder, lora=spec, **more), OptimizerSpec(lr=1e-2))
    return backend


def trained(folder, spec: LoraSpec = SPEC, steps: int = 3, **more) -> FsdpBackend:
    """A backend whose adapters are no longer zero."""
    backend = opened(folder, spec, **more)
    for _ in range(steps):
        backend.backward(one_part(groups(), 5), LogProbLoss())
        backend.step(20.0)
    return backend


def test_E4_an_adapter_of_alpha_16_and_rank_4_adds_four_times_b_a():
    a, b = torch.tensor([[1.0, 2.0]]).expand(4, 2), torch.ones(3, 4)
    # B A: each entry is 4 x (1, 2); scale 16 / 4 = 4
    found = merged_weight(torch.zeros(3, 2), a, b, LoraSpec(4, 16.0).scale)
    assert found.tolist() == [[16.0, 32.0]] * 3


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_gradients_of_autograd_on_the_sum_in_float64(bias):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    plain = torch.nn.Linear(5, 7, bias=bias).double()
    from relax.backends.fsdp.lora import DropoutKey

    layer = LoraLinear(plain, LoraSpec(3, 6.0), 0, DropoutKey(0))
    layer.lora_B.data = draw(7, 3)
    x, outer = draw(2, 4, 5).requires_grad_(), draw(2, 4, 7)
    (layer(x) * outer).sum().backward()
    own_x, a, b = (t.detach().clone().requires_grad_() for t in (x, layer.lora_A, layer.lora_B))
    right = own_x @ (plain.weight + 2.0 * b @ a).t()
    ((right + plain.bias if bias else right) * outer).sum().backward()
    for found, grad in ((x.grad, own_x.grad), (layer.lora_A.grad, a.grad), (layer.lora_B.grad, b.grad)):
        torch.testing.assert_close(found, grad, rtol=1e-12, atol=1e-12)


def test_a_new_adapter_changes_nothing_to_the_bit(base):
    folder = folder_of(base, "qwen3")
    part = one_part(groups(), 5)
    right, found = opened(folder, None).score(part, LOG_PROBS), opened(folder).score(part, LOG_PROBS)
    assert all((found[uid]["log_probs"] == columns["log_probs"]).all() for uid, columns in right.items())


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_gradients_of_adapters_follow_from_those_of_the_whole_matrix(base, kind):
    """With G = dL/dW of the merged model: dA = scale B^T G, dB = scale G A^T."""
    spec = SPEC if kind == "qwen3" else LoraSpec(4, 16.0, seed=3)
    backend = trained(folder_of(base, kind), spec)
    adapters = {s.name: s.parameter.detach().clone() for s in backend._trained}
    whole = opened(folder_of(base, kind), None)
    merged = dict(backend.weights())
    for shard in whole._shards:
        shard.master.data.copy_(merged[shard.name])
    sequences = groups(seed=4)
    for each in (backend, whole):
        each.backward(one_part(sequences, 5), LogProbLoss())
    full, right = gradients(whole), {}
    for name in adapters:
        owner = name.rpartition(".")[0]
        a, b, grad = adapters[f"{owner}.lora_A"], adapters[f"{owner}.lora_B"], full[f"{owner}.weight"]
        right[name] = spec.scale * (b.t() @ grad if name.endswith("lora_A") else grad @ a.t())
    found = gradients(backend)
    assert found.keys() == adapters.keys()
    difference, name = worst_difference(found, right)
    assert difference < 2e-5, name


def test_only_adapters_move_and_published_weights_are_the_trainers_own_to_the_bit(base, tmp_path):
    folder = folder_of(base, "qwen3")
    before = dict(opened(folder, None).weights())
    backend = trained(folder)
    published = dict(backend.weights())
    assert published.keys() == before.keys()
    moved = {n for n in before if not torch.equal(before[n], published[n])}
    assert {n.split(".")[-2] for n in moved} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    backend.export_hf(tmp_path / "merged")
    plain = opened(tmp_path / "merged", None)
    part = one_part(groups(seed=7), 5)
    right, found = backend.score(part, LOG_PROBS), plain.score(part, LOG_PROBS)
    assert all((found[uid]["log_probs"] == columns["log_probs"]).all() for uid, columns in right.items())
    assert all(torch.equal(t, published[n]) for n, t in plain.weights())


def test_the_engines_forward_on_published_weights_is_the_trainers_to_the_bit_in_bf16(base, tmp_path):
    backend = trained(folder_of(base, "qwen3"), dtype="bf16")
    backend.export_hf(tmp_path / "half")
    plain = opened(tmp_path / "half", None, dtype="bf16")
    part = one_part(groups(seed=7), 5)
    right, found = backend.score(part, LOG_PROBS), plain.score(part, LOG_PROBS)
    assert all((found[uid]["log_probs"] == columns["log_probs"]).all() for uid, columns in right.items())


def test_peft_loads_the_adapter_onto_the_base_model(base, tmp_path):
    import peft

    folder = folder_of(base, "qwen3")
    backend = trained(folder, LoraSpec(4, 16.0, ALL, seed=3, export_merged=False))
    backend.export_hf(tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out/lora_adapter").iterdir())
    assert written == ["adapter_config.json", "adapter_model.safetensors", "relax_lora_meta.json"]
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    own = peft.PeftModel.from_pretrained(own, tmp_path / "out/lora_adapter")
    assert own.peft_config["default"].r == 4
    tokens = groups(seed=7)[0].tokens.astype(np.int64)
    with torch.no_grad():
        right = own(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].log_softmax(-1)
    sequence = groups(seed=7)[0]
    found = backend.score(one_part([sequence]), LOG_PROBS)[sequence.uid]["log_probs"]
    places = np.arange(sequence.prompt_len, len(tokens))
    np.testing.assert_allclose(found, right[places - 1, tokens[places]].numpy(), atol=1e-5)
    meta = json.loads((tmp_path / "out/lora_adapter/relax_lora_meta.json").read_text())
    assert (meta["rank"], meta["alpha"], meta["matrices"], meta["optimizer_steps"]) == (4, 16.0, 14, 3)


def test_peft_loads_an_adapter_of_a_classifier_with_its_head(base, tmp_path):
    import peft

    folder, head = folder_of(base, "qwen3"), ClassHead(3, "single_label_classification", 1)
    backend = opened(folder, LoraSpec(4, 16.0, ALL, seed=3), head=head)
    assert {n for n in (s.name for s in backend._trained) if "lora" not in n} == {"score.weight"}
    backend.save(tmp_path / "checkpoint")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    own = peft.PeftModel.from_pretrained(own, tmp_path / "checkpoint/lora_adapter")
    score = next(p for n, p in own.named_parameters() if n.endswith("score.modules_to_save.default.weight"))
    assert torch.equal(score.detach().float(), dict(backend.weights())["score.weight"])


@pytest.mark.parametrize("adapter_only", [False, True])
def test_a_checkpoint_goes_on_where_training_was(base, tmp_path, adapter_only):
    folder = folder_of(base, "qwen3")
    spec = LoraSpec(4, 16.0, ALL, seed=3, save_adapter_only=adapter_only)
    backend = trained(folder, spec)
    backend.save(tmp_path / "checkpoint")
    resumed = opened(folder, spec)
    resumed.load(tmp_path / "checkpoint")
    for each in (backend, resumed):
        each.backward(one_part(groups(seed=2), 5), LogProbLoss())
        each.step(20.0)
    right = dict(backend.weights())
    assert all(torch.equal(t, right[n]) for n, t in resumed.weights())
    stored = json.loads((tmp_path / "checkpoint/relax.json").read_text())["shapes"]
    assert ("model.norm.weight" in stored) is not adapter_only
    if adapter_only:
        with pytest.raises(ConfigError, match=r"holds adapters alone.*add --lora-rank"):
            opened(folder, None).load(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=r"lora_A: checkpoint .4, 64., model .2, 64."):
        opened(folder, LoraSpec(2, 16.0, ALL)).load(tmp_path / "checkpoint")


def test_the_merge_tool_writes_the_merged_export(base, tmp_path):
    folder = folder_of(base, "qwen3")
    backend = trained(folder)
    backend.save(tmp_path / "checkpoint")
    assert merge_adapter(tmp_path / "checkpoint/lora_adapter", folder, tmp_path / "merged") == 14
    right = dict(backend.weights())
    merged = opened(tmp_path / "merged", None)
    assert all(torch.equal(t, right[n]) for n, t in merged.weights())
    with pytest.raises(ConfigError, match="exists: name a new folder"):
        merge_adapter(tmp_path / "checkpoint/lora_adapter", folder, tmp_path / "merged")
    with pytest.raises(ConfigError, match=r"matrices that .* has not"):
        merge_adapter(tmp_path / "checkpoint/lora_adapter", folder_of(base, "qwen3_moe"), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"no adapter_config.json there"):
        merge_adapter(folder, folder, tmp_path / "none")


def test_E5_a_base_model_with_a_missing_shard_or_of_another_size_is_refused_before_the_merge(base, tmp_path):
    folder = folder_of(base, "qwen3")
    opened(folder).save(tmp_path / "checkpoint")
    adapter, sharded = tmp_path / "checkpoint/lora_adapter", tmp_path / "sharded"
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="100KB")
    names = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(names) > 2
    assert merge_adapter(adapter, sharded, tmp_path / "whole") == 14
    (sharded / names[1]).unlink()
    with pytest.raises(ConfigError, match=f"is not whole: model.safetensors.index.json lists .'{names[1]}'"):
        merge_adapter(adapter, sharded, tmp_path / "broken")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.intermediate_size = 96
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "wide")
    with pytest.raises(ConfigError, match=r"has A \[4, 128\] and B \[64, 4\] for a matrix of \[64, 96\]"):
        merge_adapter(adapter, tmp_path / "wide", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_kept_weights_are_those_of_the_start(base):
    folder = folder_of(base, "qwen3")
    backend, part = opened(folder), one_part(groups(), 5)
    right = backend.score(part, LOG_PROBS)
    backend.keep("ref")
    backend.backward(part, LogProbLoss())
    backend.step(1.0)
    found, now = backend.score(part, LOG_PROBS, "ref"), backend.score(part, LOG_PROBS)
    for uid, columns in right.items():
        assert (found[uid]["log_probs"] == columns["log_probs"]).all()
    assert any((now[uid]["log_probs"] != columns["log_probs"]).any() for uid, columns in right.items())


def test_dropout_is_drawn_by_step_and_micro_batch_and_scores_have_none(base):
    folder, spec = folder_of(base, "qwen3"), LoraSpec(4, 16.0, ALL, seed=3, dropout=0.5)
    part = one_part(groups(), 5)
    found = []
    for checkpointing in (False, False, True):
        backend = trained(folder, spec, gradient_checkpointing=checkpointing)
        backend.backward(part, LogProbLoss())
        found.append(gradients(backend))
    assert all(torch.equal(found[0][n], grad) for n, grad in found[1].items())
    assert worst_difference(found[2], found[0])[0] < 1e-5  # a pass computed again draws the same
    without = trained(folder)
    without.backward(part, LogProbLoss())
    assert worst_difference(gradients(without), found[0])[0] > 0.01
    start = opened(folder, spec).score(part, LOG_PROBS)
    right = opened(folder, None).score(part, LOG_PROBS)
    assert all((start[uid]["log_probs"] == columns["log_probs"]).all() for uid, columns in right.items())


def test_a_resumed_run_draws_the_dropout_of_one_that_never_stopped(base, tmp_path):
    folder, spec = folder_of(base, "qwen3"), LoraSpec(4, 16.0, ALL, seed=3, dropout=0.5)
    backend, part = trained(folder, spec), one_part(groups(seed=2), 5)
    backend.save(tmp_path / "checkpoint")
    resumed = opened(folder, spec)
    resumed.load(tmp_path / "checkpoint")
    resumed.score(part, LOG_PROBS)
    resumed.measure(part, LogProbLoss())  # passes without gradients draw nothing
    for each in (backend, resumed):
        each.backward(part, LogProbLoss())
    right = gradients(backend)
    assert all(torch.equal(grad, right[name]) for name, grad in gradients(resumed).items())


def test_dropout_keeps_the_mean_of_its_input():
    from relax.backends.fsdp.lora import DropoutKey

    layer = LoraLinear(torch.nn.Linear(400, 1, bias=False), LoraSpec(1, 1.0, dropout=0.25), 0, DropoutKey(1))
    layer.weight.data.zero_()
    layer.lora_A.data.fill_(1.0)
    layer.lora_B.data.fill_(1.0)
    # each row sums 400 ones that are 4/3 with probability 3/4: mean 400, deviation sqrt(400 / 3) = 11.5 a row
    out = layer(torch.ones(100, 400))
    out = out.detach()
    assert float(out.mean()) == pytest.approx(400.0, abs=5.0)
    assert float(out.std()) == pytest.approx(11.5, rel=0.3)


def test_scopes_go_by_the_tree_and_not_by_leaf_names(base):
    folder = folder_of(base, "qwen3_vl")
    names = {}
    for scope in ("language", "vision", "all"):
        backend = opened(folder, LoraSpec(2, targets=("linear_qkv",), scope=scope))
        names[scope] = {s.name for s in backend._trained}
    assert all("language_model.layers" in name for name in names["language"])
    assert all("visual.blocks" in name for name in names["vision"])
    assert names["all"] == names["language"] | names["vision"] and names["vision"] and names["language"]


def test_targets_that_are_not_there_are_refused(base):
    dense, moe = folder_of(base, "qwen3"), folder_of(base, "qwen3_moe")
    with pytest.raises(ConfigError, match="--lora-target-modules in_proj: Qwen3ForCausalLM has no such matrices"):
        opened(dense, LoraSpec(2, targets=("linear_qkv", "in_proj")))
    with pytest.raises(ConfigError, match="--lora-scope vision: Qwen3ForCausalLM has no vision encoder"):
        opened(dense, LoraSpec(2, scope="vision"))
    with pytest.raises(ConfigError, match=r"experts of this model .* take no adapters"):
        opened(moe, LoraSpec(2, targets=("linear_fc1",)))
    with pytest.raises(ConfigError, match="--lora-target-modules router: gate of Qwen3MoeForCausalLM is a"):
        opened(moe, LoraSpec(2, targets=("router",)))


def test_gradient_checkpointing_and_more_cores_change_no_bit(base):
    folder, part = folder_of(base, "qwen3"), one_part(groups(), 5, 3)
    right = trained(folder)
    right.backward(part, LogProbLoss())
    again = trained(folder, gradient_checkpointing=True)
    again.backward(part, LogProbLoss())
    assert all(torch.equal(gradients(again)[n], grad) for n, grad in gradients(right).items())


def test_the_probe_holds_with_adapters(base):
    backend = FsdpBackend()
    info = backend.open(ModelSpec(folder_of(base, "qwen3"), lora=SPEC), OptimizerSpec(lr=1e-3))
    assert (info.exact, info.exact_reason) == (True, info.exact_reason)
