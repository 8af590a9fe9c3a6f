# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`sglang.launch_server` on a CPU: `python launch.py --model-path FOLDER --device cpu ...`, SGLang's own flags.

SGLang's workers are spawned and run this file again, so what stands outside `main` holds in every process of the
server. The interpreter is that of SGLang's environment, where Relax need not be installed.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if "relax" not in sys.modules:
    # Not by sys.path: beside this package may lie another environment's torch.
    package = types.ModuleType("relax")
    package.__path__ = [str(Path(__file__).resolve().parents[3])]
    sys.modules["relax"] = package
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent or not entry]

from relax.backends.sglang.cpu import entry_point, shims  # noqa: E402 - the package is made above

shims.install()
entry_point.install()


def main(argv: list[str]) -> None:
    import os

    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(argv)
    from sglang.launch_server import run_server

    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
