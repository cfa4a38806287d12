"""Relative links in Markdown files lead to existing files and headings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("results/*/README.md")]
# Pages that docs/generate.py writes before each build.
GENERATED = re.findall(r'^ +"(\w+)": \1\(\),$', (DOCS / "generate.py").read_text(), re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# Headings of levels 1 to 3, the only ones with anchors (`myst_heading_anchors`).
_HEADING = re.compile(r"^#{1,3} (.*)$", re.MULTILINE)


def links(text: str) -> Iterator[str]:
    """Return the link targets of a page that are files or headings of this repository."""
    targets = _LINK.findall(_CODE.sub("", text))
    return (target for target in targets if not re.match(r"[a-z]+:", target))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as MyST and GitHub write them."""
    headings = _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_problem(page: Path, target: str) -> str | None:
    """Describe why a link is broken, or return None."""
    file, _, anchor = target.partition("#")
    path = (page.parent / file).resolve() if file else page
    if path.parent == DOCS / "reference" and page.parent == DOCS:
        return None if path.stem in GENERATED else "not a page of the reference"
    if not path.exists():
        return "no such file"
    if page.parent == DOCS and path.suffix == ".md" and path.parent != DOCS:
        return "not a page of docs/"
    return "no such heading" if anchor and anchor not in anchors(path.read_text()) else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_exist(page: Path) -> None:
    problems = {target: text for target in links(page.read_text()) if (text := link_problem(page, target)) is not None}
    assert problems == {}


def test_broken_links_are_detected() -> None:
    page = DOCS / "index.md"
    assert (
        link_problem(page, "nowhere.md")
        and link_problem(page, "sweeps.md#nowhere")
        and link_problem(page, "reference/nowhere.md")
    )
    assert link_problem(page, "../results/reference/README.md")
    assert list(links("[a](b.md) `[c](d.md)` [e](https://x.org)\n```\n[f](g.md)\n```\n")) == ["b.md"]
