# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How runs end when something goes wrong: exit code, a short message, an old checkpoint that is whole, no orphans."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from relax.components.trained import read_trained
from relax.core.checkpoint import latest_checkpoint
from relax.utils.lock import RunLock
from tests.builders import build_tiny_model_folder
from tests.service.training_run import ASYNC, HOOKS, Finished, Inputs, command, inline, interrupt_group, start

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


def endless(inputs: Inputs, save: Path) -> list[object]:
    """A run on Ray that goes on until it is stopped; checkpoints of its own accord are far away."""
    flags = inputs.flags(save, num_rollout=100000, save_interval=90000, custom_rm_path=HOOKS + "slow_reward")
    return [*flags, *ASYNC, 1]


def assert_short(text: str, folder: Path) -> None:
    """stderr names the log and shows no traceback."""
    assert "Traceback" not in text
    assert "ExceptionGroup" not in text
    assert str(folder / "logs/controller-0.log") in text


def assert_saved_at_the_end(done: Finished) -> None:
    """The last rollout that was trained is in a checkpoint, which nothing but the end of the run has written."""
    last = done.events("stepped")[-1]["rollout_id"]
    assert [event["rollout_id"] for event in done.events("checkpoint")] == [last]
    folder, state = latest_checkpoint(done.folder)
    assert state.rollout_id == last >= 1
    assert set(read_trained(folder / "model")["rollout"].tolist()) == set(range(last + 1))


# ------------------------------------------------------------------ signals


@pytest.mark.parametrize("ctrl_c", [False, True], ids=["SIGTERM", "ctrl-c"])
def test_a_signal_during_training_stops_everything_and_saves_what_is_trained(inputs, tmp_path, ctrl_c):
    with start(endless(inputs, tmp_path / "run")) as running:
        running.wait_for_event("stepped", 2)
        interrupt_group(running) if ctrl_c else running.send(signal.SIGTERM)
        done = running.finish(60)
        assert done.code == (130 if ctrl_c else 143), done.err
        assert done.reason == "stopped"
        assert running.wait_gone() == []
        assert running.temporary() == []
    assert_saved_at_the_end(done)
    assert "Traceback" not in done.err


@pytest.mark.parametrize("moment", ["connecting", pytest.param("workers", marks=pytest.mark.slow)])
def test_a_signal_during_start_up_leaves_nothing_behind(inputs, tmp_path, moment):
    with start(endless(inputs, tmp_path / "run")) as running:
        if moment == "connecting":
            running.wait_for(lambda: any("raylet" in " ".join(p.cmdline()[:1]) for p in list_living(running)))
        else:
            running.wait_for(lambda: (tmp_path / "run/logs/rollout-0.log").exists())
        running.send(signal.SIGTERM)
        done = running.finish(90)
        assert done.code == 143, done.err
        assert running.wait_gone() == []
        assert running.temporary() == []


def list_living(running):
    living = []
    for process in running.processes().values():
        try:
            process.cmdline()
        except psutil.Error:
            continue
        living.append(process)
    return living


# ------------------------------------------------------------------ deaths


def test_a_killed_driver_takes_every_process_along(inputs, tmp_path):
    with start(endless(inputs, tmp_path / "run")) as running:
        running.wait_for_event("installed")
        running.send(signal.SIGKILL)
        running.process.wait()
        assert running.wait_gone(30) == []
        assert not [folder for folder in running.temporary() if folder.is_relative_to("/tmp")]


@pytest.mark.parametrize("victim", ["engine-0-process", "actor-0", pytest.param("rollout", marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_run_with_its_name(inputs, tmp_path, victim):
    with start(endless(inputs, tmp_path / "run")) as running:
        running.wait_for_event("stepped", 2)
        os.kill(running.pid_of(victim), signal.SIGKILL)
        done = running.finish(90)
        if victim == "actor-0":  # nobody is left who has the weights
            assert done.events("checkpoint") == []
        else:
            assert_saved_at_the_end(done)
        assert done.code == 5, done.err
        assert victim.removesuffix("-process") in done.err
        assert_short(done.err, tmp_path / "run")
        assert running.wait_gone() == []
        assert running.temporary() == []


@pytest.mark.slow
def test_one_of_two_engines_may_die(inputs, tmp_path):
    roles = '{"actor":[1,1],"rollout":[1,2]}'
    with start([*endless(inputs, tmp_path / "run"), "--resource", roles]) as running:
        running.wait_for_event("installed", 4)
        os.kill(running.pid_of("engine-1-process"), signal.SIGKILL)
        running.wait_for_event("engine_left")
        running.wait_for_event("stepped", 8)
        running.send(signal.SIGTERM)
        assert running.finish(60).code == 143


# ------------------------------------------------------------------ errors of a run on Ray


def test_an_error_in_a_worker_ends_the_run_with_its_own_text(inputs, tmp_path):
    flags = inputs.flags(tmp_path / "run", custom_rm_path=HOOKS + "reward_raising_once", reward_failure_policy="fail")
    done = command([*flags, *ASYNC, 1])
    assert done.code == 3, done.err
    assert "the judge dislikes sample 1.1" in done.err
    assert_short(done.err.replace("Traceback (most recent call last):\n  File", "File"), tmp_path / "run")
    assert "reward_raising_once" in done.log()


def test_a_model_without_a_tokenizer_is_an_error_of_the_configuration(inputs, tmp_path):
    model = build_tiny_model_folder(tmp_path / "model")
    for path in model.glob("tokenizer*"):
        path.unlink()
    done = command([*inputs.flags(tmp_path / "run", hf_checkpoint=model), *ASYNC, 1])
    assert done.code == 2, done.err
    assert str(model) in done.err
    assert "Traceback" not in done.err


# ------------------------------------------------------------------ refused before anything starts


def test_a_model_class_that_nobody_knows_is_named(inputs, tmp_path):
    model = build_tiny_model_folder(tmp_path / "model")
    config = model / "config.json"
    config.write_text(config.read_text().replace("Qwen3ForCausalLM", "Qwen9ForCausalLM"))
    done = inline([*inputs.flags(tmp_path / "run", hf_checkpoint=model), "--colocate"])
    assert done.code == 2, done.err
    assert "Qwen9ForCausalLM" in done.err


def test_a_second_run_in_the_same_folder_is_refused(inputs, tmp_path):
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run"):
        done = inline([*inputs.flags(tmp_path / "run"), "--colocate"])
    assert done.code == 2
    assert "run" in done.err


def test_a_port_in_use_is_named_before_ray_starts(inputs, tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        done = command([*inputs.flags(tmp_path / "run", serve_port=port), *ASYNC, 1])
    assert done.code == 2
    assert f"--serve-port {port}" in done.err
    assert "ray" not in done.log()


@pytest.mark.parametrize(
    ("flag", "path", "said"),
    [
        ("custom_rm_path", "tests.service.nowhere.reward", "tests.service.nowhere"),
        ("custom_rm_path", HOOKS + "token_rewart", "did you mean token_reward"),
        ("custom_generate_function_path", "nowhere.generate", "nowhere"),
        ("dynamic_sampling_filter_path", HOOKS + "keep_odd_groups", "keep_even_groups"),
    ],
)
def test_a_wrong_hook_path_is_named_before_anything_starts(inputs, tmp_path, flag, path, said):
    done = inline([*inputs.flags(tmp_path / "run", **{flag: path}), "--colocate"])
    assert done.code == 2
    assert "--" + flag.replace("_", "-") in done.err
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_another_models_checkpoint_is_refused_with_its_shapes(inputs, tmp_path):
    inline([*inputs.flags(tmp_path / "moe", hf_checkpoint=build_tiny_model_folder(tmp_path / "m", "qwen3_moe"),
                          num_rollout=1), "--colocate"]).ok()  # fmt: skip
    done = inline([*inputs.flags(tmp_path / "run", load=tmp_path / "moe"), "--colocate"])
    assert done.code == 2, done.err
    assert "checkpoint of another model" in done.err
    assert "mlp.experts" in done.err


def test_a_disk_that_refuses_a_write_keeps_the_old_checkpoint(inputs, tmp_path):
    good = inline([*inputs.flags(tmp_path / "run", num_rollout=1), "--colocate"]).ok()
    weights = good.folder / "iter_0000000/model"
    before = {path.name: path.read_bytes() for path in weights.iterdir()}
    # files may not grow past 400 blocks: the run's own small files fit, the weights do not
    flags = [
        *inputs.flags(tmp_path / "run", num_rollout=2, load=good.folder),
        "--colocate",
        "--inline",
        "--bus",
        "local",
    ]
    script = "ulimit -f 400; exec " + " ".join([sys.executable, "-m", "relax.entrypoints.train", *map(str, flags)])
    done = subprocess.run(
        ["bash", "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 5, done.stderr
    assert (good.folder / "latest_checkpointed_iteration.txt").read_text() == "0"
    assert {path.name: path.read_bytes() for path in weights.iterdir()} == before


@pytest.mark.slow
def test_more_cards_than_a_joined_cluster_has_are_refused_in_bounded_time(inputs, tmp_path):
    ray = str(Path(sys.executable).with_name("ray"))
    temp = Path("/tmp") / f"rx{os.getpid()}"
    head = [ray, "start", "--head", "--port", "0", "--num-cpus", "16", "--include-dashboard", "false", "--block"]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    log = tmp_path / "ray.log"
    with open(log, "wb") as out:
        cluster = subprocess.Popen([*head, "--temp-dir", str(temp)], stdout=out, stderr=out, env=env)
    try:
        end = time.monotonic() + 120
        while not (found := re.search(r"--address='([0-9.:]+)'", log.read_text())) and time.monotonic() < end:
            time.sleep(0.5)
        assert found, log.read_text()
        done = command([*inputs.flags(tmp_path / "run"), *ASYNC, 1], env={**env, "RAY_ADDRESS": found[1]})
    finally:
        cluster.terminate()
        cluster.wait(60)
        shutil.rmtree(temp, ignore_errors=True)
    assert done.code == 5, done.err
    assert "--resource needs 2 cards" in done.err
    assert "ray start --head" in done.err
