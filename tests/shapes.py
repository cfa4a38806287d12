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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from torch import Tensor

try:  # the sizes of axes in the present context, which begins and ends
    from jaxtyping._storage import get_shape_memo as _memos
    from jaxtyping._storage import pop_shape_memo as _end
    from jaxtyping._storage import push_shape_memo as _begin
except ImportError:  # of jaxtyping alone: where they have gone, tensors are checked in jaxtyping's way
    _memos = None

_Shaped = type(jaxtyping.AbstractArray)
_slowly = _Shaped.__instancecheck__
_jaxtyped = jaxtyping.jaxtyped
_axes = _jaxtyped("context")
if _memos is None:
    _begin, _end = lambda arguments: _axes.__enter__(), lambda: _axes.__exit__(None, None, None)
# Of the calls of a function in one test those that are checked: so many, and of all others one in `EVERY`. A loop that
# calls it thousands of times calls it alike, and six checks of seven were of such calls.
FIRST, EVERY = 8, 32
_test = 0  # which test runs
# A `TypeError`, as Python and torch raise where something is of another type.
_typed = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def install() -> None:
    """Take the place of `jaxtyping.jaxtyped`, which the import hook writes before every function and class, and of its
    check of a tensor."""
    jaxtyping.jaxtyped = lambda typechecker: functools.partial(checked, typechecker=typechecker)
    if _memos is not None:
        _Shaped.__instancecheck__ = fits


def begin_test() -> None:
    """Every function's next call is its first."""
    global _test
    _test += 1


def fits(shape: Any, value: Any) -> bool:
    """jaxtyping's `isinstance` of a value and an annotated type, in a third of its time where axes are names, numbers,
    any size, and one `*name` or `...`."""
    axes = _axes_of(shape)
    if axes is None:
        return _slowly(shape, value)
    if not isinstance(value, Tensor):
        return False
    dtype = value.dtype
    if dtype not in axes.dtypes:
        axes.dtypes[dtype] = _slowly(shape.dtype[Tensor, "..."], torch.empty(0, dtype=dtype))
    if not axes.dtypes[dtype]:
        return False
    sizes: Sequence[int] = value.shape
    known, known_many, *_ = _memos()
    middle = None
    if axes.many is None:
        if len(sizes) != axes.least:
            return False
    else:
        more = len(sizes) - axes.least
        if more < 0:
            return False
        if axes.many:
            may_broadcast, middle = known_many.get(axes.many, _NEW)
            if may_broadcast:
                return _slowly(shape, value)
            if middle is None:
                middle = sizes[axes.first : axes.first + more]
            elif sizes[axes.first : axes.first + more] != middle:
                return False
        sizes = (*sizes[: axes.first], *sizes[axes.first + more :])
    new: dict[str, int] = {}
    for axis, size in zip(axes.others, sizes, strict=True):
        if axis.__class__ is int:
            if size != axis:
                return False
        elif axis is None or size == known.get(axis):
            continue
        elif axis in known or new.setdefault(axis, size) != size:
            return False
    if middle is not None:
        known_many[axes.many] = (False, middle)
    known.update(new)
    return True


_NEW = (False, None)  # a `*name` that has no sizes yet, and that nobody may broadcast


class _Axes(NamedTuple):
    """Of an annotated type: which types of numbers it takes, as far as they were asked for; how many axes come before
    the one of any number, that one's name ("": nobody's, None: there is none), and all others: their names, their
    sizes, None for any size; and how many these are."""

    dtypes: dict[torch.dtype, bool]
    first: int
    many: str | None
    others: tuple[int | str | None, ...]
    least: int


@functools.cache
def _axes_of(shape: Any) -> _Axes | None:
    """None: it has others than `fits` knows."""
    axes = shape.dim_str.replace("...", "*").split()
    many = [n for n, axis in enumerate(axes) if axis.startswith("*")]
    others = [axis for axis in axes if not axis.startswith("*")]
    names = [axis for axis in (*others, *(axes[n][1:] or "B" for n in many)) if not axis.isdecimal() and axis != "_"]
    if (
        shape.array_type is not Tensor
        or len(many) > 1
        or any(not name.isidentifier() or name.startswith("_") for name in names)
    ):
        return None
    return _Axes(
        {},
        many[0] if many else len(axes),
        axes[many[0]][1:] if many else None,
        tuple(int(axis) if axis.isdecimal() else None if axis == "_" else axis for axis in others),
        len(others),
    )


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

    calls, asked_in = 0, _test

    @functools.wraps(decorated)
    def in_its_own_context(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, asked_in
        if asked_in != _test:
            calls, asked_in = 0, _test
        calls += 1
        if calls > FIRST and calls % EVERY:
            return decorated(*args, **kwargs)
        _begin({})
        try:
            return typed(*args, **kwargs)
        except jaxtyping.TypeCheckError as violation:
            if not hasattr(violation, "__notes__"):
                violation.add_note(_sizes())
            raise
        finally:
            _end()

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
