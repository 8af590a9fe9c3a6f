# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax.distributed.checkpoint_service.base import ADAPTER, ADAPTER_NAME, AdapterFacts, WeightManifest
from relax.distributed.checkpoint_service.updater import InstallReport, install_version
from relax.schedule.clock import VirtualClock, run_virtual
from relax.utils.errors import WeightSyncError

MANIFEST = WeightManifest(3, "shm", "/dev/shm/run/v3", (), 0)


class StagingEngine:
    """An engine that stages weights and switches at `weights_end`; each call takes its seconds and may fail."""

    def __init__(self, url: str, version: str = "2", seconds: dict[str, float] | None = None, fails: str = "") -> None:
        self.url = url
        self.version = version
        self.staged: Path | None = None
        self.calls: list[str] = []
        self._seconds = seconds or {}
        self._fails = fails

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(self._seconds.get(name, 0.0))
        if name == self._fails:
            raise ConnectionError(f"{name} broke")

    async def info(self) -> Any:
        return SimpleNamespace(weight_version=self.version, backend="native")

    async def pause(self, mode: str) -> None:
        await self._call(f"pause:{mode}")

    async def resume(self) -> None:
        await self._call("resume")

    async def weights_begin(self) -> None:
        await self._call("begin")

    async def weights_from_disk(self, folder: Path, version: int, *, flush: bool = True) -> None:
        await self._call("weights")
        self.staged = folder

    async def weights_end(self, version: int) -> None:
        await self._call("end")
        self.version = str(version)

    async def post(self, path: str, payload: Any = None) -> Any:
        await self._call(path)


def install(*engines: StagingEngine, timeout_s: float = 30.0, pause_mode: Any = "retract") -> InstallReport:
    return run_virtual(
        install_version(MANIFEST, engines, clock=VirtualClock(), timeout_s=timeout_s, pause_mode=pause_mode)
    )


def test_the_order_of_calls_is_pause_begin_load_end_resume() -> None:
    engine = StagingEngine("a", seconds={"pause:in_place": 1, "begin": 2, "weights": 4, "end": 8, "resume": 16})
    report = install(engine, timeout_s=60, pause_mode="in_place")
    assert engine.calls == ["pause:in_place", "begin", "weights", "end", "resume"]
    assert (engine.version, engine.staged) == ("3", Path("/dev/shm/run/v3"))
    # 1 + 2 + 4 + 8 + 16: the stall runs from the pause to the end of resume
    assert report.engines[0].stall_s == report.engines[0].total_s == 31.0
    assert report.current == ("a",) and report.failed == ()
    report.check()


def test_without_a_pause_mode_the_engine_switches_by_itself() -> None:
    engine = StagingEngine("a", seconds={"weights": 5})
    report = install(engine, pause_mode=None)
    assert engine.calls == ["begin", "weights", "end"]
    assert (report.engines[0].stall_s, report.engines[0].total_s) == (0.0, 5.0)


def test_engines_are_updated_at_the_same_time() -> None:
    engines = [StagingEngine(str(place), seconds={"weights": 10}) for place in range(4)]
    report = install(*engines)
    assert [engine.total_s for engine in report.engines] == [10.0] * 4


@pytest.mark.parametrize("stage", ["begin", "weights", "end"])
def test_a_failing_engine_keeps_its_version_and_serves_on_while_others_install(stage: str) -> None:
    good, bad = StagingEngine("good"), StagingEngine("bad", fails=stage)
    report = install(good, bad)
    assert (good.version, bad.version) == ("3", "2")
    assert (report.current, report.failed) == (("good",), ("bad",))
    assert bad.calls[-1] == "resume"
    with pytest.raises(
        WeightSyncError, match=f"version 3 was not installed on bad in {stage}: ConnectionError: {stage}"
    ):
        report.check()


def test_an_engine_that_hangs_is_bounded_and_named() -> None:
    good, hung = StagingEngine("good"), StagingEngine("hung", seconds={"weights": 1e9})
    report = install(good, hung, timeout_s=30)
    assert report.failed == ("hung",)
    assert report.engines[1].stage == "weights" and report.engines[1].error == "no answer within 30 s"
    assert report.engines[1].total_s == 30.0
    assert hung.calls == ["pause:retract", "begin", "weights", "resume"] and hung.version == "2"


def test_an_engine_that_does_not_even_resume_is_bounded_too() -> None:
    dead = StagingEngine("dead", seconds={"pause:retract": 1e9, "resume": 1e9})
    report = install(dead, timeout_s=30)
    # 30 s for the install and 10 s for the attempt to resume
    assert report.engines[0].total_s == 40.0 and report.engines[0].stage == "pause"


def test_an_engine_at_the_version_is_left_alone_and_a_late_joiner_is_not() -> None:
    current, joiner = StagingEngine("current", version="3"), StagingEngine("joiner", version="default")
    report = install(current, joiner)
    assert [engine.status for engine in report.engines] == ["skipped", "installed"]
    assert current.calls == [] and joiner.version == "3"
    assert report.current == ("current", "joiner")


def test_a_manifest_without_a_folder_is_named_before_the_engine_switches() -> None:
    engine = StagingEngine("a")
    report = run_virtual(
        install_version(WeightManifest(3, "shm", None, (), 0), [engine], clock=VirtualClock(), timeout_s=5)
    )
    assert "names no folder" in str(report.engines[0].error) and engine.version == "2"


def test_no_engines_is_an_empty_report() -> None:
    assert install().engines == ()


# ------------------------------------------------------------------ adapters by themselves

CONFIG = {"r": 4, "lora_alpha": 16}


def adapter(version: int, since: int) -> WeightManifest:
    facts = AdapterFacts(CONFIG, {}, since)
    return WeightManifest(version, "shm", f"/dev/shm/run/v{version}", (), 8, {ADAPTER: facts.to_json()})


class SglangEngine(StagingEngine):
    """SGLang's routes for adapters, as documented and as SGLang 0.5.23 answers: {name: folder} beside the model.

    Loading under a name that is taken, and unloading one that is not, are answered with status 400.
    """

    def __init__(self, version: str = "default", fails: str = "") -> None:
        super().__init__("s", version, fails=fails)
        self.loaded: dict[str, str] = {}

    async def info(self) -> Any:
        return SimpleNamespace(weight_version=self.version, backend="sglang")

    async def post(self, path: str, payload: Any = None) -> Any:
        await self._call(path)
        if path == "/update_weight_version":
            self.version = payload["new_version"]
            assert payload["abort_all_requests"] is False
        elif path == "/load_lora_adapter":
            if payload["lora_name"] in self.loaded:
                raise ValueError("400: already loaded")
            self.loaded[payload["lora_name"]] = payload["lora_path"]
        elif path == "/unload_lora_adapter" and self.loaded.pop(payload["lora_name"], None) is None:
            raise ValueError("400: not loaded")
        return {"success": True}


def install_adapter(engine: StagingEngine, manifest: WeightManifest, pause_mode: Any = "retract") -> InstallReport:
    return run_virtual(install_version(manifest, [engine], clock=VirtualClock(), timeout_s=30, pause_mode=pause_mode))


def test_sglang_gets_each_adapter_under_the_one_name_after_its_requests_have_ended() -> None:
    engine = SglangEngine()
    replace = ["/unload_lora_adapter", "/load_lora_adapter", "/update_weight_version"]
    for version in (0, 1):
        install_adapter(engine, adapter(version, version)).check()
        assert engine.loaded == {ADAPTER_NAME: f"/dev/shm/run/v{version}"}
        assert engine.version == str(version)
    assert engine.calls == 2 * ["pause:abort", *replace, "resume"]
    asleep = SglangEngine()
    install_adapter(asleep, adapter(3, 3), pause_mode=None).check()
    assert asleep.calls == replace


def test_an_adapter_that_sglang_does_not_load_leaves_the_old_number() -> None:
    engine = SglangEngine()
    install_adapter(engine, adapter(1, 1)).check()
    engine._fails = "/load_lora_adapter"
    report = install_adapter(engine, adapter(2, 2))
    assert report.engines[0].stage == "weights" and engine.version == "1"
    assert engine.calls[-1] == "resume"
    engine._fails = ""
    install_adapter(engine, adapter(3, 3)).check()  # although nothing is there to unload
    assert engine.loaded == {ADAPTER_NAME: "/dev/shm/run/v3"}


@pytest.mark.parametrize("kind", [StagingEngine, SglangEngine])
@pytest.mark.parametrize(
    ("held", "since", "numbered"), [("1", 1, True), ("2", 1, True), ("0", 1, False), ("default", 1, False)]
)
def test_only_an_engine_that_has_the_bits_is_told_the_number_alone(kind, held, since, numbered) -> None:
    engine = kind("a", held) if kind is StagingEngine else kind(held)
    install_adapter(engine, adapter(3, since)).check()
    assert (engine.calls == ["/update_weight_version"]) is numbered


def test_the_facts_of_an_adapter_say_its_scale_and_from_when_it_is() -> None:
    manifest = adapter(5, 3)
    again = WeightManifest.from_json(manifest.to_json())
    assert again == manifest and again.adapter is not None
    assert again.adapter.scale == 4.0
    assert [again.adapter.stands_since(held, 5) for held in ("2", "3", 4, "5", "default")] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert (manifest.moved_bytes, adapter(3, 3).moved_bytes, MANIFEST.moved_bytes) == (0, 8, MANIFEST.num_bytes)
    for wrong in ({}, {**again.adapter.to_json(), "config": {"r": 0, "lora_alpha": 1}}, None):
        with pytest.raises(ValueError, match="not the facts of an adapter"):
            AdapterFacts.from_json(wrong)
