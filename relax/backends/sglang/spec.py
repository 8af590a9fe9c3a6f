# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How to start the real SGLang. Imports no torch and no sglang: the server may live in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relax.backends.base import EngineCommand, EngineConfig
from relax.data.media.processing import MediaOptions
from relax.data.media.sglang_films import FACTOR
from relax.data.model_files import saved_processor
from relax.utils.errors import ConfigError

CPU_LAUNCHER = Path(__file__).parent / "cpu" / "launch.py"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# What this class sets itself; the same flag among the extra arguments would win silently or clash.
OWN_FLAGS = frozenset(
    (
        "--model-path",
        "--host",
        "--port",
        "--tp-size",
        "--tp",
        "--node-rank",
        "--nnodes",
        "--dtype",
        "--random-seed",
        "--preferred-sampling-params",
    )
)
NO_LOGIT = -1e9  # added to a logit, leaves a probability of zero
NO_LIMIT = 1 << 40  # pixels of a whole film
NO_FRAME_LIMIT = 1 << 30  # pixels of a frame; of 2,000 frames the limit above allows as many
# SGLang 0.5.23 builds experts in every layer of these, whatever the config says, and passes over the dense weights.
ALL_SPARSE = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration")
CPU_ARGS = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
CPU_ARGS += ("--disable-cuda-graph", "--mm-attention-backend", "sdpa", "--mem-fraction-static", "0.2")


class SglangEngine:
    """`EngineSpec` of `sglang.launch_server`; on a machine without GPUs, of the same behind our CPU platform.

    `python` is the interpreter of the environment that holds SGLang (RELAX_SGLANG_PYTHON, else this one).
    """

    name = "sglang"

    def __init__(self, python: str | None = None) -> None:
        self._python = python or os.environ.get("RELAX_SGLANG_PYTHON") or sys.executable

    def command(
        self, config: EngineConfig, *, host: str, port: int, gpus: Sequence[int] = (), node_rank: int = 0
    ) -> EngineCommand:
        if port == 0:
            raise ConfigError("SGLang cannot report a port that it chose: give --port a free one")
        check_servable(config.model_path)
        extra = _flags(config.extra_args)
        argv = [self._python, *(("-m", "sglang.launch_server") if gpus else (str(CPU_LAUNCHER),))]
        argv += ["--model-path", str(config.model_path), "--host", host, "--port", str(port)]
        argv += ["--dtype", DTYPES[config.dtype], "--tp-size", str(config.tensor_parallel)]
        argv += ["--max-running-requests", str(config.max_running_requests)]
        argv += ["--max-total-tokens", str(config.max_total_tokens), "--random-seed", str(config.seed)]
        if config.context_length is not None:
            argv += ["--context-length", str(config.context_length)]
        # An idle scheduler spins on a core without the first; without the second a request's own seed is ignored.
        argv += ["--sleep-on-idle", "--enable-deterministic-inference", "--skip-server-warmup", "--enable-metrics"]
        if config.suppressed_ids:
            bias = {str(token): NO_LOGIT for token in config.suppressed_ids}
            argv += ["--preferred-sampling-params", json.dumps({"logit_bias": bias})]
        if not any(flag.split("=", 1)[0] == "--mm-process-config" for flag in extra):
            argv += [
                "--mm-process-config",
                json.dumps({"video": _film_options(Path(config.model_path), config.media_options)}),
            ]
        if not gpus:
            argv += CPU_ARGS
            argv += ("--lora-backend", "torch_native") if "--enable-lora" in extra else ()
        nodes = -(-config.tensor_parallel // len(gpus)) if gpus else 1
        if nodes > 1:
            argv += ["--nnodes", str(nodes), "--node-rank", str(node_rank)]
        return EngineCommand(tuple(argv + extra), self._env(config, gpus), ready_path="/health")

    def _env(self, config: EngineConfig, gpus: Sequence[int]) -> dict[str, str]:
        env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        env["SGLANG_VLM_CACHE_SIZE_MB"] = "0"  # no flush empties it: encoder outputs would outlive their weights
        if gpus:
            return env | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
        if config.tensor_parallel > 1:
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(config.tensor_parallel)))
        return env


def _film_options(folder: Path, media: MediaOptions) -> dict[str, Any]:
    """Frames as the trainer takes them, in the size of the folder's saved processor.

    By itself SGLang enlarges each frame to 100,352 pixels, and then to the omni processor's built-in 131,072. What
    cannot be set here the trainer does likewise (data/media/sglang_films.py).
    """
    size = saved_processor(folder, "video").get("size")
    return {
        "fps": media.video_fps,
        "min_frames": media.video_min_frames,
        "max_frames": media.video_max_frames,
        "min_pixels": FACTOR * FACTOR,
        "max_pixels": NO_FRAME_LIMIT,
        "total_pixels": NO_LIMIT,
        **({"size": size} if size else {}),
    }


def check_servable(folder: Path) -> None:
    """Refuse a model that SGLang does not serve, or serves wrongly without a word. It takes a minute to start."""
    path = Path(folder) / "config.json"
    config: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    (name, *_) = config.get("architectures") or [""]
    if name.endswith("ThinkerForConditionalGeneration"):
        raise ConfigError(
            f"--hf-checkpoint {folder} holds an omni thinker alone ({name}), which SGLang does not serve: give the "
            "whole model's folder (its config.json has a thinker_config), or use --rollout-backend native"
        )
    text = config.get("thinker_config", config)
    text = text.get("text_config", text)
    if name in ALL_SPARSE and (text.get("mlp_only_layers") or text.get("decoder_sparse_step", 1) != 1):
        raise ConfigError(
            f"--hf-checkpoint {folder}: {name} with dense layers (mlp_only_layers, decoder_sparse_step). SGLang gives "
            "every layer experts, leaves them random and says nothing: use --rollout-backend native"
        )


def _flags(extra: Sequence[str]) -> list[str]:
    """`--sglang-*` flags without their prefix, each one SGLang's own; refused where this class sets the value."""
    out = []
    for argument in extra:
        flag = argument if not argument.startswith("--sglang-") else "--" + argument.removeprefix("--sglang-")
        if flag.split("=", 1)[0] in OWN_FLAGS:
            raise ConfigError(
                f"--sglang-{flag.removeprefix('--')} is set by Relax from its own flags (model, port, dtype, "
                f"tensor parallel size, seed): remove it"
            )
        out.append(flag)
    return out
