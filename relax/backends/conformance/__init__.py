# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What an inference server must do to be trained from: named checks over one `EngineClient`, whatever is behind it."""
