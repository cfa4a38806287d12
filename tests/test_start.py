"""What a command waits for before it works: modules that take seconds to import and that it does not need."""

import subprocess
import sys

BUILD = """
import sys
from iclbench.cli import eval_runs, summary  # the modules of `iclbench eval`
from iclbench.config.resolution import resolve_run
for backbone in ("coqe", "gpt2-learned", "tnp"):
    config = resolve_run("linear", backbone, "smoke")
    config.build(config.task.build())
    print(backbone, *{"transformers", "torch._dynamo", "altair", "scipy.stats", "sklearn"} & set(sys.modules))
"""


def test_neither_transformers_nor_a_compiler_nor_charts_nor_statistics_are_imported_to_build_and_evaluate() -> None:
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["coqe", "gpt2-learned", "tnp"]
