"""Deep-Thinking with causal Transformer backbones: comparison with a single pass over a doubled context, contracts, and
result tables."""

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
from iclbench.backbones.image_backbone import build_backbone
from iclbench.backbones.mamba import Mamba
from iclbench.backbones.tnp import TNP
from iclbench.backbones.transformer import Transformer
from iclbench.cli.main import main
from iclbench.contracts import example_episodes, failures
from iclbench.core.predictions import Prediction
from iclbench.deep_thinking import backbones as thinking_backbones
from iclbench.deep_thinking.backbones import ThinkingBackbone
from iclbench.deep_thinking.settings import DeepThinking
from iclbench.layers.key_value_cache import KeyValueCache
from tests.refusals import refused

SMALL = {"layers": 2, "width": 16, "heads": 2}
# Positional encodings of GPT-2, and the backbone `transformer`.
VARIANTS = ["none", "sinusoidal", "learned", "transformer"]


def backbone(variant: str = "none", related: int = 0, points: int = 40) -> Any:
    shape = TaskShape(x_dim=4, points=points, related=related)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if variant == "transformer":
            model: Backbone = Transformer(Transformer.Settings(**SMALL), shape)
        else:
            model = GPT2(GPT2.Settings(**SMALL, positions=variant, init_std=0.2), shape)
    return model.eval().requires_grad_(False)


def thinking(model: Backbone, **settings: Any) -> ThinkingBackbone:
    return ThinkingBackbone(model, DeepThinking(**({"eta": 0.3, "passes": 3} | settings)))


def max_difference(first: Prediction, second: Prediction) -> float:
    pairs = zip(first.tensors().values(), second.tensors().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "related", "positions"),
    [("learned", 0, "reuse"), ("transformer", 2, "continue")],
)
def test_a_thinking_backbone_fulfils_all_predictor_contracts(variant: str, related: int, positions: str) -> None:
    model = thinking(backbone(variant, related), positions=positions, passes=2)
    assert failures(model, example_episodes(points=4, targets=2, related=related)) == {}


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_pass_or_a_closed_gate_equals_the_plain_backbone(variant: str) -> None:
    model, episodes = backbone(variant), example_episodes()
    for settings in ({"passes": 1, "eta": 1.0}, {"passes": 4, "eta": 0.0}):
        wrapped = thinking(model, **settings)
        for question in ("next", "targets"):
            assert max_difference(wrapped.ask(episodes, question), model.ask(episodes, question)) < 1e-5


@pytest.mark.parametrize("positions", ["continue", "reuse"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_passes_equal_a_mixture_of_the_two_halves_of_a_doubled_context(variant: str, positions: str) -> None:
    """A doubled context uses twice as many positions, so reused positions agree with it only without positional
    encoding."""
    model, episodes, eta = backbone(variant), example_episodes(), 0.3
    context, x = episodes.context, episodes.queries.x
    doubled = model.condition(context.append(context))
    tokens = 2 * context.count

    def mix(layers: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple((1 - eta) * t[:, :, :tokens] + eta * t[:, :, tokens:] for t in layers)

    cache = KeyValueCache(mix(doubled.keys), mix(doubled.values), doubled.mask[:, :tokens])
    expected = model.query(cache, x)
    actual = thinking(model, passes=2, eta=eta, positions=positions).predict_targets(context, x)
    assert (max_difference(actual, expected) < 1e-5) == (positions == "continue" or variant == "none")
    assert max_difference(expected, model.predict_targets(context, x)) > 1e-3


@pytest.mark.parametrize("positions", ["continue", "reuse"])
def test_predictions_do_not_depend_on_the_segment_size(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contexts have different lengths."""
    model, episodes = thinking(backbone("sinusoidal"), positions=positions), example_episodes()
    mask = torch.arange(episodes.context.count) < torch.tensor([[9], [4], [0]])
    context = replace(episodes.context, mask=mask)
    expected = model.predict_targets(context, episodes.queries.x)
    monkeypatch.setattr(thinking_backbones, "SEGMENT_SIZE", 3)
    assert max_difference(model.predict_targets(context, episodes.queries.x), expected) < 1e-5


def test_the_state_is_causal_in_the_context_after_one_pass_and_not_after_two() -> None:
    model, context = backbone(), example_episodes().context
    other = context.map(torch.clone)
    other.y[:, -1] += 1
    for passes, is_changed in ((1, False), (2, True)):
        a, b = (thinking(model, passes=passes).condition(points).cache for points in (context, other))
        earlier = max(float((k - j)[:, :, :-2].abs().max()) for k, j in zip(a.keys, b.keys, strict=True))
        assert (earlier > 1e-3) == is_changed


def test_the_error_for_a_context_beyond_the_learned_positions_names_the_limit() -> None:
    model = backbone("learned", points=12)
    context = example_episodes(points=9).context
    assert thinking(model).condition(context.span(0, 6)).cache.mask.shape[1] == 12
    with refused("not-applicable", 6, "-o method.positions=reuse"):
        thinking(model).condition(context)
    thinking(model, positions="reuse").condition(context)
    thinking(model, passes=1).condition(context)


def backbones_without_a_cache() -> list[tuple[Backbone, str]]:
    """Return backbones without a key-value cache, each with a word of the error message."""
    shape = TaskShape(x_dim=4, points=8)
    images = TaskShape(x_dim=256, points=8, classes=3, x_shape=(16, 16), head="categorical", question="targets")
    events = TaskShape(x_dim=0, points=8, y_dim=3, marks=3, head="event")
    return [
        (GPT2(GPT2.Settings(layers=1, width=8, heads=2), events), "events"),
        (Mamba(Mamba.Settings(layers=1, width=8), shape), "recurrent"),
        (TNP(TNP.Settings(layers=1, width=8, heads=2), shape), "set"),
        (CoQE(CoQE.Settings(layers=1, width=8, heads=2), shape), "directly"),
        (build_backbone(Transformer, Transformer.Settings(**SMALL), images), "image encoder"),
    ]


def test_the_error_for_a_backbone_without_a_cache_gives_the_reason() -> None:
    for model, reason in backbones_without_a_cache():
        with refused("not-applicable", "gpt2", reason):
            thinking(model)


@pytest.mark.parametrize("settings", [{"passes": "dev"}, {"setting": "released"}, {"trace": False}])
def test_settings_of_language_models_are_refused(settings: dict[str, Any]) -> None:
    with refused("not-applicable", "iclbench lm eval"):
        thinking(backbone(), **settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of a run that was evaluated with and without Deep-Thinking."""
    from tests.conftest import small_card

    folder = tmp_path_factory.mktemp("results")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    assert main(["train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder)]) == 0
    assert main(["eval", RUN, "--method", "deep-thinking", "-o", "method.eta=0.2", "--results", str(folder)]) == 0
    return folder


RUN = "tiny-linear-gpt2-smoke-s0"
THINKING_RUN = f"{RUN}+deep-thinking-eta-0.2"


@pytest.mark.slow
def test_the_tables_contain_the_run_with_and_without_deep_thinking(results: Path) -> None:
    values = tables.read_all("values", results / "tables")
    backbones = values[values["kind"] == "backbone"]
    assert set(backbones["run"]) == {RUN, THINKING_RUN}
    plain, with_thinking = (backbones[backbones["run"] == run] for run in (RUN, THINKING_RUN))
    assert with_thinking["contestant"].unique().tolist() == ["gpt2+deep-thinking-eta-0.2"]
    assert set(plain["variant"]).isdisjoint(with_thinking["variant"])
    for column in ("prompt_set", "seed", "metric", "evaluator"):
        assert set(plain[column]) == set(with_thinking[column])
    errors = tables.read_all("errors", results / "tables").set_index("run")
    keys = ["prompt_set", "metric", "n_context", "episode"]
    pd.testing.assert_frame_equal(
        errors.loc[[RUN], keys].reset_index(drop=True), errors.loc[[THINKING_RUN], keys].reset_index(drop=True)
    )
    curves = values.query("metric == 'squared_error'").pivot_table("value", "n_context", "run")
    assert curves.loc[0, THINKING_RUN] == pytest.approx(curves.loc[0, RUN], rel=1e-5)
    assert abs(curves.loc[8, THINKING_RUN] / curves.loc[8, RUN] - 1) > 1e-5


@pytest.mark.slow
def test_a_finished_evaluation_is_cached_and_different_settings_give_a_new_contestant(
    results: Path, capsys: Any
) -> None:
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


@pytest.mark.slow
def test_a_run_with_deep_thinking_is_a_separate_contestant_in_the_report(results: Path) -> None:
    values = name_variants(tables.read_all("values", results / "tables"))
    assert {"gpt2", "gpt2+deep-thinking-eta-0.2"} <= set(values["contestant"])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--method", "deep-thinking", "-o", "method.passes=dev"], ("passes=dev", "iclbench lm eval")),
        (["--method", "deep-thinking", "-o", "method.etta=1"], ("'etta'", "'eta'")),
        (["--method", "deep-thinking", "-o", "task.eta=1"], ("'task.eta'",)),
        (["--method", "repeat"], ("--method repeat", "iclbench lm eval")),
        (["--method", "think"], ("'think'",)),
        (["-o", "method.eta=1"], ("'icl'", "'eta'", "--method")),
    ],
)
def test_invalid_options_are_refused_with_a_one_line_error(
    options: list[str], names: tuple[str, ...], results: Path, capsys: Any
) -> None:
    assert main(["eval", RUN, *options, "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert not [name for name in names if name not in error]
    assert error.count("\n") == 1
