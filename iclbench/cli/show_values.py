"""What `iclbench show` finds by a name, with every value, and the screen that it fits on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from iclbench.cli import show_backbone, show_language
from iclbench.cli.show_backbone import print_backbone
from iclbench.cli.show_task import print_task
from iclbench.cli.terminal import out, say
from iclbench.config import trust
from iclbench.config.cards import TaskCard, is_baseline, load_baseline, load_task, names
from iclbench.config.registry import BACKBONES, FAMILIES
from iclbench.config.resolution import resolve_task
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.store.runs import all_runs
from iclbench.sweep.grids import grid_runs, is_grid, load_grid
from iclbench.sweep.language_grids import commands as language_commands
from iclbench.sweep.language_grids import is_language_grid


def values_of(name: str, preset: str | None, results: Path) -> dict[str, Any]:
    """Every value of the task, suite, baseline, grid, backbone or run of this name."""
    short = canonical(name)
    if (values := show_language.values_of(name)) is not None:
        return values
    if short in names("grids") or is_grid(name):
        return _grid(name, preset)
    if is_baseline(name) or short in names("baselines"):
        baseline, card_ = load_baseline(name)
        return {"baseline": baseline, "hash": content_hash(card_), **card_.model_dump(mode="json", exclude_none=True)}
    if name.endswith(".toml") or short in names("tasks"):
        task, card = load_task(name)
        values = {"task": task, "hash": card.hash, **card.model_dump(mode="json", exclude_none=True)}
        known = _may_load(card.family)
        values["presets"] = {
            each: card.preset(each, task).model_dump(mode="json", exclude_none=True)
            | {"parameters": resolve_task(name, each)[0].parameters if known else _written(card, each)}
            for each in ([preset] if preset else card.presets)
        }
        del values["parameters"]  # those of the presets are complete
        if not known:
            say(f"the family '{card.family}' is not imported, so parameters are shown as the card has them")
        return values
    if short in BACKBONES.entries:
        return show_backbone.values_of(short)
    runs = {run.name: run for run in all_runs(results)}
    if name in runs:
        return {"run": name, "hash": runs[name].hash, **runs[name].config.dump()}
    if ":" in name:
        trust.typed(name)
        return show_backbone.values_of(name)
    raise UnknownNameError(
        "name",
        name,
        [*names("tasks"), *show_language.known(), *names("baselines"), *names("grids"), *BACKBONES.names(), *runs],
        hint="(or package.module:Class)",
        listed_by="iclbench list",
    )


def _written(card: TaskCard, preset: str) -> dict[str, Any]:
    """The family's parameters at a preset, without what the family would add and check."""
    return {**card.parameters, **card.presets[preset].parameters}  # type: ignore[index]


def _grid(name: str, preset: str | None) -> dict[str, Any]:
    """The card and the names of its runs, all of them resolved: a grid that is shown can be run."""
    grid, card = load_grid(name)
    plain = {"grid": grid, "hash": content_hash(card), **card.model_dump(mode="json", exclude_unset=True)}
    try:
        return plain | {"runs": [run.name for run in grid_runs(name, preset)]}
    except trust.UntrustedError as error:
        return plain | {"runs": [], "not_resolved": str(error)}


def commands_of(name: str, preset: str | None, results: Path | None) -> Iterator[str]:
    """The commands that do the work of a grid."""
    if is_language_grid(name):
        if preset is not None:
            raise UsageError(f"grid '{name}' is of language models, whose size is their own; drop --preset")
        yield from language_commands(name, results)
        return
    for run in grid_runs(name, preset):
        yield from run.commands(results)


def print_values(values: dict[str, Any], name: str) -> None:
    """One screen of a task or a backbone; all else as TOML."""
    if "task" in values and "presets" in values:
        family = values["family"]
        print_task(values, FAMILIES.get(family) if _may_load(family) else None, name)
    elif "backbone" in values and "settings" in values:
        print_backbone(values)
    else:
        out.print(tomli_w.dumps(values).rstrip())


def _may_load(family: str) -> bool:
    """Whether the family is from iclbench or an installed plug-in: what is shown is not run."""
    return ":" not in family or trust.is_ours(family)
