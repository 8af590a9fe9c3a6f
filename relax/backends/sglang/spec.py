# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How to start the real SGLang. Imports no torch and no sglang: the server may live in an environment of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from relax.backends.base import EngineCommand, EngineConfig
from relax.utils.errors import ConfigError

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# What this class sets itself; the same flag among the extra arguments would win silently or clash.
OWN_FLAGS = frozenset(
    ("--model-path", "--host", "--port", "--tp-size", "--tp", "--node-rank", "--nnodes", "--dtype", "--random-seed")
)
CPU_ARGS = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
CPU_ARGS += ("--disable-cuda-graph", "--mm-attention-backend", "sdpa", "--mem-fraction-static", "0.2")


class SglangEngine:
    """`EngineSpec` of `sglang.launch_server`.

    `python` is the interpreter of the environment that holds SGLang (RELAX_SGLANG_PYTHON, else this one). On a
    machine without GPUs `launcher` must be a script with the CPU shims and platform plug-in (RELAX_SGLANG_LAUNCHER).
    """

    name = "sglang"

    def __init__(self, python: str | None = None, launcher: str | None = None) -> None:
        self._python = python or os.environ.get("RELAX_SGLANG_PYTHON") or sys.executable
        self._launcher = launcher or os.environ.get("RELAX_SGLANG_LAUNCHER")

    def command(
        self, config: EngineConfig, *, host: str, port: int, gpus: Sequence[int] = (), node_rank: int = 0
    ) -> EngineCommand:
        if port == 0:
            raise ConfigError("SGLang cannot report a port that it chose: give --port a free one")
        if not gpus and self._launcher is None:
            raise ConfigError(
                "SGLang does not start on a machine without GPUs as it is published: set RELAX_SGLANG_LAUNCHER to a "
                "script with the CPU platform plug-in, or use the native engine"
            )
        extra = _flags(config.extra_args)
        argv = [self._python, *([self._launcher] if self._launcher else ["-m", "sglang.launch_server"])]
        argv += ["--model-path", str(config.model_path), "--host", host, "--port", str(port)]
        argv += ["--dtype", DTYPES[config.dtype], "--tp-size", str(config.tensor_parallel)]
        argv += ["--max-running-requests", str(config.max_running_requests)]
        argv += ["--max-total-tokens", str(config.max_total_tokens), "--random-seed", str(config.seed)]
        if config.context_length is not None:
            argv += ["--context-length", str(config.context_length)]
        # An idle scheduler spins on a core without the first; without the second a request's own seed is ignored.
        argv += ["--sleep-on-idle", "--enable-deterministic-inference", "--skip-server-warmup"]
        if not gpus:
            argv += CPU_ARGS
        nodes = -(-config.tensor_parallel // len(gpus)) if gpus else 1
        if nodes > 1:
            argv += ["--nnodes", str(nodes), "--node-rank", str(node_rank)]
        return EngineCommand(tuple(argv + extra), self._env(config, gpus), ready_path="/health")

    def _env(self, config: EngineConfig, gpus: Sequence[int]) -> dict[str, str]:
        env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if gpus:
            return env | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
        if config.tensor_parallel > 1:
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(config.tensor_parallel)))
        return env


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
