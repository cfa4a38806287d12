"""What all tests share: one torch thread, small cards, small runs."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The terminal that the tests are watched on, or its worker processes, must not decide how tables are folded.
os.environ.pop("COLUMNS", None)

import pytest
import tomli_w
import torch

if TYPE_CHECKING:
    from iclbench.registry import Registry

# Thousands of small files are written, and no test pulls the plug: nobody waits for the disk.
os.fsync = lambda fd: None
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell's background job inherits
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders and modules that share what takes seconds and is made once per process: the pages and grids of the report, the
# packed results, trained runs, the sizes of backbones at a budget, the machine code of estimators.
SHARED = (
    ("tests/report/",),
    ("tests/docs/",),
    ("tests/api/",),
    (
        "tests/sweep/test_grids.py",
        "tests/test_equal_footing.py",
        "tests/config/test_sizes.py",
    ),
    ("tests/estimators/", "tests/contracts/test_estimators.py", "tests/golden/"),
)


def shared(module: str) -> str:
    """What is run by the worker that runs a module: the name of its group, or the module alone."""
    return next((" ".join(group) for group in SHARED if module.startswith(group)), module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadscope`, where modules that share what is made once stay with one worker too."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Shared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared(super()._split_scope(nodeid))

    return Shared(config, log)


def pytest_collection_finish() -> None:
    """What all tests share is there for good: not to be gone through whenever garbage is collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)


def heed_ctrl_c() -> None:
    """To be called in a new process (`preexec_fn`): children of a background job inherit that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_code(monkeypatch: pytest.MonkeyPatch, registry: Registry, name: str, code: str = "code") -> None:
    """Raise a code of what is registered under a name."""
    entry = registry.entry(name)
    monkeypatch.setitem(registry.entries, name, replace(entry, **{code: getattr(entry, code) + 1}))


def small_card(**changes: object) -> dict[str, object]:
    """A linear task whose smoke preset trains in about a second."""
    preset = {
        "points": 8,
        "episodes": 48,
        "parameters": {"dim": 3},
        "train": {
            "steps": 12,
            "batch": 8,
            "lr": 1e-3,
            "clip": 1.0,
            "warmup": 3,
            "log_every": 4,
            "checkpoint_every": 3,
            "curriculum": {"dims": {"start": 1, "every": 4}, "points": {"start": 5, "every": 3}},
        },
        "backbones": {"gpt2": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.1}},
    }
    card: dict[str, object] = {
        "family": "linear",
        "summary": "linear functions, tiny",
        "baselines": ["zero", "mean", "knn-3"],
        "oracles": ["least-squares"],
        "shifts": ["orthants", "noisy"],
        "presets": {"smoke": preset},
    }
    return card | changes


@pytest.fixture
def card_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card()))
    return path
