"""Commands do not import slow modules that they do not need."""

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


def test_building_and_evaluating_models_does_not_import_slow_modules() -> None:
    process = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["coqe", "gpt2-learned", "tnp"]
