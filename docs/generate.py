"""Generate the reference pages from code and cards: commands, cards, tables, backbones, and the Python API."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

import iclbench
from iclbench.api import architectures
from iclbench.backbones.base import description
from iclbench.cli.lazy import COMMANDS, command_parser, command_summary
from iclbench.config.cards import BaselineCard, Curriculum, Preset, Published, Ramp, TaskCard, TrainSettings
from iclbench.config.pairs import Pair
from iclbench.config.rates import RateTable, TunedSettings, Tuning
from iclbench.core.bounds import build_to_measure
from iclbench.core.task import TaskShape
from iclbench.language.tasks.cards import LanguageCard, SuiteCard
from iclbench.registry import BACKBONES
from iclbench.sweep.grids import Cost, Evaluate, ExcludedPairs, GridCard, GridPart, Probe
from iclbench.tables import schema

CARDS: dict[str, Sequence[type[BaseModel]]] = {
    "Task cards": (TaskCard, Preset, TrainSettings, Curriculum, Ramp, Published),
    "Baseline cards": (BaselineCard,),
    "Grid cards": (GridCard, GridPart, Evaluate, Probe, Cost, ExcludedPairs, Pair),
    "Tables of learning rates": (RateTable, Tuning, TunedSettings),
    "Language cards": (LanguageCard, SuiteCard),
}
_OF_TABLES = {
    "values": "One row per measured value.",
    "costs": "Seconds, bytes, FLOPs and parameters.",
    "errors": "Errors of single episodes, for paired tests.",
    "examples": "Some episodes with predictions, for the figures of the report.",
    "answers": "Answers of language models.",
    "cells": "Cells of a sweep and their status.",
    "trials": "Trials of `iclbench tune`.",
}


def pages() -> dict[str, str]:
    """Return the Markdown of every page, by name."""
    return {
        "commands": commands(),
        "cards": cards(),
        "tables": tables(),
        "backbones": backbones(),
        "api": api(),
    }


def commands() -> str:
    """Return the page of all commands with their arguments and options, which are read from Typer."""
    parts = [
        "# Commands",
        "`iclbench COMMAND --help` prints the same information. `iclbench --debug COMMAND` shows the traceback of an "
        "error.",
    ]
    for name in COMMANDS:
        options = [p for p in command_parser(name).params if p.name != "debug" and not getattr(p, "hidden", False)]
        rows = [[f"`{_written(p)}`", _default(p), _cell(_plain(p.help or ""))] for p in options]
        parts += [f"## iclbench {name}", command_summary(name)]
        parts += [_table(["argument or option", "default", "meaning"], rows)] if rows else []
    return _joined(parts)


def _written(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default() if callable(parameter.default) else parameter.default
    variable_text = f"`{parameter.envvar}`" if getattr(parameter, "envvar", None) else ""
    value_text = "" if default in (None, False, (), [], "") else f"`{default}`"
    return " or ".join(text for text in (variable_text, value_text) if text)


def _plain(text: str) -> str:
    """Return the text without escapes of Rich and line breaks."""
    return " ".join(text.replace("\\[", "[").split())


def cards() -> str:
    """Return the page of all keys of cards, which are read from the pydantic models."""
    parts = ["# Cards", "The keys of the TOML files. Unknown keys, wrong types, NaN and infinities are errors."]
    for title, models in CARDS.items():
        parts.append(f"## {title}")
        for number, model in enumerate(models):
            parts += [f"### {_title(model)}"] if number or len(models) > 1 else []
            parts += [_prose(model), _table(["key", "value", "default", "meaning"], _keys(model))]
    return _joined(parts)


def _title(model: type[BaseModel]) -> str:
    """Return the title of a model: `Train settings` for `TrainSettings`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__)
    return words[0] + words[1:].lower()


def _prose(model: type[BaseModel]) -> str:
    """Return the docstring without its list of attributes."""
    return inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:")[0].strip()


def _keys(model: type[BaseModel]) -> Iterator[list[str]]:
    texts = meanings(model)
    for key, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{_value(field.get_default(call_default_factory=True))}`"
        yield [f"`{key}`", _cell(kind(field.annotation)), default, _cell(texts.get(key, ""))]


def _value(default: Any) -> str:
    """Return the default in TOML notation."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, BaseModel):
        return "{}"
    return str(list(default)) if isinstance(default, tuple) else repr(default)


def kind(annotation: Any) -> str:
    """Return the type of a key in words, such as `list of text` or `table of preset`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return ", ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(kind(each) for each in inner)
    if origin is list:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return "table" if inner[1] is Any else f"table of {kind(inner[1])}"
    if origin is tuple:
        return f"{len(inner)} of {kind(inner[0])}"
    words = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "none", Any: "value"}
    return words.get(annotation) or _title(annotation).lower()


@cache
def meanings(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the meaning of each key of a model: its description, or its entry below `Attributes` in the docstring."""
    classes = [cls for cls in reversed(model.__mro__) if issubclass(cls, BaseModel) and cls is not BaseModel]
    texts = {key: text for cls in classes for key, text in _attributes(inspect.cleandoc(cls.__doc__ or ""))}
    return texts | {key: field.description for key, field in model.model_fields.items() if field.description}


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts below `Attributes:`."""
    for entry in re.split(r"\n    (?=\S)", docstring.partition("\nAttributes:")[2]):
        name, colon, text = entry.strip().partition(": ")
        if colon and name.isidentifier():
            yield name, " ".join(text.split())


def tables() -> str:
    """Return the page of all columns of tables."""
    parts = [
        "# Tables",
        "Results are tidy parquet files; `iclbench.tables` reads and writes them. Every file records its schema; "
        f"this page describes schema {schema.SCHEMA_VERSION}.",
    ]
    for name, columns in schema.SCHEMAS.items():
        rows = ([f"`{c}`", dtype, "yes" if lacks else "", _cell(text)] for c, (dtype, lacks, text) in columns.items())
        keys = ", ".join(f"`{key}`" for key in schema.key_columns(name))
        parts += [f"## {name}", f"{_OF_TABLES[name]} Rows are identified by {keys}."]
        parts.append(_table(["column", "type", "may be missing", "meaning"], rows))
    return _joined(parts)


def backbones() -> str:
    """Return the page of all architectures: summaries, settings, numbers of parameters, and variants."""
    parts = [
        "# Backbones",
        "The idea, papers and equations of an architecture are at the top of its file. Counts of parameters are "
        "exact: with $L$ layers of width $D$, $d$ inputs, a scalar output and default values of all other settings; "
        "for models that read only events, with $K$ marks.",
    ]
    names = [name for name in BACKBONES.builtin_entries if name in BACKBONES.architectures()]
    for name in names:
        cls = BACKBONES.get(name)
        entry = BACKBONES.entry(name)
        module = description(sys.modules[cls.__module__].__doc__)
        class_text = cls.explanation() if cls.__module__.startswith("iclbench") else ""
        texts = meanings(cls.Settings)
        rows = [
            [f"`{key}`", _cell(kind(field.annotation)), f"`{_value(field.default)}`", _cell(texts.get(key, ""))]
            for key, field in cls.Settings.model_fields.items()
        ]
        others = [n for n in BACKBONES.builtin_entries if n != name and BACKBONES.variant(n).backbone == name]
        more = f" Variants: {', '.join(f'`{n}`' for n in others)}." if others else ""
        order = "reads points in order (causal)" if cls.order == "causal" else "reads points as a set"
        parts += [
            f"## {name}",
            f"{entry.summary[0].upper()}{entry.summary[1:]}; {order}. `{entry.target}`.{more}",
            f"Parameters: {formula(name)}",
            module,
            *([class_text] if class_text else []),
            _table(["setting", "value", "default", "meaning"], rows),
        ]
    return _joined(parts)


def parameters(name: str, layers: int, width: int, dim: int) -> int:
    """Return the number of trainable parameters for regression with `dim` inputs, or for events with `dim` marks."""
    cls = BACKBONES.get(name)
    settings: dict[str, Any] = dict(BACKBONES.variant(name).frozen)
    fields = cls.Settings.model_fields
    settings |= {"width": width} if "width" in fields else {}
    settings |= {"layers": layers} if "layers" in fields else {}
    settings = {key: value for key, value in settings.items() if value is not None}
    shape = TaskShape(x_dim=dim, y_dim=1, points=8)
    if cls.reads_only_events():
        shape = TaskShape(x_dim=0, y_dim=3, points=8, marks=dim, head="event")
    model = build_to_measure(lambda: cls(cls.Settings(**settings), shape), name, allocate=False)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


_TERMS = [(i, j, k) for k in (0, 1) for i in (0, 1) for j in (0, 1, 2)]
_WIDTHS, _DIMS = (32, 64, 128), (2, 5)


def formula(name: str) -> str:
    """Return the number of parameters as a polynomial in layers, width, and inputs or marks.

    The polynomial is fitted to some sizes and checked on others. If the check fails, the text gives the number for one
    size.
    """
    letters = "LDK" if BACKBONES.get(name).reads_only_events() else "LDd"
    sizes = [(n, w, d) for d in _DIMS for n in (2, 4) for w in _WIDTHS]
    counts = [parameters(name, *size) for size in sizes]
    matrix = [[Fraction(n**i * w**j * d**k) for i, j, k in _TERMS] for n, w, d in sizes]
    terms = dict(zip(_TERMS, _solved(matrix, [Fraction(f) for f in counts]), strict=True))
    for size in ((3, 96, 4), (5, 256, 7)):
        n, w, d = size
        if sum(c * n**i * w**j * d**k for (i, j, k), c in terms.items()) != parameters(name, *size):
            noun = "marks" if letters.endswith("K") else "inputs"
            return f"{parameters(name, 2, 64, 5):,} with two layers of width 64 and five {noun}."
    ordered = sorted(terms.items(), key=lambda term: tuple(-p for p in (term[0][0], term[0][1], term[0][2])))
    nonzero_terms = [(_term(powers, c, letters), c) for powers, c in ordered if c]
    text = "".join((" - " if c < 0 else " + ") + term for term, c in nonzero_terms).removeprefix(" + ")
    return f"${text}$."


def _term(powers: tuple[int, int, int], c: Fraction, letters: str) -> str:
    product = "".join(
        f"\\,{letter}" + (f"^{p}" if p > 1 else "") for letter, p in zip(letters, powers, strict=True) if p
    ).removeprefix("\\,")
    size = abs(c)
    number = str(size.numerator) if size.denominator == 1 else f"{size.numerator / size.denominator:g}"
    return product if number == "1" and product else f"{number}\\,{product}" if product else number


def _solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve a linear system by Gauss-Jordan elimination with exact fractions."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(len(rows)):
        pivot = next(n for n in range(column, len(rows)) if rows[n][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for n, row in enumerate(rows):
            if n != column and row[column]:
                rows[n] = [a - row[column] * b for a, b in zip(row, rows[column], strict=True)]
    return [row[-1] for row in rows]


def api() -> str:
    """Return the page of the public names, which Sphinx fills from their docstrings."""
    parts = [
        "# Python",
        "The names of `icl` (`import iclbench as icl`), which are imported on first use.",
    ]
    # The architectures are last, because there are many.
    for name in sorted(iclbench.__all__, key=lambda name: name in vars(architectures)):
        value = getattr(iclbench, name)
        if inspect.ismodule(value):
            parts.append(f"## icl.{name}\n\n" + inspect.cleandoc(value.__doc__ or ""))
            parts += [_auto("function", f"{value.__name__}.{inner}") for inner in _public(value)]
        elif callable(value):
            kind_of = "class" if isinstance(value, type) else "function"
            parts += [f"## icl.{name}", _auto(kind_of, f"{value.__module__}.{value.__qualname__}")]
    return _joined(parts)


def _public(module: Any) -> Iterator[str]:
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name


def _auto(kind_of: str, target: str) -> str:
    options = "\n   :members:\n   :exclude-members: set_fit_request, set_predict_request, set_score_request\n"
    options = options if kind_of == "class" else "\n"
    return f"```{{eval-rst}}\n.. auto{kind_of}:: {target}{options}```"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return the text for a cell of a Markdown table, with HTML and emphasis escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    escaped = (p if p.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", p) for p in parts)
    return "".join(escaped).replace("|", "\\|")


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
