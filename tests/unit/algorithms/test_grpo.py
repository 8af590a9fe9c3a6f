# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.algorithms.importance import ImportanceWeights
from relax.algorithms.loss import TokenBatch
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.algorithms.reduce import effective_sample_fraction, step_reduction
from relax.utils.errors import ConfigError, InternalError

LENGTHS = (3, 1, 4)
RNG = np.random.default_rng(3)


def numbers(lengths=LENGTHS, seed=3):
    """Random columns of sequences, as arrays per sequence."""
    rng = np.random.default_rng(seed)
    draw = lambda: [rng.normal(-1.0, 0.3, n) for n in lengths]  # noqa: E731
    table = {"logp": draw(), "rollout_logprobs": draw(), "old_logprobs": draw(), "ref_logprobs": draw()}
    table["entropy"] = [rng.uniform(0, 2, n) for n in lengths]
    table["advantages"] = [np.full(n, a) for n, a in zip(lengths, rng.normal(size=len(lengths)), strict=True)]
    table["mask"] = [np.ones(n) for n in lengths]
    table["mask"][-1][1:3] = 0
    return table


def batch_of(table, weights, places, *, requires_grad=False):
    """A micro-batch of the sequences at `places`."""
    join = lambda rows: torch.as_tensor(np.concatenate([rows[i] for i in places]), dtype=torch.float64)  # noqa: E731
    columns = {k: join(table[k]) for k in ("rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages")}
    columns["loss_weight"] = join(weights)
    if requires_grad:
        columns = {name: column.requires_grad_() for name, column in columns.items()}
    sequence = torch.cat([torch.full((len(table["logp"][i]),), n) for n, i in enumerate(places)])
    return TokenBatch(
        log_probs=join(table["logp"]).requires_grad_(),
        entropy=join(table["entropy"]).requires_grad_(),
        mask=join(table["mask"]),
        sequence=sequence,
        num_sequences=len(places),
        columns=columns,
    )


def run(options, table, parts, **reduction):
    """(objective, gradient by token, metric means) of a step cut into `parts`."""
    step = step_reduction(table["mask"], dtype=np.float64, **reduction)
    loss, total, gradients, sums, counts = build_loss(options), 0.0, {}, {}, {}
    for places in parts:
        batch = batch_of(table, step.weights, places)
        terms = loss(batch)
        value = sum(terms[name].total for name in loss.objective)
        value.backward()
        total += value.item()
        for place, piece in zip(
            places, batch.log_probs.grad.split([len(table["mask"][i]) for i in places]), strict=True
        ):
            gradients[place] = piece / step.divisor
        for name, term in terms.items():
            sums[name] = sums.get(name, 0.0) + float(term.total.detach())
            counts[name] = counts.get(name, 0.0) + term.count
    gradient = torch.cat([gradients[i] for i in sorted(gradients)])
    return total / step.divisor, gradient, {k: sums[k] / counts[k] for k in sums if counts[k]}


FULL = AlgorithmOptions(
    old_log_probs="old", use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3", entropy_coef=0.01, use_tis=True
)


def test_objective_equals_the_formula_written_out_in_numpy():
    table = numbers()
    value, _, means = run(FULL, table, [[0, 1, 2]])
    expected, kls, entropies, tokens = 0.0, 0.0, 0.0, 0
    for i in range(3):
        mask = table["mask"][i] > 0
        logp, old, ref = (table[k][i][mask] for k in ("logp", "old_logprobs", "ref_logprobs"))
        advantage, ratio = table["advantages"][i][mask], np.exp(logp - old)
        policy = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        tis = np.clip(np.exp(old - table["rollout_logprobs"][i][mask]), 0.0, 2.0)
        kl = np.exp(ref - logp) - 1 - (ref - logp)
        entropy = table["entropy"][i][mask]
        expected += np.mean(tis * policy + 0.1 * kl - 0.01 * entropy) / 3
        kls, entropies, tokens = kls + kl.sum(), entropies + entropy.sum(), tokens + mask.sum()
    assert value == pytest.approx(expected, abs=1e-12)
    assert means["kl_ref"] == pytest.approx(kls / tokens, abs=1e-12)  # raw, whatever the coefficient
    assert means["kl_loss"] != pytest.approx(means["kl_ref"])
    assert means["entropy"] == pytest.approx(entropies / tokens, abs=1e-12)


@pytest.mark.parametrize("mode", ["sample_mean", "token_mean", "token_sum_norm"])
def test_micro_batch_split_changes_neither_loss_nor_gradient_nor_metrics_L1_L4_L13(mode):
    table, reduction = numbers(), {"mode": mode, "max_response_len": 6}
    whole = run(FULL, table, [[0, 1, 2]], **reduction)
    for parts in ([[0], [1], [2]], [[2, 0], [1]], [[1], [2, 0]]):
        value, gradient, means = run(FULL, table, parts, **reduction)
        assert value == pytest.approx(whole[0], abs=1e-12)
        torch.testing.assert_close(gradient, whole[1], rtol=0, atol=1e-12)
        assert means == pytest.approx(whole[2], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_the_fill_of_masked_positions_enters_nothing_P8(fill):
    clean, dirty = numbers(), numbers()
    for name in ("logp", "rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy", "advantages"):
        dirty[name][-1][1:3] = fill
    options = AlgorithmOptions(
        old_log_probs="old", use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3", use_opsm=True
    )
    a, b = run(options, clean, [[0, 1, 2]]), run(options, dirty, [[0, 1, 2]])
    assert a[0] == b[0] and a[2] == b[2]
    assert torch.equal(a[1], b[1]) and b[1][-3:-1].tolist() == [0.0, 0.0]
    tokens = build_loss(options)._tokens(batch_of(dirty, step_reduction(dirty["mask"]).weights, [0, 1, 2]))
    assert all(torch.isfinite(field).all() for field in tokens if isinstance(field, torch.Tensor))


@pytest.mark.parametrize("kind", ["rollout", "old", "current"])
def test_the_old_policy_is_the_one_named(kind):
    table = numbers()
    means = run(AlgorithmOptions(old_log_probs=kind), table, [[0, 1, 2]])[2]
    masks = [m > 0 for m in table["mask"]]
    old = {"rollout": "rollout_logprobs", "old": "old_logprobs", "current": "logp"}[kind]
    ratios = np.concatenate([np.exp(table["logp"][i] - table[old][i])[masks[i]] for i in range(3)])
    assert means["ratio"] == pytest.approx(ratios.mean(), abs=1e-12)


def test_on_policy_gradient_is_minus_advantage_times_weight():
    # old = current: ratio 1, so the gradient of token t is -A / (tokens of its sample) / samples
    table = numbers()
    _, gradient, _ = run(AlgorithmOptions(old_log_probs="current"), table, [[0, 1, 2]])
    expected = np.concatenate(
        [-table["advantages"][i] * table["mask"][i] / table["mask"][i].sum() / 3 for i in range(3)]
    )
    torch.testing.assert_close(gradient, torch.as_tensor(expected), rtol=0, atol=1e-12)


def test_kl_pulls_to_the_reference_when_all_advantages_are_zero_L19():
    table = numbers()
    table["advantages"] = [np.zeros(n) for n in LENGTHS]
    options = AlgorithmOptions(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k2")
    _, gradient, _ = run(options, table, [[0, 1, 2]])
    apart = np.concatenate([(table["logp"][i] - table["ref_logprobs"][i]) * table["mask"][i] for i in range(3)])
    assert np.array_equal(np.sign(gradient.numpy()), np.sign(apart))  # a descent step moves logp towards ref
    assert np.abs(gradient.numpy()).sum() > 0


def test_every_input_but_the_log_probs_and_entropy_stays_without_gradient_L20():
    table = numbers()
    batch = batch_of(table, step_reduction(table["mask"]).weights, [0, 1, 2], requires_grad=True)
    loss = build_loss(FULL)
    sum(loss(batch)[name].total for name in loss.objective).backward()
    assert batch.log_probs.grad is not None and batch.entropy.grad is not None
    assert all(column.grad is None for column in batch.columns.values())


def test_metrics_carry_no_gradient():
    table = numbers()
    loss = build_loss(FULL)
    terms = loss(batch_of(table, step_reduction(table["mask"]).weights, [0, 1, 2]))
    assert {name for name, term in terms.items() if term.total.requires_grad} == set(loss.objective)


def test_an_empty_micro_batch_is_zero_and_can_be_differentiated_L12_L27():
    table = numbers()
    for masks in ([], [np.zeros(3)]):
        step = step_reduction(masks)
        part = {name: [rows[0]] for name, rows in table.items()} | {"mask": masks}
        places = list(range(len(masks)))
        if masks:
            batch = batch_of(part, step.weights, places)
        else:
            empty = torch.zeros(0, dtype=torch.float64)
            columns = dict.fromkeys(FULL.columns, empty)
            batch = TokenBatch(empty.clone().requires_grad_(), empty, empty, empty.long(), 0, columns)
        loss = build_loss(FULL)
        terms = loss(batch)
        value = sum(terms[name].total for name in loss.objective)
        assert value.item() == 0.0 and all(term.count == 0.0 for term in terms.values())
        value.backward()
        assert not batch.log_probs.grad.any()


def test_dual_clip_option_reaches_the_loss_L17():
    # one token, A = -1, ratio 10: 3.0 with c = 3, 10.0 without
    def one(options):
        columns = {"rollout_logprobs": -math.log(10.0), "advantages": -1.0, "loss_weight": 1.0}
        one_T = torch.ones(1, dtype=torch.float64)
        batch = TokenBatch(
            0.0 * one_T, None, one_T, torch.zeros(1).long(), 1, {k: v * one_T for k, v in columns.items()}
        )
        return build_loss(options)(batch)["policy_loss"].total.item()

    assert one(AlgorithmOptions(eps_clip_c=3.0, log_entropy=False)) == pytest.approx(3.0)
    assert one(AlgorithmOptions(log_entropy=False)) == pytest.approx(10.0)


@pytest.mark.parametrize("kind", ["rollout", "current"])
def test_unbiased_kl_uses_the_ratio_with_its_gradient_L18(kind):
    table = numbers()
    table["advantages"] = [np.zeros(n) for n in LENGTHS]
    options = AlgorithmOptions(
        use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type="k1", use_unbiased_kl=True, old_log_probs=kind
    )
    _, gradient, _ = run(options, table, [[0, 1, 2]])
    # d(ratio * x) / d(logp) = ratio * (x + 1)
    expected = []
    for i in range(3):
        ratio = np.exp(table["logp"][i] - table["rollout_logprobs"][i]) if kind == "rollout" else 1.0
        x = table["logp"][i] - table["ref_logprobs"][i]
        expected.append(ratio * (x + 1) * table["mask"][i] / table["mask"][i].sum() / 3)
    torch.testing.assert_close(gradient, torch.as_tensor(np.concatenate(expected)), rtol=0, atol=1e-12)


def test_effective_sample_size_is_reported_from_sums():
    table = numbers()
    means = run(AlgorithmOptions(), table, [[0], [1, 2]])[2]
    masks = [m > 0 for m in table["mask"]]
    w = np.concatenate([np.exp(table["logp"][i] - table["rollout_logprobs"][i])[masks[i]] for i in range(3)])
    found = effective_sample_fraction(means["importance"], means["importance_square"])
    assert found == pytest.approx(w.sum() ** 2 / (w**2).sum() / w.size, abs=1e-12)


def halved(trainer_logp_T, engine_logp_T, mask_T, *, low, high):
    half_T = torch.full_like(trainer_logp_T, 0.5)
    return ImportanceWeights(half_T, half_T, torch.zeros_like(half_T, dtype=torch.bool))


def test_custom_importance_function_corrects_or_only_measures():
    table, path = numbers(), f"{__name__}.halved"
    plain = run(AlgorithmOptions(old_log_probs="old"), table, [[0, 1, 2]])
    corrected = run(
        AlgorithmOptions(old_log_probs="old", use_tis=True, custom_tis_function_path=path), table, [[0, 1, 2]]
    )
    measured = run(
        AlgorithmOptions(old_log_probs="old", get_mismatch_metrics=True, custom_tis_function_path=path),
        table,
        [[0, 1, 2]],
    )
    assert corrected[0] == pytest.approx(0.5 * plain[0], abs=1e-12)
    assert measured[0] == plain[0] and measured[2]["tis"] == 0.5


def shifted_by(nats, place, **options):
    """(with the limit, as if the sequence had no weight) of a step in which the engine differs at one sequence."""
    table = numbers()
    table["rollout_logprobs"] = [row.copy() for row in table["old_logprobs"]]
    table["rollout_logprobs"][place] = table["old_logprobs"][place] - nats
    options = {"old_log_probs": "old", "use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.2, **options}
    found = run(AlgorithmOptions(logprob_outlier_limit=1.0, **options), table, [[0, 1], [2]])
    silent = [place == i for i in range(len(LENGTHS))]
    expected = run(AlgorithmOptions(**options), table, [[0, 1, 2]], silent=silent)
    return found, expected


@pytest.mark.parametrize("place", range(len(LENGTHS)))
def test_a_sequence_5_nats_from_the_engine_adds_nothing_is_counted_and_stays_in_the_divisor_P11(place):
    (total, gradient, means), (expected, expected_gradient, _) = shifted_by(5.0, place)
    assert total == pytest.approx(expected, abs=1e-12)
    assert gradient.tolist() == pytest.approx(expected_gradient.tolist(), abs=1e-12)
    assert not gradient.split(LENGTHS)[place].any()
    assert gradient.any()
    assert means["logprob_outlier_fraction"] == pytest.approx(1 / 3)


def test_a_sequence_within_the_limit_is_trained_and_a_few_far_tokens_are_not_the_sequence_P11():
    """0.9 nats off is within 1.0 nats; so are 5 nats at one token of four, in a sequence with two masked tokens."""
    table = numbers()
    table["rollout_logprobs"] = [table["old_logprobs"][0] - 0.9, table["old_logprobs"][1], table["old_logprobs"][2]]
    free = AlgorithmOptions(old_log_probs="old")
    limited = replace(free, logprob_outlier_limit=1.0)
    total, _, means = run(limited, table, [[0, 1, 2]])
    assert (total, means["logprob_outlier_fraction"]) == (run(free, table, [[0, 1, 2]])[0], 0.0)
    # tokens 0 and 3 of the last sequence are trained: 1.9 nats at one of them are a mean of 0.95, 2.1 are 1.05
    for nats, fraction in ((1.9, 0.0), (2.1, 1 / 3)):
        table["rollout_logprobs"][2] = table["old_logprobs"][2] + np.array([nats, 50.0, 50.0, 0.0])
        assert run(limited, table, [[0, 1, 2]])[2]["logprob_outlier_fraction"] == pytest.approx(fraction)


def test_without_old_log_probs_of_the_trainer_its_current_ones_are_compared_P11():
    table = numbers()
    table["rollout_logprobs"] = [row.copy() for row in table["logp"]]
    table["rollout_logprobs"][1] += 5.0
    means = run(AlgorithmOptions(old_log_probs="rollout", logprob_outlier_limit=1.0), table, [[0, 1, 2]])[2]
    assert means["logprob_outlier_fraction"] == pytest.approx(1 / 3)


def test_missing_column_is_named():
    table = numbers()
    batch = batch_of(table, step_reduction(table["mask"]).weights, [0])
    del batch.columns["loss_weight"]
    with pytest.raises(InternalError, match="loss_weight"):
        build_loss(AlgorithmOptions())(batch)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"advantage_estimator": "gpro"}, "grpo"),
        ({"kl_loss_type": "kl"}, "k1, k2, k3, low_var_kl"),
        ({"eps_clip_c": 0.5}, "--eps-clip-c must be > 1"),
        ({"kl_coef": 0.1}, "--use-kl-loss --kl-loss-coef"),
        ({"kl_coef": 0.1, "kl_loss_coef": 0.1, "use_kl_loss": True}, "keep one"),
        ({"kl_loss_coef": 0.1}, "--use-kl-loss"),
        ({"use_tis": True}, "--use-rollout-logprobs"),
        ({"loss_reduction": "token_sum_norm"}, "--rollout-max-response-len"),
        ({"get_mismatch_metrics": True}, "--custom-tis-function-path"),
        ({"custom_tis_function_path": "a.b"}, "--get-mismatch-metrics"),
        ({"tis_clip_low": 3.0}, "--tis-clip"),
        ({"eps_clip": 1.5}, "--eps-clip must be"),
    ],
)
def test_wrong_options_name_the_flag(options, words):
    with pytest.raises(ConfigError) as caught:
        AlgorithmOptions(**options)
    assert words in str(caught.value)


def test_what_each_token_adds_is_the_whole_of_every_term_and_nothing_under_the_mask():
    table = numbers()
    step = step_reduction(table["mask"], dtype=np.float64)
    options = AlgorithmOptions(old_log_probs="old", use_kl_loss=True, kl_loss_coef=0.1, entropy_coef=0.2, use_tis=True)
    loss, batch = build_loss(options), batch_of(table, step.weights, (0, 1, 2))
    terms, by_token = loss(batch), loss.per_token(batch)
    assert by_token.keys() == {name for name in terms if not name.startswith("gradient_square/")}
    for name in by_token:
        term = terms[name]
        assert math.fsum(by_token[name].value_T.tolist()) == pytest.approx(float(term.total.detach()), rel=1e-14)
        assert by_token[name].count == term.count
        assert not by_token[name].value_T[batch.mask == 0].any()


def test_the_loss_curve_is_the_sum_of_what_is_differentiated():
    table = numbers()
    step = step_reduction(table["mask"], dtype=np.float64)
    options = AlgorithmOptions(old_log_probs="old", use_kl_loss=True, kl_loss_coef=0.1, entropy_coef=0.2)
    loss, batch = build_loss(options), batch_of(table, step.weights, (0, 1, 2))
    terms = {name: term.total.detach() for name, term in loss(batch).items()}
    assert loss.objective == ("policy_loss", "kl_loss", "entropy_loss")
    whole = math.fsum(float(terms[name]) for name in loss.objective)
    assert float(terms["loss"]) == pytest.approx(whole, rel=1e-14) != float(terms["policy_loss"])
