# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""SGLang's platform for a CPU without its `sgl_kernel` package: torch's own attention, plain memory, no Triton.

Imported by SGLang, inside its interpreter only.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from relax.backends.sglang.cpu.hashing import murmur_hash32

ATTENTION = "torch_native"


class RelaxCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """An out-of-tree platform, so that nothing inside SGLang takes it for its own CPU build with `sgl_kernel`."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_default_attention_backend(self) -> str:
        return ATTENTION

    def get_dispatch_key_name(self) -> str:
        return "native"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Allow per-request seeds with this attention; SGLang's lists name GPU kernels only."""
        from sglang.srt.arg_groups import choices

        for allowed in (
            choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
            choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
        ):
            if ATTENTION not in allowed:
                allowed.append(ATTENTION)

    def init_backend(self) -> None:
        """Replace the three functions that only exist for GPUs."""
        import sglang.srt.batch_invariant_ops as invariant
        import sglang.srt.layers.sampler as sampler
        from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

        invariant.enable_batch_invariant_mode = _nothing  # its kernels are Triton's; torch's CPU ones stay
        sampler.murmur_hash32 = murmur_hash32
        ALLOC_MEMORY_FUNCS["cpu"] = _plain_memory


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _plain_memory(
    dims: Any, dtype: Any, device: Any, pin_memory: bool, allocator: Any, *rest: Any, **more: Any
) -> Any:
    """Host memory without page locking."""
    return allocator.allocate(dims, dtype=dtype, device=device)
