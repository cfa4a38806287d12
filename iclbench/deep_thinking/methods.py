"""Methods of reading demonstrations: once, with Deep-Thinking, or repeated in the prompt.

A method is part of a model's name: demo-lm, demo-lm+deep-thinking, demo-lm+repeat-2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iclbench.config.resolution import parse_overrides
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import validate
from iclbench.deep_thinking.settings import METHODS, MethodSettings, slots_needed
from iclbench.store import identity


@dataclass(frozen=True)
class Method:
    """A method with its settings.

    Attributes:
        name: one of `METHODS`.
        settings: settings of the method.
    """

    name: str
    settings: MethodSettings

    @property
    def suffix(self) -> str:
        """Suffix of the model's name: the method, and settings that differ from the defaults."""
        return self.settings.suffix(self.name)

    @property
    def hash(self) -> str:
        """The identity of the method."""
        return identity.context_method_id(self.name, self.settings)

    @property
    def times(self) -> int:
        """Number of copies of the demonstrations in the prompt."""
        return self.settings.copies

    @property
    def passes(self) -> int:
        """Largest number of forward passes over the demonstrations."""
        return self.settings.pass_limit

    @property
    def controls(self) -> tuple[Method, ...]:
        """The methods, in addition to plain ICL, with which an evaluation compares this method."""
        return tuple(Method(settings.method, settings) for settings in self.settings.controls())

    def too_long(self, demonstrations: int, query: int, longest: int | None) -> str:
        """Return the reason why a prompt is too long for a model, as a clause of an error message; empty if it is not
        too long.

        Args:
            demonstrations: number of tokens of the demonstrations, including copies.
            query: number of tokens of the longest query with an answer.
            longest: largest number of tokens that the model accepts; None means no limit.
        """
        slots = slots_needed(demonstrations, query, self.passes)
        if longest is None or slots <= longest:
            return ""
        if slots > demonstrations + query:
            counts = f"{demonstrations} of demonstrations, twice"
            return f"Deep-Thinking needs {slots} tokens ({counts}), but the model takes {longest}"
        counts = f"{demonstrations} of demonstrations, {query} of the query with its answer"
        return f"the prompt needs {slots} tokens ({counts}), but the model takes {longest}"


def method(name: str, overrides: Mapping[str, Any] | None = None) -> Method:
    """Return the method with this name, which may have hyphens or underscores.

    Args:
        name: the name.
        overrides: settings from `-o method.KEY=VALUE`.

    Raises:
        UnknownNameError: no method has this name.
        UsageError: the method does not have the setting, or the value is not valid.
    """
    key = canonical(name)
    if key not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    settings = dict(overrides or {})
    if settings and not METHODS[key].model_fields:
        raise UsageError(
            f"method '{key}' has no settings, got {next(iter(settings))!r}; give another --method",
            code="not-applicable",
        )
    return Method(key, validate(METHODS[key], settings, f"method '{key}'"))


def parse_method(name: str, pairs: Sequence[str]) -> Method:
    """Return the method with this name and with overrides in the form of `-o` options.

    Raises:
        UsageError: as for `method`, or an override does not start with `method.`.
    """
    return method(name, parse_overrides(pairs, ("method",)).get("method"))
