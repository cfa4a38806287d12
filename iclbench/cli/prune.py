"""`iclbench prune`: remove files that are no longer needed."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import typer

from iclbench.cli.options import RESULTS, Results


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files without removing them.")] = False,
    results: Results = RESULTS,
) -> None:
    """Remove temporary files of killed processes, unusable checkpoints, and tables of removed runs."""
    from iclbench.cli.terminal import out
    from iclbench.core.formats import nbytes, plural
    from iclbench.sweep import cleaning

    parts = cleaning.leftovers(results)
    by_kind: dict[str, list[cleaning.Part]] = defaultdict(list)
    for part in parts:
        by_kind[part.kind].append(part)
    for kind, members in by_kind.items():
        noun, _, owner = kind.partition(" of ")
        size = nbytes(sum(part.size for part in members))
        out.print(f"{plural(len(members), noun)}{f' of {owner}' if owner else ''}: {size}", soft_wrap=True)
        if dry_run:
            for part in members:
                out.print(f"  {part.path}", soft_wrap=True, markup=False)
    freed_bytes = sum(part.size for part in parts) if dry_run else cleaning.prune(results, parts)
    out.print(f"{'would free' if dry_run else 'freed'} {nbytes(freed_bytes)}" if parts else "nothing to remove")
