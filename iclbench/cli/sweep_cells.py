"""Select cells with the options of `iclbench sweep`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from iclbench.config.resolution import backbone_class
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.trust import trust_typed
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.grids import grid_groups
from iclbench.sweep.language_grids import is_language_grid, language_cells


def selected_cells(
    grids: list[str], preset: str | None, tasks: str | None, added_backbones: list[str], results: Path
) -> list[GridCell]:
    """Return the cells of all grids and of `added_backbones`, of one preset and some tasks (default: all presets, all
    tasks). Cells of language models come last."""
    language_grids = [name for name in grids if is_language_grid(name)]
    other_grids = [name for name in grids if name not in language_grids]
    if added_backbones and language_grids:
        raise UsageError(
            f"--add does not apply to grid '{language_grids[0]}' of pretrained language models", code="not-applicable"
        )
    for name in added_backbones:
        trust_typed(name)
        backbone_class(name)
    by_hash = {cell.hash: cell for name in language_grids for cell in language_cells(name)}
    groups = {group for name in other_grids for group in grid_groups(name)}
    groups |= {(cell.task, cell.preset) for cell in by_hash.values()}
    presets = {each for _, each in groups}
    if preset is not None and canonical(preset) not in presets:
        raise UnknownNameError("preset", preset, presets, hint="(presets of these grids)")
    task_names = parsed_names("task", tasks, {task for task, _ in groups}, "(tasks of these grids)")
    cells = grid_cells(other_grids, added_backbones, results, task_names)
    cells += [cell for cell in by_hash.values() if cell.task in task_names]
    return [cell for cell in cells if preset is None or cell.preset == canonical(preset)]


def parsed_names(kind: str, text: str | None, all_names: Collection[str], hint: str = "") -> list[str]:
    """Return the names in a comma-separated text (default: all names). Raise `UnknownNameError` for other names."""
    words = [word.strip() for word in text.split(",")] if text else all_names
    names = [word if word in all_names else canonical(word) for word in words]
    for name in names:
        if name not in all_names:
            raise UnknownNameError(kind, name, all_names, hint=hint)
    return names


def refuse_language_grids(grids: list[str]) -> None:
    """Raise `UsageError` for grids of language models, whose cells cannot be packed or verified."""
    for name in grids:
        if is_language_grid(name):
            raise UsageError(
                f"--pack and --verify do not apply to grid '{name}' of pretrained language models",
                code="not-applicable",
            )
