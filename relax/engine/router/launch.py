# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`python -m relax.engine.router.launch ...`: sglang-router's launcher that ends when its standard input is closed.

The parent holds the other end of the pipe, so the kernel closes it when the parent dies, whatever killed it. The
router blocks its interpreter, so the watch is a process of its own, forked before anything is imported.
"""

from __future__ import annotations

import os
import select
import signal
import sys

LOOK_S = 1.0  # how often the watch asks whether the router still lives


def watch(router_pid: int) -> None:
    """Kill the router when standard input reaches its end; return when the router is gone."""
    while os.getppid() == router_pid:
        readable, _, _ = select.select([0], [], [], LOOK_S)
        if readable and not os.read(0, 4096):
            if os.getppid() == router_pid:
                os.kill(router_pid, signal.SIGKILL)
            return


def main() -> None:
    router_pid = os.getpid()
    if os.fork() == 0:
        watch(router_pid)
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from sglang_router.launch_router import main as launch

    launch()


if __name__ == "__main__":
    sys.exit(main())
