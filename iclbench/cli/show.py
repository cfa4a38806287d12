"""`iclbench show NAME`: one task, backbone, baseline, grid or run, with every number; or the glyphs as a picture."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results
from iclbench.config import trust

if TYPE_CHECKING:
    from iclbench.config.cards import TaskCard


def show(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.everything,
            help="A task, suite, backbone, baseline, grid or run, a path to a card, or 'glyphs'.",
        ),
    ],
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", autocompletion=completion.presets, help="Only this preset of a task or grid."),
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="The card's own file, to copy and change.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="The commands that a grid stands for, one per line, for a shell.")
    ] = False,
    png: Annotated[Path | None, typer.Option("--png", help="Where to write the contact sheet of the glyphs.")] = None,
    json: Json = False,
    results: Results = RESULTS,
) -> None:
    """Show what a task samples and how big it is, what a backbone's settings mean, a baseline, a grid or a run.

    Code that a card or a run names is not run.
    """
    trust.ask = None  # nothing is loaded here that was not trusted before
    if name == "glyphs" or png is not None:
        typer.echo(_glyphs(name, png))
        return
    if commands:
        for line in _commands(name, preset, None if results == RESULTS else results):
            typer.echo(line)
        return
    if card:
        from iclbench.config.cards import card_file

        typer.echo(card_file(name).read_text(encoding="utf-8"), nl=False)
        return
    found = _find(name, preset, results)
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    _print(found, name)


def _print(found: dict[str, Any], name: str) -> None:
    """One screen of a task or a backbone; all else as TOML."""
    import tomli_w

    from iclbench.cli.show_backbone import print_backbone
    from iclbench.cli.show_task import print_task
    from iclbench.cli.terminal import out
    from iclbench.config.registry import FAMILIES

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
    from iclbench.core.errors import UsageError

    if name != "glyphs" or path is None:
        raise UsageError("only glyphs are shown as a picture: iclbench show glyphs --png FILE")
    from iclbench.cli.contact_sheet import write_glyphs

    return write_glyphs(path)


def _commands(name: str, preset: str | None, results: Path | None) -> Iterator[str]:
    from iclbench.cli.show_language import grid_commands
    from iclbench.sweep.grids import grid_runs
    from iclbench.sweep.language_grids import is_language_grid

    if is_language_grid(name):
        yield from grid_commands(name, preset, results)
        return
    for run in grid_runs(name, preset):
        yield from run.commands(results)


def _find(name: str, preset: str | None, results) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    from iclbench.cli import show_backbone, show_language
    from iclbench.config.cards import content_hash, load_baseline, load_task, names
    from iclbench.config.registry import BACKBONES, canonical
    from iclbench.config.resolution import resolve_task
    from iclbench.config.runs import all_runs
    from iclbench.core.errors import UnknownNameError
    from iclbench.sweep.grids import is_grid

    short = canonical(name)
    if (found := show_language.find(name)) is not None:
        return found
    if short in names("grids") or is_grid(name):
        return _grid(name, preset)
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
            from iclbench.cli.terminal import say

            say(f"the family '{card.family}' is not imported, so parameters are shown as the card has them")
        return values
    if short in names("baselines"):
        baseline, card_ = load_baseline(name)
        return {"baseline": baseline, "hash": content_hash(card_), **card_.model_dump(mode="json", exclude_none=True)}
    if short in BACKBONES.entries:
        return show_backbone.find(short)
    runs = {run.name: run for run in all_runs(results)}
    if name in runs:
        return {"run": name, "hash": runs[name].hash, **runs[name].config.dump()}
    raise UnknownNameError(
        "name",
        name,
        [*names("tasks"), *show_language.known(), *names("baselines"), *names("grids"), *BACKBONES.names(), *runs],
        hint="(see iclbench list)",
    )


def _written(card: TaskCard, preset: str) -> dict[str, Any]:
    """The family's parameters at a preset, without what the family would add and check."""
    return {**card.parameters, **card.presets[preset].parameters}  # type: ignore[index]


def _grid(name: str, preset: str | None) -> dict[str, Any]:
    """The card and the names of its runs, all of them resolved: a grid that is shown can be run."""
    from iclbench.config.cards import content_hash
    from iclbench.sweep.grids import grid_runs, load_grid

    grid, card = load_grid(name)
    plain = {"grid": grid, "hash": content_hash(card), **card.model_dump(mode="json", exclude_unset=True)}
    try:
        return plain | {"runs": [run.name for run in grid_runs(name, preset)]}
    except trust.UntrustedError as error:
        return plain | {"runs": [], "not_resolved": str(error)}
