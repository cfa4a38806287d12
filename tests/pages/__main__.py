"""`python -m tests.pages [--write] [--long] [PAGE...]`: the blocks of pages whose output is another, or the pages with
what is printed today. A page is a file; without any, all of them."""

import sys
import tempfile
from pathlib import Path

from tests.pages import PAGES, ROOT
from tests.pages.session import Session, rewritten


def main(*words: str) -> int:
    pages = [Path(word).resolve() for word in words if not word.startswith("-")]
    wrong = False
    for path in pages or PAGES:
        text = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            found = list(Session(Path(folder), "--long" in words).run(text))
        for each in found:
            if each.wrong:
                sys.stdout.write(f"{path.relative_to(ROOT)}:{each.line + 1}: {each.what}: {each.wrong}\n")
                wrong = True
        if "--write" in words and (new := rewritten(text, found)) != text:
            path.write_text(new)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
