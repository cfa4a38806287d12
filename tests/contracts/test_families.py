"""Every registered family passes the contracts, and most contracts are shown to fail on a faulty family."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.contracts.families import (
    FAMILY_CONTRACTS,
    POINTS,
    no_baseline_beats_a_listed_oracle,
    shifts_of,
)
from iclbench.core import trust
from iclbench.core.predictions import Categorical
from iclbench.core.tokens import followers
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.request import Request
from iclbench.families.streams.markov import MarkovChains
from iclbench.registry import FAMILIES
from tests.families.climate import wfde5_files
from tests.families.events import sequence_files


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The data of families that need files: two small tables, event sequences and a year of temperatures."""
    folder = tmp_path_factory.mktemp("data") / "tabular"
    wfde5_files.write(folder.parent / "era5")
    (folder.parent / "events").mkdir()
    times, marks = sequence_files.sequences(count=2000, longest=40)
    sequence_files.write_jsonl(
        folder.parent / "events" / "sequence_files.jsonl", times, marks, [float(sequence[-1]) + 1 for sequence in times]
    )
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, features in (("narrow", 2), ("wide", 30)):
        x = rng.normal(size=(300, features))
        y = x.sum(1, keepdims=True) + rng.normal(size=(300, 1))
        np.savetxt(folder / f"{name}.csv", np.hstack([x, y]), delimiter=",")
    return folder.parent


@pytest.fixture(scope="module", params=FAMILIES.names())
def family(request, data_dir):
    """One instance that all contracts share, because its first sample may render images or read files."""
    cls = FAMILIES.get(request.param)
    return cls(cls.Parameters(), data_dir)


# Families whose oracles are compared with quadrature or sums over all supports in tests/families and tests/estimators.
CHECKED_ELSEWHERE = ("gp-mixture", "sparse-linear")


@pytest.mark.parametrize(
    "contract",
    [check for check in FAMILY_CONTRACTS if check.__name__ != no_baseline_beats_a_listed_oracle.__name__],
    ids=lambda contract: contract.__name__,
)
def test_families_pass_the_contracts(family, contract):
    contract(family)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.slow if name in CHECKED_ELSEWHERE else []) for name in FAMILIES.names()],
    indirect=True,
)
def test_no_simple_baseline_beats_a_listed_oracle(family):
    no_baseline_beats_a_listed_oracle(family)


def test_contracts_fail_on_faulty_families(data_dir):
    """Each family in this test has one fault, which one contract detects."""
    Linear, GPMixture, PointProcess = map(FAMILIES.get, ("linear", "gp-mixture", "point-process"))

    class GlobalRandomness(Linear):
        def draw(self, episodes, generator, active_dims=None):
            return {"weights": torch.randn(episodes, self.x_dim)}

    class Constant(Linear):
        def draw(self, episodes, generator, active_dims=None):
            return {"weights": torch.zeros(episodes, self.x_dim)}

    class SeesOtherPoints(Linear):
        def apply(self, truth, x):
            return super().apply(truth, x) + x.mean((0, 1)).sum()

    class WrongNormaliser(Linear):
        normaliser = 3.0

    class Entangled(GPMixture):
        """Draws an additional random number if the request does not limit the related datasets."""

        def sample(self, request):
            if request.related is None:
                torch.rand(1, generator=request.generator)
            return super().sample(request)

    class WrongRelatedCount(GPMixture):
        def sample(self, request):
            return super().sample(replace(request, related=None))

    class WrongContextSize(GPMixture):
        """Ignores `points-N`."""

        def sample(self, request):
            shift = "none" if request.shift.startswith("points-") else request.shift
            return super().sample(replace(request, shift=shift))

    class WrongStrata(GPMixture):
        def strata(self, episodes):
            return {"all": torch.tensor(True)}

    class NoTimes(PointProcess):
        """Events with the gap in the column of the time."""

        def sample(self, request):
            episodes = super().sample(request)
            gap, mark, _ = episodes.context.y.unbind(-1)
            return replace(episodes, context=replace(episodes.context, y=torch.stack([gap, mark, gap], -1)))

    class MarksFromOne(PointProcess):
        """Events whose marks begin at 1."""

        def sample(self, request):
            episodes = super().sample(request)
            one = torch.tensor([0.0, 1.0, 0.0])
            return replace(episodes, context=replace(episodes.context, y=episodes.context.y + one))

    class ValidCensoredPoint(PointProcess):
        """Events whose last point is censored but valid."""

        def sample(self, request):
            episodes = super().sample(request)
            y = episodes.context.y.clone()
            y[:, -1, 1] = -1
            return replace(episodes, context=replace(episodes.context, y=y))

    for faulty, contract in [
        *((faulty, "events_are_gaps_marks_and_times") for faulty in (NoTimes, MarksFromOne, ValidCensoredPoint)),
        (Entangled, "related_datasets_change_nothing_else"),
        (WrongRelatedCount, "related_datasets_have_the_requested_number"),
        (WrongContextSize, "contexts_have_the_requested_sizes"),
        (WrongStrata, "strata_are_parts_of_the_episodes"),
        (GlobalRandomness, "the_seed_determines_the_episodes"),
        (Constant, "episodes_differ_from_each_other"),
        (SeesOtherPoints, "functions_see_neither_other_points_nor_neighbours"),
        (WrongNormaliser, "the_variance_of_noiseless_labels_is_the_normaliser"),
    ]:
        check = next(c for c in FAMILY_CONTRACTS if c.__name__ == contract)
        with pytest.raises(AssertionError):
            check(faulty(faulty.Parameters()))


@pytest.mark.cuda
def test_episodes_are_on_the_device_of_the_generator(family):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for shift in shifts_of(family):
        episodes = family.sample(Request(4, POINTS, torch.Generator("cuda").manual_seed(0), shift=shift))
        assert all(t.is_cuda for t in episodes.tensors().values())


@pytest.mark.cuda
def test_shared_weights_are_equal_on_all_devices():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cls = FAMILIES.get("relu-network")
    shared = cls(cls.Parameters(dim=5, hidden=10, shared_hidden=True))
    hidden = [
        shared.sample(Request(2, 3, torch.Generator(d).manual_seed(0))).truth["hidden"].cpu() for d in ("cpu", "cuda")
    ]
    assert torch.equal(*hidden)


class MarkovOracle(FamilyPredictor):
    """A correct oracle for Markov chains of order 1. The probability of a token is proportional to one plus the number
    of times that it followed the last token."""

    family_class, family_name, order, heads = MarkovChains, "markov", "causal", ("categorical",)

    def predict_targets(self, context, x_target, related=None):
        classes = self.family.classes
        context, _ = context.compact()
        lengths = context.counts.unsqueeze(1)
        return Categorical(
            (followers(context.y, lengths, 1, classes) + 1).log().float().expand(-1, x_target.shape[1], -1)
        )


class LooksAhead(MarkovOracle):
    def predict_next(self, points, related=None, **options):
        answer = super().predict_next(points, related, **options)
        return Categorical(answer.logits + points.y[:, -1:, None])


class ReadsNeighbours(MarkovOracle):
    def predict_targets(self, context, x_target, related=None):
        answer = super().predict_targets(context, x_target, related)
        return Categorical(answer.logits - answer.logits.mean(0, keepdim=True))


class Forgets(MarkovOracle):
    def update(self, state, points):
        return self.condition(points)


@pytest.mark.parametrize(
    ("oracle", "contract"),
    [
        ("MarkovOracle", None),
        ("LooksAhead", "later_elements_change_no_oracle"),
        ("ReadsNeighbours", "batch_neighbours_change_no_oracle"),
        ("Forgets", "updates_of_oracles_equal_conditioning"),
    ],
)
def test_oracles_of_a_stream_are_checked_with_their_family(oracle, contract, tmp_path, monkeypatch):
    card = tmp_path / "mine.toml"
    card.write_text(f'estimator = "{__name__}:{oracle}"\nsummary = "mine"\n')

    class WithOracle(MarkovChains):
        oracles = frozenset({str(card)})

    family = WithOracle(WithOracle.Parameters())
    monkeypatch.setenv(trust.VARIABLE, "tests")
    for check in FAMILY_CONTRACTS:
        if check.__name__ == contract:
            with pytest.raises(AssertionError, match="mine"):
                check(family)
        elif contract is None:
            check(family)


def test_streams_with_another_base_class_or_missing_labels_break_a_contract():
    class WithMissingLabels(MarkovChains):
        def sample(self, request):
            episodes = super().sample(request)
            return replace(episodes, targets=episodes.context.span(1))

    class OtherBase(FAMILIES.get("linear")):
        is_stream = True

    check = next(c for c in FAMILY_CONTRACTS if c.__name__ == "streams_have_no_inputs")
    for faulty in (WithMissingLabels, OtherBase):
        with pytest.raises(AssertionError):
            check(faulty(faulty.Parameters()))
