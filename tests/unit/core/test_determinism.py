# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a deterministic run refuses once its roles are up."""

from __future__ import annotations

import pytest

from relax.config.run import default_config
from relax.core.controller import check_determinism
from relax.utils.errors import ConfigError


def test_a_deterministic_run_that_is_not_exact_is_refused_with_the_reason():
    config = default_config(deterministic=True)
    check_determinism(config, True, "agree")
    with pytest.raises(ConfigError, match=r"not exact \(attention 'sdpa' .*\)\. Use --rollout-backend native"):
        check_determinism(config, False, "attention 'sdpa' is not the exact one")
    check_determinism(default_config(), False, "attention 'sdpa' is not the exact one")
