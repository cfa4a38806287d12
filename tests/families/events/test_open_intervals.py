"""Open intervals at the end of observation windows: losses, evaluations and fits of baselines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import difference
from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes, Points
from iclbench.core.events import CENSORED, MARK, HazardEvent, open_intervals
from iclbench.core.task import TaskShape
from iclbench.evaluation.contestants import baselines, contestant_of_predictor
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.next_points import score_next
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.events.sequences import EventParameters, Events
from iclbench.families.request import Request
from iclbench.registry import BACKBONES
from iclbench.training.processes import Processes
from tests.families.events import sequence_files
from tests.refusals import refused

RATE, END = 0.8, 3.0
SHAPE = TaskShape(x_dim=0, points=16, y_dim=3, marks=1, head="event")


class ConstantRate(Backbone[BackboneSettings]):
    """A model that predicts a Poisson process with the same rate for all contexts."""

    Settings = BackboneSettings
    order = "causal"
    heads = ("event",)

    def __init__(self) -> None:
        super().__init__(BackboneSettings(), SHAPE)
        self.rate = torch.nn.Parameter(torch.tensor(RATE, dtype=torch.float64))

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 0"], related: Points | None = None
    ) -> HazardEvent:
        return poisson(self.rate, x_target)


class ConstantRateSet(SetBackbone[SetSettings]):
    """`ConstantRate` as a set model, which is trained on one random prefix of every sequence."""

    Settings = SetSettings
    heads = ("event",)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 0"], related: Points | None = None
    ) -> HazardEvent:
        assert not open_intervals(context).any()
        return poisson(torch.tensor(RATE, dtype=torch.float64), x_target)


def poisson(rate: Tensor, x: Tensor) -> HazardEvent:
    base = rate.expand(*x.shape[:2], 1)
    return HazardEvent(base, torch.zeros_like(base), torch.zeros_like(base[..., 0]))


def windows(count: int, end: float = END, rate: float = 1.0, seed: int = 0) -> list[list[float]]:
    """Draw event times of Poisson processes in windows that end at `end`. Some windows have no events."""
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        times = rng.exponential(1 / rate, 40).cumsum()
        sequences.append(times[times < end].tolist())
    return sequences


def write(path: Path, times: list[list[float]], factor: float = 1.0, end: float | None = END) -> Path:
    rows = [
        {"times": [factor * t for t in sequence]} | ({} if end is None else {"end": factor * end}) for sequence in times
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    times = windows(60)
    assert [] in times
    return write(tmp_path / "windows.jsonl", times)


def episodes_of(path: Path, count: int = 30, **parameters: Any) -> Episodes:
    family = Events(EventParameters(path=str(path), **parameters))
    return family.sample(Request(count, 16, torch.Generator().manual_seed(0))).to(dtype=torch.float64)


def prompts_of(path: Path, **parameters: Any) -> PromptSet:
    task, _ = resolve_task("events", "smoke", {"path": str(path), "time_scale": 1.0, **parameters})
    return PromptSet(task, "smoke")


def test_a_window_without_events_is_a_single_open_interval(tmp_path: Path) -> None:
    """A window without events may be at any position in the file."""
    times = [[], [1.0, 2.0], [], [0.5], []] * 3
    path = write(tmp_path / "windows.jsonl", times)
    family = Events(EventParameters(path=str(path), split="file"))
    episodes = family.sample_prompts(Request(9, 4, torch.Generator()))
    for row, number in enumerate(episodes.truth["sequence"].tolist()):
        sequence = times[number]
        y = episodes.context.y[row, : len(sequence) + 1]
        gaps = np.diff([0.0, *sequence, END])
        np.testing.assert_allclose(y[:, 0], gaps, rtol=1e-6)
        assert y[:, 1].tolist() == [0.0] * len(sequence) + [CENSORED] and y[-1, 2] == END
        assert episodes.context.mask[row].sum() == len(sequence) + 1
        assert episodes.scored[row].sum() == len(sequence)
        assert (episodes.truth["event"][row] == -1) == (not sequence)


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ('{"times": []}', ["line 1", '"end"']),
        ('{"times": [], "end": 0}', ["line 1", '"end"', 0]),
        ('{"times": [], "end": 2}', []),
    ],
)
def test_a_file_without_events_is_refused(tmp_path: Path, rows: str, names: list) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_text(rows + "\n")
    with refused("bad-data", path, *names):
        episodes_of(path)


def test_a_split_with_a_part_without_events_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [[1.0]] * 8 + [[]] * 2)
    with refused("bad-data", path, "'test'", "-o task.split_seed"):
        episodes_of(path, split="file")


def test_open_intervals_out_of_range_for_float32_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [[1.0]] * 10, end=1e60)
    with refused("bad-data", "1e+60", "-o task.time_scale"):
        episodes_of(path)


def test_the_loss_is_the_likelihood_of_all_windows_per_event(file: Path) -> None:
    """The negative log-likelihood of a Poisson process is the rate times the observed time, minus the log rate per
    event."""
    episodes = episodes_of(file)
    events = int(episodes.scored.sum())
    assert (episodes.scored.sum(1) == 0).any()
    loss, _ = ConstantRate().loss(episodes, 0.5, torch.Generator())
    expected = RATE * END * len(episodes) / events - math.log(RATE)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    model = ConstantRate()
    (slope,) = torch.autograd.grad(model.loss(episodes, 0.5, torch.Generator())[0], list(model.parameters()))
    assert slope.item() == pytest.approx(END * len(episodes) / events - 1 / RATE, rel=1e-6)


def test_the_loss_of_a_batch_without_events_is_the_summed_negative_log_survival(file: Path) -> None:
    episodes = episodes_of(file)
    empty = episodes[episodes.scored.sum(1) == 0]
    loss, _ = ConstantRate().loss(empty, 0.5, torch.Generator())
    assert loss.item() == pytest.approx(RATE * END * len(empty), rel=1e-6)


def test_the_mean_loss_over_random_prefixes_is_the_loss_of_complete_windows(file: Path) -> None:
    episodes = episodes_of(file)
    repeated = episodes[torch.arange(len(episodes)).repeat(400)]
    loss, _ = ConstantRateSet(SetSettings(), SHAPE).loss(repeated, 0.5, torch.Generator().manual_seed(1))
    expected = RATE * END * len(episodes) / int(episodes.scored.sum()) - math.log(RATE)
    assert loss.item() == pytest.approx(expected, abs=0.02)


def test_the_loss_of_a_batch_is_the_same_on_one_and_on_two_processes(file: Path) -> None:
    episodes = episodes_of(file)
    order = episodes.scored.sum(1).argsort()  # the first process has the windows without events
    model = ConstantRate()
    for batch in (episodes[order], episodes[order][:2]):
        shares = [Processes(rank, 2).share(model, batch) for rank in range(2)]
        loss = sum(weight * model.loss(share, 0.5, torch.Generator())[0].item() for share, weight in shares)
        assert loss == pytest.approx(model.loss(batch, 0.5, torch.Generator())[0].item(), rel=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "mamba", "thp", "cmhp", "coqe", "cnp", "np", "tnp"])
def test_backbones_do_not_read_open_intervals(name: str, file: Path) -> None:
    """Changing the values of open intervals does not change predictions."""
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    model = cls(cls.Settings(**cls.at_budget(5_000, SHAPE)), SHAPE).eval()
    episodes = episodes_of(file, count=6).to(dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    loss, _ = model.loss(episodes, 0.5, generator)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    context = episodes.context
    with torch.no_grad():
        before = model.predict_next(context).log_density(torch.ones(context.mask.shape))
        changed = context.y.masked_fill((context.y[..., MARK] == CENSORED).unsqueeze(-1), 7.0)
        changed[..., MARK] = context.y[..., MARK]
        after = model.predict_next(replace(context, y=changed)).log_density(torch.ones(context.mask.shape))
    torch.testing.assert_close(after[context.mask], before[context.mask])


def test_open_intervals_do_not_update_recurrent_states(file: Path) -> None:
    cls = BACKBONES.get("mamba")
    torch.manual_seed(0)
    model = cls(cls.Settings(**cls.at_budget(5_000, SHAPE)), SHAPE).eval()
    context = episodes_of(file, count=6).context.to(dtype=torch.float32)
    events = replace(context, mask=context.mask & (context.y[..., MARK] >= 0))
    with torch.no_grad():
        state, expected = (model.condition(points).pending for points in (context, events))
    torch.testing.assert_close(state, expected)


def test_the_headline_is_the_likelihood_of_all_windows_per_event(file: Path) -> None:
    prompts = prompts_of(file)
    episodes = prompts.episodes
    counts = episodes.scored.sum(1).numpy()
    gaps = episodes.context.y[..., 0].double().masked_fill(~episodes.context.mask, 0)
    observed, open_times = gaps.sum(1).numpy(), (gaps * open_intervals(episodes.context)).sum(1).numpy()
    values = evaluate([contestant_of_predictor("constant-rate", ConstantRate())], prompts)
    headline = values[values["n_context"].isna()].set_index("metric")
    expected = RATE * observed.sum() / counts.sum() - math.log(RATE)
    for name in ("nll", "nll_time", "auc"):
        assert headline.loc[name, "value"] == pytest.approx(expected, rel=1e-6), name
    assert headline.loc["nll_open", "value"] == pytest.approx(RATE * open_times[open_times > 0].mean(), rel=1e-6)
    # The curve excludes open intervals.
    curve = values[values["metric"].eq("nll") & values["n_context"].notna()].set_index("n_context")["value"]
    nll_at_0 = RATE * gaps[:, 0].numpy()[counts > 0].mean() - math.log(RATE)
    assert curve[0] == pytest.approx(nll_at_0, rel=1e-6)
    assert not values["metric"].isin(["covered_50", "covered_90"]).any(), (
        "censoring biases the coverage of observed gaps"
    )
    # The bootstrap resamples episodes together with their observed times and numbers of events.
    resamples = np.random.default_rng(prompts.seed).integers(len(counts), size=(1000, len(counts)))
    ratios = [RATE * observed[rows].sum() / counts[rows].sum() - math.log(RATE) for rows in resamples]
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert (headline.loc["nll", "low"], headline.loc["nll", "high"]) == pytest.approx((low, high), rel=1e-6)


def test_the_table_of_errors_has_the_summed_loss_and_number_of_events_per_episode(file: Path) -> None:
    prompts = prompts_of(file)
    counts = prompts.episodes.scored.sum(1).numpy()
    (poisson_baseline,) = baselines(prompts, ["poisson"])
    contestants = {
        "constant-rate": contestant_of_predictor("constant-rate", ConstantRate()),
        "poisson": poisson_baseline,
    }
    rows_by_name = {name: score_next(contestant, prompts) for name, contestant in contestants.items()}
    error_tables, headlines = {}, {}
    for name, rows in rows_by_name.items():
        errors = tables.frame("errors", rows["errors"])
        sums = errors[errors["n_events"].notna()].sort_values("episode")
        assert sums["metric"].eq("nll").all() and sums["n_context"].isna().all()
        np.testing.assert_array_equal(sums["n_events"], counts)
        values = tables.frame("values", rows["values"])
        headlines[name] = values[values["metric"].eq("nll") & values["n_context"].isna()]["value"].item()
        assert sums["value"].sum() / counts.sum() == pytest.approx(headlines[name], rel=1e-9)
        error_tables[name] = errors
    scores = EpisodeScores([pd.concat(error_tables.values())], {prompts.id})
    curves = [scores.curves([name], prompts.id, "nll") for name in error_tables]
    gap = difference(*curves)
    assert gap is not None and gap.value == pytest.approx(headlines["constant-rate"] - headlines["poisson"], rel=1e-6)


def test_files_without_window_ends_have_no_open_intervals(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [sequence for sequence in windows(60) if sequence], end=None)
    values = evaluate([contestant_of_predictor("constant-rate", ConstantRate())], prompts_of(path))
    assert "covered_50" in set(values["metric"]) and "nll_open" not in set(values["metric"])


@pytest.mark.slow
@pytest.mark.parametrize("end", [END, None])
@pytest.mark.parametrize("factor", [1e-4, 3600.0])
def test_a_unit_of_time_shifts_log_likelihoods_by_its_logarithm_and_preserves_scores(
    tmp_path: Path, factor: float, end: float | None
) -> None:
    """Predictions before the first event, which depend only on the training data, are included."""
    times = [sequence for sequence in windows(60, rate=4.0) if sequence or end]
    marks = [[n % 3 for n in range(len(sequence))] for sequence in times]
    names = ("poisson", "renewal", "markov-marks", "hawkes-mle")
    values_by_unit = []
    for scale in (1.0, factor):
        path = tmp_path / f"scaled-{scale}.jsonl"
        sequence_files.write_jsonl(
            path, [[scale * t for t in sequence] for sequence in times], marks, [end and scale * end] * len(times)
        )
        prompts = prompts_of(path)
        values = evaluate(baselines(prompts, names), prompts)
        values = values[values["status"].eq("ok")].set_index(["run", "metric", "n_context"])["value"].astype(float)
        values_by_unit.append(values)
    for metric, shift in (("nll", math.log(factor)), ("nll_mark", 0.0), ("score", 0.0)):
        original, scaled = (values[values.index.get_level_values("metric") == metric] for values in values_by_unit)
        assert len(original) == len(scaled) > 0
        np.testing.assert_allclose(scaled.to_numpy(), original.to_numpy() + shift, rtol=0, atol=2e-5)
    assert ("poisson", "nll", 0) in values_by_unit[0].index


def test_baselines_predict_the_mean_first_gap_of_the_training_data_without_events(file: Path) -> None:
    """The mean first gap is the time observed up to first events, including windows without events, over the number of
    first events."""
    prompts = prompts_of(file, split="file")
    training = windows(60)[:36]
    first_gaps = [sequence[0] for sequence in training if sequence]
    mean_first_gap = (sum(first_gaps) + END * sum(not sequence for sequence in training)) / len(first_gaps)
    mean_gap = (END * len(training)) / sum(map(len, training))
    facts = prompts.family.facts()
    assert (facts.mean_first_gap, facts.mean_gap) == pytest.approx((mean_first_gap, mean_gap), rel=1e-6)
    (baseline,) = baselines(prompts, ["poisson"])
    prediction = baseline.predictor.predict_next(prompts.episodes.context, prefixes=[0])
    assert prediction.mean()[0, 0].item() == pytest.approx(mean_first_gap, rel=1e-5)
    (other,) = baselines(prompts_of(file, split="seeded"), ["poisson"])
    assert baseline.identity != other.identity, "the identity depends on the training data"


def test_latent_paths_do_not_read_open_intervals(file: Path) -> None:
    cls = BACKBONES.get("np")
    torch.manual_seed(0)
    model = cls(cls.Settings(**cls.at_budget(5_000, SHAPE)), SHAPE)
    masks: list[Tensor] = []
    model.encoders.second.register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
    episodes = episodes_of(file, count=40).to(dtype=torch.float32)
    model.loss(episodes, 0.5, torch.Generator().manual_seed(0))
    points = episodes.context
    is_open = open_intervals(points)
    mask = next(mask for mask in masks if mask.shape[1] == 2 * points.count)
    assert is_open.any() and not (mask[:, points.count :] & is_open).any()
