# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`python -m relax` is the `relax` command."""

import sys

from relax.entrypoints.cli import main

if __name__ == "__main__":
    sys.exit(main())
