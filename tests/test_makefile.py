"""Every target of the Makefile can be made, as far as `make -n` sees it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_all_that_it_needs(target: str) -> None:
    found = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    said = re.findall(rf"^# make {target}\s", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(said) == 1 or target in ("lint", "clean")
