"""What a command waits for before it works: modules that take seconds to import and that it does not need."""

import subprocess
import sys

import pytest

BUILD = """
import sys
from iclbench.config.resolution import resolve_run
config = resolve_run("linear", sys.argv[1], "smoke")
config.build(config.task.build())
print(*sys.modules)
"""


@pytest.mark.parametrize("backbone", ["coqe", "gpt2-learned", "tnp"])
def test_neither_transformers_nor_a_compiler_is_imported_to_build_a_backbone(backbone: str) -> None:
    command = [sys.executable, "-c", BUILD, backbone]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "torch._dynamo"} & set(loaded)
