"""`python -m tests.pages [--write] [--long] [PAGE...]`: report blocks of pages with other output.

Without PAGE, all pages run. `--write` writes the output into the templates of the pages and renders them.
"""

import sys
import tempfile
from pathlib import Path

import docs.render
from tests.pages import PAGES, ROOT
from tests.pages.session import Session, rewritten


def main(*words: str) -> int:
    pages = [Path(word).resolve() for word in words if not word.startswith("-")]
    wrong = False
    for path in pages or PAGES:
        template = docs.render.template(path)
        text = template.read_text()
        with tempfile.TemporaryDirectory() as folder:
            found = list(Session(Path(folder), "--long" in words).run(text))
        for each in found:
            if each.wrong:
                sys.stdout.write(f"{path.relative_to(ROOT)}:{each.line + 1}: {each.what}: {each.wrong}\n")
                wrong = True
        if "--write" in words:
            template.write_text(rewritten(text, found))
    if "--write" in words:
        docs.render.main(*(str(path) for path in pages))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
