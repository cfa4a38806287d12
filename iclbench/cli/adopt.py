"""`iclbench adopt RUN...`: runs of plug-ins that version 0.1.0 made, which kept no hash of the plug-in's sources."""

from __future__ import annotations

from pathlib import Path

from iclbench.cli.terminal import out, say
from iclbench.config.runs import find


def adopt(run: list[str], results: Path) -> None:
    """Take it that these runs were trained with today's sources of their plug-ins."""
    for name in run:
        found = find(results, name)
        for code in found.adopt():
            say(f"warning: nobody can check that run '{name}' was trained with today's sources of '{code}'")
        out.print(name)
