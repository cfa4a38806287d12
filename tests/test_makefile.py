"""All Makefile targets have existing prerequisites (`make -n`), and all except `lint`, `compiled` and `clean` have a
description.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_existing_prerequisites_and_a_description(target: str) -> None:
    process = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    descriptions = re.findall(rf"^# make {target}\s", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(descriptions) == 1 or target in ("lint", "compiled", "clean")
