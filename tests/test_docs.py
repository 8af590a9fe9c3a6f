# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The pages say what the code does: generated ones are current, and links and paths in the others exist."""

import ast
import functools
import importlib
import itertools
import re
from pathlib import Path

import pytest
import yaml

from relax.config.command_line import known_flags
from relax.entrypoints.hooks import problem_of
from scripts.tools.make_docs import PAGES
from tests.documented_commands import Command, check, commands_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", ".codewiz")
WRITTEN = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
GUIDES = [page for page in WRITTEN if page.name != "CHANGELOG.md"]  # the changelog speaks of the past
PYTHON_BLOCKS = [
    pytest.param(page, block, id=f"{page.relative_to(ROOT)}-{place}")
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


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    assert [
        (file, name) for file, name in targets if name not in _headings(page.parent / file if file else page)
    ] == []


def _headings(page):
    """Names that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


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


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    made = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}  # runs/ and its like
    present = (path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    folders = "|".join(name for name in present if name not in made)
    named = [word.partition("::")[0].rstrip(",;:/") for word in _inline_words(page)]
    files = [word for word in named if re.fullmatch(rf"(?:\.codewiz|{folders})/[\w./*-]+", word)]
    assert [file for file in files if not any(ROOT.glob(file))] == []


OTHER_PROGRAMS = {"--local_dir", "--dataset", "--shm-size", "--index-url", "--no-deps"}  # of modelscope, docker, pip


@pytest.mark.parametrize("page", [page for page in GUIDES if page.name not in PAGES], ids=lambda page: page.stem)
def test_flags_that_a_page_names_are_known(page):
    flags = {flag for word in _inline_words(page) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", word)}
    known = {*known_flags(), *_flags_in_sources(), *OTHER_PROGRAMS}
    assert sorted(flag for flag in flags if not {flag, flag.replace("--no-", "--")} & known) == []


def _inline_words(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [word for span in re.findall(r"`([^`\n]+)`", prose) for word in span.split()]


@functools.cache
def _flags_in_sources():
    """Flags of scripts, benchmarks and sub-commands, and those that the training command knows and refuses."""
    folders = [ROOT / name for name in ("relax", "scripts", "benchmarks", "examples")]
    files = itertools.chain(*(folder.rglob(f"*.{kind}") for folder in folders for kind in ("py", "sh")))
    texts = [path.read_text() for path in (*files, ROOT / "tests/conftest.py")]
    return {flag for text in texts for flag in re.findall(r"--[a-z][\w-]*", text)}


@pytest.mark.parametrize("skill", sorted((ROOT / ".codewiz/skills").iterdir()), ids=lambda skill: skill.name)
def test_a_skill_says_what_it_is_and_leads_to_all_its_pages(skill):
    text = (skill / "SKILL.md").read_text()
    front, body = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    described = yaml.safe_load(front)
    assert described.keys() == {"name", "description"}
    assert described["name"] == skill.name
    assert 100 < len(described["description"]) <= 1024
    assert {page.name for page in skill.iterdir()} - {"SKILL.md"} == {*re.findall(r"\]\(([\w-]+\.md)\)", body)}


def test_the_skill_covers_the_three_back_ends():
    pages = " ".join(page.read_text() for page in (ROOT / ".codewiz/skills/model-integration").iterdir())
    for words in ("| FSDP |", "| Bridge |", "| Raw |", "## Rules for a converter", "# Tensor parallelism", "# Traps"):
        assert words in pages


def test_refusals_that_the_skill_quotes_are_those_of_the_code():
    rows = re.findall(
        r"^\| .* \| `([^`]+)` \|$", (ROOT / ".codewiz/skills/model-integration/SKILL.md").read_text(), re.M
    )
    source = "\n".join(path.read_text() for path in (ROOT / "relax/backends/exact").glob("*.py"))
    parts = [part.strip() for row in rows for part in re.split(r"\.\.\.|\bN\b", row)]
    assert len(rows) == 9
    assert [part for part in parts if part not in source] == []


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


@pytest.mark.parametrize("page", sorted((ROOT / "docs/zh").glob("*.md")), ids=lambda page: page.stem)
def test_a_chinese_page_has_the_code_of_its_english_twin(page):
    """Commands without their comments, and Python likewise; the messages of tables are those of the English page."""
    twin = ROOT / "docs" / page.name
    assert [c.words for c in _blocks_of(page)] == [c.words for c in _blocks_of(twin)]
    python = [
        re.findall(r"^```python\n(.*?)^```$", side.read_text(), re.MULTILINE | re.DOTALL) for side in (page, twin)
    ]
    assert [ast.dump(ast.parse(block)) for block in python[0]] == [ast.dump(ast.parse(block)) for block in python[1]]
    messages = [
        {
            message
            for row in re.findall(r"^\| ([^|]+) \|", side.read_text(), re.M)
            for message in re.findall("`.+?`", row)
        }
        for side in (page, twin)
    ]
    assert sorted(messages[0] - messages[1]) == []


def _blocks_of(page):
    return [command for command in commands() if command.page == page and not command.inline]


def test_twins_lead_to_each_other():
    chinese = {page.name for page in (ROOT / "docs/zh").glob("*.md")}
    assert len(chinese) == 10
    for page in (ROOT / "docs").glob("*.md"):
        assert (f"](zh/{page.name})" in page.read_text()) == (page.name in chinese), page.name
    for name in chinese:
        assert f"](../{name})" in (ROOT / "docs/zh" / name).read_text()
        assert f"](docs/zh/{name})" in (ROOT / "README_zh.md").read_text()


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
        "python train.py --advantage-estimator gspoo ...",
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


@pytest.mark.parametrize(("page", "block"), PYTHON_BLOCKS)
def test_python_of_a_page_compiles_fits_its_flag_and_holds_what_it_asserts(page, block, tmp_path, monkeypatch):
    """A first line `# module.py   --flag module.function` says how the block is used."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relax"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
    if "assert " in block:
        exec(compile(block, str(page), "exec"), {})
    named = re.match(r"# (\w+\.py) +(--[a-z-]+) (\S+)\n", block)
    if named:
        (tmp_path / named[1]).write_text(block)
        monkeypatch.syspath_prepend(str(tmp_path))
        assert problem_of(named[3], named[2]) is None
