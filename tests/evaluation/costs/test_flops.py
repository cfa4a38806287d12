"""Counted FLOPs against explicit counts for each operation, and against Kaplan et al. for GPT-2."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from iclbench.config.resolution import resolve_task
from iclbench.core.seeds import generator
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.flop_formulas import FORMULAS
from iclbench.evaluation.costs.flops import UncountedError, _Counter, _operation_name, count_flops
from iclbench.families.request import Request
from iclbench.layers.long_convolution import convolve_by_fft, convolve_by_toeplitz
from iclbench.layers.scan.scan import selective_scan
from iclbench.registry import BACKBONES

B, T, D, H = 3, 7, 16, 4


def random(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)


def run_backward(output: torch.Tensor) -> None:
    output.backward(torch.ones_like(output))


def test_a_linear_layer_has_two_flops_per_weight_and_four_in_the_backward_pass() -> None:
    layer, x = torch.nn.Linear(D, 5), random(B, D, grad=True)
    assert count_flops(lambda: layer(x)) == 2 * B * D * 5 + B * 5
    # The gradients of input, weight and bias.
    assert count_flops(lambda: run_backward(layer(x))) == 2 * B * D * 5 + B * 5 + 2 * (2 * B * D * 5) + B * 5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_count_is_the_same_with_no_grad_and_inference_mode(mode: type) -> None:
    layer = torch.nn.TransformerEncoderLayer(D, H, 32, dropout=0.0, batch_first=True)
    x = random(B, T, D)
    expected = count_flops(lambda: layer(x))
    with mode():
        assert count_flops(lambda: layer(x)) == pytest.approx(expected, rel=0.01)


def test_flops_of_attention_are_the_sum_over_its_operations() -> None:
    """The operations are scores, scaling, softmax (maximum, difference, exp, sum, quotient) and weighted values."""
    q, k, v = random(B, H, T, D), random(B, H, 9, D), random(B, H, 9, D)
    by_hand = B * H * T * 9 * (2 * D + 1 + 5 + 2 * D)
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == by_hand
    assert count_flops(lambda: ((q @ k.mT) / math.sqrt(D)).softmax(-1) @ v) == by_hand


def test_the_backward_pass_of_attention_has_five_matrix_products() -> None:
    """In algorithm 4 of Dao et al. 2022, the products recompute the scores and give the gradients of values, weights,
    queries and keys. In addition, each pair of query and key needs three operations for the weight and three for the
    gradient of the score, and each output vector needs an inner product."""
    q, k, v = (random(B, H, T, D, grad=True) for _ in range(3))
    forward = count_flops(lambda: F.scaled_dot_product_attention(q, k, v))
    backward = B * H * T * T * (5 * 2 * D + 6) + 2 * B * H * T * D
    assert count_flops(lambda: run_backward(F.scaled_dot_product_attention(q, k, v))) == forward + backward


def test_flops_of_layer_norm_match_its_formula_and_gradient() -> None:
    """The reference uses elementary operations, and needs two more operations per row in the forward pass."""
    x, weight, bias, grad = random(B, T, D, grad=True), random(D, grad=True), random(D, grad=True), random(B, T, D)
    rows = B * T

    def statistics() -> tuple[torch.Tensor, torch.Tensor]:
        centred = x - x.mean(-1, keepdim=True)
        return centred, (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    def forward() -> torch.Tensor:
        centred, scale = statistics()
        return centred * scale * weight + bias

    def backward(centred: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor) -> list[torch.Tensor]:
        normed, weighed = (x - mean) * scale, grad * weight
        dx = (weighed - weighed.mean(-1, keepdim=True) - normed * (weighed * normed).mean(-1, keepdim=True)) * scale
        return [dx, (grad * normed).sum((0, 1)), grad.sum((0, 1))]

    library = F.layer_norm(x, (D,), weight, bias)
    torch.testing.assert_close(forward(), library)
    with torch.no_grad():
        statistics_of_x = (*statistics(), x.mean(-1, keepdim=True))
        torch.testing.assert_close(
            backward(*statistics_of_x), list(torch.autograd.grad(library, (x, weight, bias), grad))
        )
        forward_flops, backward_flops = count_flops(forward), count_flops(lambda: backward(*statistics_of_x))
    fused = count_flops(lambda: F.layer_norm(x, (D,), weight, bias))
    assert fused == forward_flops - 2 * rows == 7 * rows * D
    assert count_flops(lambda: F.layer_norm(x, (D,), weight, bias).backward(grad)) == fused + backward_flops
    assert backward_flops == 13 * rows * D


def test_flops_of_an_s4_convolution_match_its_fourier_transforms_or_matrix_product() -> None:
    u, kernel = random(D, B, T), random(D, T)
    real = 2.5 * 2 * T * math.log2(2 * T)
    by_hand = (D * B + D) * real + 6 * D * B * (T + 1) + D * B * real
    assert count_flops(lambda: convolve_by_fft(u, kernel)) == pytest.approx(by_hand, rel=1e-4)
    assert count_flops(lambda: convolve_by_toeplitz(u, kernel)) == 2 * D * B * T * T
    z = torch.complex(u, u)
    assert count_flops(lambda: torch.fft.fft2(z)) == pytest.approx(D * 5 * B * T * math.log2(B * T), rel=1e-4)


def test_operations_inside_a_mamba_scan_are_counted() -> None:
    """Seven operations are needed per token, channel and state: dt A, exp, the product with the state, dt u times B,
    its sum with the state, C h, and the sum of C h over states. One is needed per token and channel (dt u), and one
    per channel and state (the factor of A that changes the base of exp)."""
    states = 5
    u, dt, A, Bs, Cs = random(B, T, D), random(B, T, D), random(D, states), random(B, T, states), random(B, T, states)
    by_hand = 7 * B * T * D * states + B * T * D + D * states
    positive, negative = dt.abs(), -A.abs()
    assert count_flops(lambda: selective_scan(u, positive, negative, Bs, Cs)) == by_hand
    u.requires_grad_()
    with_backward = count_flops(lambda: run_backward(selective_scan(u, positive, negative, Bs, Cs)[0]))
    assert 2.5 * by_hand < with_backward < 4.5 * by_hand


def test_a_convolution_has_two_flops_per_tap_and_channel() -> None:
    layer, x = torch.nn.Conv2d(4, 6, 3, groups=2), random(B, 4, 8, 8)
    outputs = B * 6 * 6 * 6
    assert count_flops(lambda: layer(x)) == outputs * (2 * 2 * 9 + 1)


@pytest.mark.parametrize("bias", [True, False])
def test_the_backward_pass_of_a_convolution_has_twice_the_flops_and_a_sum_for_the_bias(bias: bool) -> None:
    layer, x = torch.nn.Conv2d(4, 6, 3, bias=bias), random(B, 4, 8, 8, grad=True)
    outputs = B * 6 * 6 * 6
    assert count_flops(lambda: layer(x)) == outputs * (2 * 4 * 9 + bias)
    assert count_flops(lambda: run_backward(layer(x))) == 3 * outputs * 2 * 4 * 9 + 2 * bias * outputs
    transposed = torch.nn.ConvTranspose2d(4, 6, 3, bias=bias)
    assert count_flops(lambda: transposed(x)) == B * 8 * 8 * 4 * 6 * 2 * 9 + bias * B * 6 * 10 * 10


def test_flops_of_linear_solvers_match_the_textbook() -> None:
    """The counts in Golub and Van Loan, Matrix Computations, are n³/3 for the Cholesky factor, n² per triangular
    right-hand side, and 2 n³/3 + 2 n² per right-hand side for a general system."""
    n, columns = 12, 5
    root = random(B, n, n)
    matrix, right_side = root @ root.mT + torch.eye(n), random(B, n, columns)
    assert count_flops(lambda: torch.linalg.cholesky(matrix)) == B * n**3 // 3
    lower = torch.linalg.cholesky(matrix)
    solution = lambda: torch.linalg.solve_triangular(lower, right_side, upper=False)  # noqa: E731
    assert count_flops(solution) == B * n**2 * columns
    assert count_flops(lambda: torch.cholesky_solve(right_side, lower)) == B * 2 * n**2 * columns
    assert count_flops(lambda: torch.linalg.solve(matrix, right_side)) == B * (2 * n**3 // 3 + 2 * n**2 * columns)
    factors, pivots = torch.linalg.lu_factor(matrix)
    assert count_flops(lambda: torch.linalg.lu_solve(factors, pivots, right_side)) == B * 2 * n**2 * columns
    # A complex product needs four products and two sums.
    z, complex_right_side = torch.complex(matrix, torch.zeros_like(matrix)), torch.complex(right_side, right_side)
    assert count_flops(lambda: torch.linalg.cholesky(z)) == 4 * B * n**3 // 3
    complex_lower = torch.linalg.cholesky(z)
    assert (
        count_flops(lambda: torch.linalg.solve_triangular(complex_lower, complex_right_side, upper=False))
        == 4 * B * n**2 * columns
    )
    assert count_flops(lambda: torch.linalg.solve(z, complex_right_side)) == 4 * B * (
        2 * n**3 // 3 + 2 * n**2 * columns
    )


def test_flops_of_recurrent_networks_are_a_sum_over_cells() -> None:
    """An LSTM is one operation with mkldnn, and many operations without it."""
    x = random(B, T, D, grad=True)
    lstm, gru = torch.nn.LSTM(D, 16, batch_first=True), torch.nn.GRU(D, 16, batch_first=True)
    fused = count_flops(lambda: lstm(x)[0]), count_flops(lambda: run_backward(lstm(x)[0]))
    with torch.backends.mkldnn.flags(enabled=False):
        plain = count_flops(lambda: lstm(x)[0]), count_flops(lambda: run_backward(lstm(x)[0]))
    assert fused == pytest.approx(plain, rel=0.03)
    products = B * T * 6 * 16 * (D + 16)
    assert products < count_flops(lambda: gru(x)[0]) < 1.3 * products


def test_group_norm_has_the_flops_of_layer_norm_and_a_gate_adds_one_per_element() -> None:
    x = random(B, T, D, grad=True)
    flat, grouped = x.detach().flatten(0, 1), torch.nn.GroupNorm(1, D)
    assert count_flops(lambda: grouped(flat)) == count_flops(lambda: F.layer_norm(flat, (D,))) == 7 * flat.numel()
    for gate in (F.logsigmoid, F.elu, F.softplus):
        assert count_flops(lambda gate=gate: gate(x)) == x.numel()
        x.grad = None
        assert count_flops(lambda gate=gate: run_backward(gate(x))) == 2 * x.numel()
    assert count_flops(lambda: x.detach().cummax(1)) == x.numel()


def test_a_distance_has_three_flops_per_dimension() -> None:
    near, far = random(B, T, D), random(B, 5, D)
    assert count_flops(lambda: torch.cdist(near, far)) == 3 * B * T * 5 * D


def test_complex_arithmetic_needs_more_flops_and_integers_and_copies_need_none() -> None:
    x = random(B, T)
    z = torch.complex(x, x)
    assert count_flops(lambda: z * z) == 6 * B * T
    assert count_flops(lambda: z + z) == 2 * B * T
    assert count_flops(lambda: z @ z.mT) == 8 * B * T * B
    assert count_flops(lambda: z.sum()) == 2 * B * T
    assert count_flops(lambda: x.cumsum(1)) == count_flops(lambda: x.sum()) == count_flops(lambda: x.exp()) == B * T
    copies_and_integers = lambda: (x.clone().T.contiguous(), torch.arange(5) * 2, x > 0, x.sort(), torch.cat([x, x]))  # noqa: E731
    assert count_flops(copies_and_integers) == 0


ATEN = torch.ops.aten
# A call of each operation, the shapes of its arguments, and the expected FLOPs.
BY_HAND: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...], int]] = {
    "mv": (torch.mv, ((4, 5), (5,)), 2 * 4 * 5),
    "dot": (torch.dot, ((7,), (7,)), 2 * 7),
    "addmv": (torch.addmv, ((4,), (4, 5), (5,)), 2 * 4 * 5 + 4),
    "baddbmm": (torch.baddbmm, ((B, 4, 6), (B, 4, 5), (B, 5, 6)), B * (2 * 4 * 5 * 6 + 4 * 6)),
    # addcdiv and addcmul: a quotient or product, and a sum. lerp: a difference, a product and a sum.
    "addcdiv": (torch.addcdiv, ((B, T), (B, T), (B, T)), 2 * B * T),
    "addcmul": (torch.addcmul, ((B, T), (B, T), (B, T)), 2 * B * T),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((B, T), (B, T)), 3 * B * T),
    "native_group_norm_backward": (
        lambda g, x, m, w: ATEN.native_group_norm_backward(g, x, m, m, w, B, 6, T, 2, [True, True, True]),
        ((B, 6, T), (B, 6, T), (B, 2), (6,)),
        13 * B * 6 * T,
    ),
    # The maximum, the difference, exp, the sum and the quotient (or logarithm and difference).
    "_safe_softmax": (lambda x: ATEN._safe_softmax(x, -1), ((B, T),), 5 * B * T),
    "_log_softmax": (lambda x: x.log_softmax(-1), ((B, T),), 5 * B * T),
    # softmax: y (g - sum(g y)); log-softmax: g - exp(y) sum(g).
    "_softmax_backward_data": (
        lambda g, y: ATEN._softmax_backward_data(g, y, -1, torch.float32),
        ((B, T), (B, T)),
        4 * B * T,
    ),
    "_log_softmax_backward_data": (
        lambda g, y: ATEN._log_softmax_backward_data(g, y, -1, torch.float32),
        ((B, T), (B, T)),
        4 * B * T,
    ),
    # The maximum, the difference, exp and the sum.
    "logsumexp": (lambda x: x.logsumexp(1), ((B, T, 5),), 4 * B * T * 5),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), ((B, T, 5),), 4 * B * T * 5),
    "logaddexp": (torch.logaddexp, ((B, T), (B, T)), B * T),
    # Norms need a square and a sum. Variances need the mean, the difference from the mean, a square and a sum.
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), ((B, T),), 2 * B * T),
    "var": (lambda x: x.var(1), ((B, T),), 4 * B * T),
    "std": (lambda x: x.std(1), ((B, T),), 4 * B * T),
    "var_mean": (lambda x: torch.var_mean(x, 1), ((B, T),), 4 * B * T),
    "mse_loss": (F.mse_loss, ((B, T), (B, T)), 3 * B * T),
    "prod": (lambda x: x.prod(1), ((B, T),), B * T),
    "cumprod": (lambda x: x.cumprod(1), ((B, T),), B * T),
    "_adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), ((B, T, 8, 8),), B * T * 8 * 8),
    # Half of the input is a gate, which needs a sigmoid and a product.
    "glu": (F.glu, ((B, 10),), 2 * B * 5),
    "glu_backward": (lambda g, x: ATEN.glu_backward(g, x, -1), ((B, 5), (B, 10)), 5 * B * 5),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.5, True), ((B, T),), B * T),
    # The sine and cosine of the angle, and a product with each.
    "polar": (torch.polar, ((B, T), (B, T)), 4 * B * T),
    "embedding_dense_backward": (
        lambda g: ATEN.embedding_dense_backward(g, torch.tensor([1, 1, 0]), 9, -1, False),
        ((3, 5),),
        3 * 5,
    ),
    "index_add": (lambda to, x: to.index_add(0, torch.tensor([0, 0, 2]), x), ((9, 5), (3, 5)), 3 * 5),
    "scatter_add": (lambda to, x: to.scatter_add(0, torch.zeros(3, 5).long(), x), ((9, 5), (3, 5)), 3 * 5),
}
# Operations whose counts are asserted by other tests in this file.
IN_OTHER_TESTS = """
    mm bmm addmm convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _fft_r2c _fft_c2r _fft_c2c linalg_cholesky_ex
    cholesky_solve linalg_solve_triangular _linalg_solve_ex linalg_lu_solve _cdist_forward mul native_layer_norm
    native_layer_norm_backward native_group_norm mkldnn_rnn_layer mkldnn_rnn_layer_backward _softmax cumsum cummax
    softplus_backward log_sigmoid_forward log_sigmoid_backward elu_backward
"""


class CounterByOperation(_Counter):
    """Counts FLOPs by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.by_operation: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        flops_before = self.flops
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.by_operation[_operation_name(func)] = self.flops - flops_before
        return out


@pytest.mark.parametrize("operation", BY_HAND)
def test_formulas_equal_explicit_counts(operation: str) -> None:
    call, shapes, count = BY_HAND[operation]
    arguments = [random(*shape) for shape in shapes]
    counter = CounterByOperation()
    with counter:
        call(*arguments)
    assert counter.by_operation.get(operation) == counter.flops == count


def test_every_formula_is_compared_with_an_explicit_count() -> None:
    assert FORMULAS.keys() == {*BY_HAND, *IN_OTHER_TESTS.split()}


def test_gpt2_needs_two_flops_per_weight_and_token_in_addition_to_attention() -> None:
    """In table 1 of Kaplan et al. 2020, a token needs 2 FLOPs per weight, and 2 x context x width FLOPs for each of the
    two products of attention, here over all pairs of tokens. A training step needs three times the FLOPs of a
    forward pass. In the last layer, all operations after the projections to queries, keys and values are computed only
    for the tokens that predict outputs, which are half of the tokens. Norms, activations and residuals add about one
    per cent."""
    cls = BACKBONES.get("gpt2")
    width, layers, points = 256, 3, 16
    model = cls(cls.Settings(layers=layers, width=width, heads=4), TaskShape(x_dim=8, points=points))
    episodes = resolve_task("linear", "small", {"dim": 8})[0].build().sample(Request(4, points, generator(0, "data")))
    tokens = 4 * 2 * points
    layer = 2 * 12 * width**2 * tokens + 4 * width * tokens * 2 * points
    last_layer = 2 * 9 * width**2 * tokens + 4 * width * tokens * 2 * points
    expected_forward = layers * layer - last_layer / 2
    forward = count_flops(lambda: model.loss(episodes, 0.5, generator(0, "loss")))
    step = count_flops(lambda: model.loss(episodes, 0.5, generator(0, "loss"))[0].backward())
    assert expected_forward < forward < 1.02 * expected_forward
    assert 2.95 < step / forward < 3.1


@pytest.mark.parametrize(
    "work", [lambda x: torch.linalg.svd(x), lambda x: np.linalg.norm(x.numpy()), lambda x: np.asarray(x).sum()]
)
def test_operations_without_a_formula_or_outside_torch_are_refused(work) -> None:
    with pytest.raises(UncountedError, match=r"_linalg_svd|NumPy") as error:
        count_flops(lambda: work(torch.eye(3)))
    assert error.value.code == "not-supported"


def test_a_custom_operation_outside_torch_is_refused() -> None:
    schema = "(Tensor x) -> Tensor"
    outside = torch.library.custom_op("iclbench_test::outside", mutates_args=(), schema=schema)(
        lambda x: torch.from_numpy(np.sin(x.numpy()))
    )
    inside = torch.library.custom_op("iclbench_test::inside", mutates_args=(), schema=schema)(lambda x: x.sin() * 2)
    assert count_flops(lambda: inside(torch.ones(4))) == 8
    with pytest.raises(UncountedError, match="iclbench_test::outside"):
        count_flops(lambda: outside(torch.ones(4)))


def test_the_cpu_implementation_of_a_custom_operation_is_counted() -> None:
    scaled = torch.library.custom_op(
        "iclbench_test::scaled", mutates_args=(), device_types="cpu", schema="(Tensor x, *, float by) -> Tensor"
    )(lambda x, by: x.sin() * by)
    assert count_flops(lambda: scaled(torch.ones(4), by=2.0)) == 8


def test_a_function_that_is_not_a_torch_operation_is_called_and_listed_as_uncounted() -> None:
    counter = _Counter()
    assert counter.__torch_dispatch__(max, (), (3, -5), {"key": abs}) == -5
    assert counter.uncounted == {str(max)}
