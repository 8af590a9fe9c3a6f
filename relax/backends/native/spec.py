# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How to start the native engine as a process of its own. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from relax.backends.base import EngineCommand, EngineConfig
from relax.utils.errors import ConfigError


class NativeEngine:
    """`EngineSpec` of the embedded engine: this interpreter, one torch thread."""

    name = "native"

    def command(
        self, config: EngineConfig, *, host: str, port: int, gpus: Sequence[int] = (), node_rank: int = 0
    ) -> EngineCommand:
        """`port` 0: the engine takes a free one, and its first line says which. The caller becomes its parent."""
        if config.tensor_parallel != 1 or node_rank != 0:
            raise ConfigError(
                f"the native engine runs on one device, got tensor_parallel={config.tensor_parallel} "
                f"node_rank={node_rank}; use --rollout-num-gpus-per-engine 1, or the sglang backend"
            )
        if config.extra_args:
            raise ConfigError(f"{list(config.extra_args)} are SGLang's flags; the native engine does not know them")
        argv = [sys.executable, "-m", "relax.backends.native.server", "--model-path", str(config.model_path)]
        argv += ["--host", host, "--port", str(port), "--dtype", config.dtype]
        argv += ["--max-running-requests", str(config.max_running_requests)]
        argv += ["--max-total-tokens", str(config.max_total_tokens)]
        if config.context_length is not None:
            argv += ["--context-length", str(config.context_length)]
        ids = config.suppressed_ids
        argv += ["--suppressed-ids", "auto" if ids is None else ",".join(map(str, ids)) or "none"]
        argv += ["--media-options", config.media_options.to_json()]
        argv += ["--parent-pid", str(os.getpid())]
        if gpus:
            argv += ["--device", "cuda:0", "--attention", "sdpa"]
        env = {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        }
        return EngineCommand(tuple(argv), env, ready_path="/health")
