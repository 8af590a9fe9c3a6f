# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whole runs with adapters and with MTP layers, in one process: exact towards the engine, resumed without a seam."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.service.training_run import ASYNC, FIVE_ROLES, Finished, Inputs, checkpoint_weights, inline
from tests.unit.backends.fsdp.mtp_models import with_mtp

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
LORA = {"lora_rank": 4, "lora_alpha": 16}


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    def go(*words: object, name: str = "run", **changed: object) -> Finished:
        return inline([*inputs.flags(tmp_path / name, **changed), *words]).ok()

    return go


@pytest.mark.parametrize("words", [("--colocate",), (*ASYNC, 1)])
def test_an_engine_samples_from_the_merged_weights_with_the_trainers_bits(run, words):
    done = run(*words, "--lora-merge-mode", num_rollout=3, **LORA)
    assert json.loads((done.folder / "manifest.json").read_text())["exact"] is True
    assert [e["version"] for e in done.events("installed")] == [1, 2, 3]
    if words == ("--colocate",):
        assert done.metrics("train/log_prob_difference_abs") == [0.0] * 3
    weights = checkpoint_weights(done.folder / "iter_0000002/model")
    adapters = [tensor for name, tensor in weights.items() if name.endswith("lora_B")]
    assert len(adapters) == 8  # two layers of four matrices
    assert all(float(tensor.abs().max()) > 0 for tensor in adapters)


def test_an_engine_that_merges_adapters_by_itself_ends_with_the_run_of_merged_weights(run):
    flags = {"num_rollout": 3, **LORA}
    merge = run("--colocate", "--lora-merge-mode", name="merge", **flags)
    alone = run("--colocate", "--lora-adapter-mode", name="adapter", **flags)
    assert alone.metrics("train/log_prob_difference_abs") == [0.0] * 3
    assert [e["version"] for e in alone.events("installed")] == [1, 2, 3]
    assert alone.metrics("train/policy_loss") == merge.metrics("train/policy_loss")
    first, second = (checkpoint_weights(done.folder / "iter_0000002/model") for done in (merge, alone))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    whole, adapter = (done.metrics("perf/weight_sync_bytes") for done in (merge, alone))
    assert len(set(whole)) == len(set(adapter)) == 1
    assert 0 < adapter[0] < whole[0] / 5
    published = alone.events("weights")
    assert [len(event["tensors"]) for event in published] == [16] * 4  # A and B of eight matrices, four versions
    assert all("lora_" in name for event in published for name in event["tensors"])


def test_adapters_reach_asynchronous_engines_and_the_other_roles(run):
    """The reference is renewed from version 2; both roles compute the trainer's own bits of the version they took."""
    flags = {"num_rollout": 3, "resource": FIVE_ROLES, "kl_loss_coef": 0.1, "kl_loss_type": "k2", **LORA}
    words = ("--fully-async", "--max-staleness", 1, "--use-kl-loss", "--ref-update-interval", 2, "--deterministic")
    runs = [run(*words, f"--lora-{mode}-mode", name=mode, **flags) for mode in ("merge", "adapter")]
    first, second = (checkpoint_weights(done.folder / "iter_0000002/model") for done in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("train/policy_loss", "train/kl_loss", "train/log_prob_difference_abs"):
        assert runs[0].metrics(name) == runs[1].metrics(name) != []


def test_a_resumed_run_in_adapter_mode_goes_on_bit_for_bit_and_replays(run, capsys):
    from relax.entrypoints.replay import main as replay

    words = ("--colocate", "--deterministic", "--lora-adapter-mode", "--save-lora-only")
    whole = run(*words, name="whole", num_rollout=3, **LORA)
    run(*words, name="half", num_rollout=1, **LORA)
    again = run(*words, name="half", num_rollout=3, load=whole.folder.with_name("half"), **LORA)
    first, second = (checkpoint_weights(done.folder / "iter_0000002/model") for done in (whole, again))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    capsys.readouterr()
    assert replay(["--run", str(again.folder), "--step", "1-2", "--regenerate"]) == 0


def test_steps_that_move_no_bit_move_no_bytes(run):
    done = run("--colocate", "--lora-adapter-mode", num_rollout=2, **LORA, lr=0.0)
    assert done.metrics("perf/weight_sync_bytes") == [0, 0]
    assert [e["version"] for e in done.events("published")] == [0, 1, 2]
    assert [e["version"] for e in done.events("installed")] == [1, 2]


def test_an_export_in_adapter_mode_is_what_peft_loads(run, inputs, tmp_path):
    import peft
    import transformers

    done = run("--colocate", "--lora-adapter-mode", num_rollout=1, save_hf=tmp_path / "export-{rollout_id}", **LORA)
    folder = tmp_path / "export-0/lora_adapter"
    assert [path.name for path in (tmp_path / "export-0").iterdir()] == ["lora_adapter"]
    base = transformers.AutoModelForCausalLM.from_pretrained(inputs.model, dtype=torch.float32)
    named = dict(peft.PeftModel.from_pretrained(base, folder).named_parameters())
    own = {n: t for n, t in checkpoint_weights(done.folder / "iter_0000000/model").items() if "lora_" in n}
    assert len(own) == 16
    for name, tensor in own.items():
        owner, _, half = name.removeprefix("model.").rpartition(".")
        assert torch.equal(named[f"base_model.model.{owner}.{half}.default.weight"], tensor)


def test_a_checkpoint_on_other_frozen_weights_is_refused_before_anything_is_sampled(run, inputs, tmp_path):
    """The engine has the model's folder; what training goes on from is another model of the same shape."""
    from tests.builders import build_tiny_model_folder

    other = build_tiny_model_folder(tmp_path / "model", seed=7)
    run("--colocate", name="other", num_rollout=1, hf_checkpoint=other, **LORA)
    flags = inputs.flags(tmp_path / "mixed", num_rollout=2, load=tmp_path / "other", **LORA)
    done = inline([*flags, "--colocate", "--lora-adapter-mode"])
    assert done.code != 0
    assert "other frozen weights than this engine has loaded" in done.out + done.err
    assert not done.events("admitted")


def test_a_reference_kept_by_the_actor_is_the_model_without_adapters(run):
    kl = {"use_kl_loss": None, "kl_loss_coef": 0.1, "kl_loss_type": "k2"}
    done = run("--colocate", "--use-kl-loss", num_rollout=2, **LORA, **{k: v for k, v in kl.items() if v})
    first, second = done.metrics("train/kl_ref")
    assert (first, second > 0) == (0.0, True)


@pytest.mark.parametrize("only", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(run, only):
    words = ("--colocate", "--deterministic", *(["--save-lora-only"] if only else []))
    whole = run(*words, name="whole", num_rollout=3, **LORA)
    half = run(*words, name="half", num_rollout=1, **LORA)
    again = run(*words, name="half", num_rollout=3, load=half.folder, **LORA)
    first, second = (checkpoint_weights(done.folder / "iter_0000002/model") for done in (whole, again))
    assert first.keys() == second.keys()
    assert ("model.model.norm.weight" in first) is not only
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (again.folder / "iter_0000002/model/lora_adapter/adapter_model.safetensors").is_file()


def test_an_export_of_a_run_is_the_merged_model(run, tmp_path):
    done = run("--colocate", num_rollout=2, save_hf=tmp_path / "export-{rollout_id}", **LORA)
    from relax.core.export import export_checkpoint

    export_checkpoint(done.folder, tmp_path / "offline")
    from safetensors.torch import load_file

    online, offline = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "export-1", tmp_path / "offline")
    )
    assert online.keys() == offline.keys()
    assert not [name for name in online if "lora" in name]
    assert all(torch.equal(online[name], offline[name]) for name in online)


def test_mtp_layers_learn_beside_a_policy_that_learns_as_without_them(run, inputs, tmp_path):
    folder = with_mtp(tmp_path)
    mtp = ("--enable-mtp-training", "--mtp-num-layers", 1, "--mtp-loss-scaling-factor", 0.1)
    flags = {"hf_checkpoint": folder, "num_rollout": 3}
    joint = run("--colocate", "--no-shared-prefix", *mtp, name="joint", **flags)
    plain = run("--colocate", "--no-shared-prefix", name="plain", **flags)
    assert joint.metrics("train/policy_loss") == plain.metrics("train/policy_loss")
    assert joint.metrics("train/log_prob_difference_abs") == [0.0] * 3
    losses, nll = joint.metrics("train/mtp_loss"), joint.metrics("train/mtp_nll")
    assert len(losses) == len(nll) == 3 and all(value > 0 for value in (*losses, *nll))
