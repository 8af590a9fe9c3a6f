# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The pages say what the code does: generated ones are current, and links and paths in the others exist."""

import re
from pathlib import Path

import pytest

from scripts.tools.make_docs import PAGES

ROOT = Path(__file__).parents[1]
WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])


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
    assert not {page.name for page in (ROOT / "docs").glob("*.md")} - {page.name for page in reached}


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
