# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The in-memory twins of trainer, engine and router: a table of next-token logits that trains and samples honestly.

With them the roles, the loop and the journal run on virtual time, so a thousand schedules cost a minute.
"""
