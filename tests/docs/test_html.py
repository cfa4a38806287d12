"""The HTML build of the documentation. The command is that of `make docs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.quantities import ROOT


@pytest.mark.docs
def test_pages_and_reference_build_without_warnings(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"reference/commands", "reference/api"}
    assert all((tmp_path / f"{page}.html").is_file() for page in pages)
