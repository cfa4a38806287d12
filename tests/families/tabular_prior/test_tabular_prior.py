"""The family of synthetic tables: kinds, shapes, shifts, determinism and independence of targets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.settings import validate
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.request import Request
from iclbench.families.tabular_prior.networks import Networks
from iclbench.families.tabular_prior.tabular_prior import (
    KINDS,
    TabularPrior,
    TabularPriorParameters,
)
from tests.refusals import refused


def family(**parameters: Any) -> TabularPrior:
    return TabularPrior(TabularPriorParameters(**parameters))


def draw(count: int = 400, points: int = 30, seed: int = 0, shift: str = "none", **parameters: Any) -> Episodes:
    return family(**parameters).sample(Request(count, points, torch.Generator().manual_seed(seed), shift=shift))


def test_kinds_of_tables_have_the_documented_shares() -> None:
    kinds = torch.bincount(draw(6000, 2).truth["kind"], minlength=4) / 6000
    expected = torch.tensor([0.35, 0.35, 0.3, 0.0])
    assert (kinds - expected).abs().max() < 4 * math.sqrt(0.25 / 6000)
    assert (draw(500, 2, trees=1.0).truth["kind"] == 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_parameter_kind_and_the_shift_of_that_name_give_the_same_tables(kind: str) -> None:
    by_parameter, by_shift = draw(60, kind=kind), draw(60, shift=kind)
    assert (by_parameter.truth["kind"] == KINDS.index(kind)).all()
    tensors = by_shift.tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in by_parameter.tensors().items())
    assert family(kind=kind).strata(by_parameter) == {}


def test_strata_are_the_kinds_of_tables() -> None:
    episodes = draw()
    strata = family().strata(episodes)
    assert list(strata) == ["scm", "bnn", "trees"]
    assert torch.stack(list(strata.values())).sum(0).eq(1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [0, 4])
def test_tables_are_finite_and_inputs_standardised(kind: str, classes: int) -> None:
    episodes = draw(kind=kind, classes=classes, dim=6)
    x, y, truth = episodes.context.x, episodes.context.y, episodes.truth
    assert x.shape == (400, 30, 6) and x.isfinite().all()
    used = torch.arange(6) < truth["used"].unsqueeze(1)
    assert not x.mT[~used].any()
    assert x.mean(1).abs().max() < 1e-4
    std = x.std(1, correction=0)[used]
    # Constant columns are 0.
    assert (((std - 1).abs() < 0.5) | (std == 0)).all() and (std == 0).double().mean() < 0.05
    if classes:
        assert y.shape == (400, 30) and (y < truth["classes"].unsqueeze(1)).all() and (y >= 0).all()
        assert truth["classes"].min() == 2 and truth["classes"].max() == 4
    else:
        assert y.shape == (400, 30, 1) and not truth["classes"].any()
        assert 0.9 < float(y.square().mean()) < 1.2


def test_rescaled_inputs_are_divided_by_the_share_of_used_columns() -> None:
    plain, rescaled = draw(), draw(rescale=True)
    factor = 5 / plain.truth["used"].view(-1, 1, 1)
    torch.testing.assert_close(rescaled.context.x, factor * plain.context.x)
    assert torch.equal(plain.context.y, rescaled.context.y)


def test_functions_do_not_depend_on_the_number_of_points() -> None:
    short, long = draw(50, points=4), draw(50, points=60)
    assert short.truth.keys() == long.truth.keys()
    assert all(torch.equal(short.truth[name], long.truth[name]) for name in short.truth)


@pytest.mark.parametrize("classes", [0, 3])
def test_neither_inputs_nor_other_targets_depend_on_a_target(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    before = draw(60, kind="scm", classes=classes)
    sample = Networks.sample

    def changed(self: Networks, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        columns, target = sample(self, rows, generator)
        target[:, -1] = 1e6
        return columns, target

    monkeypatch.setattr(Networks, "sample", changed)
    after = draw(60, kind="scm", classes=classes)
    assert torch.equal(before.context.x, after.context.x)
    assert torch.equal(before.context.y[:, :-1], after.context.y[:, :-1])
    assert not torch.equal(before.context.y[:, -1], after.context.y[:, -1])


def test_the_last_target_cannot_be_inferred_from_the_others() -> None:
    """If targets were standardised by their own mean, they would sum to 0. With 64 reference rows, the mean of 30 noise
    values has variance 1/30 + 1/64."""
    y = draw(4000).context.y[..., 0].double()
    assert float(y.mean(1).var()) > 1 / 30


def test_a_curriculum_limits_the_used_columns() -> None:
    request = Request(200, 10, torch.Generator().manual_seed(0), active_dims=2)
    episodes = family().sample(request)
    assert int(episodes.truth["used"].max()) == 2 and not episodes.context.x[..., 2:].any()


def test_all_pairs_of_gaussian_process_hyperparameters_are_equally_likely() -> None:
    truth = draw(6000, 2, kind="gp").truth
    pairs = torch.stack([truth["lengthscale"], truth["noise"]], 1)
    values, counts = pairs.unique(dim=0, return_counts=True)
    assert len(values) == 12 and (counts / 6000 - 1 / 12).abs().max() < 4 * math.sqrt(1 / 12 / 6000)
    others = draw(50, 2, kind="bnn").truth
    assert not others["lengthscale"].any() and not others["noise"].any()


def test_outputs_of_gaussian_processes_have_the_variance_of_kernel_plus_noise() -> None:
    episodes = draw(4000, 5, kind="gp")
    squares = (episodes.context.y[..., 0].double().square() - 1 - episodes.truth["noise"].unsqueeze(1) ** 2).mean(1)
    assert abs(float(squares.mean())) < 4 * float(squares.std()) / math.sqrt(4000)


@pytest.mark.parametrize("name", ["tabular-prior", "tabular-prior-classes", "tabular-gp"])
def test_prompts_are_frozen_and_larger_sets_begin_with_smaller_ones(name: str) -> None:
    task = resolve_task(name, "smoke")[0]
    short, long = (PromptSet(task.model_copy(update={"episodes": count}), "smoke").episodes for count in (64, 128))
    repeated = PromptSet(task, "smoke").episodes
    for key, tensor in short.tensors().items():
        assert torch.equal(tensor, repeated.tensors()[key]) and torch.equal(tensor, long.tensors()[key][:64])


def test_invalid_parameters_are_refused() -> None:
    invalid_parameters: list[dict[str, Any]] = [
        {"classes": 1},
        {"lengthscales": [0.0]},
        {"noises": []},
        {"trees": 1.5},
        {"kind": "forest"},
    ]
    for parameters in invalid_parameters:
        with refused("bad-value", next(iter(parameters))):
            validate(TabularPriorParameters, parameters, "parameters")
    with refused("conflict", "scm", "bnn"):
        family().parse_shift("scm+bnn")
