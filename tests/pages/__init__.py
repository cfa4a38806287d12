"""Every block of the README and of the pages of docs/ is executed, and its output is compared.

A page is a session in an empty folder; its blocks run in order. In a `console` block, lines with `$` are commands,
followed by their output. `python` blocks share their names; lines with `>>>` are followed by their value. A block with
a caption is a file of that name. In an excerpt, `...` replaces any number of lines. Numbers are compared to two digits,
counts exactly, seconds and measured memory not at all (`compare`).

A comment above a block marks exceptions:

    <!-- long -->            takes minutes; `make test-slow` runs it, with the rest of the page
    <!-- not run: REASON --> needs an installation, a network or a GPU; only the names of its commands are checked

`python -m tests.pages --write PAGE...` writes the current output into the pages.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# In reading order, without generated pages.
_GENERATED = {"reference", "templates"}
PAGES = [README, *sorted(path for path in (ROOT / "docs").glob("**/*.md") if not _GENERATED & {*path.parts[-2:-1]})]
