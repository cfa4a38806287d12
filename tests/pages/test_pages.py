"""The pages show the actual output."""

import re
from pathlib import Path

import pytest

from iclbench.cli.lazy import COMMANDS, load
from tests.pages import PAGES, ROOT
from tests.pages.blocks import blocks
from tests.pages.session import Session

TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
LONG = [name for name, text in TEXTS.items() if any(block.mark == "long" for block in blocks(text))]


def problems(name: str, folder: Path, long: bool) -> list[str]:
    found = list(Session(folder, long).run(TEXTS[name]))
    assert found, "a page that is run runs something"
    return [f"{name}:{each.line + 1}: {each.what}: {each.wrong}" for each in found if each.wrong]


def test_the_readme_is_short_and_every_page_is_reached_from_it() -> None:
    assert len(TEXTS["README.md"].encode()) <= 9000
    guide = [
        name for name in TEXTS if name not in ("README.md", "docs/index.md", "docs/reference.md", "docs/findings.md")
    ]
    assert [name for name in guide if f"]({name})" not in TEXTS["README.md"]] == []


@pytest.mark.docs
@pytest.mark.parametrize("name", [name for name in TEXTS if any(blocks(TEXTS[name]))])
def test_blocks_of_a_page_print_what_it_shows(name: str, tmp_path: Path) -> None:
    assert problems(name, tmp_path, False) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_blocks_that_take_minutes_print_what_their_page_shows(name: str, tmp_path: Path) -> None:
    assert problems(name, tmp_path, True) == []


def test_few_blocks_are_long_or_not_run() -> None:
    marks = [(block.mark, block.lines[0]) for text in TEXTS.values() for block in blocks(text)]
    assert sum(mark == "long" for mark, _ in marks) <= 10, marks
    # An installation, a GPU, files that cannot be shipped.
    assert sum(mark == "not run" for mark, _ in marks) <= 12, marks


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_that_a_page_names_exists_with_its_options(name: str) -> None:
    """Commands in blocks that are not run, and in sentences, exist."""
    for line in re.findall(r"iclbench (\w[^`\n|]*)", TEXTS[name]):
        first, *rest = line.split()
        typed = f"lm {rest[0]}" if first == "lm" and rest else first
        if typed not in COMMANDS:
            continue
        known = {o for p in load(typed).params for o in [*p.opts, *p.secondary_opts]} | {"--debug", "--help"}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line.partition(" # ")[0])) <= known, line


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_page_shows_as_a_command_is_one(name: str) -> None:
    """Commands in console blocks and between backticks."""
    text, known = TEXTS[name], {*COMMANDS, "lm"}
    typed = [command.text for block in blocks(text) if block.language == "console" for command in block.commands()]
    for line in [*typed, *re.findall(r"`(iclbench [^`]*)`", text)]:
        for words in re.findall(r"(?:^|\s)iclbench +((?:lm +)?\w[\w-]*)", line):
            assert words in known, line


@pytest.mark.parametrize("name", TEXTS)
def test_links_of_a_page_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[name]):
        if not target.startswith(("http://", "https://", "reference/")):
            assert (ROOT / name).parent.joinpath(target).exists(), target
