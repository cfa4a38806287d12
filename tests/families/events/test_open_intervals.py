"""Windows of observation: the open interval at their end in the loss, in what is evaluated and in classical fits."""

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
from iclbench.core.errors import DataError
from iclbench.core.events import CENSORED, MARK, HazardEvent, open_intervals
from iclbench.core.task import TaskShape
from iclbench.evaluation.contestants import baselines, in_memory
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.next_points import score_next
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.events.sequences import EventParameters, Events
from iclbench.families.request import Request
from iclbench.registry import BACKBONES
from iclbench.training.processes import Processes
from tests.families.events import made

RATE, END = 0.8, 3.0
SHAPE = TaskShape(x_dim=0, points=16, y_dim=3, marks=1, head="event")


class Flat(Backbone[BackboneSettings]):
    """Answers with a Poisson process of one rate, whatever it reads."""

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


class FlatSet(SetBackbone[SetSettings]):
    """The same as a set model, which is trained on one random cut of every sequence."""

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
    """Times of Poisson processes up to the end of their window; some have none."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        times = rng.exponential(1 / rate, 40).cumsum()
        found.append(times[times < end].tolist())
    return found


def write(path: Path, times: list[list[float]], factor: float = 1.0, end: float | None = END) -> Path:
    rows = [{"times": [factor * t for t in each]} | ({} if end is None else {"end": factor * end}) for each in times]
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


def test_a_window_without_events_is_one_open_interval(tmp_path: Path) -> None:
    """At any position: it indexes no event of another sequence."""
    times = [[], [1.0, 2.0], [], [0.5], []] * 3
    path = write(tmp_path / "windows.jsonl", times)
    family = Events(EventParameters(path=str(path), split="file"))
    found = family.sample_prompts(Request(9, 4, torch.Generator()))
    for row, number in enumerate(found.truth["sequence"].tolist()):
        when = times[number]
        y = found.context.y[row, : len(when) + 1]
        gaps = np.diff([0.0, *when, END])
        np.testing.assert_allclose(y[:, 0], gaps, rtol=1e-6)
        assert y[:, 1].tolist() == [0.0] * len(when) + [CENSORED] and y[-1, 2] == END
        assert found.context.mask[row].sum() == len(when) + 1 and found.scored[row].sum() == len(when)
        assert (found.truth["event"][row] == -1) == (not when)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"times": []}', r"line 1: a sequence without events.*\"end\""),
        ('{"times": [], "end": 0}', 'line 1: "end" is 0'),
        ('{"times": [], "end": 2}', "no sequence has an event"),
    ],
)
def test_a_window_without_events_needs_a_length(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "windows.jsonl").write_text(rows + "\n")
    with pytest.raises(DataError, match=message):
        episodes_of(tmp_path / "windows.jsonl")


def test_a_part_without_any_event_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [[1.0]] * 8 + [[]] * 2)
    with pytest.raises(DataError, match="part 'test'"):
        episodes_of(path, split="file")


def test_an_open_interval_beyond_the_numbers_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [[1.0]] * 10, end=1e60)
    with pytest.raises(DataError, match=r"open interval of 1e\+60 .*time_scale"):
        episodes_of(path)


def test_the_loss_is_the_likelihood_of_all_windows_per_event(file: Path) -> None:
    """Of a Poisson process in closed form: rate times observed time minus a logarithm for every event."""
    episodes = episodes_of(file)
    events = int(episodes.scored.sum())
    assert (episodes.scored.sum(1) == 0).any()
    loss, _ = Flat().loss(episodes, 0.5, torch.Generator())
    expected = RATE * END * len(episodes) / events - math.log(RATE)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    own = Flat()
    (slope,) = torch.autograd.grad(own.loss(episodes, 0.5, torch.Generator())[0], list(own.parameters()))
    assert slope.item() == pytest.approx(END * len(episodes) / events - 1 / RATE, rel=1e-6)


def test_a_batch_without_events_has_the_sum_of_its_survivals_as_loss(file: Path) -> None:
    episodes = episodes_of(file)
    empty = episodes[episodes.scored.sum(1) == 0]
    loss, _ = Flat().loss(empty, 0.5, torch.Generator())
    assert loss.item() == pytest.approx(RATE * END * len(empty), rel=1e-6)


def test_one_random_cut_of_every_window_has_that_loss_in_the_mean(file: Path) -> None:
    episodes = episodes_of(file)
    many = episodes[torch.arange(len(episodes)).repeat(400)]
    loss, _ = FlatSet(SetSettings(), SHAPE).loss(many, 0.5, torch.Generator().manual_seed(1))
    expected = RATE * END * len(episodes) / int(episodes.scored.sum()) - math.log(RATE)
    assert loss.item() == pytest.approx(expected, abs=0.02)


def test_processes_share_windows_without_events(file: Path) -> None:
    episodes = episodes_of(file)
    order = episodes.scored.sum(1).argsort()  # the first process has the windows without events
    episodes, own = episodes[order], Flat()
    shares = [Processes(rank, 2).share(own, episodes) for rank in range(2)]
    shares += [Processes(rank, 2).share(own, episodes[:2]) for rank in range(2)]
    for parts, whole in ((shares[:2], episodes), (shares[2:], episodes[:2])):
        found = sum(weight * own.loss(part, 0.5, torch.Generator())[0].item() for part, weight in parts)
        assert found == pytest.approx(own.loss(whole, 0.5, torch.Generator())[0].item(), rel=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "mamba", "thp", "cmhp", "coqe", "cnp", "np", "tnp"])
def test_no_backbone_reads_an_open_interval(name: str, file: Path) -> None:
    """The loss depends on its length only, not on the value in its mark."""
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


def test_a_recurrent_state_is_not_updated_by_an_open_interval(file: Path) -> None:
    cls = BACKBONES.get("mamba")
    torch.manual_seed(0)
    model = cls(cls.Settings(**cls.at_budget(5_000, SHAPE)), SHAPE).eval()
    context = episodes_of(file, count=6).context.to(dtype=torch.float32)
    events = replace(context, mask=context.mask & (context.y[..., MARK] >= 0))
    with torch.no_grad():
        found, expected = (model.condition(each).pending for each in (context, events))
    torch.testing.assert_close(found, expected)


def test_the_headline_is_the_likelihood_of_all_windows_per_event(file: Path) -> None:
    prompts = prompts_of(file)
    episodes = prompts.episodes
    counts = episodes.scored.sum(1).numpy()
    gaps = episodes.context.y[..., 0].double().masked_fill(~episodes.context.mask, 0)
    observed, opened = gaps.sum(1).numpy(), (gaps * open_intervals(episodes.context)).sum(1).numpy()
    values = evaluate([in_memory("flat", Flat())], prompts)
    whole = values[values["n_context"].isna()].set_index("metric")
    expected = RATE * observed.sum() / counts.sum() - math.log(RATE)
    for name in ("nll", "nll_time", "auc"):
        assert whole.loc[name, "value"] == pytest.approx(expected, rel=1e-6), name
    assert whole.loc["nll_open", "value"] == pytest.approx(RATE * opened[opened > 0].mean(), rel=1e-6)
    # The curve is of events alone.
    curve = values[values["metric"].eq("nll") & values["n_context"].notna()].set_index("n_context")["value"]
    at_0 = RATE * gaps[:, 0].numpy()[counts > 0].mean() - math.log(RATE)
    assert curve[0] == pytest.approx(at_0, rel=1e-6)
    assert not values["metric"].isin(["covered_50", "covered_90"]).any(), "observed gaps are shorter than gaps are"
    # Episodes are drawn again with both their sum and their number of events.
    drawn = np.random.default_rng(prompts.seed).integers(len(counts), size=(1000, len(counts)))
    ratios = [RATE * observed[own].sum() / counts[own].sum() - math.log(RATE) for own in drawn]
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert (whole.loc["nll", "low"], whole.loc["nll", "high"]) == pytest.approx((low, high), rel=1e-6)


def test_the_side_file_holds_sums_and_numbers_of_events(file: Path) -> None:
    prompts = prompts_of(file)
    counts = prompts.episodes.scored.sum(1).numpy()
    (poisson_baseline,) = baselines(prompts, ["poisson"])
    asked = {"flat": in_memory("flat", Flat()), "poisson": poisson_baseline}
    scored = {name: score_next(each, prompts) for name, each in asked.items()}
    found, heads = {}, {}
    for name, rows in scored.items():
        errors = tables.frame("errors", rows["errors"])
        sums = errors[errors["n_events"].notna()].sort_values("episode")
        assert sums["metric"].eq("nll").all() and sums["n_context"].isna().all()
        np.testing.assert_array_equal(sums["n_events"], counts)
        values = tables.frame("values", rows["values"])
        heads[name] = values[values["metric"].eq("nll") & values["n_context"].isna()]["value"].item()
        assert sums["value"].sum() / counts.sum() == pytest.approx(heads[name], rel=1e-9)
        found[name] = errors
    scores = EpisodeScores([pd.concat(found.values())], {prompts.id})
    curves = [scores.curves([name], prompts.id, "nll") for name in found]
    gap = difference(*curves)
    assert gap is not None and gap.value == pytest.approx(heads["flat"] - heads["poisson"], rel=1e-6)


def test_files_without_ends_have_no_open_interval(tmp_path: Path) -> None:
    path = write(tmp_path / "windows.jsonl", [each for each in windows(60) if each], end=None)
    values = evaluate([in_memory("flat", Flat())], prompts_of(path))
    assert "covered_50" in set(values["metric"]) and "nll_open" not in set(values["metric"])


@pytest.mark.slow
@pytest.mark.parametrize("end", [END, None])
@pytest.mark.parametrize("factor", [1e-4, 3600.0])
def test_another_unit_of_time_moves_every_likelihood_by_its_logarithm_and_no_score(
    tmp_path: Path, factor: float, end: float | None
) -> None:
    """Of every baseline, before the first event too, where only the training data say what to expect."""
    times = [each for each in windows(60, rate=4.0) if each or end]
    marks = [[n % 3 for n in range(len(each))] for each in times]
    names = ("poisson", "renewal", "markov-marks", "hawkes-mle")
    found = []
    for scale in (1.0, factor):
        path = tmp_path / f"own-{scale}.jsonl"
        made.write_jsonl(path, [[scale * t for t in each] for each in times], marks, [end and scale * end] * len(times))
        prompts = prompts_of(path)
        values = evaluate(baselines(prompts, names), prompts)
        found.append(values[values["status"].eq("ok")].set_index(["run", "metric", "n_context"])["value"].astype(float))
    for metric, shift in (("nll", math.log(factor)), ("nll_mark", 0.0), ("score", 0.0)):
        one, other = (each[each.index.get_level_values("metric") == metric] for each in found)
        assert len(one) == len(other) > 0
        np.testing.assert_allclose(other.to_numpy(), one.to_numpy() + shift, rtol=0, atol=2e-5)
    assert ("poisson", "nll", 0) in found[0].index


def test_without_an_event_a_baseline_expects_the_mean_first_gap_of_the_training_data(file: Path) -> None:
    """Observed time over first events, windows without any included."""
    prompts = prompts_of(file, split="file")
    trained = windows(60)[:36]
    firsts = [each[0] for each in trained if each]
    expected = (sum(firsts) + END * sum(not each for each in trained)) / len(firsts)
    every = (END * len(trained)) / sum(map(len, trained))
    facts = prompts.family.facts()
    assert (facts.mean_first_gap, facts.mean_gap) == pytest.approx((expected, every), rel=1e-6)
    (own,) = baselines(prompts, ["poisson"])
    assert own.predictor.predict_next(prompts.episodes.context, prefixes=[0]).mean()[0, 0].item() == pytest.approx(
        expected, rel=1e-5
    )
    (other,) = baselines(prompts_of(file, split="seeded"), ["poisson"])
    assert own.identity != other.identity, "an answer that depends on other data is another one"


def test_a_latent_path_reads_no_open_interval(file: Path) -> None:
    cls = BACKBONES.get("np")
    torch.manual_seed(0)
    model = cls(cls.Settings(**cls.at_budget(5_000, SHAPE)), SHAPE)
    read: list[Tensor] = []
    model.encoders.second.register_forward_pre_hook(lambda _, given: read.append(given[1]))
    episodes = episodes_of(file, count=40).to(dtype=torch.float32)
    model.loss(episodes, 0.5, torch.Generator().manual_seed(0))
    points = episodes.context
    opened = open_intervals(points)
    whole = next(mask for mask in read if mask.shape[1] == 2 * points.count)
    assert opened.any() and not (whole[:, points.count :] & opened).any()
