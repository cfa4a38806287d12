"""Run the code blocks of the README and of the pages in docs/, and compare the printed with the shown output.

The blocks of a page run in order in an empty folder. In a `console` block, lines with `$` are commands, followed by
their output. `python` blocks share a namespace, and lines with `>>>` are followed by their output. A block with a
caption is written to a file of that name. In an excerpt, `...` replaces any number of lines. Counts must be
equal, other numbers must agree to about two digits, and times and measured memory are ignored (`compare`).

A comment above a block marks a block that does not run by default:

    <!-- long -->            it takes minutes; `make test-slow` runs the page with it
    <!-- not run: REASON --> it needs an installation, a network or a GPU; only its commands and options are checked

`python -m tests.pages --write PAGE...` updates the shown output of pages.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# Generated pages contain no code to run.
_GENERATED = {"reference", "templates"}
PAGES = [README, *sorted(path for path in (ROOT / "docs").glob("**/*.md") if not _GENERATED & {*path.parts[-2:-1]})]
