# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""DPO and Bradley-Terry on the backend against transformers' forward, one row a sequence, and plain autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from relax.algorithms.supervised import SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.sequences import (
    Answered,
    preference_sequences,
    reward_sequences,
    supervised_reduction,
)
from relax.backends.additions import ClassHead, LoraSpec
from relax.backends.base import ModelSpec, OptimizerSpec, Part
from relax.backends.fsdp.backend import FsdpBackend
from tests.unit.backends.training_cases import folder_of, gradients, worst_difference

BETA = 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("models"), "qwen3")


def opened(folder, **spec) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, **spec), OptimizerSpec(lr=5e-3))
    return backend


def pairs(seed: int = 0, number: int = 4):
    """Pairs with a common prompt; one token in the middle of a chosen answer is not trained."""
    generator = np.random.default_rng(seed)
    found = []
    for row in range(number):
        prompt = generator.integers(12, 250, 5).tolist()
        sides = []
        for _ in range(2):
            answer = generator.integers(12, 250, int(generator.integers(2, 8))).tolist()
            sides.append(Answered([*prompt, *answer], [0] * len(prompt) + [1] * len(answer)))
        sides[0].loss_mask[6] = int(row % 2)
        found += preference_sequences(row, *sides)
    return found


def with_reference(backend: FsdpBackend, part: Part) -> Part:
    scores = backend.score(part, frozenset({"log_probs"}), "ref")
    add = lambda s: replace(s, columns={**s.columns, "ref_logprobs": scores[s.uid]["log_probs"]})  # noqa: E731
    return Part(tuple(tuple(add(s) for s in micro) for micro in part.micro_batches))


def answer_log_prob(model, sequence) -> torch.Tensor:
    ids = torch.from_numpy(sequence.tokens.astype(np.int64))
    logp = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
    places = torch.arange(sequence.prompt_len, len(ids))
    return (logp[places - 1, ids[places]] * torch.from_numpy(sequence.loss_mask.astype(np.float32))).sum()


@pytest.mark.parametrize("reference_free", [False, True])
def test_every_gradient_of_dpo_equals_plain_autograd(folder, reference_free):
    options = SupervisedOptions(loss_type="dpo", dpo_beta=BETA, dpo_reference_free=reference_free)
    loss, sequences = build_supervised_loss(options), pairs()
    backend = opened(folder)
    backend.keep("ref")
    part = Part((tuple(sequences[:4]), tuple(sequences[4:])))
    for _ in range(2):  # away from the reference
        backend.backward(part if reference_free else with_reference(backend, part), loss)
        backend.step(supervised_reduction(sequences, options).divisor)
    load = transformers.Qwen3ForCausalLM.from_pretrained
    own, ref = (load(folder, dtype=torch.float32, attn_implementation="eager") for _ in range(2))
    own.load_state_dict(dict(backend.weights()), strict=False)
    margins = []
    for chosen, rejected in zip(sequences[::2], sequences[1::2], strict=True):
        margin = answer_log_prob(own, chosen) - answer_log_prob(own, rejected)
        if not reference_free:
            with torch.no_grad():
                before = answer_log_prob(ref, chosen) - answer_log_prob(ref, rejected)
            margin = margin - before
        margins.append(BETA * margin)
    right = -F.logsigmoid(torch.stack(margins)).sum()
    right.backward()
    found = part if reference_free else with_reference(backend, part)
    stats = backend.backward(found, loss)
    assert stats.sums["dpo/loss"] == pytest.approx(right.item(), rel=1e-4)
    assert stats.sums["dpo/reward_margin"] == pytest.approx(float(sum(margins)), rel=1e-4)
    assert stats.counts["dpo/loss"] == 4.0
    right_grads = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    difference, name = worst_difference(gradients(backend), right_grads)
    assert difference < 1e-4, name


@pytest.mark.parametrize("spec", [{}, {"lora": LoraSpec(4, 16.0, seed=1)}])
def test_a_policy_starts_at_its_reference_and_learns_to_prefer(folder, spec):
    options = SupervisedOptions(loss_type="dpo", dpo_beta=BETA)
    loss, sequences = build_supervised_loss(options), pairs()
    backend = opened(folder, **spec)
    backend.keep("ref")
    part = Part((tuple(sequences),))
    seen = []
    for _ in range(12):
        seen.append(backend.backward(with_reference(backend, part), loss).means())
        backend.step(4.0)
    assert (seen[0]["dpo/reward_margin"], seen[0]["dpo/tie_rate"]) == (0.0, 1.0)  # to the bit
    assert seen[0]["dpo/loss"] == pytest.approx(np.log(2), rel=1e-12)
    assert seen[-1]["dpo/strict_accuracy"] == 1.0
    assert seen[-1]["dpo/loss"] < 0.5 * seen[0]["dpo/loss"]
    assert seen[-1]["dpo/ref_logps_chosen"] == seen[0]["dpo/ref_logps_chosen"]


def test_every_gradient_of_a_reward_model_equals_plain_autograd(folder, tmp_path):
    generator = np.random.default_rng(0)
    draw = lambda: generator.integers(12, 250, int(generator.integers(3, 12))).tolist()  # noqa: E731
    sequences = [s for row in range(3) for s in reward_sequences(row, draw(), draw())]
    backend = opened(folder, head=ClassHead(1, seed=2))
    backend.export_hf(tmp_path / "start")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "start", dtype=torch.float32, attn_implementation="eager"
    )
    ids = [torch.from_numpy(s.tokens[:-1].astype(np.int64))[None] for s in sequences]
    scores = torch.stack([own(input_ids=row, use_cache=False).logits[0, 0] for row in ids])
    right = -F.logsigmoid(scores[::2] - scores[1::2]).sum()
    right.backward()
    loss = build_supervised_loss(SupervisedOptions(loss_type="reward_model"))
    stats = backend.backward(Part((tuple(sequences[:2]), tuple(sequences[2:]))), loss)
    assert stats.sums["reward_model/loss"] == pytest.approx(right.item(), rel=1e-5)
    right_grads = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    difference, name = worst_difference(gradients(backend), right_grads)
    assert difference < 2e-5, name
