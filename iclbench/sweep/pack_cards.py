"""The cards of packed results: the grid card, the cards that it names by path, and the tables of learning rates.

With them, the cells of the grid can be planned without the folder in which they were computed. Cards that are part of
iclbench are not copied. The pack has no subfolders, so cards name each other by file name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from iclbench.config.cards import card_name, card_names, map_texts, read_toml
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.core.files import write_text
from iclbench.store.rates import results_path
from iclbench.store.runs import toml_text, write_errors
from iclbench.sweep.cells import GridCell
from iclbench.tables import short_name

CARD, RATES, CELLS = ".toml", ".rates.toml", ".cells.parquet"


def write_cards(
    grids: Iterable[str], cells: Sequence[GridCell], results: Path, out: Path, replace: bool = False
) -> list[Path]:
    """Copy the cards of grids, and the results folder's tables of learning rates, to a folder of packed results.

    Args:
        grids: names of grids, or paths to their cards.
        cells: cells of the grids, which are already packed.
        results: the results folder.
        out: the folder of packed results.
        replace: whether to remove the cards of other grids from `out`, unless `out` has cells of these grids.

    Returns:
        The written files.

    Raises:
        UsageError: two cards have the same file name.
    """
    sources: dict[str, Path] = {}
    texts: dict[str, str] = {}
    queue = [Path(name) for name in grids if name.endswith(CARD)]

    def file_name(text: str) -> str:
        path = Path(text)
        if not (text.endswith(CARD) and path.is_file()):
            return text
        queue.append(path)
        return card_name(path) + CARD

    while queue:
        path = queue.pop()
        name = card_name(path) + CARD
        if name in sources:
            if sources[name].resolve() != path.resolve():
                raise UsageError(f"{sources[name]} and {path} have the same file name; rename one", code="duplicate")
            continue
        sources[name] = path
        content = read_toml(path)
        renamed = map_texts(content, file_name)
        texts[name] = path.read_text(encoding="utf-8") if renamed == content else toml_text(renamed)
    for preset in sorted({cell.preset for cell in cells}):
        name, path = preset + RATES, results_path(results, preset)
        if path.is_file():
            texts[name] = path.read_text(encoding="utf-8")
        else:
            (out / name).unlink(missing_ok=True)
    unused = unused_cards(out, {cell.group for cell in cells}) - texts.keys() if replace else set()
    with write_errors(results):
        for name in unused:
            (out / name).unlink()
        for name, text in texts.items():
            write_text(out / name, text)
    return [out / name for name in texts]


def unused_cards(pack: Path, replaced_groups: Iterable[str] = ()) -> set[str]:
    """Return the names of the cards that no packed cells need, except cells of these tasks and presets."""
    contents = {path.name: read_toml(path) for path in pack.glob(f"*{CARD}")}
    groups = {path.name.removesuffix(CELLS) for path in pack.glob(f"*{CELLS}")} - set(replaced_groups)
    rates = {group.rpartition("-")[2] + RATES for group in groups}
    queue = [name for name, content in contents.items() if name in rates or not groups.isdisjoint(_groups(content))]
    used: set[str] = set()

    def add(text: str) -> str:
        queue.append(text)
        return text

    while queue:
        name = queue.pop()
        if name in contents and name not in used:
            used.add(name)
            map_texts(contents[name], add)
    return contents.keys() - used


def _groups(grid: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tasks and presets of a grid card as in `GridCell.group`. Other cards have none."""
    for part in (grid, *grid.get("more", [])):
        for task in part.get("tasks", []):
            yield from (f"{card_name(Path(task))}-{preset}" for preset in part.get("presets", []))


def unpack_cards(pack: Path, cards: Path, results: Path) -> list[str]:
    """Copy the cards of packed results to a folder, and the tables of learning rates to a results folder.

    Args:
        pack: the folder of packed results.
        cards: the new folder of the cards, which then name each other by path.
        results: the results folder.

    Returns:
        The paths of the grid cards in `cards`.

    Raises:
        IclbenchError: a card has the name of a card of iclbench, or names a card outside the pack.
    """
    grids = []
    names = {path.name for path in pack.glob(f"*{CARD}")}
    shipped_names = {*card_names("tasks"), *card_names("baselines")}

    def path_of(text: str) -> str:
        if not text.endswith(CARD):
            return text
        if text not in names:
            raise IclbenchError(f"a card names '{short_name(text)}', which is not in the pack", code="missing-file")
        return str(cards / text)

    for name in sorted(names):
        content = read_toml(pack / name)
        if name.endswith(RATES):
            write_text(results_path(results, name.removesuffix(RATES)), toml_text(content))
            continue
        if "backbones" in content:
            grids.append(str(cards / name))
        elif card_name(Path(name)) in shipped_names:
            raise IclbenchError(f"{name}: iclbench has a card of this name; rename the card", code="exists")
        write_text(cards / name, toml_text(map_texts(content, path_of)))
    if not grids:
        raise no_grid_card(pack.name)
    return grids


def no_grid_card(pack: str) -> IclbenchError:
    """Return the error for packed results without the card of their grid."""
    return IclbenchError(
        f"'{short_name(pack)}' has no grid card, so its cells are not known: a grid of iclbench is packed without its "
        "card; check it with iclbench sweep NAME --verify N, or pack a copy of its card, given by path",
        code="missing-file",
    )
