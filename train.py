# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import sys

from relax.entrypoints.train import main

if __name__ == "__main__":
    sys.exit(main())
