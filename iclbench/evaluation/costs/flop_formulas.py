"""Formulas for the floating-point operations (FLOPs) of single torch operations, by their names in the dispatcher.

The conventions, of which only the first is common to all tools:

    a multiplication with an addition                               2
    elementwise arithmetic, a comparison of numbers                 1 per output element
    exp, tanh, GELU, powers and similar functions, and derivatives  1 per output element
    a sum, mean, maximum, cumulative sum                            1 per input element
    layer norm, group norm                                          7 per element, backward 13
    softmax                                                         5 per element, backward 4
    Fourier transform of length N                                   5 N log2 N, or half of this for real numbers
    complex numbers                                                 a sum 2, a product 6, any other function 2
    integers, booleans, copies, views, sorting, random numbers      0

Attention includes all pairs of queries and keys, even if they are masked. Matrix products and convolutions have the
same formulas as in torch.utils.flop_counter, plus the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

from torch import Tensor
from torch.utils import flop_counter

# A function that computes FLOPs from the positional arguments and the output of an operation.
Formula = Callable[[Sequence[Any], Any], int]


def per_output(weight: int = 1) -> Formula:
    """Return a formula with `weight` FLOPs per element of the (first) output, doubled for complex numbers."""
    return lambda args, out: weight * _parts(_first(out)) * _first(out).numel()


def per_input(weight: int = 1, position: int = 0) -> Formula:
    """Return a formula with `weight` FLOPs per element of the argument at `position`, doubled for complex numbers."""
    return lambda args, out: weight * _parts(args[position]) * args[position].numel()


def _product(args: Sequence[Any], out: Any) -> int:
    return (6 if _first(out).is_complex() else 1) * _first(out).numel()


def _product_and_sum(args: Sequence[Any], out: Any) -> int:
    return (8 if _first(out).is_complex() else 2) * _first(out).numel()


def _matrix_product(args: Sequence[Any], out: Any) -> int:
    """2 m k n for each product of shape (m, k) times (k, n); n is 1 for a vector."""
    return (4 if out.is_complex() else 1) * 2 * out.numel() * args[0].shape[-1]


def _matrix_product_added(args: Sequence[Any], out: Any) -> int:
    return _matrix_product(args[1:], out) + _parts(out) * out.numel()


def _convolution(args: Sequence[Any], out: Any) -> int:
    x, weight, bias, transposed = args[0], args[1], args[2], args[6]
    products = flop_counter.conv_flop_count(list(x.shape), list(weight.shape), list(out.shape), transposed)
    return products + (0 if bias is None else out.numel())


def _convolution_backward(args: Sequence[Any], out: Any) -> int:
    products: int = flop_counter.conv_backward_flop(*args, out_val=out)
    return products + (args[0].numel() if args[-1][2] else 0)


def _pairs_and_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int]:
    """Return the number of pairs of a query and a key over all heads, and the widths of keys and values."""
    return prod(q.shape[:-1]) * k.shape[-2], q.shape[-1], v.shape[-1]


def _attention_forward(args: Sequence[Any], out: Any) -> int:
    """Two products, the scaling and the softmax."""
    pairs, key_width, value_width = _pairs_and_widths(*args[:3])
    return pairs * (2 * (key_width + value_width) + 1 + 5)


def _attention_backward(args: Sequence[Any], out: Any) -> int:
    """The recomputed scores and weights (scaling, subtraction, exp), the gradients of weights, values, scores (three
    FLOPs), queries and keys, and the inner products of the output and its gradient."""
    pairs, key_width, value_width = _pairs_and_widths(*args[1:4])
    return pairs * (2 * (3 * key_width + 2 * value_width) + 3 + 3) + 2 * args[0].numel()


def _fourier(real: Callable[[Sequence[Any], Any], Tensor] | None) -> Formula:
    """Return a formula with 5 N log2 N for each transform, or half of this for real numbers.

    `real` selects the real tensor, whose length is N; None for complex transforms.
    """

    def formula(args: Sequence[Any], out: Any) -> int:
        signal = real(args, out) if real else out
        size = prod(signal.shape[axis] for axis in args[1])
        return round((2.5 if real else 5) * signal.numel() * log2(size))

    return formula


def _cholesky(args: Sequence[Any], out: Any) -> int:
    """n³/3 for each matrix."""
    return (4 if args[0].is_complex() else 1) * args[0].numel() * args[0].shape[-1] // 3


def _triangular_solve(args: Sequence[Any], out: Any) -> int:
    """n² for each right-hand side; the matrix is the first argument."""
    return (4 if out.is_complex() else 1) * out.numel() * args[0].shape[-1]


def _solve(args: Sequence[Any], out: Any) -> int:
    """2/3 n³ for the LU factors, and two triangular solves."""
    matrix, solution = args[0], out[0]
    weight = 4 if matrix.is_complex() else 1
    return weight * (2 * matrix.numel() * matrix.shape[-1] // 3 + 2 * solution.numel() * matrix.shape[-1])


def _solve_by_factors(args: Sequence[Any], out: Any) -> int:
    return 2 * _triangular_solve(args, out)


def _solve_by_cholesky_factor(args: Sequence[Any], out: Any) -> int:
    """Two triangular solves; the factor is the second argument."""
    return 2 * _triangular_solve(args[1:], out)


def _distances(args: Sequence[Any], out: Any) -> int:
    """A difference, a power and a sum in each dimension."""
    return 3 * out.numel() * args[0].shape[-1]


def _lstm(args: Sequence[Any], out: Any) -> int:
    """For each token, the products with x and h, their sum with two biases, four activations, the new cell (three) and
    the output (two)."""
    tokens, inputs, hidden = prod(args[0].shape[:-1]), args[0].shape[-1], args[1].shape[0] // 4
    return tokens * hidden * (8 * (inputs + hidden) + 3 * 4 + 4 + 3 + 2)


def _lstm_backward(args: Sequence[Any], out: Any) -> int:
    """For each token, both products twice, the derivatives of the activations, the products with these derivatives
    (cell, output and four gates), and the sums for the gradients of biases and states."""
    tokens, inputs, hidden = prod(args[0].shape[:-1]), args[0].shape[-1], args[1].shape[0] // 4
    return tokens * hidden * (16 * (inputs + hidden) + 3 * 4 + 4 + 8 + 3 + 4)


def _first(out: Any) -> Tensor:
    """Return the output of an operation, or the first of several outputs."""
    tensor: Tensor = out[0] if isinstance(out, list | tuple) else out
    return tensor


def _parts(tensor: Tensor) -> int:
    """Return the number of real numbers per element: 2 for a complex tensor, otherwise 1."""
    return 2 if tensor.is_complex() else 1


# Formulas by name of the operation. The names of in-place operations have no trailing underscore.
FORMULAS: dict[str, Formula] = {
    "mm": _matrix_product,
    "bmm": _matrix_product,
    "mv": _matrix_product,
    "dot": _matrix_product,
    "addmm": _matrix_product_added,
    "baddbmm": _matrix_product_added,
    "addmv": _matrix_product_added,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_fft_r2c": _fourier(lambda args, out: args[0]),
    "_fft_c2r": _fourier(lambda args, out: out),
    "_fft_c2c": _fourier(None),
    "linalg_cholesky_ex": _cholesky,
    "cholesky_solve": _solve_by_cholesky_factor,
    "linalg_solve_triangular": _triangular_solve,
    "_linalg_solve_ex": _solve,
    "linalg_lu_solve": _solve_by_factors,
    "_cdist_forward": _distances,
    "mul": _product,
    "addcmul": _product_and_sum,
    "addcdiv": _product_and_sum,
    "lerp": per_output(3),
    "native_layer_norm": per_output(7),
    "native_layer_norm_backward": per_input(13),
    "native_group_norm": per_output(7),
    "native_group_norm_backward": per_input(13),
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
    "_softmax": per_output(5),
    "_safe_softmax": per_output(5),
    "_softmax_backward_data": per_output(4),
    "_log_softmax": per_output(5),
    "_log_softmax_backward_data": per_output(4),
    "logsumexp": per_input(4),
    "logcumsumexp": per_input(4),
    "linalg_vector_norm": per_input(2),
    "var": per_input(4),
    "std": per_input(4),
    "var_mean": per_input(4),
    "cumsum": per_input(),
    "cumprod": per_input(),
    "cummax": per_input(),
    "prod": per_input(),
    "mse_loss": per_input(3),
    "glu": per_output(2),
    "glu_backward": per_input(5),
    "_adaptive_avg_pool2d": per_input(),
    "native_dropout": per_output(),
    "polar": per_output(2),
    "softplus_backward": per_output(),
    "log_sigmoid_forward": per_output(),
    "log_sigmoid_backward": per_output(),
    "elu_backward": per_output(),
    "logaddexp": per_output(),
    "embedding_dense_backward": per_input(),
    "index_add": per_input(position=3),
    "scatter_add": per_input(position=3),
}

# Operations that copy, create, select or sort numbers without arithmetic.
_WITHOUT_ARITHMETIC = """
    _conj_physical _fused_sdp_choice _linalg_check_errors _local_scalar_dense _reshape_alias _to_copy _unique2
    _unsafe_view alias arange argsort as_strided as_strided_scatter bernoulli cat clone complex conj_physical
    constant_pad_nd copy detach diag_embed diagonal_backward diagonal_scatter embedding empty empty_like empty_strided
    equal expand_copy exponential eye fill flip full full_like gather hstack index index_copy index_fill index_put
    index_select kthvalue lift_fresh lift_fresh_copy linspace masked_fill masked_scatter masked_select median
    new_empty new_empty_strided new_full new_ones new_zeros nonzero normal ones ones_like pad
    rand rand_like randint randn randn_like random randperm reflection_pad1d reflection_pad2d repeat
    repeat_interleave replication_pad1d replication_pad2d resize roll scalar_tensor scatter select_backward
    select_scatter set slice_backward slice_scatter sort split_with_sizes_copy squeeze stack topk transpose tril triu
    uniform unsafe_split unsqueeze view_copy where zero zeros zeros_like
"""
WITHOUT_ARITHMETIC = frozenset(_WITHOUT_ARITHMETIC.split())
