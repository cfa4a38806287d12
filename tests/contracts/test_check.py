"""`iclbench check` covers all code paths of training and evaluation, with and without related datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.backbones.recurrent import BlockState, RecurrentBackbone, RecurrentBlock
from iclbench.backbones.thp import THP, THPSettings
from iclbench.cli.check_class import _backbone_cases
from iclbench.cli.main import main
from iclbench.contracts import Tolerance, failures
from iclbench.contracts.examples import BUDGETS, build, episodes_of, example_shape, small_settings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES
from tests.contracts.cases import ONE_FAMILY_ESTIMATORS
from tests.texts import words


class Settings(BackboneSettings):
    width: int = 8


class Sum(RecurrentBlock):
    """Returns the running sum of a function of its tokens. Invalid tokens are omitted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)

    def start(self, batch: int) -> BlockState:
        return (self.line.weight.new_zeros(batch, self.line.in_features),)

    def forward(self, x: Tensor) -> Tensor:
        return self.resume(x, self.start(len(x)))[0]

    def resume(self, x: Tensor, state: BlockState, mask: Tensor | None = None) -> tuple[Tensor, BlockState]:
        added = self.line(x) if mask is None else self.line(x) * mask.unsqueeze(-1)
        sums = state[0].unsqueeze(1) + added.cumsum(1)
        return x + sums.tanh(), (sums[:, -1],)

    def peek(self, queries: Tensor, state: BlockState) -> Tensor:
        return queries + (state[0].unsqueeze(1) + self.line(queries)).tanh()

    def fork(
        self, x: Tensor, queries: Tensor, state: BlockState | None = None
    ) -> tuple[Tensor, Tensor, BlockState | None]:
        (before,) = self.start(len(x)) if state is None else state
        sums = before.unsqueeze(1) + self.line(x).cumsum(1)
        at_queries = torch.cat([before.unsqueeze(1), sums[:, 1::2]], 1)[:, : queries.shape[1]]
        after = None if state is None else (sums[:, -1],)
        return x + sums.tanh(), queries + (at_queries + self.line(queries)).tanh(), after


class LooksAheadInOnePass(Sum):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(1, keepdim=True)


class LooksAheadInForks(Sum):
    def fork(self, x: Tensor, queries: Tensor, state: BlockState | None = None) -> tuple[Tensor, Tensor, object]:
        tokens, answers, after = super().fork(x, queries, state)
        return tokens, answers + x.mean(1, keepdim=True) * (state is None), after


class LooksAheadAfterAState(Sum):
    def resume(self, x: Tensor, state: BlockState, mask: Tensor | None = None) -> tuple[Tensor, BlockState]:
        tokens, after = super().resume(x, state, mask)
        return tokens + x.mean(1, keepdim=True) * bool(state[0].any()), after


class Net(RecurrentBackbone[Settings]):
    Settings = Settings
    heads = ("point",)
    block: type[RecurrentBlock] = Sum

    def __init__(self, settings: Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape, settings.width, [self.block(settings.width)])

    def finish(self, hidden: Tensor) -> Tensor:
        return hidden


class FixedSize(Net):
    """A class whose number of parameters does not depend on its settings."""

    def __init__(self, settings: Settings, shape: TaskShape) -> None:
        RecurrentBackbone.__init__(self, settings, shape, 8, [Sum(8)])


class CheatsInOnePass(Net):
    block = LooksAheadInOnePass


class CheatsInForks(Net):
    block = LooksAheadInForks


class CheatsAfterAState(Net):
    block = LooksAheadAfterAState


class SmallSettings(THPSettings):
    width: int = 8


class EventModel(THP):
    Settings = SmallSettings


class ReadsTheEventItPredicts(EventModel):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Prediction:
        answer = super().predict_next(points, related, **options)
        return answer if options else replace(answer, marks=answer.marks + points.y[..., 1:2])


class ReadsStreams(Net):
    """A correct model for tokens and vectors."""

    heads = ("point", "categorical")
    input_kinds = frozenset({"tokens", "vectors"})


class LooksAhead(ReadsStreams):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Prediction:
        return super().predict_next(points, related, **options).map(lambda t: t + points.y.float().mean())


class ReadsNeighbours(ReadsStreams):
    def query(self, state: Any, x: Tensor) -> Prediction:
        return super().query(state, x).map(lambda t: t - t.mean(0, keepdim=True))


class Forgets(ReadsStreams):
    def update(self, state: Any, points: Points) -> Any:
        return self.condition(points)


def run_check(cls: type[Backbone], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["check", f"{__name__}:{cls.__name__}"])
    return code, capsys.readouterr().out.splitlines()


def test_a_correct_model_passes_with_and_without_related_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run_check(Net, capsys)
    assert code == 0 and all(line.startswith("ok ") for line in lines[:-1])
    assert lines[-1] == f"{len(lines) - 1} contracts passed"
    for suffix in ("(point head)", "(point head, related datasets)"):
        assert f"ok     later_points_change_nothing {suffix}" in lines
    related_lines = [line for line in lines if "absent_related_datasets_equal_none" in line]
    assert related_lines == ["ok     absent_related_datasets_equal_none (point head, related datasets)"]


@pytest.mark.parametrize(
    ("cls", "contracts", "suffix"),
    [
        (CheatsInOnePass, ("later_points_change_nothing", "no_answer_sees_its_own_label"), "(point head)"),
        (CheatsInForks, ("separate_queries_are_answered",), "(point head)"),
        (CheatsAfterAState, ("later_points_change_nothing",), "(point head, related datasets)"),
    ],
)
def test_a_model_that_looks_ahead_in_only_one_code_path_fails(
    cls: type[Net], contracts: tuple[str, ...], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run_check(cls, capsys)
    assert code == 1
    for contract in contracts:
        assert any(line.startswith(f"FAILED {contract} {suffix}: ") for line in lines)
    failed = sum(line.startswith("FAILED ") for line in lines)
    assert lines[-1].startswith(f"{failed} of {len(lines) - 1} broken: ")
    assert all(lines[-1].count(contract) == 1 for contract in contracts)


STREAMS = ("(categorical head, tokens)", "(point head, vectors)")


def test_a_model_for_streams_is_checked_on_streams(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run_check(ReadsStreams, capsys)
    assert code == 0 and lines[-1] == f"{len(lines) - 1} contracts passed", lines
    contracts = ("later_points_change_nothing", "batch_neighbours_change_nothing", "masks_equal_truncation")
    for contract in (*contracts, "update_equals_conditioning_on_everything"):
        assert all(f"ok     {contract} {suffix}" in lines for suffix in STREAMS)
    assert all(line.endswith((*STREAMS, " parameters)")) for line in lines[:-1])


@pytest.mark.parametrize(
    ("cls", "contract"),
    [
        (LooksAhead, "later_points_change_nothing"),
        (ReadsNeighbours, "batch_neighbours_change_nothing"),
        (Forgets, "update_equals_conditioning_on_everything"),
    ],
)
def test_a_model_for_streams_with_a_fault_fails(
    cls: type[Net], contract: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iclbench.cli.check_class._budgets", list)
    code, lines = run_check(cls, capsys)
    assert code == 1
    for suffix in STREAMS:
        assert any(line.startswith(f"FAILED {contract} {suffix}: ") for line in lines)


def test_an_event_model_is_checked_on_events_and_fails_if_it_reads_the_event_it_predicts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = run_check(EventModel, capsys)
    assert code == 0 and lines[-1] == f"{len(lines) - 1} contracts passed"
    assert "ok     no_answer_sees_its_own_label (event head)" in lines
    assert not [line for line in lines if "point head" in line or "related datasets" in line]
    code, lines = run_check(ReadsTheEventItPredicts, capsys)
    assert code == 1
    assert any(line.startswith("FAILED no_answer_sees_its_own_label (event head): ") for line in lines)


def test_check_builds_a_model_of_each_parameter_budget_of_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = run_check(Net, capsys)
    sizes = ("25.0 k", "100 k", "200 k", "400 k")
    assert lines[:4] == [f"ok     a_size_meets_the_budget ({size} parameters)" for size in sizes]
    code, lines = run_check(FixedSize, capsys)
    assert code == 1 and lines[-1].endswith(" broken: a_size_meets_the_budget")
    assert "25.0 k" in lines[0] and "width 1" in lines[0]


class ZeroReadOut(Net):
    """A class whose output gate is initialised to 0, like many residual branches."""

    def __init__(self, settings: Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.gate = nn.Parameter(torch.zeros(()))

    def finish(self, hidden: Tensor) -> Tensor:
        return self.gate * hidden


class Wide(Net):
    """A class whose models take 4 GB with the default settings."""

    class Settings(BackboneSettings):
        width: int = 2**15


def test_a_model_whose_output_is_initialised_to_zero_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run_check(ZeroReadOut, capsys)
    assert code == 0, [line for line in lines if line.startswith("FAILED")]


def test_check_builds_small_models_even_if_the_default_size_is_large() -> None:
    counts = [model.parameter_count for _, model, _ in _backbone_cases("wide", Wide, {})]
    assert counts and max(counts) < 2 * BUDGETS[0]


def test_a_card_of_a_baseline_is_checked_with_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = tmp_path / "mine.toml"
    card.write_text('estimator = "ridge"\nsummary = "mine"\nsettings = {penalty = -1.0}\n')
    assert main(["check", str(card)]) == 2
    assert "penalty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lasso", "spike-and-slab", "pool-oracle"])
def test_estimators_that_need_settings_or_a_family_are_checked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name]) == 0
    assert capsys.readouterr().out.endswith(" contracts passed\n")


@pytest.mark.parametrize(("name", "family"), [("gp-kernel-oracle", "gp-mixture"), ("event-oracle", "point-process")])
def test_checking_an_estimator_for_one_family_advises_to_check_the_family(
    name: str, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", name]) == 2
    assert f"iclbench check {family}" in capsys.readouterr().err


@pytest.mark.slow
def test_checking_a_mixer_advises_to_check_its_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "iclbench.layers.mixers.retnet:RetNet"]) == 2
    assert {"RetNet", "mixer", "backbone"} <= words(capsys.readouterr().err)


def test_hyena_can_read_related_datasets_of_an_example_task() -> None:
    cls = BACKBONES.get("hyena")
    shape = example_shape("gaussian", related=3)
    backbone = build("hyena", cls, small_settings("hyena", cls, {}), shape)
    assert not failures(backbone, episodes_of(shape), Tolerance(2e-5, 1e-4))


REGISTERED = {
    name for registry in (BACKBONES, ESTIMATORS, FAMILIES) for name in registry.entries
} - ONE_FAMILY_ESTIMATORS


# Families that read data files. This test has no such files.
DATA_FAMILIES = {"era5", "events", "tabular"}


@pytest.mark.parametrize("name", sorted(DATA_FAMILIES))
def test_missing_data_are_reported_as_a_usage_error_and_not_as_a_broken_contract(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICLBENCH_DATA", raising=False)
    assert main(["check", name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REGISTERED - DATA_FAMILIES))
def test_every_registered_class_passes_its_contracts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", name])
    out = capsys.readouterr().out
    assert code == 0 and out.endswith(" contracts passed\n"), out
