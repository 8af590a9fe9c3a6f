# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The roles as Ray workers behind HTTP doors. Few runs, many claims: each start takes 10 - 20 s."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.service.training_run import (
    ASYNC,
    FIVE_ROLES,
    HOOKS,
    Finished,
    Inputs,
    Running,
    checkpoint_weights,
    command,
    inline,
    start,
)

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


def call(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    """(status, parsed answer); a refusal is an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# ------------------------------------------------------------------ five roles, asked over HTTP, stopped by it


@dataclass
class Asked:
    """One long run: what its doors said, and what it left when it was told to stop."""

    answers: dict[str, tuple[int, Any]]
    stacks: subprocess.CompletedProcess[str]  # of `relax stacks`
    priorities: set[int]  # nice values of every process of the run
    done: Finished
    left_processes: list[str]
    left_folders: list[Path]


def ask_metrics(running: Running) -> dict[str, tuple[int, Any]]:
    """Report to the metrics service, wait for the row that contains it, and ask for rows."""
    url, two = running.http + "/metrics", {"source": "two"}
    answers = {
        "log": call(
            "POST", url + "/log_metric", {"step": None, "metric_name": "custom/asked/count", "metric_value": 3}
        ),
        "batch": call("POST", url + "/log_metrics_batch", {"step": 5000, "metrics": {"custom/x": 1}}),
        "conflict": call("POST", url + "/log_metrics_batch", {"step": 5000, "metrics": {"custom/x": 2}, "tags": two}),
        "undeclared": call(
            "POST", url + "/log_metric", {"step": 0, "metric_name": "rollout/rewrad", "metric_value": 1}
        ),
        "member": call("POST", running.http + "/dcs_coordinator/register", {"role_name": "tool"}),
    }
    running.wait_for(lambda: call("GET", url + "/query_metrics?name=custom/asked/count")[1]["metrics"].popitem()[1])
    answers["late"] = call("POST", url + "/log_metric", {"step": 0, "metric_name": "custom/y", "metric_value": 4})
    answers["report_step"] = call("POST", url + "/report_step", {"step": 0})
    running.wait_for(lambda: call("GET", url + "/query_metrics?name=custom/y")[1]["metrics"]["custom/y"])
    answers["query"] = call("GET", url + "/query_metrics?name=train/loss&name=custom/y&first=0&last=2")
    answers["newest"] = call("GET", url + "/latest")
    answers["metrics_health"] = call("GET", url + "/health")
    with urllib.request.urlopen(url, timeout=60) as reply:
        answers["prometheus"] = reply.status, reply.read().decode()
    return answers


@pytest.fixture(scope="module")
def asked(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    save = tmp_path_factory.mktemp("five") / "run"
    flags = inputs.flags(
        save,
        resource=FIVE_ROLES,
        custom_rm_path=HOOKS + "told_reward",
        num_rollout=1000,
        kl_loss_coef=0.1,
        kl_loss_type="k3",
        ref_update_interval=2,
        eval_interval=1000,
    )
    words = ["--fully-async", "--use-kl-loss", "--use-tis", "--max-staleness", 1, "--skip-eval-before-train"]
    words += ["--eval-prompt-data", "sums", inputs.prompts]
    with start([*flags, *words]) as running:
        running.wait_for_event("installed", 4)
        http, answers = running.http, {}
        for name, method, path in (
            ("root", "GET", "/"),
            ("get_step", "GET", "/rollout/get_step"),
            ("actor_status", "GET", "/actor/status"),
            ("status", "GET", "/rollout/status"),
            ("health", "GET", "/reference/health"),
            ("engines", "GET", "/rollout/engines"),
            ("dcs", "GET", "/dcs_coordinator/health"),
            ("latest", "GET", "/dcs_coordinator/versions/latest"),
            ("versions", "GET", "/dcs_coordinator/versions"),
            ("evaluate", "GET", "/rollout/evaluate?train_step=7"),
            ("evaluate_again", "GET", "/rollout/evaluate?train_step=8"),
            ("bad_step", "POST", "/advantages/set_step?step=x"),
            ("set_step", "POST", "/advantages/set_step?step=5"),
            ("unknown", "GET", "/rollout/nothing"),
        ):
            answers[name] = call(method, http + path)
        answers |= ask_metrics(running)
        stacks = subprocess.run(
            [sys.executable, "-m", "relax", "stacks", "--run", save, "--timeout", "60"],
            capture_output=True,
            text=True,
            check=False,
        )
        priorities = running.priorities()
        end = time.monotonic() + 120
        while call("GET", http + "/rollout/is_eval_done") != (200, {"done": True}) and time.monotonic() < end:
            time.sleep(0.2)
        answers["is_eval_done"] = call("GET", http + "/rollout/is_eval_done")
        answers["stop"] = call("POST", http + "/rollout/stop_service")
        done = running.finish()
        yield Asked(answers, stacks, priorities, done, running.wait_gone(), running.temporary())


def test_doors_answer_for_their_roles(asked):
    roles = asked.answers["root"][1]["roles"]
    assert set(roles) == {"rollout", "actor", "advantages", "reference", "actor_fwd"}
    assert asked.answers["get_step"][1]["step"] >= 3
    assert asked.answers["status"][1]["role"] == "rollout"
    assert asked.answers["actor_status"][1]["rank"] == 0
    assert asked.answers["health"] == (200, {"status": "ok"})
    assert asked.answers["set_step"] == (200, {"status": "ok"})
    assert asked.answers["bad_step"][0] == 422
    assert asked.answers["unknown"][0] == 404


def test_the_engines_door_names_engine_and_version(asked):
    (engine,) = asked.answers["engines"][1]["models"]["default"]["engines"]
    assert engine["engine_id"] == "engine-0"
    assert engine["is_healthy"] is True
    assert int(engine["weight_version"]) >= 4


def test_the_coordinator_knows_published_and_installed_versions(asked):
    assert asked.answers["dcs"][0] == 200
    assert asked.answers["latest"][1]["version"] >= 4
    text = json.dumps(asked.answers["versions"][1])
    assert "engine-0" in text


def test_an_evaluation_can_be_asked_for_one_at_a_time(asked):
    assert asked.answers["evaluate"] == (200, {"status": "ok", "rollout_id": 7})
    assert asked.answers["evaluate_again"][0] == 409
    assert asked.answers["is_eval_done"] == (200, {"done": True})
    assert len(asked.done.samples(7, "eval")) == 12


def test_the_metrics_service_merges_reports_into_the_rows_of_the_run(asked):
    done, answers = asked.done, asked.answers
    assert answers["log"] == answers["batch"] == answers["late"] == answers["report_step"] == (200, {"status": "ok"})
    assert (answers["conflict"][0], answers["undeclared"][0], answers["member"][0]) == (409, 422, 200)
    assert done.metrics("custom/asked/count") == [3.0]
    rows = [json.loads(line) for line in (done.folder / "metrics/metrics.jsonl").read_text().splitlines()]
    assert {"step": 0, "custom/y": 4.0} in rows  # after its row, so in a later line of its step
    assert {"step": 5000, "custom/x": 1.0} in rows  # a step that never came: told at the end
    assert max(done.metrics("perf/missing_reports")) == max(done.metrics("perf/refused_reports")) == 0.0
    # every scoring that the reward counted, in its own process, is in some row: 2 samples for each of 2 groups a step
    counted = {row["step"]: row["custom/scored/count"] for row in rows if "custom/scored/count" in row}
    assert sum(counted.values()) >= 4 * len(done.events("stepped"))


def test_the_metrics_service_answers_with_what_metrics_jsonl_says(asked):
    rows = [json.loads(line) for line in (asked.done.folder / "metrics/metrics.jsonl").read_text().splitlines()]
    status, query = asked.answers["query"]
    losses = [[row["step"], row["train/loss"]] for row in rows if row.get("train/loss") is not None][:3]
    assert (status, query["missing_rows"], query["first_kept"]) == (200, 0, 0)
    assert query["metrics"] == {"train/loss": losses, "custom/y": [[0, 4.0]]}
    status, newest = asked.answers["newest"]
    same = next(row for row in rows if row["step"] == newest["training"]["step"] and "train/loss" in row)
    assert {"step": newest["training"]["step"], **newest["training"]["metrics"]}.items() >= same.items()
    status, health = asked.answers["metrics_health"]
    assert (status, health["status"], health["refused"], health["missing_rows"]) == (200, "ok", 0, 0)


def test_prometheus_can_read_the_metrics_service(asked):
    parser = pytest.importorskip("prometheus_client.parser")
    status, text = asked.answers["prometheus"]
    found = {s.name: s.value for f in parser.text_string_to_metric_families(text) for s in f.samples}
    assert status == 200
    assert found["relax_step"] >= 3
    assert found["relax_train_weight_version"] == found["relax_step"] + 1


def test_stop_service_ends_the_run_cleanly_with_a_checkpoint(asked):
    done = asked.done
    assert asked.answers["stop"] == (200, {"status": "ok"})
    assert done.code == 0, done.err
    assert done.reason == "stopped_by_service"
    last = done.events("stepped")[-1]["rollout_id"]
    assert done.events("checkpoint")[-1]["rollout_id"] == last
    assert (done.folder / "latest_checkpointed_iteration.txt").read_text() == str(last)
    assert (asked.left_processes, asked.left_folders) == ([], [])


def test_U11_one_command_tells_what_every_process_does_and_whom_it_waits_for(asked):
    told = asked.stacks
    assert told.returncode == 0, told.stderr
    states = dict(line.split()[0::3] for line in told.stdout.split("\n\n")[0].splitlines())
    assert set(states.values()) == {"answered"}
    doors = {f"door-{role}" for role in ("rollout", "actor", "advantages", "reference", "actor_fwd", "control")}
    assert states.keys() >= {"controller", "rollout", "actor-0", "reference", "actor_fwd", "engine-0", *doors}
    assert "engine-0-process-0" in states
    driver = told.stdout.split("== controller")[1].split("\n== ")[0]
    assert "task controller.collect" in driver
    assert re.search(r"what='\w+\.\w+'", driver)  # which call of which role it waits for
    # what a run was asked stays, its pipes do not
    kept = sorted(path.name for path in (asked.done.folder / "stacks").iterdir())
    assert len(kept) == len(states)
    assert all(name.endswith(".txt") for name in kept)


def test_workers_and_engines_do_not_give_way_to_other_jobs(asked):
    assert asked.priorities == {os.nice(0)}


def test_ages_stay_within_the_limit(asked):
    assert len(asked.done.ages()) >= 8
    assert max(asked.done.ages()) == 1


def test_columns_of_reference_and_actor_fwd_are_what_the_loss_uses(asked):
    done = asked.done
    assert done.metrics("train/ratio") == pytest.approx([1.0] * len(done.metrics("train/ratio")))
    kl = done.metrics("train/kl_loss")
    assert kl[0] == pytest.approx(0.0, abs=1e-9)  # reference and policy are the same weights
    assert max(kl) > 1e-6
    # the reference takes every second version, so rollout 2 trains from its own reference
    assert kl[2] == pytest.approx(0.0, abs=1e-9)
    assert kl[3] > 1e-9


def test_the_console_shows_only_what_the_run_says(asked):
    assert asked.done.err == "" or all(line.startswith("note: ") for line in asked.done.err.splitlines())
    lines = asked.done.out.splitlines()
    assert lines[0].startswith("run folder: ")
    assert sum(line.startswith("http: ") for line in lines) == 1
    assert sum(line.startswith("exact: ") for line in lines) == 1
    assert lines[-1].startswith("critical path of a step, ")
    known = ("run folder: ", "http: ", "exact: ", "step ", "evaluation ", "critical path of a step, ")
    assert all(line.startswith(known) for line in lines), asked.done.out


# ------------------------------------------------------------------ two ranks, two engines; colocate


def test_two_ranks_and_two_engines_train_as_one_of_each(inputs, tmp_path):
    size = {"rollout_batch_size": 4, "num_rollout": 2}
    words = ["--fully-async", "--max-staleness", "0"]
    one = inline([*inputs.flags(tmp_path / "one", **size), *words]).ok()
    roles = '{"actor":[1,2],"rollout":[1,2]}'
    two = command([*inputs.flags(tmp_path / "two", resource=roles, **size), *words]).ok()
    assert two.events("engine_joined")[1]["engine"] == "engine-1"
    assert two.metrics("rollout/reward/mean")[0] == one.metrics("rollout/reward/mean")[0]
    for name in ("train/policy_loss", "train/grad_norm", "train/entropy", "train/ratio"):
        assert two.metrics(name)[0] == pytest.approx(one.metrics(name)[0], abs=1e-5), name
    for name, tensor in checkpoint_weights(two.folder / "iter_0000001/model").items():
        assert tensor.isfinite().all(), name


def test_colocate_on_ray_gives_the_weights_of_one_process(inputs, tmp_path):
    import torch

    one = inline([*inputs.flags(tmp_path / "one"), "--colocate", "--use-kl-loss", "--kl-loss-coef", 0.1]).ok()
    ray = command([*inputs.flags(tmp_path / "ray"), "--colocate", "--use-kl-loss", "--kl-loss-coef", 0.1]).ok()
    assert ray.ages() == [0] * 4
    expected = checkpoint_weights(one.folder / "iter_0000001/model")
    for name, tensor in checkpoint_weights(ray.folder / "iter_0000001/model").items():
        assert torch.equal(tensor, expected[name]), name


# ------------------------------------------------------------------ the metrics service fails, or is not wanted


def test_a_killed_metrics_door_costs_the_run_nothing_and_comes_back_with_all_rows(inputs, tmp_path):
    flags = inputs.flags(tmp_path / "run", num_rollout=1000, custom_rm_path=HOOKS + "slow_reward")
    with start([*flags, *ASYNC, 1], env={"TEST_REWARD_SECONDS": "0.2"}) as running:
        running.wait_for_event("stepped", 3)
        url = running.http + "/metrics/query_metrics?name=train/loss"
        running.wait_for(lambda: len(call("GET", url)[1]["metrics"]["train/loss"]) >= 3)
        running.processes()[control_replica(running)].kill()
        running.wait_for_event("stepped", 8)
        running.wait_for(lambda: rows_after_kill(url) >= 8)
        assert call("POST", running.http + "/rollout/stop_service")[0] == 200
        done = running.finish().ok()
    steps = len(done.events("stepped"))
    assert len(done.metrics("train/loss")) == steps  # metrics.jsonl has every step
    assert done.metrics("perf/dropped_metrics") == [0.0] * steps


def control_replica(running: Running) -> int:
    """The pid of the `control` door."""
    found = []
    for pid, process in running.processes().items():
        with contextlib.suppress(psutil.Error):
            found += [pid] if "ServeReplica:control" in " ".join(process.cmdline()) else []
    (pid,) = found
    return pid


def rows_after_kill(url: str) -> int:
    """Rows that the door has from step 0 on; 0 while it is away."""
    try:
        status, found = call("GET", url)
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):  # not back yet, or no JSON
        return 0
    series = found["metrics"]["train/loss"] if status == 200 else []
    return len(series) if series and series[0][0] == 0 and found["missing_rows"] == 0 else 0


def test_without_the_metrics_service_the_rows_are_the_same(inputs, tmp_path):
    words = ["--fully-async", "--max-staleness", "0"]
    with start([*inputs.flags(tmp_path / "off", num_rollout=3), *words, "--no-use-metrics-service"]) as running:
        running.wait_for_event("stepped", 1)
        assert "metrics" not in call("GET", running.http + "/")[1]
        off = running.finish().ok()
    on = command([*inputs.flags(tmp_path / "on", num_rollout=3), *words]).ok()
    names = [set(row) for done in (off, on) for row in map(json.loads, (done.folder / "metrics/metrics.jsonl").open())]
    assert names[:3] == names[3:]
    for name in ("rollout/reward/mean", "train/loss", "train/trained_tokens"):
        assert on.metrics(name) == off.metrics(name), name
