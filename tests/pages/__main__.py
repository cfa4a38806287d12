"""`python -m tests.pages [--write] [--long] [PAGE...]`: run the code blocks of pages and list changed outputs.

Without PAGE, all pages are run. `--long` also runs the blocks marked as long. `--write` updates the templates of the
pages with the output and renders them.
"""

import sys
import tempfile
from pathlib import Path

import docs.render
from tests.pages import PAGES, ROOT
from tests.pages.session import Session, with_new_output


def main(*words: str) -> int:
    pages = [Path(word).resolve() for word in words if not word.startswith("-")]
    has_problems = False
    for path in pages or PAGES:
        template = docs.render.template(path)
        text = template.read_text()
        with tempfile.TemporaryDirectory() as folder:
            outputs = list(Session(Path(folder), "--long" in words).run(text))
        for output in outputs:
            if output.problem:
                sys.stdout.write(f"{path.relative_to(ROOT)}:{output.line + 1}: {output.source}: {output.problem}\n")
                has_problems = True
        if "--write" in words:
            template.write_text(with_new_output(text, outputs))
    if "--write" in words:
        docs.render.main(*(str(path) for path in pages))
    return int(has_problems)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
