# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training on torch alone: `backend.FsdpBackend` and `distributed.init_distributed`."""
