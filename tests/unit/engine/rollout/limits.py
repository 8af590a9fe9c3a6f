# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the hooks' view of a configuration says of the context, where a test does not care."""

NO_LIMITS = {"rollout_max_context_len": None, "rollout_backend": "sglang", "engine_max_total_tokens": 65536}
