"""Checkpoints: one safetensors file with everything a run needs to continue exactly, written atomically.

Weights, optimiser state, the loss log, and what evaluations have found. Random streams are counters of the step
(`iclbench.core.seeds`) and the schedule and curriculum are functions of it, so the step is all that remains to be kept.
Loading never executes code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from iclbench.config.cards import decay_begins
from iclbench.core.errors import IclbenchError
from iclbench.core.files import save_tensors
from iclbench.core.memory import IN_TRAINING, advised
from iclbench.store.runs import Run
from iclbench.training.fit import Progress

log = logging.getLogger("iclbench")

KEEP = 2
# What Adam and AdamW remember of a weight.
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def save(
    run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, branch: int | None = None
) -> None:
    """Write `step-N.safetensors` and drop all but the last two, of the training or of the branch of so many steps."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{k}": v for k, v in state.items()}
    tensors["log.pending"] = progress.pending
    tensors["log.steps"] = torch.tensor(progress.steps, dtype=torch.long)
    tensors["log.losses"] = torch.tensor(progress.losses, dtype=torch.float64)
    tensors = {key: value.detach().cpu() for key, value in tensors.items()}
    metadata = run.signature | {"step": str(progress.step), "seconds": repr(progress.seconds)}
    metadata |= {"scored": json.dumps(progress.scored), "bytes": json.dumps(progress.bytes)}
    metadata |= _branch_metadata(branch)
    metadata["digest"] = _digest(tensors, metadata)
    save_tensors(run.checkpoint_folder(branch) / _name(progress.step), tensors, metadata)
    for old in run.checkpoints_of(branch)[:-KEEP]:
        old.unlink()


def forget(run: Run, branch: int) -> None:
    """Remove the checkpoints of a branch that is done."""
    for path in run.checkpoints_of(branch):
        path.unlink()
    folder = run.checkpoint_folder(branch)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def restore(run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, branch: int | None = None) -> Progress:
    """Load the newest checkpoint that is whole, possible and belongs to this run, or to this branch of it; none is a
    progress of no steps.

    The others are named in a warning and set aside as `*.unusable`, so that they never take the place of a good one.
    """
    for path in reversed(run.checkpoints_of(branch)):
        _refuse_unreadable(path)
        try:
            with advised(IN_TRAINING), safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                try:
                    run.check_signature(metadata)
                except ValueError as error:
                    raise ValueError(f"it belongs to {error}") from None
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            if metadata.pop("digest", None) != _digest(tensors, metadata):
                raise ValueError("it is not as it was written: its digest is another")
            progress = _progress(metadata, tensors)
            _refuse_impossible(progress, branch or run.config.train.steps)
            if metadata.get("branch") != _branch_metadata(branch).get("branch"):
                raise ValueError("it is of another branch")
            if branch is None and (missing := _missing(run, progress.step)):
                raise ValueError(f"it is past the branch of {missing[0]} steps, whose weights are gone")
            if path.name != _name(progress.step):
                raise ValueError(f"it is of step {progress.step}")
            with advised(IN_TRAINING):
                _load(model, optimiser, tensors)
        except (SafetensorError, OSError, LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
            aside = path.replace(path.with_suffix(".unusable"))
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            log.warning("checkpoint %s cannot be used (%s); set aside as %s, going back", path, reason, aside.name)
            continue
        return progress
    return Progress()


def _refuse_unreadable(path: Path) -> None:
    """Raise `IclbenchError` where the file system does not give a file that is there: it may be whole."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except (FileNotFoundError, IsADirectoryError):
        return  # not one, and so said later
    except OSError as error:
        raise IclbenchError(f"cannot read checkpoint {path}: {error.strerror}; the same command tries again") from error


def _name(step: int) -> str:
    return f"step-{step:09d}.safetensors"


def _branch_metadata(branch: int | None) -> dict[str, str]:
    """Metadata of a checkpoint that name its branch."""
    return {} if branch is None else {"branch": str(branch)}


def _missing(run: Run, step: int) -> list[int]:
    """The branches that were left before this step and whose weights are not there."""
    return [end for end in run.config.train.branch_steps if decay_begins(end) < step and not run.has_branch(end)]


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and bytes of tensors on the CPU, and of what is said of them."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _progress(metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> Progress:
    """The progress in a checkpoint; removes the tensors of the log."""
    return Progress(
        int(metadata["step"]),
        float(metadata["seconds"]),
        tensors.pop("log.pending"),
        tensors.pop("log.steps").tolist(),
        tensors.pop("log.losses").tolist(),
        json.loads(metadata.get("scored", "[]")),
        json.loads(metadata.get("bytes", "null")),
    )


def _refuse_impossible(progress: Progress, steps: int) -> None:
    """Raise `ValueError` for what no training of so many steps has written."""
    logged = [0, *progress.steps]
    if not 0 < progress.step <= steps:
        raise ValueError(f"it says step {progress.step} of {steps}")
    if not (math.isfinite(progress.seconds) and progress.seconds >= 0):
        raise ValueError(f"it says {progress.seconds} seconds")
    if len(progress.steps) != len(progress.losses) or any(a >= b for a, b in pairwise(logged)):
        raise ValueError("its logged steps are in no order")
    if logged[-1] > progress.step:
        raise ValueError(f"it says step {progress.step} and has logged step {logged[-1]}")
    if progress.pending.shape != () or not all(map(math.isfinite, [float(progress.pending), *progress.losses])):
        raise ValueError("its losses are not finite")
    rows = progress.scored
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise ValueError("its scores are no rows")
    if not (progress.bytes is None or (type(progress.bytes) is int and progress.bytes >= 0)):
        raise ValueError(f"it says {progress.bytes} bytes")


def _load(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    # All that does not fit is found before anything is overwritten.
    model_state = model.state_dict()
    if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in model_state.items()}:
        raise ValueError("its weights have other names or shapes")
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for index, moments in state.items():
        if not 0 <= index < len(parameters) or moments.keys() != _MOMENTS:
            raise ValueError("the state of its optimiser is of other weights")
        if any(moments[name].shape not in ((), parameters[index].shape) for name in _MOMENTS):
            raise ValueError("the state of its optimiser has other shapes")
    model.load_state_dict(weights)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
