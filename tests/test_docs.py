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


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    names = set(re.findall(r"`((?:relax|tests|scripts|examples|docs|configs)/[\w./-]+)`", page.read_text()))
    missing = sorted(name for name in names if not (ROOT / name).exists())
    assert not missing
