"""Checkpoints: one safetensors file with everything a run needs to continue exactly, written atomically.

Weights, optimiser state, the loss log, and what evaluations have found. Random streams are counters of the step
(`iclbench.seeds`) and the schedule and curriculum are functions of it, so the step is all that remains to be kept.
Loading never executes code.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from iclbench.files import save_tensors
from iclbench.runs import Run

log = logging.getLogger("iclbench")

KEEP = 2


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        step: steps done.
        seconds: time spent on them.
        pending: sum of the losses since the last logged step.
        steps: the logged steps.
        losses: mean loss of the interval that ends at each of them.
        scored: rows of the evaluations so far, see `iclbench.training.monitor`.
        bytes: peak memory, the largest of the processes that took part; None where it is not known of all of them.
    """

    step: int = 0
    seconds: float = 0.0
    pending: Tensor = field(default_factory=lambda: torch.zeros(()))
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    bytes: int | None = 0


def save(run: Run, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    """Write `step-N.safetensors` and drop all but the last two."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{k}": v for k, v in state.items()}
    tensors["log.pending"] = progress.pending
    tensors["log.steps"] = torch.tensor(progress.steps, dtype=torch.long)
    tensors["log.losses"] = torch.tensor(progress.losses, dtype=torch.float64)
    metadata = {"config": run.hash, "step": str(progress.step), "seconds": repr(progress.seconds)}
    metadata |= {"scored": json.dumps(progress.scored), "bytes": json.dumps(progress.bytes)}
    save_tensors(run.path / "checkpoints" / f"step-{progress.step:09d}.safetensors", tensors, metadata)
    for old in run.checkpoints[:-KEEP]:
        old.unlink()


def restore(run: Run, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
    """Load the newest checkpoint that is whole and belongs to this run.

    The others are named in a warning and set aside as `*.unusable`, so that they never take the place of a good one.
    """
    for path in reversed(run.checkpoints):
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("config") != run.hash:
                    raise ValueError("it belongs to another configuration")
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            progress = Progress(
                int(metadata["step"]),
                float(metadata["seconds"]),
                tensors.pop("log.pending"),
                tensors.pop("log.steps").tolist(),
                tensors.pop("log.losses").tolist(),
                json.loads(metadata.get("scored", "[]")),
                json.loads(metadata.get("bytes", "null")),
            )
            _load(model, optimiser, tensors)
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            aside = path.replace(path.with_suffix(".unusable"))
            reason = str(error).splitlines()[0]
            log.warning("checkpoint %s cannot be used (%s); set aside as %s, going back", path, reason, aside.name)
            continue
        return progress
    return Progress()


def _load(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    own = model.state_dict()
    if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
        raise ValueError("its weights have other names or shapes")  # found before anything is overwritten
    model.load_state_dict(weights)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
