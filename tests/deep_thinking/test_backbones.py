"""Deep-Thinking on our own causal Transformers: against plain passes over a context that stands there twice, under the
contracts of every predictor, and in the tables beside the plain run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.analysis.comparable import name_variants
from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.coqe import CoQE
from iclbench.backbones.gpt2 import GPT2
from iclbench.backbones.image_backbone import for_task
from iclbench.backbones.mamba import Mamba
from iclbench.backbones.tnp import TNP
from iclbench.backbones.transformer import Transformer
from iclbench.cli.main import main
from iclbench.contracts import example_episodes, failures
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Prediction
from iclbench.deep_thinking import backbones as thinking_backbones
from iclbench.deep_thinking.backbones import ThinkingBackbone
from iclbench.deep_thinking.settings import DeepThinking
from iclbench.layers.key_value_cache import KeyValueCache

SMALL = {"layers": 2, "width": 16, "heads": 2}
KINDS = ["none", "sinusoidal", "learned", "transformer"]


def backbone(kind: str = "none", related: int = 0, points: int = 40) -> Any:
    shape = TaskShape(x_dim=4, points=points, related=related)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "transformer":
            model: Backbone = Transformer(Transformer.Settings(**SMALL), shape)
        else:
            model = GPT2(GPT2.Settings(**SMALL, positions=kind, init_std=0.2), shape)
    return model.eval().requires_grad_(False)


def thinking(model: Backbone, **settings: Any) -> ThinkingBackbone:
    return ThinkingBackbone(model, DeepThinking(**({"eta": 0.3, "passes": 3} | settings)))


def gap(one: Prediction, other: Prediction) -> float:
    pairs = zip(one.tensors().values(), other.tensors().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "related", "positions"),
    [("learned", 0, "reuse"), ("transformer", 2, "continue")],
)
def test_it_keeps_all_contracts_of_a_predictor(kind: str, related: int, positions: str) -> None:
    """Prefixes, masks, targets, batches, updates and related datasets: no label is seen that should not be."""
    model = thinking(backbone(kind, related), positions=positions, passes=2)
    assert failures(model, example_episodes(points=4, targets=2, related=related)) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_and_a_closed_gate_are_the_plain_backbone(kind: str) -> None:
    model, episodes = backbone(kind), example_episodes()
    for settings in ({"passes": 1, "eta": 1.0}, {"passes": 4, "eta": 0.0}):
        found = thinking(model, **settings)
        for question in ("next", "targets"):
            assert gap(found.ask(episodes, question), model.ask(episodes, question)) < 1e-5


@pytest.mark.parametrize("positions", ["continue", "reuse"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_passes_mix_the_two_copies_of_one_plain_pass(kind: str, positions: str) -> None:
    """With positions that are reused, only where there are none is a context written twice the same."""
    model, episodes, eta = backbone(kind), example_episodes(), 0.3
    context, x = episodes.context, episodes.asked.x
    doubled = model.condition(context.append(context))
    tokens = 2 * context.count

    def mixed(layers: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple((1 - eta) * t[:, :, :tokens] + eta * t[:, :, tokens:] for t in layers)

    cache = KeyValueCache(mixed(doubled.keys), mixed(doubled.values), doubled.mask[:, :tokens])
    far = gap(
        thinking(model, passes=2, eta=eta, positions=positions).predict_targets(context, x), model.query(cache, x)
    )
    assert (far < 1e-5) == (positions == "continue" or kind == "none")
    assert gap(model.query(cache, x), model.predict_targets(context, x)) > 1e-3


@pytest.mark.parametrize("positions", ["continue", "reuse"])
def test_walking_in_segments_changes_nothing(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where contexts are of different lengths."""
    model, episodes = thinking(backbone("sinusoidal"), positions=positions), example_episodes()
    there = torch.arange(episodes.context.count) < torch.tensor([[9], [4], [0]])
    context = replace(episodes.context, mask=there)
    expected = model.predict_targets(context, episodes.asked.x)
    monkeypatch.setattr(thinking_backbones, "SEGMENT", 3)
    assert gap(model.predict_targets(context, episodes.asked.x), expected) < 1e-5


def test_the_state_is_causal_in_the_context_after_one_pass_and_not_after_two() -> None:
    model, context = backbone(), example_episodes().context
    other = context.map(torch.clone)
    other.y[:, -1] += 1
    for passes, moves in ((1, False), (2, True)):
        a, b = (thinking(model, passes=passes).condition(points).cache for points in (context, other))
        before = max(float((k - j)[:, :, :-2].abs().max()) for k, j in zip(a.keys, b.keys, strict=True))
        assert (before > 1e-3) == moves


def test_learned_positions_are_refused_beyond_the_trained_ones_with_the_numbers() -> None:
    model = backbone("learned", points=12)
    context = example_episodes(points=9).context
    assert thinking(model).condition(context.span(0, 6)).cache.mask.shape[1] == 12
    with pytest.raises(UsageError, match=r"at most 6 examples and a query, .* reads them twice; -o method.pos"):
        thinking(model).condition(context)
    thinking(model, positions="reuse").condition(context)
    thinking(model, passes=1).condition(context)


def others() -> list[tuple[Backbone, str]]:
    shape = TaskShape(x_dim=4, points=8)
    images = TaskShape(x_dim=256, points=8, classes=3, x_shape=(16, 16), head="categorical", question="targets")
    events = TaskShape(x_dim=0, points=8, y_dim=3, marks=3, head="event")
    return [
        (GPT2(GPT2.Settings(layers=1, width=8, heads=2), events), "this one reads events"),
        (Mamba(Mamba.Settings(layers=1, width=8), shape), "the state of this one is recurrent"),
        (TNP(TNP.Settings(layers=1, width=8, heads=2), shape), "this one reads a set"),
        (CoQE(CoQE.Settings(layers=1, width=8, heads=2), shape), "this one answers from something else"),
        (for_task(Transformer, Transformer.Settings(**SMALL), images), "this one has an image encoder in front"),
    ]


def test_backbones_without_keys_and_values_are_refused_in_one_line_that_says_why() -> None:
    for model, why in others():
        with pytest.raises(
            UsageError, match=f"^Deep-Thinking needs the keys and values of .*, as gpt2 has them: {why}"
        ):
            thinking(model)


@pytest.mark.parametrize("settings", [{"passes": "dev"}, {"setting": "released"}, {"trace": False}])
def test_settings_of_language_models_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="are for language models"):
        thinking(backbone(), **settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, evaluated plainly and thinking twice as far as usual."""
    from tests.conftest import small_card

    folder = tmp_path_factory.mktemp("results")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    assert main(["train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder)]) == 0
    assert main(["eval", RUN, "--method", "deep-thinking", "-o", "method.eta=0.2", "--results", str(folder)]) == 0
    return folder


RUN = "tiny-linear-gpt2-smoke-s0"
THOUGHT = f"{RUN}+deep-thinking-eta-0.2"


def test_the_run_that_thinks_stands_beside_the_plain_one_in_the_tables(results: Path) -> None:
    values = tables.read_all("values", results / "tables")
    own = values[values["kind"] == "backbone"]
    assert set(own["run"]) == {RUN, THOUGHT}
    plain, thought = (own[own["run"] == run] for run in (RUN, THOUGHT))
    assert thought["contestant"].unique().tolist() == ["gpt2+deep-thinking-eta-0.2"]
    assert set(plain["variant"]).isdisjoint(thought["variant"])
    for column in ("prompt_set", "seed", "metric", "evaluator"):
        assert set(plain[column]) == set(thought[column])
    errors = tables.read_all("errors", results / "tables").set_index("run")
    keys = ["prompt_set", "metric", "n_context", "episode"]
    pd.testing.assert_frame_equal(
        errors.loc[[RUN], keys].reset_index(drop=True), errors.loc[[THOUGHT], keys].reset_index(drop=True)
    )
    curves = values.query("metric == 'squared_error'").pivot_table("value", "n_context", "run")
    assert curves.loc[0, THOUGHT] == pytest.approx(curves.loc[0, RUN], rel=1e-5)
    assert abs(curves.loc[8, THOUGHT] / curves.loc[8, RUN] - 1) > 1e-5


@pytest.mark.slow
def test_what_is_done_is_kept_and_other_settings_are_another_contestant(results: Path, capsys: Any) -> None:
    paths = list(tables.files("values", results / "tables"))
    before = {p: p.read_bytes() for p in paths}
    assert main(["eval", RUN, "--method", "deep-thinking", "-o", "method.eta=0.2", "--results", str(results)]) == 0
    assert {p: p.read_bytes() for p in paths} == before
    capsys.readouterr()
    assert main(["eval", RUN, "--method", "deep-thinking", "--results", str(results), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {f"gpt2{name}" for name in ("", "+deep-thinking", "+deep-thinking-eta-0.2")} <= {
        r["contestant"] for r in rows
    }


def test_the_report_takes_it_for_a_contestant_of_its_own(results: Path) -> None:
    values = name_variants(tables.read_all("values", results / "tables"))
    assert {"gpt2", "gpt2+deep-thinking-eta-0.2"} <= set(values["contestant"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "deep-thinking", "-o", "method.passes=dev"], "are for language models"),
        (["--method", "deep-thinking", "-o", "method.etta=1"], "unknown key 'etta'; did you mean 'eta'"),
        (["--method", "deep-thinking", "-o", "task.eta=1"], "unknown key 'task.eta'"),
        (["--method", "repeat"], "--method repeat is for language models (iclbench lm eval)"),
        (["--method", "think"], "unknown method 'think'"),
        (["-o", "method.eta=1"], "method 'icl' has no settings, got 'eta'; name another with --method"),
    ],
)
def test_wrong_requests_are_one_line(options: list[str], message: str, results: Path, capsys: Any) -> None:
    assert main(["eval", RUN, *options, "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
