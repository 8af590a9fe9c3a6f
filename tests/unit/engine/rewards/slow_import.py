# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A reward module whose import takes longer than a call may."""

import time

time.sleep(1.5)


def one(value):
    return 1.0
