"""Every shift by its defining property."""

import math

import pytest
import torch

from iclbench.errors import UsageError
from iclbench.families.linear import Linear, NoisyLinear, SkewedLinear, SparseLinear
from iclbench.families.shifts import FUNCTION_KINDS, NUMBERED, Shift

DIM = 6
LINEAR = Linear(Linear.Parameters(dim=DIM))
SKEWED = SkewedLinear(SkewedLinear.Parameters(dim=DIM))
NOISY = NoisyLinear(NoisyLinear.Parameters(dim=DIM))


def draw(shift, family=LINEAR, episodes=200, points=10, seed=0):
    return family.sample(episodes, points, torch.Generator().manual_seed(seed), shift=shift)


def function(episodes, x):
    return torch.einsum("bnd,bd->bn", x, episodes.truth["weights"])


@pytest.mark.parametrize("kind", sorted(FUNCTION_KINDS))
@pytest.mark.parametrize("family", [LINEAR, SKEWED, NOISY], ids=["linear", "skewed", "noisy"])
def test_a_shift_meets_the_same_functions(kind, family):
    shift = f"{kind}-2" if kind in NUMBERED else kind
    shifted, plain = draw(shift, family), draw("none", family)
    assert torch.equal(shifted.truth["weights"], plain.truth["weights"])
    assert shifted.context.x.shape == plain.context.x.shape
    assert shifted.asked.y.isfinite().all()


def test_orthants_keep_the_context_in_one_orthant_and_leave_the_query_free():
    episodes = draw("orthants")
    signs = episodes.context.x.sign()
    assert (signs == signs[:, :1]).all()
    assert len({tuple(s) for s in signs[:, 0].tolist()}) > 30, "one orthant per episode, out of 64"
    agreement = (episodes.targets.x.sign() == signs).double().mean()
    assert abs(agreement - 0.5) < 4 * 0.5 / math.sqrt(signs.numel())
    assert (episodes.context.x.abs().mean() - math.sqrt(2 / math.pi)).abs() < 0.03
    torch.testing.assert_close(episodes.targets.y[..., 0], function(episodes, episodes.targets.x))
    assert episodes.scored.all()


def test_the_orthogonal_query_is_orthogonal_to_all_earlier_inputs_and_defined_below_d():
    episodes = draw("orthogonal-query")
    for n in range(DIM):
        before = episodes.context.x[:, :n].double()
        query = episodes.targets.x[:, n].double()
        assert torch.einsum("bnd,bd->bn", before, query).abs().sum() < 1e-3
    assert episodes.scored[:, :DIM].all()
    assert not episodes.scored[:, DIM:].any()
    # Lengths are those of a standard normal vector: E|x|² = d.
    square = episodes.targets.x[:, :DIM].square().sum(-1)
    assert abs(square.mean() - DIM) < 4 * math.sqrt(2 * DIM / square.numel())
    torch.testing.assert_close(episodes.targets.y[..., 0], function(episodes, episodes.targets.x))


def test_the_orthogonal_query_with_fewer_points_than_dimensions():
    episodes = draw("orthogonal-query", points=3)
    assert episodes.scored.all()
    assert (episodes.context.x[:, 0] * episodes.targets.x[:, 1]).sum(-1).abs().max() < 1e-5


@pytest.mark.parametrize("family", [LINEAR, NOISY], ids=["linear", "noisy"])
def test_the_repeated_query_can_be_answered_without_error(family):
    episodes = draw("repeated-query", family)
    assert not episodes.scored[:, 0].any()
    assert episodes.scored[:, 1:].all()
    used = set()
    for n in range(1, 10):
        same = (episodes.context.x[:, :n] == episodes.targets.x[:, n : n + 1]).all(-1)
        assert (same.sum(1) == 1).all(), "an earlier point, and just one"
        found = episodes.context.y[:, :n][same]
        assert torch.equal(found, episodes.targets.y[:, n])
        used |= set(same.double().argmax(1).tolist())
    assert used == set(range(9)), "any earlier point may be repeated"


def test_subspace_zeroes_the_second_half_and_keeps_the_first():
    episodes = draw("subspace")
    assert not episodes.context.x[..., 3:].any()
    assert abs(episodes.context.x[..., :3].var() - 1) < 4 * math.sqrt(2 / 6000)
    assert episodes.targets is None


@pytest.mark.parametrize("dim", [5, 6])
def test_a_random_subspace_has_half_the_rank_and_the_full_length(dim):
    family = Linear(Linear.Parameters(dim=dim))
    episodes = draw("subspace-random", family, episodes=500)
    ranks = torch.linalg.matrix_rank(episodes.context.x.double(), rtol=1e-5)
    assert (ranks == math.ceil(dim / 2)).all()
    square = episodes.context.x.square().sum(-1)
    assert abs(square.mean() - dim) < 4 * square.std() / math.sqrt(square.numel())
    assert episodes.context.x.abs().amin((0, 1)).min() > 0, "no coordinate is left out"


def test_skewed_inputs_have_the_skewed_familys_spectrum_and_isotropic_ones_do_not():
    for shift, family in (("skewed", LINEAR), ("none", SKEWED)):
        x = draw(shift, family, episodes=4, points=20_000).context.x
        eigenvalues = torch.linalg.eigvalsh(x.transpose(1, 2) @ x / 20_000).flip(1)
        expected = torch.arange(1, DIM + 1) ** -2.0
        torch.testing.assert_close(eigenvalues, (DIM * expected / expected.sum()).expand(4, -1), rtol=0.06, atol=0)
    x = draw("isotropic", SKEWED, episodes=4, points=20_000).context.x
    torch.testing.assert_close(x.transpose(1, 2) @ x / 20_000, torch.eye(DIM).expand(4, -1, -1), rtol=0, atol=0.04)


@pytest.mark.parametrize(("shift", "sigma"), [("noisy", 1.0), ("noisy-0.5", 0.5), ("noisy-2", 2.0)])
def test_noise_has_the_named_standard_deviation(shift, sigma):
    for family in (LINEAR, NOISY):
        episodes = draw(shift, family, episodes=2000)
        residual = episodes.context.y[..., 0] - function(episodes, episodes.context.x)
        assert abs(residual.std() - sigma) < 4 * sigma / math.sqrt(2 * 20_000)


@pytest.mark.parametrize("scale", [0.333, 3.0])
def test_scales_multiply_inputs_outputs_or_the_query(scale):
    plain = draw("none")
    inputs = draw(f"input-scale-{scale}")
    torch.testing.assert_close(inputs.context.x, scale * plain.context.x)
    torch.testing.assert_close(inputs.context.y, scale * plain.context.y)
    weights = draw(f"weight-scale-{scale}")
    assert torch.equal(weights.context.x, plain.context.x)
    torch.testing.assert_close(weights.context.y, scale * plain.context.y)
    wide = draw(f"wide-query-{scale}")
    assert torch.equal(wide.context.x, plain.context.x)
    assert torch.equal(wide.context.y, plain.context.y)
    torch.testing.assert_close(wide.targets.x, scale * plain.context.x)
    torch.testing.assert_close(wide.targets.y, scale * plain.context.y)


def test_the_wide_query_is_three_times_wider_by_default():
    assert torch.equal(draw("wide-query").targets.x, draw("wide-query-3").targets.x)


def test_more_points_are_the_callers_to_ask_for():
    assert Shift.parse("points-160") == Shift("points", 160.0, 160)
    assert torch.equal(draw("points-160").context.y, draw("none").context.y)
    assert Shift.parse("noisy-2+points-160") == Shift("noisy", 2.0, 160)
    assert torch.equal(draw("orthants+points-160").targets.y, draw("orthants").targets.y)


@pytest.mark.parametrize(
    ("family", "shift", "ratio"),
    [
        (LINEAR, "none", 0.0),
        (LINEAR, "noisy-2", 4.0),
        (NOISY, "none", 1.0),
        (NOISY, "noisy-0.5", 0.25),
        (NOISY, "weight-scale-2", 0.25),
        (NOISY, "input-scale-2", 1.0),
        (SparseLinear(SparseLinear.Parameters(dim=DIM, sparsity=3)), "noisy-1", 2.0),
    ],
)
def test_noise_to_signal_follows_the_true_noise_and_the_weight_scale(family, shift, ratio):
    assert family.noise_to_signal(shift) == ratio


def test_ridge_with_noise_to_signal_beats_other_penalties():
    """The ratio is the Bayes-optimal penalty: ridge with it has the lowest error, also under the weight shift."""
    for shift in ("none", "weight-scale-2"):
        episodes = draw(shift, NOISY, episodes=4000, points=9)
        x, y = episodes.context.x.double(), episodes.context.y.double()
        gram, cross = x[:, :-1].transpose(1, 2) @ x[:, :-1], x[:, :-1].transpose(1, 2) @ y[:, :-1]
        best = NOISY.noise_to_signal(shift)
        errors = {}
        for penalty in (best / 4, best, 4 * best):
            weights = torch.linalg.solve(gram + penalty * torch.eye(DIM).double(), cross)
            errors[penalty] = (x[:, -1:] @ weights - y[:, -1:]).square().mean().item()
        assert min(errors, key=errors.__getitem__) == best


def test_a_curriculum_zeroes_context_and_queries_alike():
    generator = torch.Generator().manual_seed(0)
    episodes = LINEAR.sample(5, 4, generator, active_dims=2, shift="wide-query")
    assert not episodes.context.x[..., 2:].any()
    assert not episodes.targets.x[..., 2:].any()
    torch.testing.assert_close(episodes.targets.y[..., 0], function(episodes, episodes.targets.x))


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("none", "none", 1.0),
        ("input_scale-0.333", "input-scale", 0.333),
        ("Noisy", "noisy", 1.0),
        ("noisy-2", "noisy", 2.0),
    ],
)
def test_names_are_read_in_either_spelling(name, kind, value):
    assert Shift.parse(name) == Shift(kind, value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("orthant", "unknown shift 'orthant'; did you mean 'orthants'"),
        ("input-scal-2", "did you mean 'input-scale'"),
        ("", "unknown shift ''"),
        ("input-scale", "needs a number, like input-scale-2"),
        ("input-scale-0", "a positive number"),
        ("input-scale-1.2.3", "got '1.2.3'"),
        ("input-scale-" + "9" * 400, "a positive number"),
        ("points-2.5", "a whole number"),
        ("orthants-2", "write 'orthants'"),
        ("orthants+noisy-2", "only the number of examples can be joined"),
        ("points-20+points-40", "only the number of examples can be joined"),
        ("orthants+", "unknown shift ''"),
        ("orthant+points-40", "did you mean 'orthants'"),
        ("x\ny", "unknown shift"),
    ],
)
def test_what_is_not_a_shift_is_one_clear_line(name, message):
    with pytest.raises(UsageError, match=message) as error:
        Shift.parse(name)
    assert "\n" not in str(error.value)


def test_a_shift_that_a_family_does_not_know_lists_its_own():
    from iclbench.families.tabular import Tabular

    family = Tabular(Tabular.Parameters())
    assert family.parse_shift("points-20").kind == "points"
    with pytest.raises(UsageError, match="known: none, points"):
        family.parse_shift("orthants")
