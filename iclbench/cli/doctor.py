"""`iclbench doctor`: report the libraries and devices on this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from iclbench.cli.options import RESULTS, DataDir, Json, Results

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
# Optional libraries, each with the feature that needs it.
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


def command(results: Results = RESULTS, data_dir: DataDir = None, json: Json = False) -> None:
    """Report Python, libraries, devices, folders and plug-ins."""
    from iclbench.cli.terminal import print_json, print_table

    facts = _facts(results, data_dir)
    if json:
        print_json(facts)
        return
    print_table("", ["item", "value"], [[key, str(value)] for key, value in facts.items()])


def _facts(results: Path, data_dir: Path | None) -> dict[str, Any]:
    """Return the items of the table with their values."""
    from iclbench import __version__
    from iclbench.config.cards import card_names
    from iclbench.core.version import commit
    from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, READERS

    facts: dict[str, Any] = {
        "iclbench": __version__,
        "commit": commit() or "unknown",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }
    for library in (*_LIBRARIES, *_OPTIONAL):
        facts[library] = _version(library)
    facts["cuda"] = ", ".join(_gpus()) or "none"
    facts["cards"] = (
        f"{len(card_names('tasks'))} tasks, {len(card_names('baselines'))} baselines, {len(card_names('grids'))} grids"
    )
    facts["language cards"] = (
        f"{len(card_names('tasks/language'))} cards, {len(card_names('tasks/language/suites'))} suites"
    )
    facts["hub of models"] = _hub()
    for registry in (FAMILIES, BACKBONES, ESTIMATORS, READERS):
        available_classes = registry.available()
        missing_classes = sorted(set(registry.entries) - set(available_classes))
        facts[f"{registry.kind} classes"] = f"{len(available_classes)} available" + (
            f"; not available: {', '.join(missing_classes)}" if missing_classes else ""
        )
    facts["results folder"] = f"{results} ({_writable(results)})"
    facts["data folder"] = f"{data_dir} ({'exists' if data_dir.is_dir() else 'missing'})" if data_dir else "not given"
    return facts


def _version(library: str) -> str:
    """Return the installed version of a library, and for an optional library the feature that needs it."""
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    return f"{version} (optional: {_OPTIONAL[library]})" if library in _OPTIONAL else version


def _gpus() -> list[str]:
    """Return the names of the GPUs that torch can use. A CPU build of torch is not imported, which saves seconds."""
    if _version("torch").endswith("+cpu"):
        return []
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _hub() -> str:
    """Return the cache folder for models from the hub, and whether missing models are downloaded."""
    from huggingface_hub import constants

    offline = "offline: only cached models" if constants.HF_HUB_OFFLINE else "other models are downloaded"
    return f"{constants.HF_HUB_CACHE} ({offline})"


def _writable(folder: Path) -> str:
    from iclbench.core.files import nearest_existing

    existing_folder = nearest_existing(folder)
    if not existing_folder.is_dir():
        return f"{existing_folder} is NOT a folder; choose another with --results"
    return "writable" if os.access(existing_folder, os.W_OK) else "NOT writable; choose another with --results"
