# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import pickle
import subprocess
import sys

import pytest

from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.spec import ALGOS, KL_ESTIMATORS, algorithm
from relax.utils.errors import ConfigError
from relax.utils.imports import load_object


@pytest.mark.parametrize("name", ALGOS)
def test_every_path_of_the_table_loads(name):
    spec = algorithm(name)
    for path in (spec.advantage, spec.policy, spec.statistic):
        assert path is None or callable(load_object(path, flag="--advantage-estimator"))


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="'ppo2' is unknown; known are cispo, dr_grpo, grpo, gspo"):
        algorithm("ppo2")


def test_names_of_estimators_agree_with_their_functions():
    from relax.algorithms.kl import ESTIMATORS

    assert tuple(ESTIMATORS) == KL_ESTIMATORS


def test_options_survive_a_pickle_and_say_which_columns_they_need():
    options = AlgorithmOptions(old_log_probs="old", use_kl_loss=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.columns == {"advantages", "loss_weight", "rollout_logprobs", "old_logprobs", "ref_logprobs"}


def test_flags_choose_the_advantage_rules():
    assert AlgorithmOptions().advantage_rules()["std"] == "sample"
    assert AlgorithmOptions(disable_grpo_std_normalization=True).advantage_rules()["std"] is None
    assert AlgorithmOptions(disable_rewards_normalization=True).advantage_rules()["baseline"] == "none"


def test_table_options_and_reduction_import_no_torch():
    code = (
        "import sys, relax.algorithms.spec, relax.algorithms.options, relax.algorithms.advantages, "
        "relax.algorithms.reduce, relax.algorithms.loss, relax.algorithms.rollout_advantages, "
        "relax.algorithms.returns, relax.algorithms.m2po; "
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
