# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Two hosts on one machine: network namespaces with a cable between them, each with a name, memory and Ray folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SET_UP = """
set -e
hostname "$1"; mount --make-rprivate /
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs "$3"
shift 3
exec "$@"
"""


@dataclass(frozen=True)
class Host:
    """One of them. Files are shared, as on a network file system, except /dev/shm and RAY_TMPDIR."""

    name: str
    address: str
    namespace: str
    folder: Path
    ray_folder: Path

    def start(self, words: Sequence[object], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Run a command there. Its process group, to which the caller sends signals, is its own."""
        inside = ["bash", "-c", SET_UP, "host", self.name, self.folder, self.ray_folder, *words]
        with open(log, "wb") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", *map(str, inside)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**env, "RAY_TMPDIR": str(self.ray_folder), "POD_NAME": self.name, "HOST_IP": self.address},
            )


def why_not() -> str | None:
    """Why this machine cannot have such hosts, None where it can."""
    try:
        with two_hosts():
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"no network namespaces here: {error}"


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """node-0 and node-1, whose names resolve on both."""
    tag = f"rlx{os.getpid()}"
    names = [f"{tag}-{number}" for number in range(2)]
    with contextlib.ExitStack() as made:
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="rlxh-", dir="/var/tmp")))
        addresses = ["10.77.0.1", "10.77.0.2"]
        lines = [f"{address} node-{number}" for number, address in enumerate(addresses)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        hosts = []
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            _ip("netns", "add", name)
            made.callback(_ip, "netns", "del", name)
            (ray_folder := folder / f"ray{number}").mkdir()
            hosts.append(Host(f"node-{number}", address, name, folder, ray_folder))
        _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for host in hosts:
            _ip("link", "set", host.namespace, "netns", host.namespace)
            for words in (("addr", "add", f"{host.address}/24", "dev", host.namespace), ("link", "set", "lo", "up")):
                _ip("-n", host.namespace, *words)
            _ip("-n", host.namespace, "link", "set", host.namespace, "up")
        yield hosts[0], hosts[1]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
