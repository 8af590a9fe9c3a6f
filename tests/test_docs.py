# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The pages say what the code does: generated ones are current, and links and paths in the others exist."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from relax.entrypoints.hooks import problem_of
from scripts.tools.make_docs import PAGES
from tests.documented_commands import Command, check, commands_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", ".codewiz")
WRITTEN = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
GUIDES = [page for page in WRITTEN if page.name != "CHANGELOG.md"]  # the changelog speaks of the past
PYTHON_BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{place}")
    for page in GUIDES
    for place, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name):
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()]
    assert not missing


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", page.read_text())
            waiting += [(page.parent / t).resolve() for t in links if not t.startswith("http")]
    assert not {*(ROOT / "docs").rglob("*.md"), *(ROOT / ".codewiz").rglob("*.md")} - reached


def test_messages_that_troubleshooting_explains_are_in_the_code():
    """Of each quoted message three words in a row, or all between two values where these are fewer."""
    rows = re.findall(r"^\| (`[^|]+)\|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "relax").rglob("*.py"))
    source = re.sub(r'"\s*f?"', "", source)  # string literals that go on in the next line
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 50
    value = r"(?:^|\s)(?:\S*(?:\d|=|\.\.\.|')\S*|[A-Z]|--X:?|HOST)(?=\s|$)"
    fixed = [max(re.split(value, text), key=len).split() for text in quoted]
    windows = [[" ".join(words[i : i + 3]) for i in range(max(1, len(words) - 2))] for words in fixed]
    assert not [runs for runs in windows if not any(run in source for run in runs)]


@functools.cache
def commands() -> list[Command]:
    return commands_of(GUIDES)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_are_understood(page):
    problems = []
    for command in commands():
        if command.page == page:
            try:
                check(command.words, inline=command.inline)
            except AssertionError as error:
                problems.append(f"{command}\n    {error}")
    assert not problems, "\n".join(problems)


def test_the_pages_have_commands():
    assert len(commands()) > 100


@pytest.mark.parametrize(
    "words",
    [
        "make nothing",
        "make demo SPEED=2",
        "make demo ARGS=--modality=smell",
        "python train.py --hf-checkpoint m --prompt-data p --rm-type math --rollout-batch-size 4 --num-rollouts 2",
        "python train.py --rollout-temprature 1.0 ...",
        "python train.py --advantage-estimator gspo ...",
        "relax why --step 1",
        "relax wyh --run runs/first",
        "python -m benchmarks.bus --tokns 3",
        "python -m pytest tests/unit/nothing",
        "python scripts/tools/nothing.py",
        "bash scripts/install_sglang.sh --fast",
        "bash scripts/entrypoint/local.sh scripts/training/nothing.sh",
        "pip install -e .[everything]",
        "unheard of",
    ],
)
def test_a_wrong_command_is_found(words):
    with pytest.raises(AssertionError):
        check(words.split())


def test_blocks_are_read_as_a_shell_reads_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\nA=1 python train.py --x 'a b' \\\n  --y  # a comment\n"
        'source scripts/models/qwen3-4B.sh\nrelax "${MODEL_ARGS[@]:1:2}"; tee log\n```\n'
        'Then `make demo ARGS="--seed 1"`.\n```\nrelax is not read here\n```\n'
    )
    assert [(command.line, command.words) for command in commands_of([page])] == [
        (1, ("python", "train.py", "--x", "a b", "--y")),
        (1, ("relax", "--num-layers", "36")),
        (1, ("tee", "log")),
        (7, ("make", "demo", "ARGS=--seed 1")),
    ]


@pytest.mark.parametrize("text", ["relax why --run 'runs", "relax train --load $NOWHERE", "source nowhere.sh"])
def test_a_block_that_a_shell_refuses_is_found(text, tmp_path):
    (tmp_path / "page.md").write_text(f"```bash\n{text}\n```\n")
    with pytest.raises(AssertionError, match="bash cannot read"):
        commands_of([tmp_path / "page.md"])


@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_python_of_a_page_compiles_and_its_hooks_fit_their_flags(block, tmp_path, monkeypatch):
    """A first line `# module.py   --flag module.function` says how the block is used."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relax"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
    named = re.match(r"# (\w+\.py) +(--[a-z-]+) (\S+)\n", block)
    if named:
        (tmp_path / named[1]).write_text(block)
        monkeypatch.syspath_prepend(str(tmp_path))
        assert problem_of(named[3], named[2]) is None
