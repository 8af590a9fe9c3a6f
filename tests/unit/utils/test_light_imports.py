# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Processes of a run leave the compiler out; all else of the package is as without the hook."""

import os
import subprocess
import sys

from relax.utils.light_imports import SWITCH

START = "import relax.utils.torchvision_shim as shim; shim.install_hook(); import sys; "
USE = (
    "import torch, tensordict; t = tensordict.TensorDict({'a': torch.arange(3)}, [3]); "
    "assert t[1:]['a'].tolist() == [1, 2] and (t + 1)['a'].tolist() == [1, 2, 3]; "
)


def run(code: str, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != SWITCH} | environment
    done = subprocess.run([sys.executable, "-c", START + code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_of_a_run_imports_the_package_without_the_compiler():
    loaded = USE + "print('torch._dynamo' in sys.modules)"
    assert run(loaded, **{SWITCH: "1"}) == "False"
    assert run(loaded) == "True"  # the control: a plain script gets what the package asks for


def test_the_compiler_can_be_imported_afterwards():
    run(
        USE + "import torch._dynamo; assert torch._dynamo.utils.counters is not None; "
        "assert torch.compiler.allow_in_graph.__module__ == 'torch.compiler'",
        **{SWITCH: "1"},
    )
