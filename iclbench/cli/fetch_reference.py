"""`iclbench fetch-reference FILE_OR_URL`: unpack the reference results into the results folder."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli.options import RESULTS, Results


def command(
    source: Annotated[
        str, typer.Argument(metavar="FILE_OR_URL", help="The archive iclbench-reference-VERSION.zip, or its URL.")
    ],
    results: Results = RESULTS,
) -> None:
    """Unpack the tables and weights of the reference results into RESULTS/reference.

    A checkout of iclbench contains them; the installed package does not.
    The package contains the SHA-256 of the archive, and another file is refused.
    """
    from iclbench.cli.terminal import out
    from iclbench.store import reference_archive

    out.print(str(reference_archive.fetch(source, results).resolve()), soft_wrap=True, markup=False)
