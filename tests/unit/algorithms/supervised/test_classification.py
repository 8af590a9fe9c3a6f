# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Losses and metrics of classes against transformers' loss and scikit-learn's metrics."""

import math

import numpy as np
import pytest
import torch

from relax.algorithms.supervised.classification import classification_metrics, decide
from relax.algorithms.supervised.options import MULTI_LABEL, SINGLE_LABEL, SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.sequences import class_sequence, label_column, supervised_reduction
from relax.utils.errors import ConfigError, DataError, InternalError
from tests.unit.algorithms.supervised.cases import whole_batch


def options(num_labels: int, problem: str = SINGLE_LABEL, **more) -> SupervisedOptions:
    return SupervisedOptions(task_type="seq_cls", num_labels=num_labels, problem_type=problem, **more)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_single_label_trains_by_cross_entropy(classes):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(6, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (6,), generator=generator)
    batch = whole_batch(logits, label=labels)
    terms = build_supervised_loss(options(classes))(batch)
    terms["sft_loss"].total.backward()
    own = logits.clone().requires_grad_()
    right = torch.nn.CrossEntropyLoss(reduction="sum")(own, labels)
    right.backward()
    assert terms["sft_loss"].total.item() == pytest.approx(right.item(), rel=1e-14)
    assert terms["sft_loss"].count == 6.0
    torch.testing.assert_close(batch.class_logits.grad, own.grad, rtol=1e-13, atol=1e-15)
    assert terms["accuracy"].total.item() == int((logits.argmax(1) == labels).sum())


def test_two_classes_with_equal_logits_cost_ln_2_each():
    # softmax gives 1/2; the second row is right with logits (0, ln 3): p = 3/4, loss ln(4/3)
    batch = whole_batch([[0.0, 0.0], [0.0, math.log(3)]], label=[1, 1])
    terms = build_supervised_loss(options(2))(batch)
    assert terms["sft_loss"].total.item() == pytest.approx(math.log(2) + math.log(4 / 3), rel=1e-15)
    assert terms["accuracy"] == (1.0, 2.0)  # argmax of a tie is the first class, which is wrong


def test_several_labels_train_by_binary_cross_entropy_of_each_class():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    labels = (torch.rand(7, 4, generator=generator) < 0.4).double()
    batch = whole_batch(logits, label=labels)
    terms = build_supervised_loss(options(4, MULTI_LABEL))(batch)
    terms["sft_loss"].total.backward()
    own = logits.clone().requires_grad_()
    right = torch.nn.BCEWithLogitsLoss()(own, labels) * 7  # a mean over 7 x 4 entries
    right.backward()
    assert terms["sft_loss"].total.item() == pytest.approx(right.item(), rel=1e-14)
    torch.testing.assert_close(batch.class_logits.grad, own.grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_micro_metrics_equal_those_of_scikit_learn_over_two_batches(threshold):
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    labels = (torch.rand(20, 5, generator=generator) < 0.3).double()
    chosen = options(5, MULTI_LABEL, classification_threshold=threshold)
    loss = build_supervised_loss(chosen)
    sums, counts = {}, {}
    for part in (slice(0, 13), slice(13, 20)):
        for name, term in loss(whole_batch(logits[part], label=labels[part])).items():
            sums[name] = sums.get(name, 0.0) + float(term.total.detach())
            counts[name] = counts.get(name, 0.0) + term.count
    found = classification_metrics(chosen, sums, counts)
    taken = (logits.sigmoid() >= threshold).int().numpy()
    precision, recall, f1, _ = precision_recall_fscore_support(labels.numpy(), taken, average="micro", zero_division=0)
    assert list(found) == ["loss", "micro_precision", "micro_recall", "micro_f1", "subset_accuracy"]
    expected = [precision, recall, f1, accuracy_score(labels.numpy(), taken)]
    assert list(found.values())[1:] == pytest.approx(expected, rel=1e-12)


def test_the_threshold_moves_decisions_and_not_the_loss():
    logits, labels = [[0.5, -0.5], [2.0, 0.1]], [[1, 0], [1, 1]]
    found = {t: build_supervised_loss(options(2, MULTI_LABEL, classification_threshold=t)) for t in (0.3, 0.7)}
    terms = {t: loss(whole_batch(logits, label=labels)) for t, loss in found.items()}
    assert terms[0.3]["sft_loss"].total == terms[0.7]["sft_loss"].total
    # sigmoid: .62, .38 and .88, .52. From .3 all four are taken, three of them right; from .7 one, which is right.
    assert terms[0.3]["micro_precision"] == (3.0, 4.0)
    assert terms[0.7]["micro_precision"] == (1.0, 1.0)
    rows = torch.tensor(logits)
    assert decide(rows, options(2, MULTI_LABEL, classification_threshold=0.7)) == [[], [0]]
    assert decide(rows, options(2)) == [0, 0]


def test_nothing_predicted_is_zero_and_nothing_evaluated_an_error():
    chosen = options(2, MULTI_LABEL)
    sums = {"sft_loss": 1.0, "micro_precision": 0.0, "micro_recall": 0.0, "micro_f1": 0.0, "subset_accuracy": 1.0}
    counts = {"sft_loss": 2.0, "micro_precision": 0.0, "micro_recall": 3.0, "micro_f1": 3.0, "subset_accuracy": 2.0}
    assert classification_metrics(chosen, sums, counts)["micro_precision"] == 0.0
    with pytest.raises(InternalError, match="no sequence"):
        classification_metrics(chosen, {}, {})


def test_a_silent_sequence_changes_neither_loss_nor_metrics():
    one = build_supervised_loss(options(3))(whole_batch([[1.0, 0.0, 0.0]], label=[0]))
    batch = whole_batch([[1.0, 0.0, 0.0], [5.0, 1.0, 2.0]], label=[0, 2], loss_weight=[1.0, 0.0])
    two = build_supervised_loss(options(3))(batch)
    assert {n: (t.total.item(), t.count) for n, t in one.items()} == {
        n: (t.total.item(), t.count) for n, t in two.items()
    }


def test_a_text_to_classify_is_one_sample_read_at_its_last_token():
    sequence = class_sequence(3, [11, 12, 13], 1, options(2))
    assert (sequence.uid, sequence.prompt_len, sequence.response_len) == ((3, 0), 3, 1)
    assert sequence.columns["label"].tolist() == [1.0]
    reduction = supervised_reduction([sequence, class_sequence(4, [11], 0, options(2))], options(2))
    assert (reduction.divisor, [w.tolist() for w in reduction.weights]) == (2.0, [[1.0], [1.0]])
    with pytest.raises(DataError, match="row 5 renders to no token"):
        class_sequence(5, [], 1, options(2))


def test_labels_as_rows_hold_them():
    assert label_column([0, 2], options(4, MULTI_LABEL)).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert label_column([], options(2, MULTI_LABEL)).tolist() == [[0.0, 0.0]]
    assert label_column(np.int64(3), options(4)).tolist() == [3.0]


@pytest.mark.parametrize("label", [-1, 4, True, 1.0, "1", [1], None])
def test_a_label_that_is_no_class_index_is_refused(label):
    with pytest.raises(DataError, match=r"not a class index.*an integer from 0 to 3"):
        label_column(label, options(4))


@pytest.mark.parametrize("label", [1, [4], [-1], [0, 0], ["a"], "01", [True]])
def test_a_label_that_is_no_list_of_class_indices_is_refused(label):
    with pytest.raises(DataError, match="not a list of class indices"):
        label_column(label, options(4, MULTI_LABEL))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_labels": None, "problem_type": SINGLE_LABEL}, "--num-labels None"),
        ({"num_labels": 1, "problem_type": SINGLE_LABEL}, "--num-labels 1"),
        ({"num_labels": 3}, "--problem-type 'None' is unknown"),
        ({"num_labels": 3, "problem_type": SINGLE_LABEL, "loss_type": "dpo"}, "not dpo"),
        ({"num_labels": 3, "problem_type": SINGLE_LABEL, "classification_threshold": 1.0}, "must be > 0 and < 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(fields, text):
    with pytest.raises(ConfigError, match=text):
        SupervisedOptions(task_type="seq_cls", **fields)
