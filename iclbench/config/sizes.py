"""How big a backbone is to be where a task's preset does not say: its own size is that of its paper, the biggest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iclbench.config.cards import load_task
from iclbench.config.registry import BACKBONES, canonical
from iclbench.config.resolution import backbone_class, typed_tables
from iclbench.core.errors import UsageError

log = logging.getLogger("iclbench")

# The presets whose sizes are the papers' own.
_OWN = ("paper",)


def check_size(
    task: str,
    backbone: str,
    preset: str,
    overrides: Sequence[str] = (),
    config_file: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Raise `UsageError` where nobody says how big a built-in backbone is; of a plug-in's own size there is a note.

    Args:
        task, backbone, preset, overrides, config_file: as `iclbench train` takes them.
        given: settings of the backbone that are given in another way.
    """
    if (line := missing_size(task, backbone, preset, overrides, config_file, given)) is None:
        return
    if ":" not in backbone and BACKBONES.entry(backbone).package == "iclbench":
        raise UsageError(line)
    tell_once(line)


def missing_size(
    task: str,
    backbone: str,
    preset: str,
    overrides: Sequence[str] = (),
    config_file: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> str | None:
    """That the preset of the task's card has no size for this backbone and nobody gave one, with what to do; None: it
    has, or somebody did."""
    name, card = load_task(task)
    preset = canonical(preset)
    backbone = backbone if ":" in backbone else canonical(backbone)
    given = {**typed_tables(overrides, config_file).get("backbone", {}), **(given or {})}
    known = set(BACKBONES.names_in_cards(backbone))
    if preset in _OWN or known & card.preset(preset, name).backbones.keys() or any(map(_is_size, given.items())):
        return None
    own = {key: value for key, value in backbone_class(backbone).Settings().model_dump().items() if value}
    sizes = [(key, value) for key, value in own.items() if _is_size((key, value))]
    keys: list[str] = [key for key in ("layers", "width") if key in own] or [key for key, _ in sizes] or ["KEY"]
    others = [each for each, chosen in card.presets.items() if known & chosen.backbones.keys()]
    return (
        f"preset '{preset}' of task '{name}' has no size for '{backbone}', whose own is "
        f"{', '.join(f'{key} {value}' for key, value in sizes) or 'what its class says'}; give "
        + " ".join(f"-o backbone.{key}=N" for key in keys)
        + (f", or --preset {' or '.join(others)}" if others else "")
    )


@cache
def tell_once(line: str) -> None:
    """Log the line, however many runs it is about."""
    log.info(line)


def _is_size(setting: tuple[str, Any]) -> bool:
    key, value = setting
    return key == "size" or (isinstance(value, int) and not isinstance(value, bool))
