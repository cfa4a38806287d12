"""What is asked of classes from outside iclbench: their faults are told under their own name.

Every method by which such a class fulfils a contract of ours (it overrides one of ours) is watched: an exception in it,
and an answer of another shape or type than was asked for, become one line that names class and method. So are the few
of ours in which methods of such a class meet. Classes of iclbench itself are left as they are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, get_args, get_type_hints

from iclbench.core.errors import IclbenchError, UsageError, one_line, shortened
from iclbench.core.formats import plural

# Methods of ours that call those of a class from outside in turn, and fail where these do not fit each other.
_INHERITED = {"sample", "sample_test", "predict_next", "predict_targets", "loss"}


class PluginError(IclbenchError):
    """A class from outside iclbench raised, or returned what was not asked for.

    Attributes:
        target: the predictor that it is or is part of, as `iclbench check` takes it; empty: it was still being built.
    """

    target = ""


# What settings derive from, by the module that asks for them; elsewhere it is `Strict`.
_SETTINGS = {"iclbench.backbones.base": "iclbench.backbones.base.BackboneSettings"}


def watched(cls: Any, target: str) -> Any:
    """The class behind `target`, with its methods watched, where it is from outside iclbench.

    Raises:
        UsageError: it lacks the class that checks its settings.
    """
    if not isinstance(cls, type) or is_ours(cls):
        return cls
    _watch(cls)
    needed = {name: base.__module__ for base in cls.__mro__ if is_ours(base) for name in inspect.get_annotations(base)}
    for name in {"Settings", "Parameters"} & needed.keys():
        if not hasattr(cls, name):
            settings = _SETTINGS.get(needed[name], "iclbench.config.cards.Strict")
            raise UsageError(f"'{target}' lacks `{name}`: write a subclass of {settings} into the class")
    return cls


def _watch(cls: type) -> None:
    """Put a watch on what a class fulfils a contract by."""
    theirs = [base for base in cls.__mro__ if _is_contracts(base)]
    contract = {name for base in cls.__mro__ if is_ours(base) for name in vars(base)}
    for base in theirs:
        for name, member in list(vars(base).items()):
            public = name == "__init__" or not name.startswith("_")
            if not public or name not in contract or getattr(member, "__isabstractmethod__", False):
                continue
            if inspect.isfunction(member) and not hasattr(member, "_watched"):
                setattr(base, name, _method(name, member, _values(cls, name)))
            elif isinstance(member, property) and member.fget and not hasattr(member.fget, "_watched"):
                setattr(base, name, property(_method(name, member.fget), member.fset, member.fdel, member.__doc__))
    for name in _INHERITED & contract - {own for base in theirs for own in vars(base)}:
        setattr(cls, name, _method(name, getattr(cls, name)))


def _watch_parts(instance: Any) -> None:
    """The same for the modules that a predictor is made of: blocks that stand below one of ours."""
    modules = instance.modules() if callable(getattr(instance, "modules", None)) else ()
    for part in {type(module) for module in modules} - {type(instance)}:
        if _is_contracts(part):
            _watch(part)


def _values(cls: type, name: str) -> int | None:
    """How many values a method of ours that is overridden says it returns; None: no tuple of a fixed size."""
    asked = next((vars(base)[name] for base in cls.__mro__ if is_ours(base) and name in vars(base)), None)
    returned = inspect.get_annotations(asked).get("return", "") if inspect.isfunction(asked) else ""
    hint = get_type_hints(asked)["return"] if str(returned).startswith("tuple[") else None
    parts = get_args(hint)
    return None if not parts or Ellipsis in parts else len(parts)


def is_ours(cls: type) -> bool:
    """Whether a class is part of iclbench."""
    return cls.__module__.partition(".")[0] == "iclbench"


def _is_contracts(cls: type) -> bool:
    """Whether a class is from outside and stands below one of ours."""
    return not is_ours(cls) and any(is_ours(base) for base in cls.__mro__)


def _method(name: str, function: Callable[..., Any], values: int | None = None) -> Callable[..., Any]:
    """The same with exceptions and answers watched, which are so many values."""
    check = _CHECKS.get(name)

    @wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        where = f"{_named(self)}.{name}"
        with _Watch(where, _target(self, name)):
            answer = function(self, *args, **kwargs)
            if name == "predict_by_related":
                return _each(iter(answer), where, lambda each: _check_targets(where, self, each, args, kwargs))
            if name == "__init__":
                _watch_parts(self)
            if values is not None and name not in _CHECKS:
                _check_values(where, answer, values)
            if check is not None:
                check(where, self, answer, args, kwargs)
        return answer

    call._watched = True  # type: ignore[attr-defined]
    return call


def _each(answers: Iterator[Any], where: str, check: Callable[[Any], None]) -> Iterator[Any]:
    """One answer after the other, watched."""
    while True:
        with _Watch(where):
            try:
                answer = next(answers)
            except StopIteration:
                return
        check(answer)
        yield answer


class _Watch:
    """Turns what is raised inside into one line with the name of the method; errors that name their fix, and those of
    memory, pass."""

    def __init__(self, where: str, target: str = "") -> None:
        self.where, self.target = where, target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if isinstance(error, PluginError):
            error.target = self.target or error.target
        if isinstance(error, SystemExit):
            raise self._told(
                f"{self.where} called sys.exit({shortened(repr(error.code))}); raise an exception instead"
            ) from error
        if not isinstance(error, Exception) or isinstance(error, IclbenchError | MemoryError):
            return
        if type(error).__name__ == "OutOfMemoryError" or "not enough memory" in str(error):
            return
        raise self._told(f"{self.where} raised {one_line(error)} (--debug shows where)") from error

    def _told(self, line: str) -> PluginError:
        told = PluginError(line)
        told.target = self.target
        return told


def _target(instance: Any, method: str) -> str:
    """What to check: a predictor that could be built."""
    return _named(instance) if hasattr(type(instance), "predict_next") and method != "__init__" else ""


def _named(instance: Any) -> str:
    """`package.module:Class`, as a user writes it."""
    cls = type(instance)
    return f"{cls.__module__}:{cls.__qualname__}"


# Axes of the parts of an answer, of several functions one more; a kind of prediction from elsewhere may have others.
_AXES = {"mean": 3, "std": 3, "means": 4, "stds": 4, "logits": 3}


def _answer(where: str, answer: Any, batch: int, positions: int, width: int | None) -> None:
    """Refuse all but a `Prediction` with a floating-point value for every asked position."""
    from iclbench.core.joint import Samples
    from iclbench.core.predictions import Categorical, Prediction

    if not isinstance(answer, Prediction):
        raise PluginError(f"{where} returned a {type(answer).__name__}, expected a Prediction such as Point(mean)")
    several = isinstance(answer, Samples)
    for name, tensor in answer.tensors().items():
        shape, axes = tuple(tensor.shape), _AXES[name] + several if name in _AXES else None
        last = width if axes and (name != "logits" or isinstance(answer, Categorical)) else None
        fits = shape[:2] == (batch, positions) and axes in (None, len(shape))
        if not fits or (last is not None and shape[-1] != last):
            between = ["functions"] * several + ["components"] * (name in ("means", "stds"))
            expected = ", ".join(map(str, (batch, positions, *between, "..." if last is None else last)))
            raise PluginError(f"{where} returned {shape}, expected ({expected})")
        if not tensor.is_floating_point():
            raise PluginError(f"{where} returned {str(tensor.dtype).removeprefix('torch.')}, expected float32")


def _argument(position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _width(predictor: Any, points: Any = None) -> int | None:
    """The last dimension of a mean, or of logits; None where it is not known."""
    if points is not None and points.y.is_floating_point():
        return int(points.y.shape[-1])
    about = getattr(predictor, "shape", None) or getattr(predictor, "facts", None)
    classes = getattr(about, "classes", None)
    return classes if classes is not None else getattr(about, "y_dim", None)


def _check_values(where: str, answer: Any, values: int) -> None:
    if not isinstance(answer, tuple) or len(answer) != values:
        found = plural(len(answer), "value") if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise PluginError(f"{where} returned {found}, expected {values}")


def _check_finish(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    asked, found = _argument(0, "hidden", args, kwargs).shape, getattr(answer, "shape", None)
    if found != asked:
        shown = type(answer).__name__ if found is None else tuple(found)
        raise PluginError(f"{where} returned {shown}, expected {tuple(asked)}: the width that the read-out takes")


def _check_next(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    points, prefixes, x_query = _argument(0, "points", args, kwargs), kwargs.get("prefixes"), kwargs.get("x_query")
    every = points.count if x_query is None else x_query.shape[1]
    _answer(where, answer, len(points), every if prefixes is None else len(prefixes), _width(own, points))


def _check_targets(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    batch, targets = _argument(1, "x_target", args, kwargs).shape[:2]
    _answer(where, answer, batch, targets, _width(own, _argument(0, "context", args, kwargs)))


def _check_query(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    batch, targets = _argument(1, "x", args, kwargs).shape[:2]
    _answer(where, answer, batch, targets, _width(own))


def _check_layers(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(answer, list | tuple):  # what yields its answers would have none left once they were looked at
        raise PluginError(
            f"{where} returned a {type(answer).__name__}, expected a list with a Prediction of every layer"
        )
    for each in answer:
        _check_targets(where, own, each, args, kwargs)


def _check_loss(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise PluginError(f"{where} returned a {type(answer).__name__}, expected a loss and a dict of its parts")
    loss = answer[0]
    if getattr(loss, "shape", None) != () or not loss.is_floating_point():
        found = tuple(loss.shape) if hasattr(loss, "shape") else type(loss).__name__
        raise PluginError(f"{where} returned a loss of {found}, expected a floating-point tensor of shape ()")


def _check_normaliser(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not (isinstance(answer, int | float) and math.isfinite(answer) and answer > 0):
        raise PluginError(
            f"{where} is {shortened(repr(answer))}, expected a positive number: the variance of the noiseless outputs"
        )


def _check_sample(where: str, own: Any, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from iclbench.core.episodes import Episodes

    if not isinstance(answer, Episodes):
        raise PluginError(f"{where} returned a {type(answer).__name__}, expected Episodes")
    for name, points in (("context", answer.context), ("targets", answer.targets)):
        if points is None:
            continue
        x, y, outputs = points.x, points.y, () if own.classes is not None else (own.y_dim,)
        if x.dim() != 3 or x.shape[-1] != own.x_dim:
            raise PluginError(f"{where} returned {name}.x of {tuple(x.shape)}, expected (..., ..., {own.x_dim})")
        if tuple(y.shape) != (*x.shape[:2], *outputs):
            raise PluginError(f"{where} returned {name}.y of {tuple(y.shape)}, expected {(*x.shape[:2], *outputs)}")
        if not x.is_floating_point() or y.is_floating_point() != (own.classes is None):
            wanted = "float32" if own.classes is None or not x.is_floating_point() else "int64"
            kind, tensor = ("x", x) if not x.is_floating_point() else ("y", y)
            found = str(tensor.dtype).removeprefix("torch.")
            raise PluginError(f"{where} returned {name}.{kind} as {found}, expected {wanted}")


_CHECKS: dict[str, Callable[[str, Any, Any, tuple[Any, ...], dict[str, Any]], None]] = {
    "predict_next": _check_next,
    "predict_targets": _check_targets,
    "predict_by_layer": _check_layers,
    "query": _check_query,
    "loss": _check_loss,
    "finish": _check_finish,
    "normaliser": _check_normaliser,
    "sample": _check_sample,
    "sample_test": _check_sample,
}
