"""The base class of settings, the roles of their keys, types for numbers, and validation with one-line errors."""

from __future__ import annotations

import json
import re
import reprlib
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from iclbench.core.errors import UnknownNameError, UsageError, shorten, shorten_to_line
from iclbench.core.formats import plural

_Model = TypeVar("_Model", bound=BaseModel)

# The upper bound is more than any machine can allocate. A mistyped size is then reported as an error in the card.
PositiveInt = Annotated[int, Field(gt=0, le=1_000_000_000)]
# Number of iterations of a looped model.
LoopCount = Annotated[int, Field(gt=0, le=1000)]
# Number of buckets of a histogram, two of which are tails.
Buckets = Annotated[int, Field(ge=2, le=100_000)]
SeedInt = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]

# Heads whose predictions are mixtures of several components.
MIXTURES = ("mixture", "event")


def _without_duplicates(value: list[Any]) -> list[Any]:
    for item in value:
        if value.count(item) > 1:
            raise PydanticCustomError("duplicate", "{item} is listed twice", {"item": repr(item)})
    return value


# Annotation for a list without repeated items.
Unique = AfterValidator(_without_duplicates)


def _as_range(value: Any) -> Any:
    return [value, value] if isinstance(value, int | float) and not isinstance(value, bool) else value


_Value = TypeVar("_Value")
# A range (smallest, largest). A single number n means (n, n).
Range = Annotated[tuple[_Value, _Value], Field(strict=False), BeforeValidator(_as_range)]


class Role(Enum):
    """What a key of a configuration affects. Fields are annotated as in `points: Annotated[PositiveInt,
    Role.TRAINED]`."""

    TRAINED = auto()  # affects the trained weights
    EVALUATED = auto()  # affects the values of an evaluation
    PROTOCOL = auto()  # `-o task.protocol.KEY` sets the key; the default is in the card or its preset
    MONITORING = auto()  # affects only the evaluations, logs, checkpoints and branches of a training run
    LOCATION = auto()  # is only the location of files; a fingerprint identifies their content
    REPORTING = auto()  # affects no values; it describes them, or names published results to compare them with


class BaseSettings(BaseModel):
    """Base class of settings. Unknown keys, wrong types, NaN and infinities raise errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    @cache
    def with_role(cls, role: Role) -> frozenset[str]:
        """Return the keys with this role."""
        return frozenset(key for key, field in cls.model_fields.items() if role in field.metadata)


class NoSettings(BaseSettings):
    """Settings for a class without settings."""


def validate(model: type[_Model], data: Any, where: str) -> _Model:
    """Build `model` from `data`.

    Args:
        model: class of the settings.
        data: the user's values.
        where: source of the values, with which error messages begin.

    Raises:
        UsageError: a key is unknown (code `unknown-name`) or missing (`missing-value`), a list contains an item twice
            (`duplicate`), or a value is invalid for another reason (`bad-value`). The message describes the first
            problem.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # A mistyped key causes two problems: it is unknown, and the correct key is missing. Only the message about the
        # unknown key contains the fix.
        problem = next((e for e in problems if e["type"] == "extra_forbidden"), problems[0])
    location = tuple(part for part in problem["loc"] if part != "[key]")
    key = shorten(shorten_to_line(".".join(str(part) for part in location)))
    if problem["type"] == "extra_forbidden":
        raise UsageError(f"{where}: {_unknown_key(model, location)}", code="unknown-name")
    if problem["type"] == "missing":
        raise UsageError(
            f"{where}: {key}: expected {_meaning(model, location)}, but the key is missing", code="missing-value"
        )
    prefix = f"{where}: {key}: " if key else f"{where}: "
    if problem["type"] == "duplicate":
        raise UsageError(prefix + shorten_to_line(problem["msg"]), code="duplicate")
    if problem["type"] == "value_error":
        raise UsageError(prefix + shorten_to_line(problem["msg"].removeprefix("Value error, ")), code="bad-value")
    if problem["type"] in ("model_type", "dict_type"):
        expected = "expected a table of keys"
    elif problem["type"] in ("tuple_type", "list_type"):
        example = json.dumps([problem["input"]]) if isinstance(problem["input"], str | int | float) else "[...]"
        expected = f"expected a list, {example}"
    elif problem["type"] == "too_short":
        expected = f"expected at least {plural(problem['ctx']['min_length'], 'item')}"
    else:
        # Remove pydantic's description of the input, which is printed below.
        requirement = re.sub(r", (got|unable to) .*", "", problem["msg"])
        expected = re.sub(r"^\w+ should ", "must ", requirement)
    raise UsageError(f"{prefix}{shorten_to_line(expected)}, got {reprlib.repr(problem['input'])}", code="bad-value")


def _nested(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the settings class of the table at `location`."""
    for key in location:
        field = model.model_fields.get(str(key))
        inner = _models_in(field.annotation) if field else []
        # A part of the location without a field is an index or the name of a preset, which does not change the class.
        model = inner[0] if inner else model
    return model


def _unknown_key(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return the message about an unknown key, with similar keys of the same table."""
    prefix = shorten_to_line("".join(f"{step}." for step in location[:-1]))
    known_keys = [prefix + key for key in _nested(model, location[:-1]).model_fields]
    return str(UnknownNameError("key", prefix + shorten_to_line(str(location[-1])), known_keys))


def _meaning(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return the description of a missing key, or the type of its value."""
    field = _nested(model, location[:-1]).model_fields.get(str(location[-1]))
    if field is None:
        return "a value"
    if field.description:
        return field.description
    kinds = {int: "a whole number", float: "a number", str: "a string", list: "a list"}
    annotation = getattr(field.annotation, "__origin__", field.annotation)
    return kinds.get(annotation, "a table of keys")  # type: ignore[arg-type]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models_in(argument)]
