"""The defining property of every shift, and parsing of shift names."""

import math

import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.evaluation import contestants
from iclbench.evaluation.curves import learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.linear import Linear, NoisyLinear, SkewedLinear, SparseLinear
from iclbench.families.request import Request
from iclbench.families.shifts import FUNCTION_KINDS, FunctionKind, Shift
from tests.refusals import refused

DIM = 6
LINEAR = Linear(Linear.Parameters(dim=DIM))
SKEWED = SkewedLinear(SkewedLinear.Parameters(dim=DIM))
NOISY = NoisyLinear(NoisyLinear.Parameters(dim=DIM))


def draw(shift, family=LINEAR, episodes=200, points=10, seed=0):
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), shift=shift))


def noiseless_outputs(episodes, x):
    return torch.einsum("bnd,bd->bn", x, episodes.truth["weights"])


@pytest.mark.parametrize("kind", sorted(FUNCTION_KINDS))
@pytest.mark.parametrize("family", [LINEAR, SKEWED, NOISY], ids=["linear", "skewed", "noisy"])
def test_shifts_do_not_change_the_functions(kind, family):
    shift = f"{kind}-2" if FUNCTION_KINDS[kind].number else kind
    shifted, plain = draw(shift, family), draw("none", family)
    assert torch.equal(shifted.truth["weights"], plain.truth["weights"])
    assert shifted.context.x.shape == plain.context.x.shape
    assert shifted.queries.y.isfinite().all()


def test_orthants_put_the_context_in_one_orthant_and_do_not_constrain_the_query():
    episodes = draw("orthants")
    signs = episodes.context.x.sign()
    assert (signs == signs[:, :1]).all()
    assert len({tuple(s) for s in signs[:, 0].tolist()}) > 30, "one orthant per episode, out of 64"
    agreement = (episodes.targets.x.sign() == signs).double().mean()
    assert abs(agreement - 0.5) < 4 * 0.5 / math.sqrt(signs.numel())
    assert (episodes.context.x.abs().mean() - math.sqrt(2 / math.pi)).abs() < 0.03
    torch.testing.assert_close(episodes.targets.y[..., 0], noiseless_outputs(episodes, episodes.targets.x))
    assert episodes.scored.all()


def test_orthogonal_queries_are_orthogonal_to_all_earlier_inputs_and_unscored_after_d_inputs():
    episodes = draw("orthogonal-query")
    for n in range(DIM):
        before = episodes.context.x[:, :n].double()
        query = episodes.targets.x[:, n].double()
        assert torch.einsum("bnd,bd->bn", before, query).abs().sum() < 1e-3
    assert episodes.scored[:, :DIM].all()
    assert not episodes.scored[:, DIM:].any()
    # The query has the mean squared length of a standard normal vector: E|x|² = d.
    square = episodes.targets.x[:, :DIM].square().sum(-1)
    assert abs(square.mean() - DIM) < 4 * math.sqrt(2 * DIM / square.numel())
    torch.testing.assert_close(episodes.targets.y[..., 0], noiseless_outputs(episodes, episodes.targets.x))


def test_all_orthogonal_queries_are_scored_if_there_are_fewer_points_than_dimensions():
    episodes = draw("orthogonal-query", points=3)
    assert episodes.scored.all()
    assert (episodes.context.x[:, 0] * episodes.targets.x[:, 1]).sum(-1).abs().max() < 1e-5


@pytest.mark.parametrize("family", [LINEAR, NOISY], ids=["linear", "noisy"])
def test_the_repeated_query_has_the_input_and_label_of_an_earlier_point(family):
    episodes = draw("repeated-query", family)
    assert not episodes.scored[:, 0].any()
    assert episodes.scored[:, 1:].all()
    repeated_points = set()
    for n in range(1, 10):
        is_repeated = (episodes.context.x[:, :n] == episodes.targets.x[:, n : n + 1]).all(-1)
        assert (is_repeated.sum(1) == 1).all(), "exactly one earlier point"
        assert torch.equal(episodes.context.y[:, :n][is_repeated], episodes.targets.y[:, n])
        repeated_points |= set(is_repeated.double().argmax(1).tolist())
    assert repeated_points == set(range(9)), "every earlier point can be repeated"


def test_subspace_sets_the_second_half_to_zero_and_does_not_change_the_first():
    episodes = draw("subspace")
    assert not episodes.context.x[..., 3:].any()
    assert abs(episodes.context.x[..., :3].var() - 1) < 4 * math.sqrt(2 / 6000)
    assert episodes.targets is None


@pytest.mark.parametrize("dim", [5, 6])
def test_a_random_subspace_halves_the_rank_of_inputs_and_preserves_their_mean_squared_length(dim):
    family = Linear(Linear.Parameters(dim=dim))
    episodes = draw("subspace-random", family, episodes=500)
    ranks = torch.linalg.matrix_rank(episodes.context.x.double(), rtol=1e-5)
    assert (ranks == math.ceil(dim / 2)).all()
    square = episodes.context.x.square().sum(-1)
    assert abs(square.mean() - dim) < 4 * square.std() / math.sqrt(square.numel())
    assert episodes.context.x.abs().amin((0, 1)).min() > 0, "all coordinates are used"


def test_skewed_has_the_spectrum_of_the_skewed_family_and_isotropic_a_flat_spectrum():
    for shift, family in (("skewed", LINEAR), ("none", SKEWED)):
        x = draw(shift, family, episodes=4, points=20_000).context.x
        eigenvalues = torch.linalg.eigvalsh(x.transpose(1, 2) @ x / 20_000).flip(1)
        expected = torch.arange(1, DIM + 1) ** -2.0
        torch.testing.assert_close(eigenvalues, (DIM * expected / expected.sum()).expand(4, -1), rtol=0.06, atol=0)
    x = draw("isotropic", SKEWED, episodes=4, points=20_000).context.x
    torch.testing.assert_close(x.transpose(1, 2) @ x / 20_000, torch.eye(DIM).expand(4, -1, -1), rtol=0, atol=0.04)


@pytest.mark.parametrize(("shift", "sigma"), [("noisy", 1.0), ("noisy-0.5", 0.5), ("noisy-2", 2.0)])
def test_the_name_of_a_noise_shift_sets_the_standard_deviation(shift, sigma):
    for family in (LINEAR, NOISY):
        episodes = draw(shift, family, episodes=2000)
        residual = episodes.context.y[..., 0] - noiseless_outputs(episodes, episodes.context.x)
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


def test_the_wide_query_is_three_times_as_wide_by_default():
    assert torch.equal(draw("wide-query").targets.x, draw("wide-query-3").targets.x)


def test_points_n_changes_only_the_requested_number_of_examples():
    assert LINEAR.parse_shift("points-160").examples == 160
    assert LINEAR.parse_shift("noisy-2").examples is None
    assert torch.equal(draw("points-160").context.y, draw("none").context.y)
    assert LINEAR.parse_shift("noisy-2+points-160").examples == 160
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
def test_noise_to_signal_depends_on_the_noise_and_the_weight_scale(family, shift, ratio):
    assert family.noise_to_signal(shift) == ratio


def test_the_noise_to_signal_ratio_is_the_best_ridge_penalty():
    """The ratio is the Bayes-optimal penalty with and without a shift of the weight scale."""
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


def test_a_curriculum_sets_inactive_dimensions_of_context_and_queries_to_zero():
    generator = torch.Generator().manual_seed(0)
    episodes = LINEAR.sample(Request(5, 4, generator, active_dims=2, shift="wide-query"))
    assert not episodes.context.x[..., 2:].any()
    assert not episodes.targets.x[..., 2:].any()
    torch.testing.assert_close(episodes.targets.y[..., 0], noiseless_outputs(episodes, episodes.targets.x))


@pytest.mark.parametrize(
    ("name", "canonical_name", "value"),
    [
        ("input_scale-0.333", "input-scale-0.333", 0.333),
        ("input-scale-.50", "input-scale-0.5", 0.5),
        ("input-scale-0.00001", "input-scale-0.00001", 1e-5),
        ("input-scale-1" + 30 * "0", "input-scale-1" + 30 * "0", 1e30),
        ("Noisy", "noisy-1", 1.0),
        ("noisy-1.0", "noisy-1", 1.0),
        ("noisy-02", "noisy-2", 2.0),
        ("wide-query", "wide-query-3", 3.0),
        ("points-160.0", "points-160", 160.0),
        ("orthants", "orthants", 1.0),
    ],
)
def test_all_spellings_of_a_shift_have_one_canonical_name(name, canonical_name, value):
    """Cards, packed results and prompt sets use the canonical name."""
    shift = Shift.parse(name, FUNCTION_KINDS)
    assert (shift.name, [part.value for part in shift.parts]) == (canonical_name, [value])
    assert Shift.parse(canonical_name, FUNCTION_KINDS) == shift
    assert Shift.parse("None", FUNCTION_KINDS) == Shift()


@pytest.mark.parametrize(
    ("name", "code", "names"),
    [
        ("orthant", "unknown-name", ["'orthant'", "'orthants'"]),
        ("input-scal-2", "unknown-name", ["'input-scal'", "'input-scale'"]),
        ("", "not-applicable", ["''", "orthants", "none", "points"]),
        ("input-scale", "missing-value", ["'input-scale'", "input-scale-2"]),
        ("input-scale-0", "bad-value", ["'input-scale-'", "'0'"]),
        ("input-scale-1.2.3", "bad-value", ["'input-scale-'", "'1.2.3'"]),
        ("input-scale-" + "9" * 400, "bad-value", ["'input-scale-'"]),
        ("points-2.5", "bad-value", ["'points-'", "'2.5'"]),
        ("orthants-2", "bad-syntax", ["'orthants-2'", "'orthants'", "noisy"]),
        ("orthants+isotropic", "conflict", ["'isotropic'", "'orthants'", "the inputs"]),
        ("wide-query+repeated-query", "conflict", ["'wide-query-3'", "'repeated-query'", "the query"]),
        ("noisy-1+noisy-2", "conflict", ["'noisy-1'", "'noisy-2'", "the label noise"]),
        ("points-20+points-40", "conflict", ["'points-20'", "'points-40'", "the number of examples"]),
        ("none+points-40", "conflict", ["'none+points-40'", "'none'"]),
        ("orthants+", "not-applicable", ["''"]),
        ("orthant+points-40", "unknown-name", ["'orthant'", "'orthants'"]),
        ("x\ny", "not-applicable", []),
    ],
)
def test_invalid_shifts_are_refused(name, code, names):
    with refused(code, *names):
        Shift.parse(name, FUNCTION_KINDS)


@pytest.mark.parametrize("name", ["none", "noisy-2", "isotropic+input-scale-3"])
def test_the_name_of_a_shift_includes_its_number_of_examples(name):
    shift = Shift.parse(name, FUNCTION_KINDS)
    more = shift.with_examples(160)
    assert Shift.parse(more.name, FUNCTION_KINDS) == more
    assert (more.examples, more.distribution) == (160, shift.name)
    with refused("conflict", f"'{more.name}'", 40):
        more.with_examples(40)


def test_the_error_for_an_unsupported_shift_lists_the_shifts_of_the_family():
    from iclbench.families.tabular.tabular import Tabular

    family = Tabular(Tabular.Parameters())
    assert family.parse_shift("points-20").examples == 20
    with refused("not-applicable", "'orthants'", "none, points"):
        family.parse_shift("orthants")


def test_the_order_of_parts_in_a_combined_shift_has_no_effect():
    assert (
        SKEWED.parse_shift("points-9+Noisy-2+input_scale-3+isotropic").name
        == "isotropic+input-scale-3+noisy-2+points-9"
    )
    episodes = draw("isotropic+input-scale-3+weight-scale-2+noisy-0.5", SKEWED, episodes=400, points=50)
    reordered = draw("noisy-0.5+weight-scale-2+input-scale-3+isotropic", SKEWED, episodes=400, points=50)
    assert torch.equal(episodes.context.y, reordered.context.y)
    x, y = episodes.context.x, episodes.context.y[..., 0]
    gram = (x.transpose(1, 2) @ x).mean(0) / 50
    torch.testing.assert_close(
        gram, 9 * torch.eye(DIM), rtol=0, atol=0.4
    )  # the inputs are N(0, 9 I); skewed inputs would have variances up to 36
    residual = y - 2 * noiseless_outputs(episodes, x)
    assert abs(residual.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * residual.numel())


def test_parts_of_a_combined_shift_also_apply_to_queries_set_by_other_parts():
    orthants = draw("orthants+input-scale-3+noisy-1")
    torch.testing.assert_close(orthants.targets.x, 3 * draw("orthants").targets.x)
    # The label of the query is noisy.
    assert not torch.equal(orthants.targets.y[..., 0], noiseless_outputs(orthants, orthants.targets.x))
    repeated = draw("isotropic+repeated-query", SKEWED)
    n = 5
    assert (repeated.context.x[:, :n] == repeated.targets.x[:, n : n + 1]).all(-1).any(1).all()
    assert torch.equal(repeated.context.x, draw("isotropic", SKEWED).context.x)


def test_the_oracle_under_noise_has_the_bayes_risk():
    """For unit noise and weights, the risk is E[tr((I + X'X)^-1) + 1] / 20, where the rows of X are N(0, I_20)."""
    task = resolve_task("skewed-linear", "paper", {"episodes": 640})[0]
    prompts = PromptSet(task, "paper", task.shift_name("noisy-1+isotropic"))
    (ridge,) = contestants.baselines(prompts, ["ridge"])
    assert ridge.kind == "oracle"
    errors = learning_curve(ridge.predictor, prompts, [10, 20, 40]).scores["squared_error"]
    spread = errors.std(0) / math.sqrt(len(errors))
    assert (abs(errors.mean(0) - [0.595, 0.259, 0.098]) < 3 * spread).all()
    skewed = PromptSet(task, "paper", "noisy-1")
    (ridge,) = contestants.baselines(skewed, ["ridge"])
    errors = learning_curve(ridge.predictor, skewed, [10]).scores["squared_error"]
    assert errors.mean() < 0.25, "skewed inputs are an easier task: ridge learns the one large direction at once"


def test_ridge_is_not_an_oracle_if_a_query_repeats_a_noisy_point():
    task = resolve_task("noisy-linear", "smoke")[0]
    ridge_by_shift = {
        shift: contestants.baselines(PromptSet(task, "smoke", shift), ["ridge"])[0]
        for shift in ("none", "noisy-2", "repeated-query", "repeated-query+noisy-2")
    }
    assert [ridge.kind for ridge in ridge_by_shift.values()] == ["oracle", "oracle", "baseline", "baseline"]
    # The identities must differ, or cached rows of the oracle would be used for the baseline.
    assert ridge_by_shift["none"].identity != ridge_by_shift["repeated-query"].identity
    linear = resolve_task("linear", "smoke")[0]
    (ridge,) = contestants.baselines(PromptSet(linear, "smoke", "repeated-query"), ["ridge"])
    assert ridge.kind == "oracle", "the labels have no noise"


class Mirrored(Linear):
    """A plug-in that adds two kinds of shift to the common ones."""

    shift_kinds = {
        **FUNCTION_KINDS,
        "mirrored": FunctionKind(("the sign of the inputs",), transform=lambda inputs, _, __: inputs.map(torch.neg)),
        "hollow": FunctionKind(("the inputs",), transform=lambda inputs, _, __: inputs, isotropic=True),
    }


def test_shifts_of_a_plug_in_combine_with_common_shifts():
    family = Mirrored(Mirrored.Parameters(dim=DIM))
    plain = draw("skewed+noisy-2", family)
    for name in ("mirrored+skewed+noisy-2", "noisy-2.0+skewed+mirrored"):
        mirrored = draw(name, family)
        assert torch.equal(mirrored.context.x, -plain.context.x)
        noise = [e.context.y - family.apply(e.truth, e.context.x).unsqueeze(-1) for e in (plain, mirrored)]
        torch.testing.assert_close(*noise)
    orthants, mirrored = draw("orthants", family), draw("mirrored+orthants", family)
    assert torch.equal(mirrored.targets.x, -orthants.targets.x)
    assert family.parse_shift("points-12+mirrored+noisy").name == "noisy-1+mirrored+points-12"
    with refused("conflict", "'skewed'", "'hollow'", "the inputs"):
        family.parse_shift("hollow+skewed")
    with refused("not-applicable", "'upside-down'", "mirrored"):
        family.parse_shift("upside-down")
    with refused("not-applicable", "'mirrored'"):
        LINEAR.parse_shift("mirrored")
