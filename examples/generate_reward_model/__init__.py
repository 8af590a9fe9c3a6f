# Copyright (c) 2026 Relax Authors. All Rights Reserved.
