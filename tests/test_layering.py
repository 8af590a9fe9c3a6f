# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which part of the package may know which: a file imports its own layer and those below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "relax"
LAYERS = (  # top to bottom
    "entrypoints",
    "core",
    "components",
    "engine",
    "backends",
    "distributed",
    "schedule",
    "algorithms",
    "data",
    "config",
    "utils",
)
FILES = sorted(ROOT.rglob("*.py"))

# A documented import path that is not the home of what it names: it only re-exports from a higher layer.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# Plain tables that import nothing of the package but `relax.utils`: any layer may read them.
TABLES = ("relax.algorithms.spec", "relax.algorithms.rules")

LIGHT = (
    "relax.config",
    "relax.utils.types",
    "relax.utils.metrics",
    "relax.utils.http_utils",
    "relax.schedule.scheduler",
    "relax.algorithms.spec",
)
HEAVY = ("torch", "ray", "transformers")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in the file, those inside functions and for type checking included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            yield node.lineno, node.module or ""
            if node.module == "relax":
                yield from ((node.lineno, f"relax.{alias.name}") for alias in node.names)


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "relax" and len(parts) > 1 and parts[1] in LAYERS else None


def test_every_folder_is_a_known_layer():
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} <= set(LAYERS)


def test_a_file_imports_only_its_own_layer_and_those_below():
    wrong = []
    for path in FILES:
        own = path.relative_to(ROOT).parts[0]
        if own not in LAYERS:
            continue
        for line, module in imports(path):
            target = layer_of(module)
            if target is None or module in TABLES or (str(path.relative_to(ROOT)), module) in EXCEPTIONS:
                continue
            if LAYERS.index(target) < LAYERS.index(own):
                wrong.append(f"relax/{path.relative_to(ROOT)}:{line} ({own}) imports {module} ({target})")
    assert not wrong, "\n".join(wrong)


def test_tables_know_nothing_but_themselves_and_the_lowest_layer():
    for table in TABLES:
        known = [module for _, module in imports(ROOT / f"{table.removeprefix('relax.').replace('.', '/')}.py")]
        ours = [module for module in known if module.startswith("relax")]
        assert all(module in TABLES or layer_of(module) == "utils" for module in ours), (table, ours)


def test_the_package_never_imports_tests_examples_or_scripts():
    wrong = [
        f"{path}:{line}: {module}"
        for path in FILES
        for line, module in imports(path)
        if module.split(".")[0] in ("tests", "examples", "scripts")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_pull_in_no_heavy_package(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_roles_take_their_time_from_a_clock():
    wrong = []
    for path in FILES:
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in ("components", "engine", "schedule") or relative.name == "clock.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.sleep", "time.monotonic"):
                wrong.append(f"relax/{relative}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_every_source_file_names_its_copyright():
    notice = "# Copyright (c) 2026 Relax Authors. All Rights Reserved."
    missing = [str(path) for path in FILES if path.stat().st_size and not path.read_text().startswith(notice)]
    assert not missing, "\n".join(missing)
