# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A head for classes in place of the vocabulary's, against transformers' own sequence classification."""

import numpy as np
import pytest
import torch
import transformers

from relax.algorithms.supervised import SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.options import MULTI_LABEL, SINGLE_LABEL
from relax.algorithms.supervised.sequences import class_sequence, reward_sequences, supervised_reduction
from relax.backends.additions import HEAD_TYPE_REWARD, ClassHead
from relax.backends.base import ModelSpec, OptimizerSpec, Part
from relax.backends.fsdp.backend import FsdpBackend
from relax.utils.errors import ConfigError
from tests.unit.backends.training_cases import folder_of, gradients, one_part, worst_difference

LOGITS = frozenset({"class_logits"})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def options(problem: str = SINGLE_LABEL, num_labels: int = 4) -> SupervisedOptions:
    return SupervisedOptions(task_type="seq_cls", num_labels=num_labels, problem_type=problem)


def head_of(chosen: SupervisedOptions, seed: int = 5) -> ClassHead:
    return ClassHead(chosen.head_labels or 0, chosen.problem_type, seed)


def opened(folder, head: ClassHead | None, **spec) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, head=head, **spec), OptimizerSpec(lr=1e-3))
    return backend


def texts(chosen: SupervisedOptions, number: int = 7):
    generator = np.random.default_rng(3)
    rows = []
    for row in range(number):
        tokens = generator.integers(12, 250, int(generator.integers(1, 15))).tolist()
        taken = np.flatnonzero(generator.random(chosen.num_labels) < 0.5).tolist()
        label = taken if chosen.multi_label else int(generator.integers(0, chosen.num_labels))
        rows.append(class_sequence(row, tokens, label, chosen))
    for sequence, weight in zip(rows, supervised_reduction(rows, chosen).weights, strict=True):
        sequence.columns["loss_weight"] = weight
    return rows


def padded(rows, pad: int) -> dict[str, torch.Tensor]:
    longest = max(s.prompt_len for s in rows)
    ids = torch.full((len(rows), longest), pad)
    for row, sequence in enumerate(rows):
        ids[row, : sequence.prompt_len] = torch.from_numpy(sequence.tokens[:-1].astype(np.int64))
    return {"input_ids": ids, "attention_mask": (ids != pad).long()}


@pytest.mark.parametrize("problem", [SINGLE_LABEL, MULTI_LABEL])
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_logits_loss_and_every_gradient_equal_those_of_transformers(base, tmp_path, kind, problem):
    chosen = options(problem)
    backend, rows = opened(folder_of(base, kind), head_of(chosen)), texts(chosen)
    backend.export_hf(tmp_path / "start")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "start", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    assert (own.config.num_labels, own.config.problem_type) == (4, problem)
    labels = torch.from_numpy(np.concatenate([s.columns["label"] for s in rows]))
    labels = labels if chosen.multi_label else labels.long()
    right = own(**padded(rows, own.config.pad_token_id), labels=labels, use_cache=False)
    (right.loss * len(rows)).backward()
    part = one_part(rows, 3)
    scored = backend.score(part, LOGITS)
    found = np.concatenate([scored[s.uid]["class_logits"] for s in rows])
    np.testing.assert_allclose(found, right.logits.detach().numpy(), atol=2e-6, rtol=2e-5)
    stats = backend.backward(part, build_supervised_loss(chosen))
    assert stats.means()["sft_loss"] == pytest.approx(right.loss.item(), rel=1e-5)
    right_grads = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    difference, name = worst_difference(gradients(backend), right_grads)
    assert difference < 2e-5, name


def test_training_lowers_the_loss_and_a_checkpoint_and_an_export_hold_the_head(base, tmp_path):
    chosen = options(num_labels=3)
    rows, loss = texts(chosen, 12), build_supervised_loss(chosen)
    backend = opened(folder_of(base, "qwen3"), head_of(chosen))
    first = None
    for _ in range(30):
        stats = backend.backward(one_part(rows), loss)
        backend.step(float(len(rows)))
        first = first or stats.means()
    last = stats.means()
    assert last["sft_loss"] < 0.2 * first["sft_loss"] and last["accuracy"] == 1.0
    backend.save(tmp_path / "checkpoint")
    backend.export_hf(tmp_path / "export")
    again = opened(folder_of(base, "qwen3"), head_of(chosen, seed=9))
    again.load(tmp_path / "checkpoint")
    exported = opened(tmp_path / "export", head_of(chosen, seed=9))
    right = backend.score(one_part(rows), LOGITS)
    for other in (again, exported):
        found = other.score(one_part(rows), LOGITS)
        assert all((found[uid]["class_logits"] == columns["class_logits"]).all() for uid, columns in right.items())


def test_a_new_head_is_drawn_from_the_seed(base):
    weights = [dict(opened(folder_of(base, "qwen3"), head_of(options(), seed)).weights()) for seed in (1, 1, 2)]
    assert torch.equal(weights[0]["score.weight"], weights[1]["score.weight"])
    assert not torch.equal(weights[0]["score.weight"], weights[2]["score.weight"])
    assert 0.01 < float(weights[0]["score.weight"].std()) < 0.03  # initializer_range 0.02
    assert "lm_head.weight" not in weights[0]


def test_a_reward_model_scores_the_last_token_and_says_so_in_its_config(base, tmp_path):
    chosen = SupervisedOptions(loss_type="reward_model")
    backend = opened(folder_of(base, "qwen3"), ClassHead(1, head_type=HEAD_TYPE_REWARD, seed=1))
    generator = np.random.default_rng(0)
    rows = [
        s
        for n in range(6)
        for s in reward_sequences(n, generator.integers(12, 90, 9).tolist(), generator.integers(90, 250, 6).tolist())
    ]
    loss, divisor = build_supervised_loss(chosen), supervised_reduction(rows, chosen).divisor
    seen = []
    for _ in range(20):
        seen.append(backend.backward(Part((tuple(rows[:4]), tuple(rows[4:]))), loss).means())
        backend.step(divisor)
    assert divisor == 6.0
    assert seen[-1]["reward_model/loss"] < 0.3 * seen[0]["reward_model/loss"]
    assert seen[-1]["reward_model/strict_accuracy"] == 1.0
    backend.export_hf(tmp_path / "reward")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward", dtype=torch.float32)
    assert (own.config.num_labels, own.config.head_type) == (1, "reward_model_terminal_v1")
    with torch.no_grad():
        scores = own(**padded(rows, own.config.pad_token_id), use_cache=False).logits[:, 0].numpy()
    found = backend.score(one_part(rows), LOGITS)
    np.testing.assert_allclose([found[s.uid]["class_logits"][0, 0] for s in rows], scores, atol=1e-5)


def test_what_does_not_fit_the_head_is_refused(base, tmp_path):
    plain, chosen = opened(folder_of(base, "qwen3"), None), options()
    classes = opened(folder_of(base, "qwen3"), head_of(chosen))
    rows = texts(chosen)
    with pytest.raises(ConfigError, match="opened with its vocabulary head"):
        plain.score(one_part(rows), LOGITS)
    with pytest.raises(ConfigError, match=r"\['log_probs'\] need a vocabulary head"):
        classes.score(one_part(rows), frozenset({"log_probs"}))
    classes.export_hf(tmp_path / "classes")
    with pytest.raises(ConfigError, match="has a head for classes and no vocabulary"):
        opened(tmp_path / "classes", None)
    with pytest.raises(ConfigError, match=r"score.weight"):
        opened(tmp_path / "classes", ClassHead(7, SINGLE_LABEL))
    with pytest.raises(ConfigError, match=r"Qwen3OmniMoeThinkerForSequenceClassification|no class"):
        opened(folder_of(base, "qwen3_omni"), head_of(chosen))
