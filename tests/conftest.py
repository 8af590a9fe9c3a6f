# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which tests this machine and this call run, the others skipped with a reason, and how two workers share them."""

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine draws and runs examples slowly; what a property claims does not depend on that.
settings.register_profile("relax", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relax")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow (minutes each)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        _skip(items, "slow", "takes minutes: run with --slow")
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        _skip(items, "gpu", "this machine has no CUDA device")


SCOPES = {"tests/e2e/": "whole runs", "tests/service/": "whole runs", "tests/conformance/": "one engine"}


class FilesShared(LoadScopeScheduling):
    """One worker takes whole runs, which fill cores and memory, one after another; files are shared out."""

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for folder, scope in SCOPES.items() if nodeid.startswith(folder)), nodeid.split("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesShared:
    return FilesShared(config, log)


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
