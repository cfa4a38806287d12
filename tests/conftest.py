"""Shared settings and fixtures: one torch thread, small cards, and the scheduling of test modules."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The width of printed tables must not depend on the terminal in which the tests run.
os.environ.pop("COLUMNS", None)

import pytest
import tomli_w
import torch

if TYPE_CHECKING:
    from iclbench.registry import Registry

# Tests write thousands of small files, and fsync would make them slow. No test depends on it.
os.fsync = lambda fd: None
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited if a shell runs the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Groups of test modules that share cached objects: reports and their grids, packed results, trained runs, backbone
# sizes for a budget, and compiled estimators. Each takes seconds to compute.
WORKER_GROUPS = (
    ("tests/report/",),
    ("tests/docs/",),
    ("tests/api/",),
    (
        "tests/sweep/test_grids.py",
        "tests/test_equal_budget.py",
        "tests/config/test_sizes.py",
    ),
    ("tests/estimators/", "tests/contracts/test_estimators.py", "tests/golden/"),
)


def worker_group(module: str) -> str:
    """Return the group of a module, or the module itself if it has no group."""
    return next((" ".join(group) for group in WORKER_GROUPS if module.startswith(group)), module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a `loadscope` scheduler that runs all modules of a group in one worker."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(super()._split_scope(nodeid))

    return GroupScheduling(config, log)


def pytest_collectstart() -> None:
    """Disable garbage collection while test modules are imported, because imports create little garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which makes it faster."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)
    gc.enable()


def restore_ctrl_c() -> None:
    """Enable Ctrl-C, which children of a background job ignore. Use as `preexec_fn` of `subprocess`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def increase_code_version(monkeypatch: pytest.MonkeyPatch, registry: Registry, name: str, code: str = "code") -> None:
    """Increase a version of a registered class by 1. `code` is the name of the version in `Entry`."""
    entry = registry.entry(name)
    monkeypatch.setitem(registry.entries, name, replace(entry, **{code: getattr(entry, code) + 1}))


def small_card(**changes: object) -> dict[str, object]:
    """Return the card of a linear task whose smoke preset trains in about a second."""
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
