"""What the commands of the README print that need minutes and are not in the packed results, kept as they printed it.

    python benchmarks/commands.py            # some twenty minutes; writes commands.md

One after the other, in one results folder. `tests/findings` holds the README against it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import torch

# What must be there before, which the README does not show.
BEFORE = [
    "iclbench train gp-mixture cmanp --preset grid",
    *(f"iclbench train bursty {backbone} --preset grid" for backbone in ("coqe", "transformer", "mamba")),
]
COMMANDS = [
    "iclbench lm demo-model demo-lm",
    "iclbench lm eval --model demo-lm --tasks algorithmic --method deep-thinking --episodes 200 --demo-seeds 0:5",
    r"printf '0.1,0.5\n-1,0.3\n-0.5,?\n' | iclbench stream gp-mixture-cmanp-grid-s0",
    "iclbench probe --rank bursty-coqe-grid-s0 bursty-transformer-grid-s0 bursty-mamba-grid-s0",
]
WIDTH = "112"


def printed(command: str, folder: str) -> str:
    """What a command prints on stdout in a folder."""
    environment = {name: value for name, value in os.environ.items() if "ICLBENCH" not in name} | {"COLUMNS": WIDTH}
    here = command.replace("iclbench ", f"{sys.executable} -m iclbench ", 1)
    done = subprocess.run(here, shell=True, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().split("\n"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for command in BEFORE:
            printed(command, folder)
        blocks = [f"```\n$ {command}\n{printed(command, folder)}\n```" for command in COMMANDS]
    before = "\n".join(f"    $ {command}" for command in BEFORE)
    text = f"""# What commands print

`python benchmarks/commands.py`, {date.today()}, {platform.machine()}, torch {torch.__version__}, one thread: commands
of the README that take minutes, as they were printed at {WIDTH} letters per line, after

{before}
"""
    path = Path(__file__).with_suffix(".md")
    path.write_text("\n\n".join([text.rstrip(), *blocks]) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
