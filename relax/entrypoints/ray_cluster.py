# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the shell entry points ask of a Ray cluster: `python -m relax.entrypoints.ray_cluster COMMAND`.

    cards    how many GPUs this machine has
    plan     cards, a free port of the dashboard and a token, for a Ray of this machine alone; refused where one runs
    ready    wait until the job server answers and takes our token
    nodes    wait until so many machines have joined
    join     the head of the cluster that runs here, after the processes of ended jobs of this checkout were cleaned
    follow   wait until the head has ended its Ray -> 0, or 1 where the last job failed
    result   the exit code of a job's training

Exit codes: 2 wrong set-up, 5 a cluster that does not answer or went away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.utils.errors import ConfigError, InfrastructureError, RelaxError

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails
    from ray.job_submission import JobSubmissionClient

SLOTS = 8  # cards of a machine without GPUs; they are only numbers
DASHBOARD_PORT = 8265
POLL_S = 1.0
MISSES = 5  # polls in a row without an answer: the head has ended its Ray
TELL_EVERY_S = 15.0


@dataclass(frozen=True)
class Waiting:
    """How waits pass time; tests give other functions."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def main(argv: Sequence[str] | None = None) -> int:
    words = _parser().parse_args(argv)
    try:
        return words.run(words)
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m relax.entrypoints.ray_cluster", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name)
        sub.set_defaults(run=run)
        return sub

    command("cards", lambda words: _print(_gpus()))
    command("plan", lambda words: plan(Path(words.current_cluster))).add_argument(
        "--current-cluster", default=_current_cluster()
    )
    ready = command("ready", lambda words: wait_ready(words.address, words.timeout_s, words.pid))
    nodes = command("nodes", lambda words: wait_nodes(words.address, words.count, words.timeout_s))
    join = command("join", lambda words: join_cluster(words.address, words.checkout))
    follow = command("follow", lambda words: follow_head(words.address, words.pid))
    result = command("result", lambda words: job_result(words.address, words.job))
    for sub in (ready, nodes, join, follow, result):
        sub.add_argument("--address", required=True)
    for sub in (ready, nodes):
        sub.add_argument("--timeout-s", type=float, default=120.0)
    for sub in (ready, follow):
        sub.add_argument("--pid", type=int, help="process of `ray start`, whose end ends the wait")
    nodes.add_argument("--count", type=int, required=True)
    join.add_argument("--checkout", required=True)
    result.add_argument("job")
    return parser


def _print(*values: object) -> int:
    print(*values, sep="\n")
    return 0


def _gpus() -> int:
    from relax.config.machine import Machine

    return Machine.here().gpus


# ---------------------------------------------------------------------- a Ray of this machine alone


def _current_cluster() -> str:
    """The file in which `ray start` on this machine notes its address."""
    return str(Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster")


def plan(current_cluster: Path) -> int:
    """Print cards, port and token, one a line."""
    if answers(current_cluster):
        raise ConfigError(
            f"a Ray cluster runs on this machine already ({current_cluster.read_text().strip()}), and a second one "
            "would count its cards again: use it by `bash scripts/entrypoint/ray-job.sh SCRIPT`, or end it by "
            "`ray stop` when it is yours"
        )
    port = int(os.environ.get("RAY_DASHBOARD_PORT", DASHBOARD_PORT))
    return _print(_gpus() or SLOTS, port if is_free(port) else free_port(), secrets.token_hex(32))


def answers(current_cluster: Path) -> bool:
    """Whether the cluster whose address the file holds is there; the file of one that was killed stays."""
    try:
        host, _, port = current_cluster.read_text().strip().rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, ValueError):
        return False
    return True


def is_free(port: int) -> bool:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


# ---------------------------------------------------------------------- waiting


def jobs_client(address: str) -> JobSubmissionClient | None:
    """The job server's client, None while it does not answer; ConfigError where it refuses our token."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except ConnectionError:
        return None
    except (RuntimeError, AuthenticationError) as error:
        if isinstance(error, AuthenticationError) or _is_refusal(error):
            raise ConfigError(
                f"the cluster of {address} asks for a token that this machine does not have: export the same "
                "RAY_AUTH_TOKEN on every machine (or RAY_AUTH_TOKEN_PATH, a file that holds it) and start again"
            ) from error
        return None  # the server is there, and what it starts is not yet


def _is_refusal(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("401", "403", "unauthenticated", "unauthorized", "authentication", "token"))


def wait_ready(address: str, timeout_s: float, pid: int | None, waiting: Waiting = Waiting()) -> int:
    """Wait for the job server. Raises when `pid` ends first, or when there is no answer in time."""
    end, told = waiting.now() + timeout_s, waiting.now()
    while jobs_client(address) is None:
        if pid is not None and not is_alive(pid):
            raise InfrastructureError(f"`ray start` ended before {address} answered")
        if waiting.now() > end:
            raise InfrastructureError(
                f"no answer from {address} within {timeout_s:g} s: is the head started, does its name resolve here, "
                "and do its ports let this machine in?"
            )
        if waiting.now() - told > TELL_EVERY_S:
            told = waiting.now()
            print(f"relax: waiting for {address}, {end - told:.0f} s left", file=sys.stderr)
        waiting.sleep(POLL_S)
    return 0


def wait_nodes(address: str, count: int, timeout_s: float, waiting: Waiting = Waiting()) -> int:
    """Wait until `count` machines have joined; raises with the addresses of those that have."""
    import ray

    end = waiting.now() + timeout_s
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
            break
        except ConnectionError as error:  # its servers answer late on a busy machine
            if waiting.now() > end:
                raise InfrastructureError(f"the Ray of {address} does not answer: {error}") from error
            waiting.sleep(POLL_S)
    try:
        return _wait_nodes(ray.nodes, count, end, timeout_s, waiting)
    finally:
        ray.shutdown()


def _wait_nodes(
    nodes: Callable[[], list[dict[str, Any]]], count: int, end: float, timeout_s: float, waiting: Waiting
) -> int:
    seen = 0
    while True:
        there = sorted(node["NodeManagerAddress"] for node in nodes() if node["Alive"])
        if len(there) != seen:
            seen = len(there)
            print(f"relax: {seen} of {count} machines have joined: {', '.join(there)}", file=sys.stderr)
        if seen >= count:
            return 0
        if waiting.now() > end:
            raise InfrastructureError(
                f"{seen} of WORLD_SIZE={count} machines have joined within {timeout_s:g} s ({', '.join(there)}): "
                "look at the output of the others, or set WORLD_SIZE"
            )
        waiting.sleep(POLL_S)


def follow_head(address: str, pid: int | None, waiting: Waiting = Waiting()) -> int:
    """Wait until the head's job server is gone -> 1 where the last job that was seen had failed, else 0."""
    misses, last = 0, None
    while misses < MISSES:
        if pid is not None and not is_alive(pid):
            if last is not None and last.status.is_terminal():
                break  # Ray ends here when the head ends it
            raise InfrastructureError("this machine's Ray ended while the head still trained, or it could not join")
        found = last_job(address)
        misses = 0 if found is not False else misses + 1
        last = last if found is False or found is None else found
        waiting.sleep(POLL_S)
    if last is None:
        print("relax: the head has ended its Ray, no job was seen", file=sys.stderr)
        return 0
    if not last.status.is_terminal():
        raise InfrastructureError(f"the head is gone while job {last.submission_id} was {last.status.value}")
    print(f"relax: job {last.submission_id} has ended: {last.status.value}", file=sys.stderr)
    return 0 if last.status.value == "SUCCEEDED" else 1


def last_job(address: str) -> JobDetails | bool | None:
    """The job that started last, None where there was none, False where nobody answers."""
    import requests

    try:
        client = jobs_client(address)
        jobs = [] if client is None else [job for job in client.list_jobs() if job.submission_id]
    except (requests.RequestException, RuntimeError):
        return False
    if client is None:
        return False
    return max(jobs, key=lambda job: job.start_time or 0, default=None)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def job_result(address: str, job: str) -> int:
    """The exit code of a job's training: its own, else 143 for a stopped and 1 for a failed one."""
    client = jobs_client(address)
    if client is None:
        raise InfrastructureError(f"no answer from {address}, so how job {job} ended is not known")
    details = client.get_job_info(job)
    if details.status.value == "SUCCEEDED":
        return 0
    if details.driver_exit_code:
        return details.driver_exit_code if details.driver_exit_code > 0 else 128 - details.driver_exit_code
    if details.status.value == "STOPPED":
        return 143
    print(f"relax: job {job}: {details.message}", file=sys.stderr)
    return 1


# ---------------------------------------------------------------------- a cluster that is there


def join_cluster(address: str, checkout: str) -> int:
    """Clean up after ended jobs of this checkout; print the head's address."""
    client = jobs_client(address)
    if client is None:
        raise InfrastructureError(
            f"no Ray job server answers at {address}: check `ray status`, and give the address of the cluster's "
            "dashboard as RAY_ADDRESS=http://HOST:8265"
        )
    ended = {job.submission_id for job in client.list_jobs() if job.submission_id and job.status.is_terminal()}
    for pid, job in clean(checkout, ended, own_processes()):
        print(f"relax: ended process {pid}, left over from job {job}", file=sys.stderr)
    return _print(head_address())


def head_address() -> str:
    """Address of the head of the cluster that this machine belongs to."""
    import ray

    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise InfrastructureError(f"`ray status` does not work on this machine: {error}") from error
    try:
        heads = [n["NodeManagerAddress"] for n in ray.nodes() if "node:__internal_head__" in n["Resources"]]
        return heads[0]
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class OwnProcess:
    """A process of a training that was started by these scripts."""

    process: Any  # psutil.Process, which does not take another process for this one when the id is used again
    job: str
    checkout: str


def own_processes() -> Iterable[OwnProcess]:
    """Processes whose environment names a job and a checkout; other users' are not readable, and left out."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if "RELAX_JOB" in environment and "RELAX_CHECKOUT" in environment:
                yield OwnProcess(process, environment["RELAX_JOB"], environment["RELAX_CHECKOUT"])


def clean(checkout: str, ended: set[str | None], processes: Iterable[OwnProcess]) -> list[tuple[int, str]]:
    """End the processes of jobs of `checkout` that the cluster says have ended -> [(process id, job)]."""
    import psutil

    left = [entry for entry in processes if entry.checkout == checkout and entry.job in ended]
    for entry in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            entry.process.terminate()
    _, alive = psutil.wait_procs([entry.process for entry in left], timeout=10.0)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return [(entry.process.pid, entry.job) for entry in left]


if __name__ == "__main__":
    sys.exit(main())
