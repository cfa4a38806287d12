"""How a language model takes in its demonstrations: read once, thought over several times, or written several times.

A method applied to a model is part of the contestant's name: demo-lm, demo-lm+deep-thinking, demo-lm+repeat-2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iclbench.config.resolution import parse_overrides
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.core.settings import validate
from iclbench.deep_thinking.settings import METHODS, MethodSettings, slots_needed

# Raised whenever a change of a method gives other answers for the same settings.
VERSION = 1


@dataclass(frozen=True)
class Method:
    """A method with its settings.

    Attributes:
        name: one of `METHODS`.
        settings: of that method.
    """

    name: str
    settings: MethodSettings

    @property
    def suffix(self) -> str:
        """Suffix of the model's name: the method, and the settings that are not the defaults."""
        return self.settings.suffix(self.name)

    @property
    def hash(self) -> str:
        """Content hash of name and settings."""
        return content_hash({"method": self.name, "settings": self.settings.model_dump(), "version": VERSION})

    @property
    def times(self) -> int:
        """Number of times that the demonstrations are written."""
        return self.settings.copies

    @property
    def passes(self) -> int:
        """Forward passes over the demonstrations, at most."""
        return self.settings.most

    @property
    def controls(self) -> tuple[Method, ...]:
        """The methods that an evaluation compares this one with, besides plain ICL."""
        return tuple(Method(settings.method, settings) for settings in self.settings.controls())

    def too_long(self, demonstrations: int, query: int, longest: int | None) -> str:
        """Why a model that takes at most `longest` tokens cannot take in so many of demonstrations, as they are
        written, and of the longest query with an answer, as a clause for an error line; empty: it can."""
        slots = slots_needed(demonstrations, query, self.passes)
        if longest is None or slots <= longest:
            return ""
        if slots > demonstrations + query:
            return f"Deep-Thinking needs {slots} tokens ({demonstrations} of demonstrations, twice), it takes {longest}"
        parts = f"{demonstrations} of demonstrations, {query} of the query with its answer"
        return f"the prompt needs {slots} tokens ({parts}), it takes {longest}"


def method(name: str, overrides: Mapping[str, Any] | None = None) -> Method:
    """The method of this name, in either spelling; `overrides` are what `-o method.KEY=VALUE` gave.

    Raises:
        UnknownNameError: there is none of this name.
        UsageError: it has no such setting, or the value does not fit.
    """
    key = canonical(name)
    if key not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    settings = dict(overrides or {})
    if settings and not METHODS[key].model_fields:
        raise UsageError(f"method '{key}' has no settings, got {next(iter(settings))!r}; name another with --method")
    return Method(key, validate(METHODS[key], settings, f"method '{key}'"))


def method_as_typed(name: str, pairs: Sequence[str]) -> Method:
    """The method of this name with what `-o method.KEY=VALUE` said; errors as of `method`, or for other keys."""
    return method(name, parse_overrides(pairs, ("method",)).get("method"))
