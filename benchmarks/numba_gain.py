"""Benefit and cost of numba: time of the boosted trees of `iclbench demo`, the first compilation, and space on disk.

    python benchmarks/numba_gain.py                       # a minute or two; part of estimators.md

The measure is CPU time of one process. Compilation happens once per installation: the compiled code is cached next to
the source or in the cache folder of the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

FIRST = """
import time
start = time.process_time()
import torch
from iclbench.core.episodes import Points
from iclbench.estimators.trees import GreedyTree, XGBoost
x = torch.randn(1, 3, 2)
imported = time.process_time()
for method in (GreedyTree, XGBoost):
    method().predict_next(Points.full(x, x[..., :1]))
print(time.process_time() - imported)
"""


def demo_boosting() -> dict[str, float]:
    """Return the seconds of `xgboost` on all prompt sets of the demo, with the library and with compiled code."""
    from iclbench.evaluation.contestants import baselines
    from iclbench.evaluation.curves import learning_curve
    from iclbench.evaluation.prompts import PromptSet
    from iclbench.sweep.cells import grid_cells

    spent = {"library": 0.0, "auto": 0.0}
    os.environ["ICLBENCH_WORKERS"] = "1"
    for cell in grid_cells(["demo"]):
        for shift in cell.options["shifts"] if cell.baseline == "xgboost" else ():
            prompts = PromptSet(cell.task_config, cell.preset, shift)
            [contestant] = baselines(prompts, ["xgboost"])
            prompts.episodes  # noqa: B018  (drawn before the clock starts)
            for backend in spent:
                cls, settings = type(contestant.predictor), contestant.predictor.settings
                predictor = cls(settings.model_copy(update={"backend": backend}), contestant.predictor.facts)
                start = time.process_time()
                learning_curve(predictor, prompts)
                spent[backend] += time.process_time() - start
    return spent


def first_call(cache: str) -> float:
    """Return the CPU seconds of fitting the first tree and the first boosted ensemble in a new process that caches
    compiled code in `cache`.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    return float(done.stdout)


def megabytes(package: str) -> float:
    """Return the size of a package on disk in megabytes."""
    files = metadata.files(package) or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 2**20


def section() -> str:
    with tempfile.TemporaryDirectory() as cache:
        compiling, loading = first_call(cache), first_call(cache)
    demo_boosting()  # a warm-up, after which calls neither compile nor import
    spent = demo_boosting()
    size = megabytes("numba") + megabytes("llvmlite")
    others = sum(megabytes(each) for each in ("torch", "xgboost", "pyarrow", "scipy", "scikit-learn"))
    return f"""## Gain and cost of numba

    python benchmarks/numba_gain.py

| | |
| --- | --- |
| boosted trees of `iclbench demo` (six prompt sets), XGBoost itself | {spent["library"]:.1f} s |
| the same, compiled loops | {spent["auto"]:.1f} s |
| first use of trees and boosting in an installation (compiles, once) | {compiling:.1f} s |
| first use in every later process (loads the compiled code) | {loading:.1f} s |
| numba and llvmlite on disk | {size:.0f} MB |
| torch, xgboost, pyarrow, scipy and scikit-learn on disk | {others:.0f} MB |

So numba is a dependency, not an extra: the first demo already saves more time than compilation takes. If numba cannot
be imported, or compilation fails, scikit-learn and XGBoost are used instead; their predictions are bit-identical."""


if __name__ == "__main__":
    print(section())
