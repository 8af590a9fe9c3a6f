# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the training runs share."""

import pytest

from tests.service.training_run import Inputs, build_inputs


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return build_inputs(tmp_path_factory.mktemp("inputs"))
