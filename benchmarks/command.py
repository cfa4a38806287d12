"""The command of scripts that write a page on what a results folder holds."""

from __future__ import annotations

import argparse
from pathlib import Path


def folder_and_page(about: str | None, script: str) -> tuple[Path, Path]:
    """The folder that was named, and where the page goes: `--out`, or the Markdown file beside the script."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(script).with_suffix(".md"))
    arguments = parser.parse_args()
    return arguments.folder, arguments.out
