"""`iclbench doctor`: what this machine offers."""

from __future__ import annotations

import importlib.metadata
import json as json_module
import os
import platform
from pathlib import Path
from typing import Any

import torch
import typer
from huggingface_hub import constants

from iclbench import __version__
from iclbench.cli.terminal import table
from iclbench.config.cards import names
from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES, READERS
from iclbench.core.version import commit

_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "huggingface-hub",
    "scikit-learn",
    "xgboost",
    "pandas",
    "pyarrow",
    "altair",
    "vl-convert-python",
)
# The extras of pyproject.toml, with what needs each.
_OPTIONAL = {
    "mamba-ssm": "CUDA kernels",
    "triton": "the Triton kernel",
    "tensorboard": "--log tensorboard",
    "wandb": "--log wandb",
    "mlflow": "--log mlflow",
    "optuna": "tune --trials",
    "submitit": "sweep --engine slurm",
    "ray": "sweep --engine ray",
    "xarray": "task era5",
    "h5netcdf": "task era5",
    "h5py": "task era5",
}


def doctor(results: Path, data_dir: Path | None, json: bool) -> None:
    """Report Python, libraries, devices, folders, and which plug-ins load."""
    found = _examine(results, data_dir)
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return

    table("", ["what", "found"], [[key, str(value)] for key, value in found.items()])


def _examine(results, data_dir) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    found: dict[str, Any] = {
        "iclbench": __version__,
        "commit": commit() or "unknown",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }
    for library in (*_LIBRARIES, *_OPTIONAL):
        found[library] = _version(library)
    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    found["cuda"] = ", ".join(devices) or "none"
    found["cards"] = f"{len(names('tasks'))} tasks, {len(names('baselines'))} baselines, {len(names('grids'))} grids"
    found["language cards"] = f"{len(names('tasks/language'))} cards, {len(names('tasks/language/suites'))} suites"
    found["hub of models"] = _hub()
    for registry in (FAMILIES, BACKBONES, ESTIMATORS, READERS):
        loaded = registry.available()
        missing = sorted(set(registry.entries) - set(loaded))
        found[f"{registry.kind} classes"] = f"{len(loaded)} load" + (f"; not: {', '.join(missing)}" if missing else "")
    found["results folder"] = f"{results} ({_writable(results)})"
    found["data folder"] = f"{data_dir} ({'there' if data_dir.is_dir() else 'missing'})" if data_dir else "not given"
    return found


def _version(library: str) -> str:
    """Which is installed, and of an optional one what needs it."""
    try:
        found = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    return f"{found} (optional: {_OPTIONAL[library]})" if library in _OPTIONAL else found


def _hub() -> str:
    """Where models from the hub are kept, and whether others are fetched."""
    offline = "offline: only these are used" if constants.HF_HUB_OFFLINE else "others are fetched"
    return f"{constants.HF_HUB_CACHE} ({offline})"


def _writable(folder) -> str:  # type: ignore[no-untyped-def]
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is NO folder; choose another with --results"
    return "writable" if os.access(existing, os.W_OK) else "NOT writable; choose another with --results"
