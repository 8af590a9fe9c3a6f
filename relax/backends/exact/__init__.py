# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The forward that the native engine and the trainers share, bit for bit on CPU.

Import from the modules: `segments` (plans), `kv_pool`, `model` (`load_model`, `ExactModel`, `probe`), `logprobs`.
"""
