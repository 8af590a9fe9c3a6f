# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The SGLang adapter of the classification example on a stand-in for SGLang's modules, made of transformers."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from relax.backends.additions import ClassHead
from relax.backends.base import ModelSpec
from relax.backends.fsdp.backend import FsdpBackend
from tests.builders import build_tiny_model_folder
from tests.unit.backends.fsdp.recurrent_models import recurrent_folder

QWEN3 = """
import torch
import transformers


class Body(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.own = transformers.Qwen3Model(config)
        self.embed_tokens = self.own.embed_tokens

    def forward(self, input_ids, positions, forward_batch, input_embeds):
        rows = input_ids.split(forward_batch.extend_seq_lens.tolist())
        return torch.cat([self.own(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])


class Qwen3ForCausalLM(torch.nn.Module):
    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        assert config.tie_word_embeddings
        self.model = Body(config)

    def load_weights(self, weights):
        self.model.own.load_state_dict({name.removeprefix("model."): t for name, t in weights})
"""
QWEN3_5 = """
import torch
import transformers


class Qwen3_5ForCausalLM(torch.nn.Module):
    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        self.own = transformers.Qwen3_5TextModel(config)
        self.embed_tokens = self.own.embed_tokens

    def forward(self, input_ids, positions, forward_batch, input_embeds):
        rows = input_ids.split(forward_batch.extend_seq_lens.tolist())
        return torch.cat([self.own(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])

    def load_weights(self, weights):
        self.own.load_state_dict(dict(weights))
"""
FILES = {
    "srt/models/qwen3_5.py": QWEN3_5,
    "srt/distributed/parallel_state.py": "from types import SimpleNamespace\nSTAGES = [1]\n\n\ndef get_pp_group():\n"
    "    return SimpleNamespace(world_size=STAGES[0])\n",
    "srt/layers/pooler.py": "from collections import namedtuple\n"
    'EmbeddingPoolerOutput = namedtuple("EmbeddingPoolerOutput", "embeddings")\n',
    "srt/models/qwen3.py": QWEN3,
}


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = "examples.seq_cls_sft.sglang_adapter.classifiers"
    yield importlib.import_module(module)
    for name in [n for n in sys.modules if n == module or n.partition(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.fixture
def exported(tmp_path):
    backend = FsdpBackend()
    head = ClassHead(3, "single_label_classification", seed=4)
    backend.open(ModelSpec(build_tiny_model_folder(tmp_path / "model"), head=head), None)
    backend.export_hf(tmp_path / "classes")
    return tmp_path / "classes"


def test_a_served_export_gives_the_logits_of_transformers(adapter, exported):
    assert {entry.__name__ for entry in adapter.EntryClass} == {
        "Qwen3ForSequenceClassification",
        "Qwen3_5ForSequenceClassification",
        "Qwen3_5TextForSequenceClassification",
    }  # of the families that this stand-in has
    own = transformers.AutoModelForSequenceClassification.from_pretrained(exported, dtype=torch.float32)
    assert own.config.architectures == ["Qwen3ForSequenceClassification"]
    config = transformers.AutoConfig.from_pretrained(exported)
    served = adapter.EntryClass[0](config)
    assert config.tie_word_embeddings is False
    served.load_weights(load_file(exported / "model.safetensors").items())
    prompts = [np.random.default_rng(n).integers(12, 250, 3 + n) for n in range(3)]
    batch = SimpleNamespace(extend_seq_lens=torch.tensor([len(p) for p in prompts]))
    ids = torch.from_numpy(np.concatenate(prompts))
    found = served(ids, None, batch).embeddings
    with torch.no_grad():
        right = torch.cat([own(input_ids=torch.from_numpy(p)[None], use_cache=False).logits for p in prompts])
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="start SGLang with --is-embedding"):
        served(ids, None, batch, get_embedding=False)


def test_a_served_model_with_encoders_reads_text_by_its_body(adapter, tmp_path):
    backend = FsdpBackend()
    folder = recurrent_folder(tmp_path / "model", "Qwen3_5ForConditionalGeneration")
    backend.open(ModelSpec(folder, head=ClassHead(3, "multi_label_classification", seed=4)), None)
    backend.export_hf(tmp_path / "classes")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "classes", dtype=torch.float32)
    entry = next(e for e in adapter.EntryClass if e.__name__ == own.config.architectures[0])
    served = entry(transformers.AutoConfig.from_pretrained(tmp_path / "classes"))
    served.load_weights(load_file(tmp_path / "classes/model.safetensors").items())
    prompt = torch.from_numpy(np.random.default_rng(1).integers(12, 250, 9))
    found = served(prompt, None, SimpleNamespace(extend_seq_lens=torch.tensor([9]))).embeddings
    with torch.no_grad():
        right = own(input_ids=prompt[None], use_cache=False).logits
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)


def test_pipeline_parallelism_is_refused_before_the_model_is_built(adapter, exported):
    distributed = importlib.import_module("sglang.srt.distributed.parallel_state")
    distributed.STAGES[0] = 2
    with pytest.raises(ValueError, match="tensor parallelism only: --pp-size 2 is not supported"):
        adapter.EntryClass[0](transformers.AutoConfig.from_pretrained(exported))


def test_a_checkpoint_without_a_head_is_refused(adapter, exported):
    served = adapter.EntryClass[0](transformers.AutoConfig.from_pretrained(exported))
    weights = load_file(exported / "model.safetensors")
    del weights["score.weight"]
    with pytest.raises(ValueError, match=r"has no score.weight"):
        served.load_weights(weights.items())
