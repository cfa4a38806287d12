"""The checks of signatures in the test run refuse what those of jaxtyping refuse, which they stand in for."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from beartype import beartype
from jaxtyping import AbstractArray, AnnotationError, Bool, Float, Int, Shaped, TypeCheckError
from torch import Tensor

from iclbench.layers.attention import AttentionLayer
from tests import shapes
from tests.shapes import _axes, _axes_of, _jaxtyped, _sizes, _slowly, checked, fits

BATCH = torch.ones(3, 4)


def agree(x: Float[Tensor, "B N"], y: Float[Tensor, " B"]) -> Float[Tensor, "B N"]:
    return x if len(y) else y[None]


def other(x: Float[Tensor, "B N"]) -> Float[Tensor, "N B"]:
    return x


def within(x: Float[Tensor, "B N"] | None, more: list[Float[Tensor, " B"]] | None = None) -> None:
    pass


def named(x: Int[Tensor, " B"], length: int) -> Float[Tensor, "B {length}"]:
    return torch.ones(len(x), 4)


def plain(count: int, name: str = "one") -> str:
    return name * count if count else 0  # type: ignore[return-value]


def items(x: Float[Tensor, "B N"], y: Float[Tensor, " B"]) -> Iterator[float]:
    yield from x.flatten()


def unknown(x: "Nothing", y: int) -> "Nothing":  # type: ignore[name-defined]  # noqa: F821
    return x


@dataclass(frozen=True)
class Pair:
    x: Float[Tensor, "B N"]
    y: Float[Tensor, " B"]


CASES: list[tuple[Any, tuple[Any, ...], bool]] = [
    (agree, (BATCH, BATCH[:, 0]), True),
    (agree, (BATCH, BATCH[0]), False),
    (agree, (BATCH, BATCH), False),
    (agree, (BATCH.int(), BATCH[:, 0]), False),
    (agree, (BATCH, "y"), False),
    (other, (BATCH,), False),
    (other, (BATCH[:, :3],), True),
    (within, (None,), True),
    (within, (BATCH, [BATCH[:, 0]]), True),
    (within, (BATCH, [BATCH[0]]), False),
    (named, (torch.arange(3), 4), True),
    (named, (torch.arange(3), 5), False),
    (plain, (2,), True),
    (plain, (2, "two"), True),
    (plain, (2.0,), False),
    (plain, (0,), False),
    (items, (BATCH, BATCH[:, 0]), True),
    (items, (BATCH, BATCH[0]), False),
    (unknown, ("x", 1), True),
    (unknown, ("x", "y"), False),
    (Pair, (BATCH, BATCH[:, 0]), True),
    (Pair, (BATCH, BATCH[0]), False),
]


@pytest.mark.parametrize("decorator", [checked, _jaxtyped])
@pytest.mark.parametrize(("function", "arguments", "fits"), CASES)
def test_what_does_not_fit_is_refused(
    decorator: Callable[..., Any], function: Any, arguments: tuple[Any, ...], fits: bool
) -> None:
    if isinstance(function, type):
        function = dataclass(frozen=True)(type("Copy", (), {"__annotations__": function.__annotations__}))
    call = functools.partial(decorator(function, typechecker=beartype), *arguments)
    if fits:
        call()
    else:
        with pytest.raises(TypeCheckError):
            call()


PLAIN = ["", "B", "B N", "B B", "N B", "3 N", "B 4", "*many", "*many N", "B *many", "B *many B", "*many 4 N"]
PLAIN += ["_ N", "B _ _", "...", "... N", "B ... _"]
SHAPES = [*PLAIN, "#B N", "*#many N", "B+1 N"]
TENSORS = [torch.ones(size) for size in ((), (3,), (3, 4), (3, 3), (1, 4), (3, 4, 3), (2, 3, 4, 4))]


@pytest.mark.parametrize("first", SHAPES)
def test_a_tensor_fits_a_shape_as_jaxtyping_says_and_leaves_the_same_sizes(first: str) -> None:
    """Before and after every other shape."""

    def said(check: Callable[[Any, Any], bool], shape: str, value: Any) -> bool | str:
        try:
            return check(Float[Tensor, shape], value)
        except AnnotationError:  # "B+1" of what nobody knows
            return "unknown"

    def asked(check: Callable[[Any, Any], bool], *pairs: tuple[str, Any]) -> tuple[list[bool | str], str]:
        with _axes:
            return [said(check, *pair) for pair in pairs], _sizes()

    for one, second, other in itertools.product(TENSORS, SHAPES, (*TENSORS, None)):
        pairs = (first, one), (second, other)
        assert asked(fits, *pairs) == asked(_slowly, *pairs), pairs


@pytest.mark.parametrize("kind", [Float, Int, Bool, Shaped])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_fits_a_type_as_jaxtyping_says(kind: Any, dtype: torch.dtype) -> None:
    assert fits(kind[Tensor, "B"], torch.ones(3, dtype=dtype)) is _slowly(kind[Tensor, "B"], torch.ones(3, dtype=dtype))


def test_plain_shapes_are_asked_in_the_quick_way() -> None:
    assert [shape for shape in SHAPES if _axes_of(Float[Tensor, shape])] == PLAIN
    assert type(AbstractArray).__instancecheck__ is fits
    assert isinstance(BATCH, Float[Tensor, "B N"]) and not isinstance(BATCH, Float[Tensor, "B B"])


def test_axes_of_one_call_are_not_those_of_a_call_within_it() -> None:
    @functools.partial(checked, typechecker=beartype)
    def outer(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return inner(x.T).T

    @functools.partial(checked, typechecker=beartype)
    def inner(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return x

    assert outer(BATCH) is not None


def test_the_first_calls_of_every_test_are_checked_and_of_a_long_loop_some() -> None:
    function = checked(other, typechecker=beartype)

    def refused() -> bool:
        try:
            function(BATCH)
        except TypeCheckError:
            return True
        return False

    calls = [refused() for _ in range(4 * shapes.EVERY)]
    assert all(calls[: shapes.FIRST]) and sum(calls) == shapes.FIRST + 4
    assert not refused()
    shapes.begin_test()
    assert refused()


def test_functions_of_the_rooms_are_checked_in_this_way(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("jaxtyping_packages"):
        pytest.skip("this run checks no shapes")
    assert AttentionLayer.keys.__code__.co_name == "in_its_own_context"
    layer, tokens = AttentionLayer(8, 2), torch.ones(2, 5, 8)
    layer.keys(tokens, torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(TypeCheckError) as raised:
        layer.keys(tokens, torch.ones(3, 5, dtype=torch.bool))
    assert "B=2\nT=5\nD=8" in raised.value.__notes__[0]
    with pytest.raises(TypeCheckError):
        AttentionLayer("8", 2)  # type: ignore[arg-type]
