# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Looks for the functions that flags name, without running the user's modules: they may import torch.

A module's source is parsed; a name that nothing at its top level defines is an error, and so is a plain function that
cannot take the arguments that it will get. What only running the module could tell (star imports, `__getattr__`,
decorators, modules without Python source) is left to the role that loads the function.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.machinery import ModuleSpec

from relax.config.flags import import_path, nearest, option_name
from relax.config.run import RunConfig
from relax.utils.errors import ConfigError

# {flag: arguments that the function is called with}; the others are checked where they are loaded
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "--custom-rm-path": ("args", "sample"),
    "--custom-reward-post-process-path": ("args", "samples"),
    "--custom-generate-function-path": ("args", "sample", "sampling_params"),
    "--eval-generate-function-path": ("args", "sample", "sampling_params"),
    "--dynamic-sampling-filter-path": ("args", "samples"),
    "--rollout-sample-filter-path": ("args", "groups"),
    "--custom-prompt-path": ("prompt", "row"),
    "--custom-loss-function-path": ("args", "batch"),
}
AWAITED = ("--custom-generate-function-path", "--eval-generate-function-path")


def check_hooks(config: RunConfig) -> None:
    """Raise ConfigError naming every flag whose module or function is not there."""
    with _like_workers():
        problems = [text for flag, path in named_hooks(config).items() if (text := problem_of(path, flag))]
    if problems:
        raise ConfigError("\n".join(problems))


def named_hooks(config: RunConfig) -> Mapping[str, str]:
    """{flag: import path} of every function that the configuration names."""
    found: dict[str, str] = {}
    for section in fields(config):
        value = getattr(config, section.name)
        for field in getattr(type(value), "__dataclass_fields__", {}).values():
            path = getattr(value, field.name)
            if field.metadata.get("check") is import_path and path is not None:
                found[option_name(field.name)] = path
    for dataset in config.eval_datasets:
        if dataset.custom_generate_function_path:
            flag = f"evaluation data set {dataset.name}: custom_generate_function_path"
            if dataset.custom_generate_function_path not in found.values():
                found[flag] = dataset.custom_generate_function_path
    return found


def problem_of(path: str, flag: str) -> str | None:
    """What is wrong with one import path, or None."""
    module_path, _, name = path.replace(":", ".").rpartition(".")
    spec = _find(module_path)
    if isinstance(spec, str):
        return f"{flag} {path}: {spec}"
    tree = _source(spec)
    names = None if tree is None else _top_level_names(tree)
    if names is None or tree is None:
        return None
    if name in names:
        wrong = _wrong_signature(tree, name, flag)
        return f"{flag} {path}: {wrong}" if wrong else None
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"it has {', '.join(sorted(names)) or 'nothing'}"
    return f"{flag} {path}: module {module_path} has no {name!r}; {hint}"


def _find(module_path: str) -> ModuleSpec | str:
    """The module's spec, or what keeps it from being found. Parent packages are imported."""
    try:
        spec = importlib.util.find_spec(module_path)
    except ModuleNotFoundError as error:
        spec, module_path = None, error.name or module_path
    except Exception as error:  # told to the user: a parent package fails while it is imported
        return f"importing a parent package of {module_path} failed with {type(error).__name__}: {error}"
    if spec is None:
        return f"no module {module_path!r} on the Python path; start from the folder that holds it, or set PYTHONPATH"
    return spec


def _source(spec: ModuleSpec) -> ast.Module | None:
    """The module's parsed source, None when it has none."""
    if not spec.origin or not spec.origin.endswith(".py"):
        return None
    with open(spec.origin, "rb") as file:
        source = file.read()
    try:
        return ast.parse(source, spec.origin)
    except SyntaxError as error:
        raise ConfigError(f"{spec.origin}:{error.lineno}: {error.msg}") from None


def _top_level_names(tree: ast.Module) -> set[str] | None:
    """Names that the module's source defines; None when the source cannot tell."""
    names: set[str] = set()
    for node in _reached(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        else:
            names.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return None if names & {"*", "__getattr__"} else names


def _wrong_signature(tree: ast.Module, name: str, flag: str) -> str | None:
    """Why a function cannot be called as it will be, or None when it can or when its source cannot tell."""
    wanted = ARGUMENTS.get(flag)
    functions = [node for node in _reached(tree.body) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [function for function in functions if function.name == name]
    if wanted is None or len(found) != 1 or found[0].decorator_list:
        return None
    function, arguments = found[0], found[0].args
    places = [*arguments.posonlyargs, *arguments.args]
    needed = len(places) - len(arguments.defaults)
    keywords = [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    too_few = len(places) < len(wanted) and arguments.vararg is None
    if too_few or needed > len(wanted) or keywords:
        return f"it is called as ({', '.join(wanted)}), but takes ({ast.unparse(arguments)}): change its arguments"
    if flag in AWAITED and not isinstance(function, ast.AsyncFunctionDef):
        return "it is not an `async def`, and the rollout awaits it: write `async def`"
    return None


def _reached(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those inside `if`, `try`, `with` and loops included."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _reached(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _reached(handler.body)


@contextmanager
def _like_workers() -> Iterator[None]:
    """Search where workers will: first in the folder that the command was started in."""
    before = list(sys.path)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
