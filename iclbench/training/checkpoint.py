"""Checkpoints, from which a run continues exactly. A checkpoint is a safetensors file that is written atomically.

It contains the weights, the optimiser state, the logged losses, the scores of evaluations and the step. Random streams
(`iclbench.core.seeds`), the schedule and the curriculum are functions of the step and need not be stored. Loading a
checkpoint never executes code.
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

from iclbench.config.cards import decay_start
from iclbench.core.errors import IclbenchError
from iclbench.core.files import save_tensors
from iclbench.core.memory import TRAINING_REMEDY, memory_advice
from iclbench.store.runs import Run
from iclbench.training.fit import Progress

log = logging.getLogger("iclbench")

# The maximum number of checkpoints of a training run or a branch. Older ones are removed.
MAX_CHECKPOINTS = 2
# The optimiser state of a weight in Adam and AdamW.
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def save(
    run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, branch: int | None = None
) -> None:
    """Write the checkpoint `step-N.safetensors` of a training run, or of its branch of `branch` steps, and remove old
    checkpoints. The last two remain."""
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
    for old in run.checkpoints_of(branch)[:-MAX_CHECKPOINTS]:
        old.unlink()


def remove_all(run: Run, branch: int) -> None:
    """Remove the checkpoints of a finished branch."""
    for path in run.checkpoints_of(branch):
        path.unlink()
    folder = run.checkpoint_folder(branch)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def restore(run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, branch: int | None = None) -> Progress:
    """Load the newest valid checkpoint of a run or of one of its branches, and return its progress. If no checkpoint is
    valid, return a progress of 0 steps.

    If a checkpoint is damaged or belongs to another run, log a warning and rename the file to `*.unusable`.

    Raises:
        IclbenchError: the file system fails to read a checkpoint, which may be valid.
    """
    for path in reversed(run.checkpoints_of(branch)):
        _check_readable(path)
        try:
            with memory_advice(TRAINING_REMEDY), safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                try:
                    run.check_signature(metadata)
                except ValueError as error:
                    raise ValueError(f"it belongs to {error}") from None
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            if metadata.pop("digest", None) != _digest(tensors, metadata):
                raise ValueError("its content does not match its digest")
            progress = _progress(metadata, tensors)
            _check_possible(progress, branch or run.config.train.steps)
            if metadata.get("branch") != _branch_metadata(branch).get("branch"):
                raise ValueError("it belongs to another branch")
            if branch is None and (missing := _missing_branches(run, progress.step)):
                raise ValueError(f"it is past the branch of {missing[0]} steps, whose weights are missing")
            if path.name != _name(progress.step):
                raise ValueError(f"it belongs to step {progress.step}")
            with memory_advice(TRAINING_REMEDY):
                _load(model, optimiser, tensors)
        except (SafetensorError, OSError, LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
            renamed = path.replace(path.with_suffix(".unusable"))
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            log.warning("checkpoint %s cannot be used (%s); renamed to %s", path, reason, renamed.name)
            continue
        return progress
    return Progress()


def _check_readable(path: Path) -> None:
    """Raise `IclbenchError` if a checkpoint exists but the file system fails to read it. Its content may be valid, so
    it must not be renamed."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except (FileNotFoundError, IsADirectoryError):
        return  # `restore` reports the error
    except OSError as error:
        raise IclbenchError(
            f"cannot read checkpoint {path}: {error.strerror}; run the same command again", code="unreadable-file"
        ) from error


def _name(step: int) -> str:
    return f"step-{step:09d}.safetensors"


def _branch_metadata(branch: int | None) -> dict[str, str]:
    """Return the metadata that identify the branch of a checkpoint; empty for the training run itself."""
    return {} if branch is None else {"branch": str(branch)}


def _missing_branches(run: Run, step: int) -> list[int]:
    """Return the branches that start before this step and whose weights are missing."""
    return [end for end in run.config.train.branch_steps if decay_start(end) < step and not run.has_branch(end)]


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the metadata and of the names, types, shapes and bytes of tensors on the CPU."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _progress(metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> Progress:
    """Return the progress that is stored in a checkpoint. Its tensors are removed from `tensors`."""
    return Progress(
        int(metadata["step"]),
        float(metadata["seconds"]),
        tensors.pop("log.pending"),
        tensors.pop("log.steps").tolist(),
        tensors.pop("log.losses").tolist(),
        json.loads(metadata.get("scored", "[]")),
        json.loads(metadata.get("bytes", "null")),
    )


def _check_possible(progress: Progress, steps: int) -> None:
    """Raise `ValueError` if a training run of this many steps cannot have this progress."""
    logged_steps = [0, *progress.steps]
    if not 0 < progress.step <= steps:
        raise ValueError(f"its step is {progress.step}, but the training has {steps} steps")
    if not (math.isfinite(progress.seconds) and progress.seconds >= 0):
        raise ValueError(f"its training time is {progress.seconds} seconds")
    if len(progress.steps) != len(progress.losses) or any(a >= b for a, b in pairwise(logged_steps)):
        raise ValueError("its logged steps do not increase")
    if logged_steps[-1] > progress.step:
        raise ValueError(f"its step is {progress.step}, but its last logged step is {logged_steps[-1]}")
    if progress.pending.shape != () or not all(map(math.isfinite, [float(progress.pending), *progress.losses])):
        raise ValueError("its losses are not finite")
    rows = progress.scored
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise ValueError("its scores are not rows of a table")
    if not (progress.bytes is None or (type(progress.bytes) is int and progress.bytes >= 0)):
        raise ValueError(f"its peak memory is {progress.bytes} bytes")


def _load(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    # Check everything first, so that nothing is overwritten if the checkpoint does not fit.
    model_state = model.state_dict()
    if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in model_state.items()}:
        raise ValueError("the names or shapes of its weights differ from those of the model")
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for index, moments in state.items():
        if not 0 <= index < len(parameters) or moments.keys() != _MOMENTS:
            raise ValueError("its optimiser state belongs to different weights")
        if any(moments[name].shape not in ((), parameters[index].shape) for name in _MOMENTS):
            raise ValueError("the shapes of its optimiser state differ from those of the weights")
    model.load_state_dict(weights)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
