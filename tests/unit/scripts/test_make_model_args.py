# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`make_model_args.py` with transformers, whose import takes seconds; the rest is in tests/unit/config."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.tools.make_model_args import main


def test_numbers_that_a_configuration_leaves_out_are_those_of_its_class(tmp_path: Path, capsys) -> None:
    """LLaVA 1.5: the text part names its vocabulary and an epsilon, the rest is Llama's own default (7B)."""
    text = {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-05}
    llava = {"_name_or_path": "llava", "model_type": "llava", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(llava))
    assert main([str(tmp_path)]) == 0
    words = capsys.readouterr().out.split("MODEL_ARGS=(")[1].split()
    for flag, value in {
        "--num-layers": "32",
        "--hidden-size": "4096",
        "--ffn-hidden-size": "11008",
        "--num-attention-heads": "32",
        "--vocab-size": "32064",
        "--norm-epsilon": "1e-5",
        "--rotary-base": "10000",
    }.items():
        assert words[words.index(flag) + 1] == value
    assert "--group-query-attention" not in words
    assert "--untie-embeddings-and-output-weights" in words
