# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whole runs with adapters and with MTP layers, in one process: exact towards the engine, resumed without a seam."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.service.training_run import ASYNC, Finished, Inputs, checkpoint_weights, inline
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
