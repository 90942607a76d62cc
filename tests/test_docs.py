"""Links between the pages of the documentation, and to data."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def anchors(page):
    """Of its headings."""
    words = (
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()) for line in page.read_text().splitlines() if line[:1] == "#"
    )
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page):
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not link.startswith("https://")]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link
