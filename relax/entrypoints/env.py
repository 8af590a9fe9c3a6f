# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax env`: versions, devices, what is missing or in conflict, and the command that fixes it.

Nothing heavy is imported: versions and requirements are read from package metadata. Exit code 0 where training can
start (core, train and ray are whole), 2 where it can't.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("core", "train", "ray")  # groups without which no training starts
GROUPS = (*NEEDED, "media", "math", "lora", "notify", "wandb", "clearml", "sglang", "megatron")
TESTED = {"sglang": "requirements/sglang-cpu.txt"}  # of a group; the others: requirements/cpu.txt
COMMANDS = {"sglang": "bash scripts/install_sglang.sh", "megatron": "bash scripts/install_megatron.sh"}
SGLANG_PYTHON = ".venv-sglang/bin/python"  # where that script puts it

Version = Callable[[str], str | None]  # a distribution's installed version


@dataclass(frozen=True)
class Package:
    """One requirement of Relax and what is installed."""

    name: str
    group: str  # core, or the extra that asks for it
    required: str  # specifier, empty for any
    installed: str | None
    tested: str | None  # the version that this checkout's tests run with
    state: str  # ok, missing or conflict


@dataclass(frozen=True)
class Conflict:
    """An installed package whose own requirement another installed one does not meet."""

    package: str
    requires: str
    installed: str


@dataclass(frozen=True)
class Environment:
    """Everything that `relax env` tells."""

    relax: str
    python: str
    interpreter: str
    system: str
    cpus: int
    memory_bytes: int
    shm_bytes: int  # /dev/shm, through which weight versions go
    gpus: tuple[str, ...]  # one line a card
    packages: tuple[Package, ...]
    conflicts: tuple[Conflict, ...]
    fixes: tuple[str, ...]
    ready: bool  # training can start


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="relax env", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    words = parser.parse_args(argv)
    found = look(requirements(ROOT), installed_version, ROOT)
    print(json.dumps(asdict(found), indent=2) if words.json else text_of(found))
    return 0 if found.ready else 2


def look(wanted: Mapping[str, Sequence[Requirement]], version: Version, root: Path) -> Environment:
    """Look at this machine and at the packages of `wanted`, {group: requirements}."""
    from relax import __version__

    packages = tuple(_package(group, need, version, root) for group, needs in wanted.items() for need in needs)
    conflicts = tuple(find_conflicts({package.name for package in packages if package.installed}, version))
    broken = {package.group for package in packages if package.state != "ok"} & set(NEEDED)
    return Environment(
        relax=__version__,
        python=platform.python_version(),
        interpreter=sys.executable,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
        gpus=tuple(gpu_lines()),
        packages=packages,
        conflicts=conflicts,
        fixes=tuple(fixes(packages, conflicts, root)),
        ready=not broken and not conflicts,
    )


# ---------------------------------------------------------------------- packages


def requirements(root: Path) -> dict[str, list[Requirement]]:
    """{group: requirements} from the checkout's pyproject.toml, else from the installed package."""
    file = root / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        groups = {"core": project["dependencies"], **project["optional-dependencies"]}
        return {group: [_parsed(line) for line in groups.get(group, ())] for group in GROUPS}
    lines = [_parsed(line) for line in metadata.requires("relax-rl") or ()]
    return {group: [need for need in lines if _applies(need, "" if group == "core" else group)] for group in GROUPS}


def _parsed(line: str) -> Requirement:
    from packaging.requirements import Requirement

    return Requirement(line)


def _applies(need: Requirement, extra: str) -> bool:
    """Whether a requirement belongs to this extra, and to no smaller one."""
    if need.marker is None:
        return extra == ""
    return need.marker.evaluate({"extra": extra}) and (not extra or not need.marker.evaluate({"extra": ""}))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package(group: str, need: Requirement, version: Version, root: Path) -> Package:
    there = version(need.name)
    state = "missing" if there is None else "ok" if need.specifier.contains(there, prereleases=True) else "conflict"
    return Package(need.name, group, str(need.specifier), there, pinned_version(need.name, group, root), state)


def pinned_version(name: str, group: str, root: Path) -> str | None:
    """The pin of a package in this checkout's requirements, None where there is none."""
    file = root / TESTED.get(group, "requirements/cpu.txt")
    if not file.is_file():
        return None
    for line in file.read_text("utf-8").splitlines():
        pinned, _, number = line.partition("==")
        if number and canonical(pinned) == canonical(name):
            return number.strip()
    return None


def canonical(name: str) -> str:
    """The form in which two spellings of a distribution's name are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_conflicts(
    names: set[str], version: Version, requires: Callable[[str], list[str]] | None = None
) -> Iterator[Conflict]:
    """Requirements of the installed packages `names`, and of what they require, that an installed version breaks."""
    asked, waiting = set[str](), sorted(names)
    while waiting:
        name = canonical(waiting.pop())
        if name in asked:
            continue
        asked.add(name)
        for line in (requires or _requires)(name):
            need = _parsed(line)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            there = version(need.name)
            if there is None:
                continue  # what is missing and needed is told by its own package's import
            waiting.append(need.name)
            if not need.specifier.contains(there, prereleases=True):
                yield Conflict(f"{name} {version(name)}", f"{need.name}{need.specifier}", there)


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def fixes(packages: Sequence[Package], conflicts: Sequence[Conflict], root: Path) -> Iterator[str]:
    """One command for each group that lacks something or that nobody has installed, needed ones first."""
    for group in GROUPS:
        bad = [package.name for package in packages if package.group == group and package.state != "ok"]
        if not bad:
            continue
        if group == "sglang" and (root / SGLANG_PYTHON).exists():
            yield f"--sglang-python {SGLANG_PYTHON}   # flag of relax train: SGLang has an environment of its own"
            continue
        extra = "" if group == "core" else f"[{group}]"
        command = COMMANDS.get(group) if (root / "scripts").is_dir() else None
        source = f"-e '.{extra}'" if (root / "pyproject.toml").is_file() else f"'relax-rl{extra}'"
        optional = "" if group in NEEDED else "optional, "
        yield f"{command or f'{sys.executable} -m pip install {source}'}   # {optional}{group}: {', '.join(bad)}"
    for conflict in conflicts:
        yield f"{sys.executable} -m pip install '{conflict.requires}'   # for {conflict.package}"


# ---------------------------------------------------------------------- devices and text


def gpu_lines() -> Iterator[str]:
    """One line a card: what nvidia-smi says, else the device files."""
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        query = [smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            yield from filter(None, map(str.strip, done.stdout.splitlines()))
            return
    yield from (f"{path} (nvidia-smi does not answer)" for path in sorted(Path("/dev").glob("nvidia[0-9]*")))


def text_of(found: Environment) -> str:
    gib = 1 << 30
    lines = [
        f"relax {found.relax}, Python {found.python} ({found.interpreter}), {found.system}",
        f"{found.cpus} CPU cores, {found.memory_bytes / gib:.1f} GiB memory, {found.shm_bytes / gib:.1f} GiB /dev/shm",
        *(found.gpus or ("no CUDA GPU: training and engines run on the CPU",)),
        "",
        *table(found.packages),
    ]
    if found.conflicts:
        lines += ["", "conflicts:"]
        lines += [
            f"  {item.package} needs {item.requires}, and {item.installed} is installed" for item in found.conflicts
        ]
    if found.fixes:
        lines += ["", "to fix or add:", *(f"  {fix}" for fix in found.fixes)]
    lines += ["", "training can start" if found.ready else "training can not start: see above"]
    return "\n".join(lines)


def table(packages: Sequence[Package]) -> Iterator[str]:
    rows: list[tuple[Any, ...]] = [("group", "package", "installed", "needs", "tested", "")]
    rows += [
        (p.group, p.name, p.installed or "-", p.required or "any", p.tested or "-", "" if p.state == "ok" else p.state)
        for p in packages
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
