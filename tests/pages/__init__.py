"""Every block of the README and of the pages of docs/ is executed, and what it prints is compared.

A page is a session in an empty folder; its blocks run in order. In a `console` block lines with `$` are commands, and
the lines below one are what it prints. `python` blocks share their names; lines with `>>>` are followed by what they
give. A block with a caption is a file of that name. An excerpt has `...` for any number of lines. Numbers are compared
to two digits, counts exactly, seconds and measured memory not at all (`compare`).

A comment above a block says what else there is to know of it:

    <!-- long -->            takes minutes: run by `make test-slow`, with the page around it
    <!-- not run: REASON --> an installation, a network, a GPU; its commands are looked up

`python -m tests.pages --write PAGE...` puts today's output into the pages.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# In the order in which they are read; what is generated runs nothing.
_GENERATED = {"reference", "templates"}
PAGES = [README, *sorted(path for path in (ROOT / "docs").glob("**/*.md") if not _GENERATED & {*path.parts[-2:-1]})]
