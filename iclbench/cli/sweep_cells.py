"""The cells of grids that the options of `iclbench sweep` choose."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from iclbench.config.resolution import backbone_class
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.trust import typed
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.language_grids import is_language_grid, language_cells


def cells_of(grids: list[str], added: list[str], results: Path) -> list[GridCell]:
    """The cells of all grids, those of language models behind the others; `added` are further backbones."""
    of_models = [name for name in grids if is_language_grid(name)]
    if added and of_models:
        raise UsageError(f"grid '{of_models[0]}' asks pretrained language models: no backbone can be added to it")
    for name in added:
        typed(name)
        backbone_class(name)
    cells = grid_cells((name for name in grids if name not in of_models), added, results)
    answered = {cell.hash: cell for name in of_models for cell in language_cells(name)}
    return [*cells, *answered.values()]


def chosen_cells(preset: str | None, tasks: str | None, cells: list[GridCell]) -> list[GridCell]:
    """The cells of one preset and of these tasks; None: of all."""
    known = {cell.preset for cell in cells}
    if preset is not None and canonical(preset) not in known:
        raise UnknownNameError("preset", preset, known, hint="(presets of these grids)")
    wanted = listed("task", tasks, {cell.task for cell in cells}, "(tasks of these grids)")
    return [cell for cell in cells if (preset is None or cell.preset == canonical(preset)) and cell.task in wanted]


def listed(what: str, typed: str | None, known: Collection[str], hint: str = "") -> list[str]:
    """The names that were typed, by commas; all that are known, where none was."""
    words = [word.strip() for word in typed.split(",")] if typed else known
    names = [word if word in known else canonical(word) for word in words]
    for name in names:
        if name not in known:
            raise UnknownNameError(what, name, known, hint=hint)
    return names


def refuse_language_grids(grids: list[str]) -> None:
    """Packed results and what is verified hold values of backbones and baselines alone."""
    for name in grids:
        if is_language_grid(name):
            raise UsageError(f"grid '{name}' asks pretrained language models, whose cells are not packed or verified")
