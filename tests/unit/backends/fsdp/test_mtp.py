# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Multi-token prediction against a plain implementation on transformers' own layers, one padded row a sequence."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from relax.algorithms.supervised.causal_lm import SftLoss
from relax.algorithms.supervised.mtp import WithMtp
from relax.backends.additions import ClassHead, MtpSpec
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.fsdp.backend import FsdpBackend
from relax.utils.errors import ConfigError
from tests.unit.backends.fsdp.mtp_models import with_mtp
from tests.unit.backends.training_cases import folder_of, gradients, groups, image, one_part, worst_difference

SCALE = 0.2


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def opened(folder, spec: MtpSpec, **more) -> FsdpBackend:
    backend = FsdpBackend()
    backend.open(ModelSpec(folder, mtp=spec, **more), OptimizerSpec(lr=1e-2))
    return backend


def rows(seed: int = 0):
    sequences = groups(seed=seed, num_groups=3, size=2)
    for sequence in sequences:
        generator = np.random.default_rng(len(sequence.tokens))
        weight = generator.random(sequence.response_len).astype(np.float32)
        sequence.columns["loss_weight"] = weight * sequence.loss_mask
    return sequences


def _norm(weight, x, eps):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Plain:
    """The recurrence written out, with autograd, on the folder's weights."""

    def __init__(self, folder, depths: int, detach: tuple[str, ...] = (), name: str = "Qwen3ForCausalLM") -> None:
        model_class = getattr(transformers, name)
        self.own = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.text = getattr(self.own.model, "language_model", self.own.model)
        self.seen: dict = {}  # what the text model was last called with
        self.text.register_forward_pre_hook(lambda _, args, kwargs: self.seen.update(kwargs), with_kwargs=True)
        self.depths, self.detach = depths, detach
        self.mtp = {
            name: tensor.clone().requires_grad_()
            for name, tensor in load_file(folder / "model.safetensors").items()
            if name.startswith("mtp.")
        }

    def total(self, sequences) -> torch.Tensor:
        return sum(self._sequence(s) for s in sequences)

    def _sequence(self, s) -> torch.Tensor:
        model, mtp, eps = self.text, self.mtp, self.own.config.get_text_config().rms_norm_eps
        ids = torch.from_numpy(s.tokens.astype(np.int64))
        media = {}
        for item in s.media:  # at most one
            tensors = {k: torch.from_numpy(v) for k, v in item.tensors.items()}
            kinds = (ids == self.own.config.image_token_id).int()[None]
            media = {"pixel_values": tensors["pixel_values"], "image_grid_thw": tensors["image_grid_thw"][None]}
            media["mm_token_type_ids"] = kinds
        mask = {"attention_mask": torch.ones(1, len(ids), dtype=torch.long)} if media else {}
        h = self.own.model(input_ids=ids[None], use_cache=False, **media, **mask).last_hidden_state[0]
        embeds = self.seen.get("inputs_embeds")
        embeds = model.embed_tokens(ids) if embeds is None else embeds[0]
        where = self.seen.get("position_ids")
        where = torch.arange(len(ids))[None] if where is None else where[-3:]
        head = self.own.lm_head.weight
        weights = torch.zeros(len(ids))
        weights[s.prompt_len :] = torch.from_numpy(s.columns["loss_weight"])
        places = torch.arange(s.prompt_len, len(ids))
        logp = (h @ head.t()).log_softmax(-1)
        total = -(logp[places - 1, ids[places]] * weights[places]).sum()
        h = h.detach() if "backbone" in self.detach else h
        head = head.detach() if "lm-head" in self.detach else head
        for depth in range(1, self.depths + 1):
            length = len(ids) - depth  # rows that have a token `depth` places ahead
            if length < 1:
                break
            e = embeds[depth:]
            e = e.detach() if "embedding" in self.detach else e
            both = [
                _norm(mtp["mtp.pre_fc_norm_embedding.weight"], e, eps),
                _norm(mtp["mtp.pre_fc_norm_hidden.weight"], h[:length], eps),
            ]
            z = torch.cat(both, -1) @ mtp["mtp.fc.weight"].t()
            prefix = f"mtp.layers.{depth - 1}."
            layer = {n.removeprefix(prefix): t for n, t in mtp.items() if n.startswith(prefix)}
            mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
            positions = model.rotary_emb(z[None], where[..., :length])
            arguments = {"attention_mask": mask, "position_embeddings": positions}
            h = torch.func.functional_call(model.layers[1], layer, (z[None],), arguments)
            h = _norm(mtp["mtp.norm.weight"], (h[0] if isinstance(h, tuple) else h)[0], eps)
            logp = (h @ head.t()).log_softmax(-1)
            target = torch.arange(max(s.prompt_len, depth + 1), len(ids))
            nll = -(logp[target - depth - 1, ids[target]] * weights[target]).sum()
            total = total + SCALE / self.depths * nll
        return total

    def gradients(self) -> dict[str, torch.Tensor]:
        found = {n: p.grad for n, p in self.own.named_parameters() if p.grad is not None}
        return found | {n: t.grad for n, t in self.mtp.items() if t.grad is not None}


@pytest.mark.parametrize("detach", [(), ("embedding", "backbone", "lm-head"), ("backbone",)])
@pytest.mark.parametrize("depths", [1, 2])
def test_the_loss_and_every_gradient_equal_the_plain_recurrence(base, depths, detach):
    folder, sequences = with_mtp(base, depths), rows()
    plain = Plain(folder, depths, detach)
    right = plain.total(sequences)
    right.backward()
    backend = opened(folder, MtpSpec(depths, detach))
    stats = backend.backward(one_part(sequences, 2), WithMtp(SftLoss(), SCALE))
    assert stats.sums["sft_loss"] + stats.sums["mtp_loss"] == pytest.approx(right.item(), rel=1e-5)
    difference, name = worst_difference(gradients(backend), plain.gradients())
    assert difference < 2e-5, name


@pytest.mark.parametrize("depths", [1, 2])
def test_media_are_seen_ahead_as_the_encoder_gives_them(base, depths):
    """The token that a row looks ahead to may be a piece of a picture; encoders get gradients by both ways."""
    folder = with_mtp(base, depths, "qwen3_vl")
    sequences = groups({0: (image(1),), 2: (image(2, (1, 4, 8)),)}, num_groups=3, size=2)
    for sequence in sequences:
        sequence.columns["loss_weight"] = sequence.loss_mask.astype(np.float32)
    plain = Plain(folder, depths, (), "Qwen3VLForConditionalGeneration")
    right = plain.total(sequences)
    right.backward()
    backend = opened(folder, MtpSpec(depths, ()))
    stats = backend.backward(one_part(sequences, 3), WithMtp(SftLoss(), SCALE))
    assert stats.sums["sft_loss"] + stats.sums["mtp_loss"] == pytest.approx(right.item(), rel=1e-5)
    difference, name = worst_difference(gradients(backend), plain.gradients())
    assert difference < 5e-5, name


def test_rows_before_a_sequence_see_none_of_its_media():
    from relax.backends.exact.media import EncodedItem, PlacedItem
    from relax.backends.fsdp.mtp import media_ahead

    # sequences start at rows 0 and 5; the second begins with a picture of three tokens
    item = EncodedItem("image", torch.arange(6.0).view(3, 2))
    one, two = (media_ahead([PlacedItem(item, np.array([5, 6, 7]))], np.array([0, 5, 9]), d)[0] for d in (1, 2))
    assert (one.rows.tolist(), one.item.embeds.tolist()) == ([5, 6], [[2.0, 3.0], [4.0, 5.0]])
    assert (two.rows.tolist(), two.item.embeds.tolist()) == ([5], [[4.0, 5.0]])


def test_detached_everywhere_the_model_learns_as_without_mtp(base):
    folder, sequences = with_mtp(base), rows()
    joint, plain = opened(folder, MtpSpec(1)), FsdpBackend(shared_prefix=False)
    plain.open(ModelSpec(folder), OptimizerSpec(lr=1e-2))
    joint.backward(one_part(sequences), WithMtp(SftLoss(), SCALE))
    plain.backward(one_part(sequences), SftLoss())
    right = gradients(plain)
    found = {name: grad for name, grad in gradients(joint).items() if not name.startswith("mtp.")}
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], grad) for name, grad in right.items())


def test_training_mtp_alone_moves_nothing_else_and_lowers_its_loss(base):
    folder, sequences = with_mtp(base), rows()
    backend = opened(folder, MtpSpec(1, only=True))
    before = {n: t.clone() for n, t in backend._tensors()}
    seen = []
    for _ in range(15):
        seen.append(backend.backward(one_part(sequences), WithMtp(SftLoss(), SCALE, only=True)).means())
        backend.step(10.0)
    assert seen[-1]["mtp_nll"] < 0.6 * seen[0]["mtp_nll"]
    assert seen[-1]["sft_loss"] == seen[0]["sft_loss"]
    moved = {n for n, t in backend._tensors() if not torch.equal(t, before[n])}
    assert moved == {n for n in before if n.startswith("mtp.")}


def test_an_export_and_a_checkpoint_hold_the_layers_and_engines_get_none(base, tmp_path):
    folder, sequences = with_mtp(base, 1, "qwen3_moe"), rows()
    backend = opened(folder, MtpSpec(1))
    backend.backward(one_part(sequences), WithMtp(SftLoss(), SCALE))
    backend.step(10.0)
    assert not [name for name, _ in backend.weights() if name.startswith("mtp.")]
    backend.export_hf(tmp_path / "export")
    backend.save(tmp_path / "checkpoint")
    resumed = opened(folder, MtpSpec(1))
    resumed.load(tmp_path / "checkpoint")
    right = backend.score(one_part(sequences), frozenset({"mtp_log_probs", "log_probs"}))
    for other in (resumed, opened(tmp_path / "export", MtpSpec(1))):
        found = other.score(one_part(sequences), frozenset({"mtp_log_probs", "log_probs"}))
        for uid, columns in right.items():
            for name, values in columns.items():
                np.testing.assert_array_equal(found[uid][name], values)


def test_what_cannot_be_trained_is_refused(base):
    with pytest.raises(ConfigError, match=r"holds no MTP weights \(tensors named mtp\.\*\)"):
        opened(folder_of(base, "qwen3"), MtpSpec(1))
    with pytest.raises(ConfigError, match=r"--mtp-num-layers 2: .* holds 1 MTP layers"):
        opened(with_mtp(base), MtpSpec(2))
    with pytest.raises(ConfigError, match="predicts no token"):
        opened(with_mtp(base), MtpSpec(1), head=ClassHead(2, "single_label_classification"))
    backend = FsdpBackend()
    backend.open(ModelSpec(folder_of(base, "qwen3")), OptimizerSpec(lr=1e-3))
    with pytest.raises(ConfigError, match="opened without MTP layers"):
        backend.backward(one_part(rows()), WithMtp(SftLoss(), SCALE))


def test_the_term_of_the_loss_counts_what_a_depth_can_predict():
    # one token of three is known: nll 2 x weight 0.5; the mask takes the last one away
    from tests.unit.algorithms.supervised.cases import token_batch

    batch = token_batch([[-1.0, -1.0, -1.0]], [[1, 1, 0]], loss_weight=[0.5, 0.5, 0.5])
    known = torch.tensor([[torch.nan], [-2.0], [-3.0]], dtype=torch.float64, requires_grad=True)
    object.__setattr__(batch, "mtp_log_probs", known)
    terms = WithMtp(SftLoss(), 0.3)(batch)
    assert (float(terms["mtp_loss"].total), terms["mtp_loss"].count) == (pytest.approx(0.3), 1.0)
    assert (float(terms["mtp_nll"].total), terms["mtp_nll"].count) == (1.0, 0.5)
    terms["mtp_loss"].total.backward()
    assert known.grad.flatten().tolist() == pytest.approx([0.0, -0.15, 0.0])
