"""Find a task, baseline, grid, backbone or run by its name, and print its values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from iclbench.cli import show_backbone, show_language
from iclbench.cli.show_backbone import print_backbone
from iclbench.cli.show_task import print_task
from iclbench.cli.terminal import out, say
from iclbench.config.cards import card_names, is_baseline, load_baseline, load_task
from iclbench.config.resolution import resolve_task
from iclbench.core import trust
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.registry import BACKBONES
from iclbench.store.runs import all_runs
from iclbench.sweep.grids import grid_runs, is_grid, load_grid
from iclbench.sweep.language_grids import commands as language_commands
from iclbench.sweep.language_grids import is_language_grid


def values_of(name: str, preset: str | None, results: Path, defaults: bool) -> dict[str, Any]:
    """Return all values of the task, suite, baseline, grid, backbone or run with this name.

    With `defaults`, a task's parameters include the defaults that are not on its card. This imports the family.
    """
    canonical_name = canonical(name)
    if (values := show_language.values_of(name)) is not None:
        return values
    if canonical_name in card_names("grids") or is_grid(name):
        return _grid(name, preset)
    if is_baseline(name) or canonical_name in card_names("baselines"):
        baseline, card = load_baseline(name)
        return {"baseline": baseline, "hash": content_hash(card), **card.model_dump(mode="json", exclude_none=True)}
    if name.endswith(".toml") or canonical_name in card_names("tasks"):
        return _task(name, preset, defaults)
    if canonical_name in BACKBONES.entries:
        return show_backbone.values_of(canonical_name)
    runs = {run.name: run for run in all_runs(results)}
    if name in runs:
        return {"run": name, "hash": runs[name].hash, **runs[name].config.dump()}
    if ":" in name:
        trust.trust_typed(name)
        return show_backbone.values_of(name)
    raise UnknownNameError(
        "name",
        name,
        [
            *card_names("tasks"),
            *show_language.language_card_names(),
            *card_names("baselines"),
            *card_names("grids"),
            *BACKBONES.names(),
            *runs,
        ],
        hint="(or package.module:Class)",
        listed_by="iclbench list",
    )


def _task(name: str, preset: str | None, defaults: bool) -> dict[str, Any]:
    """Return the values of the card, with the family's parameters in each preset."""
    task, card = load_task(name)
    is_importable = ":" not in card.family or trust.is_registered_code(card.family)  # other code is not run
    if defaults and not is_importable:
        say(f"the family '{card.family}' is not imported, so only the parameters of the card are shown")
    presets = {}
    for preset_name in [preset] if preset else card.presets:
        sizes = card.preset(preset_name, task)
        parameters = {**card.parameters, **sizes.parameters}
        if defaults and is_importable:
            parameters = resolve_task(name, preset_name)[0].parameters
        presets[preset_name] = sizes.model_dump(mode="json", exclude_none=True) | {"parameters": parameters}
    card_values = card.model_dump(mode="json", exclude_none=True, exclude={"parameters"})
    return {"task": task, "hash": card.hash, **card_values, "presets": presets}


def _grid(name: str, preset: str | None) -> dict[str, Any]:
    """Return the values of the card and the names of its runs. All runs are resolved, so that errors in any of them are
    reported."""
    grid, card = load_grid(name)
    card_values = {"grid": grid, "hash": content_hash(card), **card.model_dump(mode="json", exclude_unset=True)}
    try:
        return card_values | {"runs": [run.name for run in grid_runs(name, preset)]}
    except trust.UntrustedError as error:
        return card_values | {"runs": [], "not_resolved": str(error)}


def commands_of(name: str, preset: str | None, results: Path | None) -> Iterator[str]:
    """Yield the commands that train, evaluate, probe and measure the runs of a grid."""
    if is_language_grid(name):
        if preset is not None:
            raise UsageError(
                f"--preset does not apply to grid '{name}' of pretrained language models; remove it",
                code="not-applicable",
            )
        yield from language_commands(name, results)
        return
    for run in grid_runs(name, preset):
        yield from run.commands(results)


def print_values(values: dict[str, Any], name: str) -> None:
    """Print a task or a backbone on one screen, and anything else as TOML."""
    if "task" in values and "presets" in values:
        print_task(values, name)
    elif "backbone" in values and "settings" in values:
        print_backbone(values)
    else:
        out.print(tomli_w.dumps(values).rstrip())
