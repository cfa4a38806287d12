"""The output of `iclbench show BACKBONE`: a description of the backbone, and its settings with defaults and
meanings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from iclbench.cli.terminal import out, print_table
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import IclbenchError
from iclbench.core.formats import integer
from iclbench.registry import BACKBONES

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone

# Task and preset at which the size of a state is shown.
_STATE_AT = ("linear", "grid")
_ORDERS = {"causal": "in their order (causal)", "set": "as a set"}


def values_of(name: str) -> dict[str, Any]:
    """Return the class of a backbone, its properties with the size of its state, the settings fixed by its name, and
    all settings with types, defaults and meanings.

    Raises:
        UsageError: the class cannot be loaded, or is not a backbone.
    """
    entry, variant, cls = BACKBONES.entry(name), BACKBONES.variant(name), BACKBONES.subclass(name)
    settings = {
        key: {
            "type": type_name(field.annotation),
            "default": repr(variant.frozen.get(key, field.default)),
            "meaning": " ".join((field.description or "").split()),
        }
        for key, field in cls.Settings.model_fields.items()
    }
    return {
        "backbone": name,
        "variant_of": variant.backbone,
        "frozen": dict(variant.frozen),
        "class": entry.target,
        "summary": entry.summary or _first_line(cls),
        "about": cls.explanation(),
        "order": cls.order,
        "heads": list(cls.heads),
        "uses_related": cls.uses_related,
        "removes_points": cls.removes_points,
        "state": _state(name, cls),
        "settings": settings,
    }


def _state(name: str, cls: type[Backbone]) -> str:
    """Describe the size of the state of a model with the setting `state_budget`; empty for other models."""
    if "state_budget" not in cls.Settings.model_fields:
        return ""
    task, preset = _STATE_AT
    try:
        config = resolve_run(task, name, preset)
        size = config.build(config.task.build()).state_size
    except IclbenchError:  # the model cannot have the size of the preset
        return ""
    if size is None:
        return "grows with the sequence"
    return f"{integer(size)} numbers per episode (task {task}, preset {preset})"


def _first_line(cls: type) -> str:
    """Return the first line of a class's docstring; empty if it has none."""
    return next(iter((cls.__doc__ or "").strip().splitlines()), "")


def print_backbone(values: dict[str, Any]) -> None:
    """Print the values of a backbone."""
    frozen_text = ", ".join(f"{key} = {'the default' if v is None else v}" for key, v in values["frozen"].items())
    properties = [
        ["summary", values["summary"]],
        ["variant of", values["variant_of"] if values["variant_of"] != values["backbone"] else ""],
        ["frozen", frozen_text],
        ["class", values["class"]],
        ["reads points", _ORDERS[values["order"]]],
        ["heads", ", ".join(values["heads"])],
        ["related datasets", "used if the task has them" if values["uses_related"] else "not used"],
        ["removes points", "yes" if values["removes_points"] else "no"],
        ["state", values["state"]],
    ]
    print_table("", ["backbone", values["backbone"]], [line for line in properties if line[1]])
    if values["about"]:
        for line in ("", *_wrapped_lines(values["about"], out.width)):
            out.print(line, markup=False, highlight=False)
    if values["settings"]:
        out.print()
        rows = [
            [name, "-" if field["default"] == "None" else field["default"], field["meaning"] or field["type"]]
            for name, field in values["settings"].items()
        ]
        print_table("", ["setting", "default", "meaning"], rows)
    out.print("\nchange a setting: -o backbone.NAME=VALUE; the budget of the preset sets the size; types: --json")


def _wrapped_lines(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a docstring, wrapped to `width`. Indented blocks are not wrapped."""
    for block in re.split(r"(\n\n|\n(?=- ))", text):
        if block.isspace():
            yield from [""] * (block.count("\n") - 1)
        elif block.startswith("    "):
            yield from block.splitlines()
        else:
            yield from textwrap.wrap(" ".join(block.split()), width, subsequent_indent="  " * block.startswith("- "))


def type_name(annotation: Any) -> str:
    """Return the type of a setting in words: `int`, `'a' or 'b'`, `int or none`."""
    args = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return type_name(args[0])
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, args))
    if args and get_origin(annotation) in (Union, UnionType):
        return " or ".join(type_name(arg) for arg in args)
    if annotation is NoneType:
        return "none"
    return getattr(annotation, "__name__", str(annotation)) if not args else str(annotation)
