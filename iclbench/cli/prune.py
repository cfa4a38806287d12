"""`iclbench prune`: removes what nothing needs any more."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from iclbench.cli.terminal import out
from iclbench.core.formats import nbytes, plural
from iclbench.sweep import cleaning


def prune(dry_run: bool, results: Path) -> None:
    """Remove temporary files of killed processes, unusable checkpoints, and tables of runs that are gone."""
    parts = cleaning.leftovers(results)
    kinds: dict[str, list[cleaning.Part]] = defaultdict(list)
    for part in parts:
        kinds[part.what].append(part)
    for what, found in kinds.items():
        noun, _, of = what.partition(" of ")
        size = nbytes(sum(part.size for part in found))
        out.print(f"{plural(len(found), noun)}{f' of {of}' if of else ''}: {size}", soft_wrap=True)
        if dry_run:
            for part in found:
                out.print(f"  {part.path}", soft_wrap=True, markup=False)
    freed = sum(part.size for part in parts) if dry_run else cleaning.prune(results, parts)
    out.print(f"{'would free' if dry_run else 'freed'} {nbytes(freed)}" if parts else "nothing to remove")
