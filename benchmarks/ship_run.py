"""Copy a finished run into the package: python -m benchmarks.ship_run RESULTS RUN NAME.

Without a RUN, `iclbench predict` uses the runs named `cells-classification` and `cells-regression`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from iclbench.store import archives, shipped

if __name__ == "__main__":
    results, run, name = sys.argv[1:]
    print(shipped.ship(archives.find(Path(results), run), name))
