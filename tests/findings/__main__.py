"""`python -m tests.findings [--write]`: the sentences that do not hold, or the texts with what is computed today."""

import sys

from tests.findings import DOCUMENTS
from tests.findings.quantities import ROOT, Reference
from tests.findings.text import check, rewritten


def main(*options: str) -> int:
    reference = Reference()
    problems = []
    for name, words in DOCUMENTS.items():
        path = ROOT / name
        if "--write" in options:
            path.write_text(rewritten(path.read_text(), reference.quantities, words))
        problems += check(name, path.read_text(), reference.quantities, words)
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
