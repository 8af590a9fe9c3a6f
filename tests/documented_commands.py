# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Commands of the pages: bash itself reads them out of code blocks, the commands' own parsers read their flags.

Every command is a bash function here that only notes its words, so quotes, comments, arrays, `source` and `$(pwd)`
mean what they mean to a reader's shell, and nothing runs. `...` stands for flags that the page leaves out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.config.machine import Machine
from relax.config.run import parse_args
from relax.entrypoints.cli import COMMANDS
from relax.entrypoints.render import parser as render_parser
from relax.utils.errors import RelaxError

ROOT = Path(__file__).parents[1]
PYTHON = ("python", "python3", ".venv/bin/python", ".venv-sglang/bin/python")
RELAX = ("relax", ".venv/bin/relax")
# Commands whose flags are not checked here, and why.
ELSEWHERE = {
    "curl": "the routes of a run are asked in tests/service, those of an engine in tests/unit/backends/native",
    "docker": "its image is not on every machine; tests/unit/entrypoints/test_env.py looks at the Dockerfile",
    "git": "not ours",
    "hf": "tests/acceptance/test_documented_commands.py asks the installed command",
    "mkdir": "not ours",
    "modelscope": "a package that is not in the environment",
    "ray": "Ray's own command; what follows `ray job submit ... --` is checked",
    "tail": "not ours",
    ".venv/bin/tensorboard": "not ours",
}
MODULES_ELSEWHERE = {"sglang.launch_server": "in the environment of SGLang"}
# What a run needs at least, and a reward.
MINIMUM = {
    "--hf-checkpoint": "m",
    "--prompt-data": "p.jsonl",
    "--num-rollout": "1",
    "--rollout-batch-size": "4",
    "--n-samples-per-prompt": "2",
}
REWARD = {"--rm-type": "math"}
FENCE = re.compile(r"^```(?:bash|sh|shell)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(rf"`((?:{'|'.join(map(re.escape, (*PYTHON, *RELAX, 'make', 'bash', 'pip')))}) [^`\n]+)`")


@dataclass(frozen=True)
class Command:
    page: Path
    line: int  # where its block starts
    inline: bool  # in a sentence, where a name may stand without its flags
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {' '.join(self.words)}"


def commands_of(pages: Sequence[Path]) -> list[Command]:
    """Every command of the blocks and of the inline code, in order. What bash complains of is an AssertionError."""
    places = [(page, *place) for page in pages for place in _texts(page.read_text("utf-8"))]
    return [
        Command(page, line, inline, words)
        for (page, line, inline, _), calls in zip(places, _read_by_bash([text for *_, text in places]), strict=True)
        for words in calls
    ]


def _texts(page: str) -> Iterator[tuple[int, bool, str]]:
    """(line, whether inline, text) of each block and of each inline command."""
    for match in FENCE.finditer(page):
        yield page.count("\n", 0, match.start()) + 1, False, match[1]
    prose = re.sub(r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    for match in INLINE.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, True, match[1].replace("\\|", "|")


STAND_INS = " ".join((*PYTHON, *RELAX, "make", "bash", "cd", ".venv/bin/tensorboard"))
# Words end with NUL, a command with the word \x1e, a block with the word \x1d.
SCRIPT = rf"""
for name in {STAND_INS}; do eval "$name() {{ note $name \"\$@\"; }}"; done
note() {{ printf '%s\0' "$@" $'\x1e' >&3; }}
command_not_found_handle() {{ note "$@"; }}
for block in "$1"/*.sh; do
  text=$(<"$block")
  (PATH=/nowhere; set -u; eval "$text"; wait) >/dev/null 2>"$block.errors"
  printf '%s\0' $'\x1d' >&3
done
"""


def _read_by_bash(texts: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """The commands of each text. One shell reads all, in a folder that holds links to ours."""
    with tempfile.TemporaryDirectory() as name:
        folder, blocks = Path(name) / "checkout", Path(name) / "blocks"
        folder.mkdir()
        blocks.mkdir()
        for path in ROOT.iterdir():
            if not path.name.startswith((".venv", ".git")):
                (folder / path.name).symlink_to(path)
        for place, text in enumerate(texts):
            (blocks / f"{place:05}.sh").write_text(text)
        with open(Path(name) / "noted", "w+b") as noted:
            command = ["bash", "-c", f"exec 3>&1; {SCRIPT}", "bash", str(blocks)]
            subprocess.run(command, cwd=folder, stdout=noted, stdin=subprocess.DEVNULL, timeout=60, check=True)
            noted.seek(0)
            words = noted.read().decode().split("\0")[:-1]
        complaints = "".join(
            f"{texts[place]}{error}" for place, error in enumerate(_errors(blocks, len(texts))) if error
        )
    assert not complaints, f"bash cannot read:\n{complaints}"
    found: list[list[tuple[str, ...]]] = [[]]
    command_words: list[str] = []
    for word in words:
        if word == "\x1d":
            found.append([])
        elif word == "\x1e":
            found[-1].append(tuple(command_words))
            command_words = []
        else:
            command_words.append(word)
    return found[:-1]


def _errors(blocks: Path, count: int) -> list[str]:
    return [(blocks / f"{place:05}.sh.errors").read_text() for place in range(count)]


# --------------------------------------------------------------------------- checks: AssertionError, or nothing


def check(words: Sequence[str], *, inline: bool = False) -> None:
    """Raise AssertionError when a command would not be understood."""
    name, rest = words[0], list(words[1:])
    if inline and (rest[:1] == ["-m"] or name in RELAX or name in PYTHON) and len(rest) == 1 + (rest[0] == "-m"):
        _named(name, rest[-1])
        return
    for kind in CHECKS:
        if name in kind:
            CHECKS[kind](rest)
            return
    assert name in ELSEWHERE, f"no check knows the command {name!r}: add one, or say in ELSEWHERE why there is none"
    if name == "ray" and "--" in rest:
        check(rest[rest.index("--") + 1 :])


def _named(command: str, name: str) -> None:
    """A sub-command, module or file that a sentence names without its flags."""
    if command in RELAX:
        assert name in COMMANDS, f"relax has no command {name}"
    elif name not in MODULES_ELSEWHERE:
        assert (ROOT / name).is_file() or importlib.util.find_spec(name), f"there is no {name}"


def _python(words: list[str]) -> None:
    if words[0] == "-m" and words[1] == "pytest":
        _pytest(words[2:])
    elif words[0] == "-m" and words[1] in ("relax", "relax.entrypoints.cli"):
        _relax(words[2:])
    elif words[0] == "-m" and words[1] in MODULES_ELSEWHERE:
        return
    elif words[0] == "-m" and words[1] != "relax.entrypoints.train":
        _asked(lambda: runpy.run_module(words[1], run_name="__main__", alter_sys=True), words[1:])
    elif words[0] in ("train.py", "relax/entrypoints/train.py") or words[0] == "-m":
        _train(words[words[0] == "-m" :][1:])
    else:
        assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"
        _asked(lambda: runpy.run_path(str(ROOT / words[0]), run_name="__main__"), words)


def _relax(words: list[str]) -> None:
    if words[0] in ("train", "explain"):
        _train(words[1:])
    elif words[0] == "render":
        _train(render_parser().parse_known_args(words[1:])[1])
    else:
        _asked(
            lambda: runpy.run_module("relax.entrypoints.cli", run_name="__main__", alter_sys=True), ["relax", *words]
        )


class Understood(Exception):
    """The parser has read the words: nothing behind it is to run."""


def _asked(start: Callable[[], Any], argv: list[str]) -> None:
    """Start a command and end it where its parser has read its words."""
    original, errors = argparse.ArgumentParser.parse_args, io.StringIO()

    def read(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        original(self, args, namespace)
        raise Understood

    before = (sys.argv, list(sys.path))
    sys.argv, argparse.ArgumentParser.parse_args = argv, read  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runpy's, of a module that is imported already
            start()
    except Understood:
        return
    except SystemExit as end:
        assert not end.code, errors.getvalue()
    else:
        raise AssertionError(f"{argv[0]} ended without reading its words")
    finally:
        (sys.argv, sys.path[:]), argparse.ArgumentParser.parse_args = before, original  # type: ignore[method-assign]


def _train(words: list[str]) -> None:
    """Parse as the training command does, for a machine without GPUs or else with eight."""
    given = [word for word in words if word != "..."]
    if given in (["--help"], ["-h"]):
        return
    if given != words:
        names = {word.split("=")[0] for word in given}
        given += [word for flag, value in (MINIMUM | REWARD).items() if flag not in names for word in (flag, value)]
    problems = []
    for machine in (Machine(), Machine(gpus=8, sglang=True)):
        try:
            parse_args(given, machine=machine)
            return
        except RelaxError as error:
            problems.append(str(error))
    raise AssertionError(problems[0])


def _pytest(words: list[str]) -> None:
    paths = [word.partition("::")[0] for word in words if "/" in word]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@functools.cache
def _targets() -> dict[str, str]:
    """{target of the Makefile: its recipe}."""
    parts = re.split(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _make(words: list[str]) -> None:
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in variables if not re.search(rf"^{name} \?=", makefile, re.MULTILINE)] == []
    for target in (word for word in words if "=" not in word):
        assert target in _targets(), f"make has no target {target}"
        module = re.search(r"-m (\S+) \$\(ARGS\)", _targets()[target])
        if "ARGS" in variables:
            assert module, f"make {target} takes no ARGS"
            _python(["-m", module[1], *variables["ARGS"].split()])


def _bash(words: list[str]) -> None:
    """Launch scripts hand their flags to the training command; other scripts have theirs in their text."""
    script, *flags = words
    assert (ROOT / script).is_file(), f"there is no {script}"
    if script.startswith("scripts/entrypoint/"):
        _bash(flags)
    elif script.startswith("scripts/training/"):
        _train([*flags, "..."])
    else:
        text = (ROOT / script).read_text()
        assert [flag for flag in flags if f"{flag.split('=')[0]})" not in text] == []


def _pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for word in words for part in re.findall(r"^\.\[(.+)\]$", word) for name in part.split(",")]
    assert [name for name in named if name not in extras] == []
    files = [word for before, word in itertools.pairwise(words) if before in ("-r", "--requirement")]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def _cd(words: list[str]) -> None:
    """Any folder: where a checkout lies is the reader's."""


CHECKS: dict[tuple[str, ...], Callable[[list[str]], None]] = {
    PYTHON: _python,
    RELAX: _relax,
    ("make",): _make,
    ("bash",): _bash,
    ("pip",): _pip,
    ("cd",): _cd,
}
