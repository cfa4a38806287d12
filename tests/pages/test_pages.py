"""The commands and outputs in the README and on the pages are correct."""

import re
from pathlib import Path

import pytest

from iclbench.cli.lazy import COMMANDS, command_parser
from tests.pages import PAGES, ROOT
from tests.pages.blocks import blocks
from tests.pages.session import Session

TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
LONG = [name for name, text in TEXTS.items() if any(block.mark == "long" for block in blocks(text))]


def problems(name: str, folder: Path, long: bool) -> list[str]:
    outputs = list(Session(folder, long).run(TEXTS[name]))
    assert outputs, "the page has no output to compare"
    return [f"{name}:{output.line + 1}: {output.source}: {output.problem}" for output in outputs if output.problem]


def test_the_readme_is_short_and_links_all_pages() -> None:
    assert len(TEXTS["README.md"].encode()) <= 7000
    guide = [
        name for name in TEXTS if name not in ("README.md", "docs/index.md", "docs/reference.md", "docs/findings.md")
    ]
    assert [name for name in guide if f"]({name})" not in TEXTS["README.md"]] == []


@pytest.mark.docs
@pytest.mark.parametrize("name", [name for name in TEXTS if any(blocks(TEXTS[name]))])
def test_blocks_print_the_shown_output(name: str, tmp_path: Path) -> None:
    assert problems(name, tmp_path, False) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_blocks_print_the_shown_output(name: str, tmp_path: Path) -> None:
    assert problems(name, tmp_path, True) == []


def test_at_most_10_blocks_are_long_and_at_most_12_are_not_run() -> None:
    marks = [(block.mark, block.lines[0]) for text in TEXTS.values() for block in blocks(text)]
    assert sum(mark == "long" for mark, _ in marks) <= 10, marks
    # These blocks need an installation, a network or a GPU.
    assert sum(mark == "not run" for mark, _ in marks) <= 12, marks


@pytest.mark.parametrize("name", TEXTS)
def test_options_on_a_page_exist(name: str) -> None:
    """The test includes commands in sentences and in blocks that are not run."""
    for line in re.findall(r"iclbench (\w[^`\n|]*)", TEXTS[name]):
        first, *rest = line.split()
        typed = f"lm {rest[0]}" if first == "lm" and rest else first
        if typed not in COMMANDS:
            continue
        options = {o for p in command_parser(typed).params for o in [*p.opts, *p.secondary_opts]} | {
            "--debug",
            "--help",
        }
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line.partition(" # ")[0])) <= options, line


@pytest.mark.parametrize("name", TEXTS)
def test_commands_on_a_page_exist(name: str) -> None:
    """The test includes console blocks and commands between backticks."""
    text, commands = TEXTS[name], {*COMMANDS, "lm"}
    typed = [command.text for block in blocks(text) if block.language == "console" for command in block.commands()]
    for line in [*typed, *re.findall(r"`(iclbench [^`]*)`", text)]:
        for words in re.findall(r"(?:^|\s)iclbench +((?:lm +)?\w[\w-]*)", line):
            assert words in commands, line


@pytest.mark.parametrize("name", TEXTS)
def test_relative_links_of_a_page_exist(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[name]):
        if not target.startswith(("http://", "https://", "reference/")):
            assert (ROOT / name).parent.joinpath(target).exists(), target
