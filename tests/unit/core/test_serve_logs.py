# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Where the roles' logs are linked, and what is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relax.core.serve_logs import ServeLogs


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ray's folder of this test."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / "ray"


def shown(base: Path) -> dict[str, str]:
    """What the documented glob shows: {file name: content}."""
    return {path.name: path.read_text() for path in base.glob("session_latest/logs/serve/*.log")}


def test_a_private_run_is_found_by_the_documented_path_and_stays_readable(base: Path, tmp_path: Path) -> None:
    logs, file = ServeLogs(None), tmp_path / "run/logs/rollout-0.log"
    logs.add("rollout", file)
    assert shown(base) == {"relax-rollout.log": ""}  # there before the role writes, so that tail finds it
    file.write_text("hello")
    assert shown(base) == {"relax-rollout.log": "hello"}
    assert (base.stat().st_mode & 0o777) == 0o777  # as Ray makes it


def test_the_newest_run_has_the_links(base: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        logs = ServeLogs(None)
        for role in ("rollout", name):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{role}.log").write_text(name)
            logs.add(role, tmp_path / name / f"{role}.log")
    assert shown(base) == {"relax-rollout.log": "second", "relax-second.log": "second"}
    assert (tmp_path / "first/rollout.log").read_text() == "first"


def test_in_a_joined_cluster_the_links_stand_beside_its_own_logs(base: Path, tmp_path: Path) -> None:
    session = base / "session_2026"
    (session / "logs/serve").mkdir(parents=True)
    (session / "logs/serve/controller_1.log").write_text("serve")
    (base / "session_latest").symlink_to(session)
    log = tmp_path / "rollout-0.log"
    log.write_text("role")
    ServeLogs(session).add("rollout", log)
    assert shown(base) == {"controller_1.log": "serve", "relax-rollout.log": "role"}
    assert os.readlink(base / "session_latest") == str(session)


def test_what_is_no_link_stays_and_the_run_goes_on(base: Path, tmp_path: Path, caplog) -> None:
    (base / "session_latest").mkdir(parents=True)
    (base / "session_latest/mine").touch()
    ServeLogs(None).add("rollout", tmp_path / "rollout-0.log")
    assert (base / "session_latest/mine").exists()
    assert "not linked into Ray's log folder" in caplog.text
    session = tmp_path / "session"
    (session / "logs/serve").mkdir(parents=True)
    (session / "logs/serve/relax-rollout.log").write_text("somebody's file")
    ServeLogs(session).add("rollout", tmp_path / "rollout-0.log")
    assert (session / "logs/serve/relax-rollout.log").read_text() == "somebody's file"
