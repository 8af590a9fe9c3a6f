# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Models with linear attention (Qwen3.5, Qwen3-Next): training equals transformers' forward of each sequence alone."""

import numpy as np
import pytest
import torch
import transformers

from relax.algorithms.supervised import SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.causal_lm import SftLoss
from relax.algorithms.supervised.mtp import WithMtp
from relax.algorithms.supervised.sequences import class_sequence, supervised_reduction
from relax.backends.additions import ClassHead, LoraSpec, MtpSpec
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.exact.model import load_model
from relax.backends.fsdp.backend import FsdpBackend
from relax.utils.errors import ConfigError
from tests.unit.backends.fsdp.recurrent_models import FAMILIES, recurrent_folder
from tests.unit.backends.training_cases import LogProbLoss, gradients, groups, one_part, worst_difference

LOG_PROBS = frozenset({"log_probs"})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def folder_of(base, name):
    return base / name if (base / name).exists() else recurrent_folder(base / name, name)


def opened(folder, **spec) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, **spec), OptimizerSpec(lr=5e-3))
    return backend


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_and_every_gradient_equal_each_sequence_alone(base, name):
    folder, sequences = folder_of(base, name), groups(num_groups=3, size=2)
    load = getattr(transformers, name).from_pretrained
    own = load(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    total, right = 0.0, {}
    for sequence in sequences:
        ids = torch.from_numpy(sequence.tokens.astype(np.int64))
        logp = own(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
        places = torch.arange(sequence.prompt_len, len(ids))
        right[sequence.uid] = logp[places - 1, ids[places]]
        total = total - (right[sequence.uid] * torch.from_numpy(sequence.columns["advantages"])).sum()
    total.backward()
    backend, part = opened(folder), one_part(sequences, 4)
    for uid, columns in backend.score(part, LOG_PROBS).items():
        np.testing.assert_allclose(columns["log_probs"], right[uid].detach().numpy(), atol=2e-5, rtol=1e-5)
    backend.backward(part, LogProbLoss())
    right_grads = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    difference, tensor = worst_difference(gradients(backend), right_grads)
    assert difference < 5e-5, tensor


def test_recomputed_layers_give_the_same_gradients(base):
    folder, part = folder_of(base, FAMILIES[0]), one_part(groups(num_groups=3, size=2), 4)
    found = []
    for checkpointing in (False, True):
        backend = opened(folder, gradient_checkpointing=checkpointing)
        backend.backward(part, LogProbLoss())
        found.append(gradients(backend))
    assert all(torch.equal(found[1][name], grad) for name, grad in found[0].items())


def test_it_is_not_exact_and_no_engine_takes_it(base):
    folder = folder_of(base, FAMILIES[0])
    info = FsdpBackend().open(ModelSpec(folder), None)
    assert (info.exact, "linear attention" in info.exact_reason) == (False, True)
    with pytest.raises(ConfigError, match=r"has layers of kind \['linear_attention'\]"):
        load_model(folder)


def test_adapters_reach_the_projections_of_linear_attention(base, tmp_path):
    import peft

    folder = folder_of(base, FAMILIES[0])
    spec = LoraSpec(4, 8.0, ("linear_qkv", "linear_proj", "in_proj", "out_proj"), seed=1)
    backend, part = opened(folder, lora=spec), one_part(groups(num_groups=3, size=2), 4)
    leaves = {shard.name.split(".")[-2] for shard in backend._trained}
    assert leaves == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    }
    for _ in range(2):
        backend.backward(part, LogProbLoss())
        backend.step(10.0)
    backend.save(tmp_path / "checkpoint")
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    own = peft.PeftModel.from_pretrained(own, tmp_path / "checkpoint/lora_adapter")
    for sequence in groups(num_groups=3, size=2):
        ids = torch.from_numpy(sequence.tokens.astype(np.int64))
        with torch.no_grad():
            logp = own(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
        places = np.arange(sequence.prompt_len, len(ids))
        found = backend.score(one_part([sequence]), LOG_PROBS)[sequence.uid]["log_probs"]
        np.testing.assert_allclose(found, logp[places - 1, ids[places]].numpy(), atol=2e-5)


@pytest.mark.parametrize("name", [FAMILIES[0], FAMILIES[1], FAMILIES[3]])
def test_mtp_layers_of_the_checkpoint_learn(base, name, tmp_path):
    sequences = groups(num_groups=3, size=2)
    for sequence in sequences:
        sequence.columns["loss_weight"] = sequence.loss_mask.astype(np.float32)
    backend = opened(folder_of(base, name), mtp=MtpSpec(1, only=True))
    seen = []
    for _ in range(12):
        seen.append(backend.backward(one_part(sequences), WithMtp(SftLoss(), 0.2, only=True)).means())
        backend.step(10.0)
    assert seen[-1]["mtp_nll"] < 0.8 * seen[0]["mtp_nll"]
    backend.export_hf(tmp_path / "export")
    again = opened(tmp_path / "export", mtp=MtpSpec(1))
    needs = frozenset({"mtp_log_probs"})
    right, found = (each.score(one_part(sequences), needs) for each in (backend, again))
    for uid, columns in right.items():
        np.testing.assert_array_equal(found[uid]["mtp_log_probs"], columns["mtp_log_probs"])


@pytest.mark.parametrize("name", FAMILIES)
def test_classes_are_read_off_every_family(base, name, tmp_path):
    options = SupervisedOptions(task_type="seq_cls", num_labels=3, problem_type="single_label_classification")
    generator = np.random.default_rng(0)
    rows = [class_sequence(n, generator.integers(12, 250, 4 + n).tolist(), n % 3, options) for n in range(6)]
    for sequence, weight in zip(rows, supervised_reduction(rows, options).weights, strict=True):
        sequence.columns["loss_weight"] = weight
    head = ClassHead(3, options.problem_type, seed=1)
    backend = opened(folder_of(base, name), head=head)
    seen = []
    for _ in range(15):
        seen.append(backend.backward(one_part(rows), build_supervised_loss(options)).means())
        backend.step(6.0)
    assert seen[-1]["sft_loss"] < 0.5 * seen[0]["sft_loss"]
    backend.export_hf(tmp_path / "export")
    again = opened(tmp_path / "export", head=ClassHead(3, options.problem_type, seed=9))
    right, found = (each.score(one_part(rows), frozenset({"class_logits"})) for each in (backend, again))
    assert all((found[uid]["class_logits"] == c["class_logits"]).all() for uid, c in right.items())
    if "Moe" in name:  # transformers has no class for it
        return
    own = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "export", dtype=torch.float32, attn_implementation="eager"
    )
    for sequence in rows:
        ids = torch.from_numpy(sequence.tokens[:-1].astype(np.int64))[None]
        with torch.no_grad():
            logits = own(input_ids=ids, use_cache=False).logits[0]
        np.testing.assert_allclose(right[sequence.uid]["class_logits"][0], logits.numpy(), atol=2e-5)
