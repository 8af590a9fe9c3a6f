# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One process of the FSDP backend: gradients against transformers' own forward, cuts, tags, order of calls."""

import dataclasses

import numpy as np
import pytest
import torch

from relax.backends.base import ModelSpec, OptimizerSpec, Part, ScoreSwitch
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.fsdp.batches import pack
from relax.utils.cores import CoreShare
from relax.utils.errors import ConfigError, Divergence, InternalError
from tests.unit.backends.training_cases import (
    ClippedPolicyLoss,
    LogProbLoss,
    audio,
    folder_of,
    gradients,
    groups,
    image,
    one_part,
    opened,
    worst_difference,
)

LOG_PROBS = frozenset({"log_probs"})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def _backward(backend, part, loss=None):
    stats = backend.backward(part, loss or LogProbLoss())
    return stats, gradients(backend)


def _padded_text(model, sequences, temperature, suppressed):
    """Transformers' own forward over a padded batch: log-probs by uid, gradients of `LogProbLoss`."""
    longest = max(len(s.tokens) for s in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, s in enumerate(sequences):
        ids[row, : len(s.tokens)] = torch.from_numpy(s.tokens.astype(np.int64))
        mask[row, : len(s.tokens)] = 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits / temperature
    if suppressed:
        logits[:, :, list(suppressed)] = -torch.inf
    full = logits.log_softmax(-1)
    found, total = {}, 0.0
    for row, s in enumerate(sequences):
        places = torch.arange(s.prompt_len, len(s.tokens))
        values = full[row, places - 1, ids[row, places]]
        found[s.uid] = values.detach().numpy()
        total = total - (values * torch.from_numpy(s.columns["advantages"])).sum()
    total.backward()
    return found, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_log_probs_and_every_gradient_equal_the_models_own_padded_forward(base, kind, attention):
    import transformers

    folder, sequences, suppressed = folder_of(base, kind), groups(), (3, 6, 7)
    own = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, experts_implementation="eager"
    )
    right, right_grads = _padded_text(own, sequences, 0.8, suppressed)
    backend = opened(folder, temperature=0.8, suppressed_ids=suppressed, logprob_chunk=16)
    part = one_part(sequences, 5)
    scored = backend.score(part, LOG_PROBS)
    for uid, values in right.items():
        np.testing.assert_allclose(scored[uid]["log_probs"], values, atol=1e-5, rtol=1e-5)
    _, grads = _backward(backend, part)
    difference, name = worst_difference(grads, right_grads)
    assert difference < 1e-5, name


def test_every_parameter_of_an_omni_model_gets_the_gradient_of_its_own_forward(base):
    """Image and audio in one prompt; the oracle runs each sequence alone."""
    import transformers

    folder = folder_of(base, "qwen3_omni")
    own = transformers.Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    sequences = groups({0: (image(1), audio(2, 200)), 2: (audio(3, 100), image(4, (1, 8, 4)))}, num_groups=3)
    for s in sequences:
        ids = torch.from_numpy(s.tokens.astype(np.int64))[None]
        extra = {}
        for item in s.media:
            tensors = {k: torch.from_numpy(v)[None] for k, v in item.tensors.items()}
            if item.kind == "image":
                extra |= {"pixel_values": tensors["pixel_values"][0], "image_grid_thw": tensors["image_grid_thw"]}
            else:
                frames = tensors["input_features"].shape[-1]
                mask = torch.ones(1, frames, dtype=torch.long)
                extra |= {"input_features": tensors["input_features"], "feature_attention_mask": mask}
        full = own(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **extra).logits.log_softmax(-1)
        places = torch.arange(s.prompt_len, ids.shape[1])
        values = full[0, places - 1, ids[0, places]]
        (-(values * torch.from_numpy(s.columns["advantages"])).sum()).backward()
    right = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    _, grads = _backward(opened(folder), one_part(sequences, 4))
    difference, name = worst_difference(grads, right)
    assert difference < 2e-5, name
    assert {n.split(".")[1] for n in grads} >= {"visual", "audio_tower", "language_model"}


@pytest.mark.parametrize(
    ("kind", "media"), [("qwen3", {}), ("qwen3_moe", {}), ("qwen3_omni", {1: (image(1),), 2: (audio(2, 70),)})]
)
def test_shared_prefix_keeps_the_bits_of_log_probs_and_the_gradients(base, kind, media):
    folder, part = folder_of(base, kind), one_part(groups(media), 7)
    shared, flat = opened(folder, shared_prefix=True), opened(folder, shared_prefix=False)
    scores = [b.score(part, frozenset({"log_probs", "entropy"})) for b in (shared, flat)]
    for uid, columns in scores[0].items():
        for name in ("log_probs", "entropy"):
            assert (columns[name] == scores[1][uid][name]).all()
    difference, name = worst_difference(_backward(shared, part)[1], _backward(flat, part)[1])
    assert difference < 5e-6, name


@pytest.mark.parametrize(
    ("kind", "media"), [("qwen3", {}), ("qwen3_moe", {}), ("qwen3_omni", {1: (image(1),), 2: (audio(2, 70),)})]
)
@pytest.mark.parametrize("opening", [1, 5, 40])
def test_a_common_opening_is_computed_once_with_the_bits_of_every_prompt_alone(base, kind, media, opening):
    system = np.random.default_rng(opening).integers(12, 250, opening).astype(np.int32)
    sequences = [
        dataclasses.replace(s, tokens=np.concatenate([system, s.tokens]), prompt_len=s.prompt_len + opening)
        for s in groups(media)
    ]
    part, folder = one_part(sequences, 7), folder_of(base, kind)
    shared, flat = opened(folder, shared_prefix=True), opened(folder, shared_prefix=False)
    prompts = {s.group: s.prompt_len for s in sequences[:7]}
    responses = sum(max(s.response_len - 1, 0) for s in sequences[:7])
    once = pack(shared.model, sequences[:7])
    assert once.packed.starts[-1] == opening + sum(n - opening for n in prompts.values()) + responses
    scores = [b.score(part, frozenset({"log_probs"})) for b in (shared, flat)]
    for uid, columns in scores[0].items():
        assert (columns["log_probs"] == scores[1][uid]["log_probs"]).all()
    difference, name = worst_difference(_backward(shared, part)[1], _backward(flat, part)[1])
    assert difference < 5e-6, name


def test_prompts_with_equal_tokens_and_a_prompt_that_opens_another_keep_a_token_of_their_own(base):
    sequences = groups(num_groups=3, size=2)
    prompt = sequences[0].tokens[: sequences[0].prompt_len]
    for place, s in enumerate(sequences):
        cut = prompt[: len(prompt) - 1] if place >= 4 else prompt
        sequences[place] = dataclasses.replace(
            s, tokens=np.concatenate([cut, s.tokens[s.prompt_len :]]), prompt_len=len(cut)
        )
    folder = folder_of(base, "qwen3")
    scores = [
        opened(folder, shared_prefix=shared).score(one_part(sequences), frozenset({"log_probs"}))
        for shared in (True, False)
    ]
    for uid, columns in scores[0].items():
        assert (columns["log_probs"] == scores[1][uid]["log_probs"]).all()


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_micro_batches_change_neither_log_probs_nor_sums_nor_gradients(base, kind):
    folder, sequences = folder_of(base, kind), groups()
    whole, cut = opened(folder), opened(folder)
    parts = one_part(sequences), Part((*one_part(sequences, 1, 4, 2).micro_batches, ()))
    scores = [b.score(p, LOG_PROBS) for b, p in zip((whole, cut), parts, strict=True)]
    assert all((scores[0][uid]["log_probs"] == scores[1][uid]["log_probs"]).all() for uid in scores[0])
    (a, grads_a), (b, grads_b) = (
        _backward(backend, part, ClippedPolicyLoss()) for backend, part in zip((whole, cut), parts, strict=True)
    )
    assert a.sums == pytest.approx(b.sums, rel=1e-5) and a.counts == b.counts
    difference, name = worst_difference(grads_a, grads_b)
    assert difference < 5e-6, name


def test_parts_given_one_by_one_train_as_the_whole_to_the_bit(base):
    folder, sequences = folder_of(base, "qwen3"), groups()
    whole, streamed = opened(folder), opened(folder)
    part = one_part(sequences, 5, 4)
    whole.backward(part, ClippedPolicyLoss())
    for micro_batch in part.micro_batches:
        streamed.backward(Part((micro_batch,)), ClippedPolicyLoss())
    assert whole.step(7.0).grad_norm == streamed.step(7.0).grad_norm
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole.weights(), streamed.weights(), strict=True))


def test_training_log_probs_have_the_bits_of_scored_ones(base):
    """The ratio of the first update on fresh scores is exactly one."""

    class Ratio(LogProbLoss):
        def __call__(self, batch):
            self.ratios = (batch.log_probs.detach() - batch.columns["old_logprobs"]).exp()
            return super().__call__(batch)

    backend, sequences = opened(folder_of(base, "qwen3")), groups()
    scored = backend.score(one_part(sequences), LOG_PROBS)
    fresh = [
        dataclasses.replace(s, columns=s.columns | {"old_logprobs": scored[s.uid]["log_probs"]}) for s in sequences
    ]
    loss = Ratio()
    backend.backward(one_part(fresh), loss)
    assert (loss.ratios == 1).all()


def test_gradient_checkpointing_changes_nothing(base):
    folder, part = folder_of(base, "qwen3_moe"), one_part(groups(), 5)
    plain, again = opened(folder), opened(folder, gradient_checkpointing=True)
    a, b = _backward(plain, part)[1], _backward(again, part)[1]
    assert sorted(a) == sorted(b) and all(torch.equal(a[n], b[n]) for n in a)


def test_values_come_from_the_state_before_the_token_and_train_the_whole_model(base):
    class ValueLoss:
        needs = frozenset({"values"})
        objective = ("value",)

        def __call__(self, batch):
            from relax.backends.base import Term

            return {"value": Term(((batch.values - batch.columns["advantages"]) ** 2).sum(), len(batch.mask))}

    backend = opened(folder_of(base, "qwen3"), value_head=True)
    sequences = groups(num_groups=2)
    with torch.no_grad():
        backend.model.value_head.weight.fill_(0.1)
    scored = backend.score(one_part(sequences), frozenset({"values"}))
    s = sequences[0]
    from relax.backends.exact.segments import Segment, build_plan

    alone = build_plan([Segment(s.tokens)], multiple=backend.model.query_multiple)
    with torch.no_grad():
        hidden = backend.model.hidden(alone.tokens, alone.positions, alone.plan)
    right = hidden[s.prompt_len - 1 : len(s.tokens) - 1].double().sum(1) * 0.1
    np.testing.assert_allclose(scored[s.uid]["values"], right.numpy(), atol=1e-5)
    _, grads = _backward(backend, one_part(sequences), ValueLoss())
    assert "value_head.weight" in grads and "lm_head.weight" not in grads
    assert float(grads["model.embed_tokens.weight"].norm()) > 0


def test_one_step_is_adamw_on_the_divided_and_clipped_gradient(base):
    spec = OptimizerSpec(lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, clip_grad=0.5, warmup_steps=4)
    backend = opened(folder_of(base, "qwen3"), optimizer=spec)
    before = {n: t.clone() for n, t in backend.weights()}
    _, grads = _backward(backend, one_part(groups()))
    stats = backend.step(20.0)
    norm = sum(float((g.double() / 20).square().sum()) for g in grads.values()) ** 0.5
    assert stats.grad_norm == pytest.approx(norm, rel=1e-6)
    assert stats.lr == pytest.approx(0.01 / 4)
    for name, after in backend.weights():
        grad = grads[name].double() / 20 * min(1.0, 0.5 / norm)
        decay = 0.1 if before[name].ndim > 1 else 0.0
        # first step: both bias-corrected moments are the gradient's own
        right = before[name].double() * (1 - stats.lr * decay) - stats.lr * grad / (grad.abs() + 1e-8)
        torch.testing.assert_close(after.double(), right, atol=2e-6, rtol=1e-5)
    assert not gradients(backend)


def test_bf16_keeps_float32_masters(base):
    """Updates far below a bf16 step of the weight add up over steps."""
    backend = opened(folder_of(base, "qwen3"), optimizer=OptimizerSpec(lr=1e-5), dtype="bf16")
    start = {n: t.clone() for n, t in backend.weights()}
    assert {t.dtype for t in start.values()} == {torch.bfloat16}
    masters = {s.name: s.master.detach().clone() for s in backend._shards}
    for _ in range(3):
        backend.backward(one_part(groups()), LogProbLoss())
        backend.step(10.0)
    moved = {s.name: (s.master.detach() - masters[s.name]).abs().max().item() for s in backend._shards}
    assert all(1e-6 < m < 4e-5 for m in moved.values()), moved
    assert all(
        torch.equal(t, s.master.bfloat16()) for (_, t), s in zip(backend.weights(), backend._shards, strict=True)
    )


def test_kept_weights_score_as_they_were(base):
    backend, part = opened(folder_of(base, "qwen3")), one_part(groups())
    backend.keep("ref")
    start = backend.score(part, LOG_PROBS)
    backend.backward(part, LogProbLoss())
    backend.step(10.0)
    now = backend.score(part, LOG_PROBS)
    ref = backend.score(part, LOG_PROBS, "ref")
    assert all((ref[u]["log_probs"] == start[u]["log_probs"]).all() for u in start)
    assert all((backend.score(part, LOG_PROBS)[u]["log_probs"] == now[u]["log_probs"]).all() for u in start)
    assert any((now[u]["log_probs"] != start[u]["log_probs"]).any() for u in start)
    with pytest.raises(InternalError, match="no weights are kept as 'old'"):
        backend.score(part, LOG_PROBS, "old")


def test_a_nan_gradient_names_step_and_tensor_and_leaves_the_weights(base):
    backend = opened(folder_of(base, "qwen3"))
    backend.backward(one_part(groups()), LogProbLoss())
    before = {n: t.clone() for n, t in backend.weights()}
    dict(backend.model.hf.named_parameters())["model.norm.weight"].grad[3] = float("nan")
    with pytest.raises(Divergence, match=r"optimizer step 0: .* in model\.norm\.weight; weights are unchanged"):
        backend.step(1.0)
    assert all(torch.equal(t, before[n]) for n, t in backend.weights())


def test_a_loss_that_is_not_finite_names_its_term_and_samples(base):
    sequences = groups()
    sequences[4].columns["advantages"][:] = np.inf
    backend = opened(folder_of(base, "qwen3"))
    with pytest.raises(Divergence, match=r"step 0: loss term nll is not finite in samples \(1, 0\) to \(1, 2\)"):
        backend.backward(one_part(sequences, 3, 3), LogProbLoss())


def test_calls_out_of_order_are_refused(base):
    folder, part = folder_of(base, "qwen3"), one_part(groups())
    backend = FsdpBackend()
    with pytest.raises(InternalError, match="call open first"):
        backend.score(part, LOG_PROBS)
    backend.open(ModelSpec(folder, trainable=False), OptimizerSpec(lr=1.0))
    with pytest.raises(InternalError, match="without an optimizer"):
        backend.backward(part, LogProbLoss())
    with pytest.raises(InternalError, match="not asleep"):
        backend.wake()
    backend.sleep()
    with pytest.raises(InternalError, match="asleep; call wake"):
        backend.score(part, LOG_PROBS)
    with pytest.raises(InternalError, match="already asleep"):
        backend.sleep()
    backend.wake()
    with pytest.raises(ConfigError, match="without a value head"):
        backend.score(part, frozenset({"values"}))
    with pytest.raises(ConfigError, match=r"needs \['logits'\]"):
        backend.score(part, frozenset({"logits"}))
    backend.close()
    backend.close()


def _distribution(folder, sequence, *, temperature=1.0, suppressed=()):
    """float64 probabilities `[R, V]` by transformers' own forward of one sequence."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(sequence.tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, sequence.prompt_len - 1 : -1].double() / temperature
    logits[:, list(suppressed)] = -torch.inf
    return logits.softmax(-1), ids[0, sequence.prompt_len :, None]


def test_each_switch_of_a_score_changes_that_one_thing(base):
    folder = folder_of(base, "qwen3")
    backend = opened(folder, temperature=0.7, suppressed_ids=(8, 9))
    sequence = next(s for s in groups(num_groups=1) if s.response_len > 4)

    def score(switch=None, need="log_probs"):
        return backend.score(one_part([sequence]), frozenset({need}), switch=switch)[sequence.uid][need]

    def right(probs, ids):
        return probs.gather(1, ids)[:, 0].log().numpy()

    own = _distribution(folder, sequence, temperature=0.7, suppressed=(8, 9))
    assert score() == pytest.approx(right(*own), abs=1e-5)
    hot = _distribution(folder, sequence, temperature=1.3, suppressed=(8, 9))
    assert score(ScoreSwitch(temperature=1.3)) == pytest.approx(right(*hot), abs=1e-5)
    free = _distribution(folder, sequence, temperature=0.7)
    assert score(ScoreSwitch(suppressed_ids=())) == pytest.approx(right(*free), abs=1e-5)
    # the 20 most likely ids, renormalised; outside them a token is impossible
    probs, ids = own
    least = probs.sort(descending=True).values[:, 19:20]
    kept = torch.where(probs >= least, probs, 0.0)
    kept = (kept / kept.sum(1, keepdim=True)).gather(1, ids)[:, 0]
    assert np.exp(score(ScoreSwitch(top_k=20))) == pytest.approx(kept.numpy(), abs=1e-5)
    above = torch.where(probs > probs.gather(1, ids), probs, 0.0).sum(1)
    assert score(need="mass_above") == pytest.approx(above.numpy(), abs=1e-5)


def test_a_forward_in_another_type_leaves_the_weights_as_they_are(base):
    folder = folder_of(base, "qwen3")
    part = one_part(groups(num_groups=2))
    backend, rounded = opened(folder), opened(folder, dtype="bf16")
    before = backend.score(part, LOG_PROBS)
    switched = backend.score(part, LOG_PROBS, switch=ScoreSwitch(dtype="bf16"))
    again, right = backend.score(part, LOG_PROBS), rounded.score(part, LOG_PROBS)
    for uid in before:
        assert (switched[uid]["log_probs"] == right[uid]["log_probs"]).all()
        assert (again[uid]["log_probs"] == before[uid]["log_probs"]).all()
    assert any((switched[uid]["log_probs"] != before[uid]["log_probs"]).any() for uid in before)
    widened = rounded.score(part, LOG_PROBS, switch=ScoreSwitch(dtype="fp32"))
    assert all((widened[uid]["log_probs"] == before[uid]["log_probs"]).all() for uid in before)


def test_forgotten_weights_are_gone(base):
    backend = opened(folder_of(base, "qwen3"))
    backend.keep("old")
    backend.forget("old")
    backend.forget("old")
    with pytest.raises(InternalError, match="'old'"):
        backend.score(one_part(groups(num_groups=1)), LOG_PROBS, tag="old")


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_omni"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_micro_batches_on_lent_cores_leave_every_bit_as_it_is(base, tmp_path, kind, dtype):
    media = {0: (image(1),), 3: (image(2),)} if kind == "qwen3_omni" else None
    sequences = groups(media, num_groups=5)
    part = Part(tuple(tuple(sequences[i : i + 3]) for i in range(0, len(sequences), 3)))
    share = CoreShare(tmp_path, 2)
    folder = folder_of(base, kind)
    spec, optimizer = ModelSpec(folder, dtype=dtype), OptimizerSpec(lr=1e-2)
    alone, lent = FsdpBackend(), FsdpBackend(cores=share)
    for backend in (alone, lent):
        backend.open(spec, optimizer)
    for _ in range(2):  # the second step starts from updated weights
        stats = [backend.backward(part, LogProbLoss()) for backend in (alone, lent)]
        assert stats[0].sums == stats[1].sums
        norms = [backend.step(15.0).grad_norm for backend in (alone, lent)]
        assert norms[0] == norms[1] > 0
    for (name, one), (_, other) in zip(alone.weights(), lent.weights(), strict=True):
        assert torch.equal(one, other), name
    scores = [backend.score(part, LOG_PROBS) for backend in (alone, lent)]
    assert all(np.array_equal(scores[0][uid]["log_probs"], scores[1][uid]["log_probs"]) for uid in scores[0])
    lent.close()
    assert list(tmp_path.iterdir()) == []
