# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags to the settings of roles and engines."""

from __future__ import annotations

import dataclasses

from relax.config.checks import MEDIA_LIMITS
from relax.config.run import default_config
from relax.core.build import engine_config, media_options
from relax.data.media.processing import MediaOptions


def test_the_engine_reads_media_with_the_limits_of_the_rollout_role():
    limits = {
        "image_min_tokens": 2,
        "image_max_tokens": 9,
        "video_min_tokens": 3,
        "video_max_tokens": 8,
        "video_fps": 1.5,
        "video_min_frames": 6,
        "video_max_frames": 7,
        "audio_sample_rate": 8000,
    }
    config = default_config(**limits)
    assert media_options(config) == MediaOptions(**limits)
    assert engine_config(config).media_options == media_options(config)
    assert set(MEDIA_LIMITS) == set(limits) == {field.name for field in dataclasses.fields(MediaOptions)}


def test_without_flags_the_limits_are_those_of_the_saved_processor():
    assert media_options(default_config()) == MediaOptions()
