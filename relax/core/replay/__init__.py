# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Computing a run again from its folder, and explaining its numbers."""
