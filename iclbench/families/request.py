"""What a family is asked to draw, in one object; families and callers of version 0.1.0 name its parts one by one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from iclbench.core.guard import fixed_state

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Request:
    """A batch of episodes to be drawn.

    Attributes:
        episodes: how many.
        points: context points per episode (families with variable contexts: at most so many). For the question `next`
            the last of them is only ever asked, so a trained length of 40 examples needs 41 points.
        generator: where all randomness comes from; its device is where the tensors live.
        active_dims: a curriculum's input dimensions in use; the others are 0. None: all.
        shift: a named change of the distribution, `none` for none.
        related: exactly so many related datasets in every episode; None: a number drawn per episode. Given the same
            generator, all else is the same whatever this says.
        before: of a prompt set, so many episodes are drawn by the requests before this one. Families that have only so
            many episodes go on behind them, so that none comes twice while there are others.
    """

    episodes: int
    points: int
    generator: torch.Generator
    _: KW_ONLY
    active_dims: int | None = None
    shift: str = "none"
    related: int | None = None
    before: int = 0


# What a family is asked by a request: its own and those that it inherits.
ASKED = ("sample", "sample_all_related", "sample_prompts")


def by_request(method: _Method) -> _Method:
    """The method, asked by a `Request` or, for one more version, by its parts; in either way it may be written."""
    old = _names_parts(method)

    @wraps(method)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Request):
            request = args[0]
        elif "request" in kwargs:
            request = kwargs["request"]
        else:
            _warn(f"{method.__name__}(episodes, points, generator, ...)", f"{method.__name__}(Request(...))")
            # `sample_prompts` took a shift by position, too.
            named: Any = dict(zip(("episodes", "points", "generator", "shift"), args, strict=False)) | kwargs
            request = Request(**named)
        if not old:
            with fixed_state():
                return method(self, request)
        # A family that has no related datasets, say, need not take their number.
        given = {field.name: getattr(request, field.name) for field in fields(request) if field.default is not MISSING}
        changed = {name: value for name, value in given.items() if value != getattr(Request, name)}
        changed.pop("before", None)  # methods of this form are older
        with fixed_state():
            return method(self, request.episodes, request.points, request.generator, **changed)

    return cast(_Method, ask)


def take_requests(family: type) -> None:
    """Let every method of a family's class that draws be asked by a `Request`, however it is written."""
    for name in ASKED:
        method = vars(family).get(name)
        if inspect.isfunction(method):
            if _names_parts(method):
                _warn(f"{family.__qualname__}.{name}(self, episodes, points, generator, ...)", f"{name}(self, request)")
            setattr(family, name, by_request(method))


def _names_parts(method: Callable[..., Any]) -> bool:
    """Whether a method is written for the parts of a request."""
    _, *asked = inspect.signature(method).parameters.values()
    return len(asked) != 1 or asked[0].kind in (asked[0].VAR_POSITIONAL, asked[0].VAR_KEYWORD)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"'{old}' is '{new}' now; the old form goes with the next version", DeprecationWarning, stacklevel=3)
