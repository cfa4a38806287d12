"""What `--jaxtyping-packages` puts around every function of the rooms that it names: the same checks in less time.

`jaxtyping.jaxtyped` binds the arguments of every call by `inspect.signature` and checks them twice, once more when the
function has returned: half of the test run. Here beartype checks the function itself, and only signatures with shapes
get a context in which axes of one name have one size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from torch import Tensor

try:  # the sizes of axes in the present context
    from jaxtyping._storage import get_shape_memo as _memos
except ImportError:  # of jaxtyping alone: where it has gone, tensors are checked in jaxtyping's way
    _memos = None

_Shaped = type(jaxtyping.AbstractArray)
_slowly = _Shaped.__instancecheck__
_jaxtyped = jaxtyping.jaxtyped
_axes = _jaxtyped("context")
# A `TypeError`, as Python and torch raise where something is of another type.
_typed = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def install() -> None:
    """Take the place of `jaxtyping.jaxtyped`, which the import hook writes before every function and class, and of its
    check of a tensor."""
    jaxtyping.jaxtyped = lambda typechecker: functools.partial(checked, typechecker=typechecker)
    if _memos is not None:
        _Shaped.__instancecheck__ = fits


def fits(shape: Any, value: Any) -> bool:
    """jaxtyping's `isinstance` of a value and an annotated type, in half its time where axes are names, numbers
    and one `*name`."""
    axes = _axes_of(shape)
    if axes is None:
        return _slowly(shape, value)
    if not isinstance(value, Tensor):
        return False
    known, known_many, *_ = _memos()
    before, many, after = axes
    if many is not None and known_many.get(many, _EXACT)[0]:
        return _slowly(shape, value)
    sizes = value.shape
    more = len(sizes) - len(before) - len(after)
    if more < 0 or (more > 0 and many is None) or not _of_type(shape, value.dtype):
        return False
    middle = sizes[len(before) : len(before) + more]
    new: dict[str, int] = {}
    for axis, size in zip(before + after, sizes[: len(before)] + sizes[len(before) + more :], strict=True):
        if size != (axis if isinstance(axis, int) else known.get(axis, new.setdefault(axis, size))):
            return False
    if many is not None and known_many.setdefault(many, (False, middle))[1] != middle:
        return False
    known.update(new)
    return True


_EXACT = (False, ())  # a `*name` that nobody may broadcast


@functools.cache
def _axes_of(shape: Any) -> tuple[tuple[int | str, ...], str | None, tuple[int | str, ...]] | None:
    """The axes before the one of any number, its name, and those after it; None: others than `fits` knows."""
    axes = shape.dim_str.split()
    cut = next((n for n, axis in enumerate(axes) if axis.startswith("*")), len(axes))
    many = axes[cut][1:] if cut < len(axes) else None
    plain = [int(axis) if axis.isdecimal() else axis for axis in axes[:cut] + axes[cut + 1 :]]
    names = [axis for axis in (*plain, many or "B") if isinstance(axis, str)]
    if shape.array_type is not Tensor or any(not name.isidentifier() or name.startswith("_") for name in names):
        return None
    return tuple(plain[:cut]), many, tuple(plain[cut:])


@functools.cache
def _of_type(shape: Any, dtype: torch.dtype) -> bool:
    return _slowly(shape.dtype[Tensor, "..."], torch.empty(0, dtype=dtype))


def checked(decorated: Any, typechecker: Callable[[Any], Any]) -> Any:
    """A function that checks what it is called with and what it returns; a dataclass whose `__init__` does.

    Args:
        decorated: function or class.
        typechecker: for what is left to jaxtyping: generators, which have to be checked when they are called and not
            when they are asked for their first item, and shapes like "D {length}" that name an argument.
    """
    if isinstance(decorated, type):
        if dataclasses.is_dataclass(decorated) and not hasattr(decorated.__init__, "__wrapped__"):
            decorated.__init__ = checked(decorated.__init__, typechecker)  # type: ignore[method-assign]
        return decorated
    hints = _hints(decorated)
    shapes = [shape for hint in hints.values() for shape in _shapes(hint)]
    if inspect.isgeneratorfunction(decorated) or any("{" in shape for shape in shapes):
        return _jaxtyped(decorated, typechecker=typechecker)
    typed = _typed(_annotated(decorated, hints))
    if not hasattr(typed, "__wrapped__"):  # nothing to check
        return decorated
    if not shapes:
        return functools.update_wrapper(typed, decorated)

    @functools.wraps(decorated)
    def in_its_own_context(*args: Any, **kwargs: Any) -> Any:
        with _axes:
            try:
                return typed(*args, **kwargs)
            except jaxtyping.TypeCheckError as violation:
                if not hasattr(violation, "__notes__"):
                    violation.add_note(_sizes())
                raise

    return in_its_own_context


def _sizes() -> str:
    """What is known of the axes in the present context."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        jaxtyping.print_bindings()
    return printed.getvalue()


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations as types; `Any` where a name is known to type checkers alone, or not yet."""

    def hint(annotation: Any) -> Any:
        alone = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(alone, function.__globals__, include_extras=True)["it"]
        except Exception:  # whatever an annotation raises when it is evaluated
            return Any

    return {name: hint(annotation) for name, annotation in function.__annotations__.items()}


def _shapes(hint: Any) -> Iterator[str]:
    """The shapes in a type, also those within unions and containers."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        yield hint.dim_str
    for part in typing.get_args(hint):
        yield from _shapes(part)


def _annotated(function: types.FunctionType, hints: dict[str, Any]) -> types.FunctionType:
    """A copy of the function with other annotations."""
    parts = (function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy = functools.update_wrapper(types.FunctionType(*parts), function)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = hints
    del copy.__wrapped__
    return copy
