# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Models with a head for classes in SGLang: `SGLANG_EXTERNAL_MODEL_PACKAGE=examples.seq_cls_sft.sglang_adapter`."""
