# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tokens per CPU second of the native engine (requests, JSON and scheduling included) next to HF `generate`.

    OMP_NUM_THREADS=1 python -m benchmarks.engine_speed [--rounds 5]

W1 shapes: 32 prompts of 12-16 tokens, 8 responses each of 6-26 tokens, Qwen3 with 4 layers of width 128. `generate`
gets the same prompts as one padded batch and runs until its longest response ends, which is all it can do; only asked
tokens count on both sides. Rounds are interleaved; medians are printed. The last line is `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax.backends.engine_client import AsgiEngineClient
from relax.backends.native.build import EngineSettings, build_app

PROMPTS, MEMBERS, VOCABULARY = 32, 8, 512


def make_model(folder: Path) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def workload() -> tuple[list[list[int]], np.ndarray]:
    """Prompts and the length of each response, `[PROMPTS, MEMBERS]`."""
    chance = np.random.default_rng(0)
    prompts = [chance.integers(5, VOCABULARY, chance.integers(12, 17)).tolist() for _ in range(PROMPTS)]
    return prompts, chance.integers(6, 27, (PROMPTS, MEMBERS))


async def engine_seconds(client: AsgiEngineClient, prompts: list[list[int]], lengths: np.ndarray, seed: int) -> float:
    """CPU seconds of this process for all responses."""
    calls = [
        {
            "input_ids": prompts[i],
            "sampling_params": {
                "max_new_tokens": int(lengths[i, j]),
                "sampling_seed": seed * 1000 + i * MEMBERS + j,
                "ignore_eos": True,
            },
            "return_logprob": True,
        }
        for i in range(PROMPTS)
        for j in range(MEMBERS)
    ]
    start = time.process_time()
    answers = await asyncio.gather(*(client.generate(call) for call in calls))
    spent = time.process_time() - start
    assert sum(len(a["output_ids"]) for a in answers) == lengths.sum()
    return spent


def generate_seconds(model: Any, prompts: list[list[int]], lengths: np.ndarray) -> float:
    """CPU seconds of HF `generate` for the same responses; finished rows are kept, as `generate` does."""
    width = max(map(len, prompts))
    rows = [p for p in prompts for _ in range(MEMBERS)]
    ids = torch.tensor([[0] * (width - len(p)) + p for p in rows])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in rows])
    start = time.process_time()
    with torch.no_grad():
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=int(lengths.max()),
            eos_token_id=None,
            pad_token_id=0,
        )
    return time.process_time() - start


def main() -> None:
    from transformers import Qwen3ForCausalLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(Path(name))
        client = AsgiEngineClient(build_app(EngineSettings(folder, max_total_tokens=32768)))
        model = Qwen3ForCausalLM.from_pretrained(folder).eval()
        prompts, lengths = workload()
        engine, plain = [], []
        with asyncio.Runner() as runner:
            for place in range(rounds + 1):
                engine.append(runner.run(engine_seconds(client, prompts, lengths, place)))
                plain.append(generate_seconds(model, prompts, lengths))
            runner.run(client.close())
    tokens = int(lengths.sum())  # the first round warms up and does not count
    ours, theirs = tokens / statistics.median(engine[1:]), tokens / statistics.median(plain[1:])
    result = {
        "engine_tokens_per_cpu_s": round(ours),
        "hf_generate_tokens_per_cpu_s": round(theirs),
        "ratio": round(ours / theirs, 2),
        "tokens": tokens,
        "rounds": rounds,
    }
    print(f"RESULT {json.dumps(result)}")


if __name__ == "__main__":
    main()
