# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What SGLang 0.5.23 needs to serve on a machine without GPUs. Runs inside SGLang's interpreter; imports it late."""
