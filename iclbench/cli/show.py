"""`iclbench show NAME`: one task, backbone, baseline, grid or run, with every number; or the glyphs as a picture."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
import typer

from iclbench.cli import show_backbone, show_language
from iclbench.cli.options import RESULTS
from iclbench.cli.show_backbone import print_backbone
from iclbench.cli.show_language import grid_commands
from iclbench.cli.show_task import print_task
from iclbench.cli.terminal import echo, out, say
from iclbench.config import trust
from iclbench.config.cards import TaskCard, card_file, is_baseline, load_baseline, load_task, names
from iclbench.config.registry import BACKBONES, FAMILIES, canonical
from iclbench.config.resolution import resolve_task
from iclbench.config.runs import all_runs
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.hashing import content_hash
from iclbench.sweep.grids import grid_runs, is_grid, load_grid
from iclbench.sweep.language_grids import is_language_grid

NO_PRESET = "--preset is of the values of a task and of a grid's runs and commands; drop it here"


def show(
    name: str, preset: str | None, card: bool, commands: bool, png: Path | None, json: bool, results: Path
) -> None:
    """Show what a task samples and how big it is, what a backbone's settings mean, a baseline, a grid or a run.

    Code that a card or a run names is not run; a backbone that is named as package.module:Class is.
    """
    trust.ask = None  # nothing is loaded here that was not trusted before
    if preset is not None and (card or png is not None or name == "glyphs"):
        raise UsageError(NO_PRESET)
    if name == "glyphs" or png is not None:
        echo(_glyphs(name, png))
        return
    if commands:
        for line in _commands(name, preset, None if results == RESULTS else results):
            echo(line)
        return
    if card:
        echo(card_file(name).read_text(encoding="utf-8-sig"), nl=False)
        return
    found = _find(name, preset, results)
    if preset is not None and not {"presets", "runs"} & found.keys():  # of tasks and of grids
        raise UsageError(NO_PRESET)
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    _print(found, name)


def _print(found: dict[str, Any], name: str) -> None:
    """One screen of a task or a backbone; all else as TOML."""
    if "task" in found and "presets" in found:
        family = found["family"]
        print_task(found, FAMILIES.get(family) if _may_load(family) else None, name)
    elif "backbone" in found and "settings" in found:
        print_backbone(found)
    else:
        out.print(tomli_w.dumps(found).rstrip())


def _may_load(family: str) -> bool:
    """Whether the family is from iclbench or an installed plug-in: what is shown is not run."""
    return ":" not in family or trust.is_ours(family)


def _glyphs(name: str, path: Path | None) -> str:
    """Write the contact sheet of the procedural characters."""
    if name != "glyphs" or path is None:
        raise UsageError("only glyphs are shown as a picture: iclbench show glyphs --png FILE")
    from iclbench.cli.contact_sheet import write_glyphs

    return write_glyphs(path)


def _commands(name: str, preset: str | None, results: Path | None) -> Iterator[str]:
    if is_language_grid(name):
        yield from grid_commands(name, preset, results)
        return
    for run in grid_runs(name, preset):
        yield from run.commands(results)


def _find(name: str, preset: str | None, results) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    short = canonical(name)
    if (found := show_language.find(name)) is not None:
        return found
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
        return show_backbone.find(short)
    runs = {run.name: run for run in all_runs(results)}
    if name in runs:
        return {"run": name, "hash": runs[name].hash, **runs[name].config.dump()}
    if ":" in name:
        trust.typed(name)
        return show_backbone.find(name)
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
