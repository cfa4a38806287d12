"""`iclbench show NAME`: one task, backbone, baseline, grid or run, with every number; or the glyphs as a picture."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from iclbench import trust
from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results

if TYPE_CHECKING:
    from iclbench.cards import TaskCard


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
    """Show a task card, a backbone's settings, a baseline card, a grid card or a run's configuration.

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
        from iclbench.cards import card_file

        typer.echo(card_file(name).read_text(encoding="utf-8"), nl=False)
        return
    found = _find(name, preset, results)
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    import tomli_w

    from iclbench.cli.terminal import out

    out.print(tomli_w.dumps(found).rstrip())


def _glyphs(name: str, path: Path | None) -> str:
    """Write the contact sheet of the procedural characters."""
    from iclbench.errors import UsageError

    if name != "glyphs" or path is None:
        raise UsageError("only glyphs are shown as a picture: iclbench show glyphs --png FILE")
    from iclbench.cli.contact_sheet import write_glyphs

    return write_glyphs(path)


def _commands(name: str, preset: str | None, results: Path | None) -> Iterator[str]:
    from iclbench.cli.show_language import grid_commands
    from iclbench.grids import grid_runs
    from iclbench.language.grids import is_language_grid

    if is_language_grid(name):
        yield from grid_commands(name, preset, results)
        return
    for run in grid_runs(name, preset):
        yield from run.commands(results)


def _find(name: str, preset: str | None, results) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    from iclbench.cards import content_hash, load_baseline, load_task, names
    from iclbench.cli import show_language
    from iclbench.config import resolve_task
    from iclbench.errors import UnknownNameError
    from iclbench.grids import is_grid
    from iclbench.registry import BACKBONES, canonical
    from iclbench.runs import all_runs

    short = canonical(name)
    if (found := show_language.find(name)) is not None:
        return found
    if short in names("grids") or is_grid(name):
        return _grid(name, preset)
    if name.endswith(".toml") or short in names("tasks"):
        task, card = load_task(name)
        values = {"task": task, "hash": content_hash(card), **card.model_dump(mode="json", exclude_none=True)}
        known = ":" not in card.family or trust.is_ours(card.family)
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
        return _backbone(short)
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
    from iclbench.cards import content_hash
    from iclbench.grids import grid_runs, load_grid

    grid, card = load_grid(name)
    plain = {"grid": grid, "hash": content_hash(card), **card.model_dump(mode="json", exclude_unset=True)}
    try:
        return plain | {"runs": [run.name for run in grid_runs(name, preset)]}
    except trust.UntrustedError as error:
        return plain | {"runs": [], "not_resolved": str(error)}


def _backbone(name: str) -> dict[str, Any]:
    """Where the backbone comes from, what it declares, and its settings with defaults."""
    from iclbench.registry import BACKBONES

    entry = BACKBONES.entry(name)
    cls = entry.load()
    settings = {
        key: {"type": _type_name(field.annotation), "default": repr(field.default)}
        for key, field in cls.Settings.model_fields.items()
    }
    return {
        "backbone": name, "class": entry.target, "summary": entry.summary, "order": cls.order, "heads": list(cls.heads),
        "uses_related": cls.uses_related, "removes_points": cls.removes_points, "settings": settings,
    }  # fmt: skip


def _type_name(annotation: Any) -> str:
    """`int`, `'a' or 'b'`, `int or none`: a setting's type in a reader's words."""
    args = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type_name(args[0])
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, args))
    if args and get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type_name(arg) for arg in args)
    if annotation is NoneType:
        return "none"
    return getattr(annotation, "__name__", str(annotation)) if not args else str(annotation)
