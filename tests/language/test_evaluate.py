"""Evaluation of scripted and tiny language models: rows, controls and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from iclbench import tables
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.measure import Measure
from iclbench.deep_thinking.methods import method
from iclbench.evaluation.cells import CellResult
from iclbench.language.evaluate import evaluate_model
from iclbench.language.models.model import LanguageModel, load
from iclbench.language.prompting.fitting import PromptCache
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.tasks.cards import LanguageTask
from iclbench.language.tasks.selection import language_tasks
from tests.language.scripted import Scripted, correct_model, passes_of
from tests.language.tiny_models import save_tiny_model
from tests.refusals import refused
from tests.texts import numbers

REVIEWS = [
    (f"a {word} film number {i}", label) for i in range(20) for word, label in [("fine", "good"), ("dull", "bad")]
]


@pytest.fixture
def reviews(tmp_path: Path) -> LanguageTask:
    """A task with two classes, the first of which is twice as frequent."""
    path = tmp_path / "reviews.jsonl"
    pairs = [pair for i, pair in enumerate(REVIEWS) if i % 4 != 3]
    path.write_text("\n".join(json.dumps({"text": x, "label": y}) for x, y in pairs))
    task = language_tasks([str(path)])[0]
    return replace(task, card=task.card.model_copy(update={"shots": 4}))


@pytest.fixture
def letters() -> LanguageTask:
    return language_tasks(["to-upper"])[0]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory):
    """A function that returns tiny models with a token for each letter, and caches them."""

    def make(architecture: str) -> LanguageModel:
        longer = {"n_positions": 400} if architecture == "gpt2" else {"max_position_embeddings": 400}
        folder = tmp_path_factory.mktemp("models") / "model"
        return load(str(save_tiny_model(architecture, folder, "chars", **({} if architecture == "mamba" else longer))))

    return cache(make)


def prompts(task: LanguageTask, shots: int = 4, episodes: int = 8, **changes: object) -> LanguagePrompts:
    return LanguagePrompts(task, shots, episodes, **changes)  # type: ignore[arg-type]


def run(
    results: Path,
    model: object,
    tasks: list[LanguageTask],
    name: str = "icl",
    *,
    settings: dict | None = None,
    data_dir: Path | None = None,
    **options: object,
) -> list[CellResult]:
    context, used_method = Context(results, data_dir), method(name, settings or {})
    return list(evaluate_model(context, model, tasks, used_method, **{"episodes": 8} | options))  # type: ignore[arg-type]


def values(results: Path, query: str = "") -> pd.DataFrame:
    frame = tables.read_all("values", results).query("kind != 'published'")
    return frame.query(query) if query else frame


def single_value(frame: pd.DataFrame, column: str = "value") -> float:
    assert len(frame) == 1, frame
    return frame[column].iloc[0]


CELL = "axis == 'demo_seed' and metric == 'accuracy'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory_obstacle"),
    [("icl", ""), ("deep-thinking", ""), ("repeat", ""), ("icl", "it is scripted to"), ("repeat", "it is scripted to")],
)
def test_a_model_that_knows_all_answers_has_accuracy_1(
    name: str, memory_obstacle: str, reviews, letters, tmp_path: Path
) -> None:
    model = correct_model([prompts(reviews), prompts(letters)], memory_obstacle=memory_obstacle)
    cells = run(tmp_path, model, [reviews, letters], name, controls=False)
    assert not [cell for cell in cells if cell.reason]
    rows = values(tmp_path, "kind == 'backbone'")
    for metric in ("accuracy", "accuracy_per_token", "accuracy_per_byte", "balanced_accuracy", "accuracy_first_token"):
        assert (rows.loc[rows["metric"] == metric, "value"] == 1).all()
    assert (rows.query("metric == 'log_likelihood'")["value"] > -0.01).all()


@pytest.mark.slow
def test_controls_are_scored_on_the_same_queries(reviews, tmp_path: Path) -> None:
    run(tmp_path, correct_model([prompts(reviews)]), [reviews], "deep-thinking", demo_seeds=[0, 1], orders=[0, 2])
    accuracies = values(tmp_path, "metric == 'accuracy' and axis in ['demo_seed', 'order']")
    evaluated = accuracies.groupby(["contestant", "shift", "n_context", "axis"])["axis_value"].agg(list).to_dict()
    seeds = {
        name: {("none", 4, "demo_seed"): [0, 1]}
        for name in ("scripted+repeat-2", "scripted+deep-thinking-eta-0", "majority")
    }
    for name in ("scripted", "scripted+deep-thinking"):
        seeds[name] = {
            ("none", 4, "demo_seed"): [0, 1],
            ("shuffled-labels", 4, "demo_seed"): [0, 1],
            ("none", 4, "order"): [2, 2],
        }
    for name in ("scripted", "majority"):
        seeds[name][("none", 0, "demo_seed")] = [0]
    assert evaluated == {
        (name, *setting): axis_values
        for name, by_setting in seeds.items()
        for setting, axis_values in by_setting.items()
    }
    answers = tables.read_all("answers", tmp_path)
    questions = answers.groupby(["run", "prompt_set"])["target"].agg(" ".join)
    assert len(questions) == 20 and len(set(questions)) == 1
    assert set(accuracies["preset"]) == {"language"} and set(accuracies["evaluator"]) == {"choice"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reviews", pytest.param("letters", marks=pytest.mark.slow)])
def test_deep_thinking_with_eta_0_equals_plain_icl_exactly(task: str, model_of, tmp_path: Path, request) -> None:
    """Queries share their demonstrations (reviews) or have separate ones (letters)."""
    model = model_of("gpt2")
    run(tmp_path, model, [request.getfixturevalue(task)], "deep-thinking", settings={"passes": 3}, shots=[4])
    rows = values(tmp_path, "axis == 'demo_seed' and shift == 'none' and n_context == 4").set_index("metric")
    plain, unchanged = (rows[rows["run"].eq(model.name + name)] for name in ("", "+deep-thinking-eta-0-passes-3"))
    columns = ["value", "low", "high", "n_episodes"]
    assert len(plain) > 1
    pd.testing.assert_frame_equal(unchanged[columns].loc[plain.index], plain[columns], check_exact=True)
    trace = values(tmp_path, "metric == 'kl_to_icl' and axis == 'passes' and n_context == 4 and shift == 'none'")
    is_later_pass = trace["run"].eq(f"{model.name}+deep-thinking-passes-3") & trace["axis_value"].gt(1)
    assert (
        trace.loc[trace["run"].str.contains("eta-0"), "value"].eq(0).all()
        and (trace.loc[is_later_pass, "value"] > 0).all()
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param("reviews", marks=pytest.mark.slow), "letters"])
def test_compared_methods_get_the_same_demonstrations(task: str, tmp_path: Path, request) -> None:
    """Fewer demonstrations fit with Deep-Thinking than with plain ICL."""
    language_task = request.getfixturevalue(task)
    model = correct_model([prompts(language_task)], longest={"reviews": 230, "letters": 60}[task])
    plain_cells = run(tmp_path / "alone", model, [language_task], shots=[4], controls=False, overlength="drop")
    cells = run(tmp_path, model, [language_task], "deep-thinking", shots=[4], overlength="drop")
    assert not any(cell.reason for cell in [*plain_cells, *cells])
    answers = tables.read_all("answers", tmp_path / "tables")
    answers = answers[answers["prompt_set"].eq(prompts(language_task).id)]
    compared = answers[~answers["run"].isin(["majority", "scripted+repeat-2"])]
    texts = compared.pivot_table("prompt", "episode", "run", aggfunc="first")
    assert set(texts) == {"scripted", "scripted+deep-thinking", "scripted+deep-thinking-eta-0"}
    assert texts.nunique(axis=1).eq(1).all()
    longer = tables.read_all("answers", tmp_path / "alone").set_index("episode")["prompt"]
    assert (longer.str.len() > texts["scripted"].str.len()).any(), "more demonstrations fit for plain ICL alone"
    assert any("demonstrations dropped" in cell.note for cell in cells if cell.contestant.name == "scripted")
    repeated = run(tmp_path, model, [language_task], "deep-thinking", shots=[4], overlength="drop")
    assert all(cell.cached for cell in repeated)
    assert not run(tmp_path, model, [language_task], shots=[4], controls=False, overlength="drop")[0].cached


@pytest.mark.slow
@pytest.mark.parametrize("trace", [True, False])
def test_the_cost_of_deep_thinking_excludes_answers_after_earlier_passes(
    trace: bool, reviews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = correct_model([prompts(reviews)])
    spent: list[int] = []

    class Counted(Measure):
        def __enter__(self) -> Measure:
            self.before = model.tokens_read
            return super().__enter__()

        def __exit__(self, *raised: object) -> None:
            spent.append(model.tokens_read - self.before)
            super().__exit__(*raised)

    monkeypatch.setattr("iclbench.language.cell.Measure", Counted)
    for name, settings in (("icl", {}), ("deep-thinking", {"passes": 4, "trace": trace})):
        run(tmp_path / name, model, [reviews], name, settings=settings, controls=False)
    demonstrations = len(PromptCache().tokenise(model, prompts(reviews)).questions[0].demonstrations)
    assert spent[1] - spent[0] == 3 * demonstrations, "three more passes over the demonstrations"


@pytest.mark.slow
def test_cells_are_cached_until_the_card_changes(reviews, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews)])
    first = run(tmp_path, model, [reviews])
    tokens_read = model.tokens_read
    second = run(tmp_path, model, [reviews])
    assert model.tokens_read == tokens_read
    assert not any(cell.cached for cell in first) and all(cell.cached for cell in second)
    greedy = replace(reviews, card=reviews.card.model_copy(update={"answers": "greedy"}))
    assert not run(tmp_path, model, [greedy], controls=False)[0].cached


def test_summaries_cover_only_the_last_evaluation(reviews, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews)])
    for episodes in (4, 8):
        run(tmp_path, model, [reviews], episodes=episodes, controls=False)
    assert single_value(values(tmp_path, "axis.isna() and metric == 'accuracy'"), "n_episodes") == 8


def test_a_failed_cell_has_a_row_and_does_not_stop_the_evaluation(reviews, letters, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews), prompts(letters)])
    del model.answers[next(iter(model.answers))]
    oversized = replace(reviews, card=reviews.card.model_copy(update={"shots": 1000}))
    cells = run(tmp_path, model, [oversized, letters], controls=False)
    assert [bool(cell.reason) for cell in cells] == [True, False]
    assert "smaller --shots" in cells[0].reason
    failed_rows = values(tmp_path, "status == 'failed'")
    assert single_value(failed_rows, "reason") == cells[0].reason and single_value(failed_rows, "metric") == "accuracy"
    assert single_value(failed_rows, "n_context") == 1000


class Broken(Scripted):
    """A model whose logits are NaN, either always or with a memory of `broken_after` passes."""

    broken_after: int | None = None

    def logits(self, ids, mask, memory=None, keep=None):
        logits = super().logits(ids, mask, memory, keep)
        is_finite = self.broken_after is not None and (memory is None or passes_of(memory) != self.broken_after)
        return logits if is_finite else torch.full_like(logits, torch.nan)


def test_nan_logits_fail_the_cell(reviews, letters, tmp_path: Path) -> None:
    """The argmax of NaNs is the first candidate, which would be correct for some queries."""
    cells = run(tmp_path, Broken({}), [reviews, letters], controls=False)
    assert [(cell.prompts.task.name, bool(cell.reason)) for cell in cells] == [("reviews", True), ("to-upper", True)]
    assert "8 of 8" in str(cells[0].reason)
    rows = values(tmp_path, "kind == 'backbone'")
    assert set(rows["status"]) == {"failed"} and rows["value"].isna().all()


def test_passes_with_nan_logits_are_failed_rows_of_the_trace(reviews, tmp_path: Path) -> None:
    model = Broken({})
    model.broken_after = 3
    settings = {"passes": 4, "eta": 1.0}
    (cell,) = run(tmp_path, model, [reviews], "deep-thinking", controls=False, settings=settings)
    assert cell.reason is not None
    rows = values(tmp_path, "kind == 'backbone' and prompt_set.notna()")
    trace = rows[rows["axis"].eq("passes") & rows["metric"].eq("accuracy")].set_index("axis_value")["status"]
    assert trace.to_dict() == {1.0: "ok", 2.0: "ok", 3.0: "failed", 4.0: "ok"}
    assert rows[rows["axis"].eq("demo_seed")]["status"].eq("ok").all()


def test_a_choice_without_candidates_is_refused_before_the_evaluation(letters, tmp_path: Path) -> None:
    choice = replace(letters, card=letters.card.model_copy(update={"answers": "choice"}))
    with refused("not-applicable", letters.name, 'answers = "greedy"'):
        run(tmp_path, correct_model([prompts(letters)]), [choice])
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    "settings", [{"passes": "dev", "eta": 1.0}, {"setting": "released", "momentum": 0.0, "eta": 1.0}]
)
def test_the_number_of_passes_is_selected_on_the_configured_split(settings: dict, reviews, tmp_path: Path) -> None:
    development = prompts(reviews, split="development", episodes=400)
    model = correct_model([prompts(reviews), development], only_after=3)
    run(tmp_path, model, [reviews], "deep-thinking", settings={"max_passes": 4, **settings}, controls=False)
    final = values(tmp_path, CELL)
    assert single_value(final) == 1.0
    assert single_value(final, "reason").startswith("T = 3 of 1..4")
    assert ("development" in single_value(final, "reason")) is ("dev" in settings.values())
    other_passes = {1.0, 2.0, 4.0}
    for evaluator in ("choice", "development") if "dev" in settings.values() else ("choice",):
        trace = values(tmp_path, f"axis == 'passes' and metric == 'accuracy' and evaluator == '{evaluator}'")
        by_pass = trace.dropna(subset="prompt_set").set_index("axis_value")["value"]
        assert by_pass[3.0] == 1.0 and (by_pass[list(other_passes)] < 1.0).all()


def test_the_number_of_passes_is_not_selected_on_the_test_split(reviews, tmp_path: Path) -> None:
    """With two passes, all answers to development queries are correct. Answers to test queries are always wrong."""
    model = correct_model([prompts(reviews, split="development", episodes=400)], only_after=2)
    settings = {"passes": "dev", "eta": 1.0, "max_passes": 3}
    run(tmp_path, model, [reviews], "deep-thinking", settings=settings, controls=False)
    assert single_value(values(tmp_path, CELL), "reason").startswith("T = 2 of 1..3")


def test_the_reason_gives_dropped_demonstrations_of_development_and_test_prompts(tmp_path: Path) -> None:
    """All demonstrations fit with the short development queries. One is dropped with the long test queries."""
    for split, suffix in {"train": "", "dev": "", "test": " and it goes on" * 30}.items():
        lines = [json.dumps({"text": f"{x} in {split}{suffix}", "label": y}) for x, y in REVIEWS]
        (tmp_path / f"lengthy.{split}.jsonl").write_text("\n".join(lines))
    (task,) = language_tasks([str(tmp_path / "lengthy.train.jsonl")])
    test_prompts = prompts(task)
    model = correct_model([test_prompts, replace(test_prompts, split="development")])
    tokenised = PromptCache().tokenise(model, test_prompts)
    model.longest = max(len(q.demonstrations) + q.query_length for q in tokenised.questions) - 1
    settings = {"passes": "dev", "max_passes": 2}
    run(tmp_path, model, [task], "deep-thinking", settings=settings, shots=[4], controls=False, overlength="drop")
    selection, dropped = single_value(values(tmp_path, CELL), "reason").split("; ")
    selection, _, remark = selection.partition(" (")
    assert selection.startswith("T = ") and numbers(selection)[1:3] == [1, 2]
    assert remark and not numbers(remark), "no demonstration of the development prompts is dropped"
    assert numbers(dropped)[:2] == [1, 4]


@pytest.mark.slow
def test_all_methods_share_the_cached_cells_of_plain_icl(reviews, letters, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews), prompts(letters)])
    run(tmp_path, model, [reviews, letters], shots=[4])
    for name in ("deep-thinking", "icl"):
        cells = run(tmp_path, model, [reviews, letters], name, shots=[4])
        assert all(cell.cached for cell in cells if cell.contestant.name in ("scripted", "majority"))


def test_in_the_released_setting_the_divergence_is_relative_to_plain_icl(letters, model_of, tmp_path: Path) -> None:
    for setting in ("released", "paper"):
        settings = {"setting": setting, "passes": 2}
        run(tmp_path / setting, model_of("gpt2"), [letters], "deep-thinking", settings=settings, controls=False)
    first = {
        setting: single_value(
            values(tmp_path / setting, "metric == 'kl_to_icl' and axis_value == 1 and not prompt_set.isna()")
        )
        for setting in ("released", "paper")
    }
    assert first["released"] > first["paper"] == 0


@pytest.mark.slow
def test_the_trace_of_five_passes_begins_with_the_trace_of_three(reviews, letters, model_of, tmp_path: Path) -> None:
    model = model_of("gpt2")
    for passes in (3, 5):
        settings = {"passes": passes, "eta": 0.3}
        run(tmp_path / str(passes), model, [reviews, letters], "deep-thinking", settings=settings, controls=False)
    key = ["task", "axis_value", "metric"]
    three, five = (
        values(tmp_path / p, "axis == 'passes' and not prompt_set.isna()").set_index(key)["value"] for p in "35"
    )
    common = five.loc[three.index]
    assert len(three) == 2 * (3 * 2 + 2) and len(five) == 2 * (5 * 2 + 4)
    np.testing.assert_allclose(three.to_numpy(float), common.to_numpy(float), rtol=1e-6)
    for task in ("reviews", "to-upper"):
        divergence = five[task].xs("kl_to_icl", level="metric")
        assert divergence[1.0] < 1e-6 and divergence[5.0] > divergence[3.0] > divergence[2.0] > 0
        assert five[task, 2.0, "memory_change"] > 0
    final = values(tmp_path / "3", CELL).set_index("task")["value"]
    assert final.to_dict() == {task: three[task, 3.0, "accuracy"] for task in ("reviews", "to-upper")}


@pytest.mark.parametrize("trace", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_pass_has_the_accuracy_of_plain_icl(trace: bool, reviews, letters, model_of, tmp_path: Path) -> None:
    model = model_of("llama")
    for name, settings in {"deep-thinking": {"passes": 4, "eta": 0.5, "trace": trace}, "icl": {}}.items():
        run(tmp_path, model, [reviews, letters], name, settings=settings, controls=False)
    accuracies = values(tmp_path, "metric == 'accuracy' and not prompt_set.isna()")
    traced = accuracies.query("axis == 'passes'")
    assert sorted(set(traced["axis_value"])) == ([1, 2, 3, 4] if trace else [1, 4])
    first = traced.query("axis_value == 1").set_index("task")["value"]
    plain = accuracies.query("contestant == 'model'").set_index("task")["value"]
    assert first.to_dict() == plain.to_dict()


@pytest.mark.slow
def test_results_do_not_depend_on_the_batch_size(reviews, letters, model_of, tmp_path: Path) -> None:
    model = model_of("llama")
    for batch in (1, 3, 64):
        options = {"settings": {"passes": 2}, "batch": batch, "controls": False}
        run(tmp_path / str(batch), model, [reviews, letters], "deep-thinking", **options)
    one_by_one, three, all_ = (values(tmp_path / b).drop(columns=["reason"]) for b in ("1", "3", "64"))
    for other in (three, all_):
        pd.testing.assert_frame_equal(one_by_one, other, rtol=1e-4, atol=1e-6)


def test_halving_the_batch_after_running_out_of_memory_does_not_change_results(
    reviews, letters, tmp_path: Path
) -> None:
    sets = [prompts(reviews), prompts(letters)]
    for rows in (3, 64):
        model = correct_model(sets, max_rows=rows)
        cells = run(tmp_path / str(rows), model, [reviews, letters], "deep-thinking", controls=False)
        assert not [cell.reason for cell in cells if cell.reason]
    pd.testing.assert_frame_equal(values(tmp_path / "3"), values(tmp_path / "64"))
    no_rows = run(tmp_path / "0", correct_model(sets, max_rows=0), [reviews], controls=False)
    assert no_rows[0].reason == "OutOfMemoryError: scripted"


# Four reviews have about 170 letters, and a query has about 40.
def test_a_prompt_that_does_not_fit_is_refused_before_the_evaluation(reviews, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews)], longest=150)
    plain, thinking = (run(tmp_path / n, model, [reviews], n, controls=False)[0] for n in ("icl", "deep-thinking"))
    assert model.tokens_read == 0
    for cell in (plain, thinking):
        assert cell.reason and "150" in cell.reason and "--overlength" in cell.reason and reviews.name in cell.reason
    assert plain.reason != thinking.reason, "Deep-Thinking reads the demonstrations twice"


def test_prompts_that_do_not_fit_are_skipped(reviews, tmp_path: Path) -> None:
    sizes = sorted({len(e.query.x) for e in prompts(reviews, episodes=30).drawn_episodes})
    assert len(sizes) > 1
    model = correct_model([prompts(reviews, episodes=30)])
    run(tmp_path / "complete", model, [reviews], episodes=30, controls=False)
    answers = tables.read_all("answers", tmp_path / "complete")
    first = answers["prompt"].iloc[0]
    demonstrations = len(first) - len(prompts(reviews, episodes=30).drawn_episodes[0].query.x)
    model.longest = demonstrations + sizes[-1] + len("bad") + 1
    run(tmp_path, model, [reviews], episodes=30, controls=False, overlength="skip")
    row = values(tmp_path, CELL)
    answered = tables.read_all("answers", tmp_path / "tables")
    assert 0 < single_value(row, "n_episodes") == len(answered) < 30
    assert "skipped" in single_value(row, "reason") and single_value(row) == 1.0
    repeated = [run(tmp_path, model, [reviews], episodes=30, controls=False, overlength=o)[0] for o in ("skip", "drop")]
    assert [cell.cached for cell in repeated] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icl", "deep-thinking", "repeat"])
@pytest.mark.parametrize("task", ["reviews", "letters"])
def test_demonstrations_are_dropped_from_the_front_until_the_prompt_fits(
    name: str, task: str, tmp_path: Path, request
) -> None:
    language_task = request.getfixturevalue(task)
    prompt_set = prompts(language_task)
    model = correct_model([prompt_set], longest={"reviews": 190, "letters": 42}[task])
    cells = run(tmp_path, model, [language_task], name, shots=[4], controls=False, overlength="drop")
    assert cells[0].reason is None and "demonstrations dropped" in cells[0].note
    row = values(tmp_path, CELL)
    assert single_value(row) == 1.0 and single_value(row, "n_context") == 4 and single_value(row, "n_episodes") == 8
    text = tables.read_all("answers", tmp_path)["prompt"].iloc[0]
    inputs = [
        f"{e.x}" for e in prompt_set.drawn_episodes[0].demonstrations if text.count(f"{e.x}\n") + text.count(f"{e.x}->")
    ]
    assert len(text) + 1 <= model.longest
    assert inputs == [e.x for e in prompt_set.drawn_episodes[0].demonstrations[-len(inputs) :]] and 0 < len(inputs) < 4
    assert run(tmp_path, replace_longest(model, 10), [language_task], name, controls=False, overlength="drop")[0].reason


@pytest.mark.parametrize("name", ["icl", "deep-thinking", "repeat"])
@pytest.mark.parametrize("task", ["reviews", "letters"])
def test_a_query_that_does_not_fit_without_demonstrations_is_refused_before_the_evaluation(
    name: str, task: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    language_task = request.getfixturevalue(task)
    model = correct_model([prompts(language_task)], longest=4)
    cells = run(tmp_path, model, [language_task], name, shots=[4], controls=False, overlength="drop")
    assert cells[0].reason is not None
    assert cells[0].reason.endswith("--overlength skip")
    assert model.tokens_read == 0
    assert not len(tables.read_all("answers", tmp_path))


def replace_longest(model: Scripted, longest: int) -> Scripted:
    model.longest, model.identity = longest, str(longest)
    return model


@pytest.mark.parametrize(
    ("changes", "options", "code", "names"),
    [
        ({"memory_obstacle": "scripted"}, {"name": "deep-thinking"}, "not-applicable", ("scripted", "--method")),
        ({}, {"name": "deep-thinking", "shots": [2, 0]}, "conflict", ("deep-thinking", "--shots")),
        ({}, {"name": "repeat", "shots": [0]}, "conflict", ("repeat", "--shots")),
        ({"name": "majority"}, {}, "bad-value", ("majority", "--name")),
    ],
)
def test_conflicting_settings_are_refused_before_the_evaluation(
    changes, options, code, names, reviews, tmp_path: Path
) -> None:
    model = correct_model([prompts(reviews)], **{k: v for k, v in changes.items() if k == "memory_obstacle"})
    model.name = changes.get("name", model.name)
    with refused(code, *names):
        run(tmp_path, model, [reviews], **options)
    assert model.tokens_read == 0
    assert not tmp_path.joinpath("tables").exists()


def test_a_name_that_cannot_be_a_run_name_is_refused(reviews, tmp_path: Path) -> None:
    model = correct_model([prompts(reviews)])
    model.name = "../up"
    with pytest.raises(UsageError, match="up"):
        run(tmp_path, model, [reviews])
    assert model.tokens_read == 0 and not tmp_path.joinpath("tables").exists()


def test_missing_data_are_refused_before_any_task_is_evaluated(letters, tmp_path: Path) -> None:
    model = correct_model([prompts(letters)])
    with refused("missing-data", "TREC.train.all", "--data-dir"):
        run(tmp_path, model, [letters, *language_tasks(["trec"])], data_dir=tmp_path / "nothing")
    assert model.tokens_read == 0


def test_deep_thinking_is_refused_for_a_model_without_a_memory(reviews, model_of, tmp_path: Path) -> None:
    with refused("not-applicable", "'model'", "mamba", "--method"):
        run(tmp_path, model_of("mamba"), [reviews], "deep-thinking")


def test_the_majority_baseline_gives_the_most_frequent_answer(reviews, tmp_path: Path) -> None:
    prompt_set = prompts(reviews, episodes=30)
    run(tmp_path, correct_model([prompt_set]), [reviews], episodes=30)
    targets = [e.query.y for e in prompt_set.drawn_episodes]
    most_frequent = max(set(targets), key=targets.count)
    rows = values(tmp_path, "contestant == 'majority' and axis == 'demo_seed' and n_context == 4").set_index("metric")
    assert rows.loc["accuracy", "value"] == targets.count(most_frequent) / len(targets)
    assert (
        rows.loc["balanced_accuracy", "value"]
        == balanced_accuracy_score(targets, [most_frequent] * len(targets))
        == 0.5
    )
    assert f"'{most_frequent}'" in rows.loc["accuracy", "reason"]
    assert str(targets.count(most_frequent)) in rows.loc["accuracy", "reason"]


def test_answers_of_several_tokens_have_no_first_token_accuracy(tmp_path: Path) -> None:
    task = language_tasks(["country-capital"])[0]
    prompt_set = prompts(task, shots=5)
    model = correct_model([prompt_set])
    changed_episode = prompt_set.drawn_episodes[0]
    for end in list(model.answers):
        if changed_episode.query.x in end:
            model.answers[end] = "x\n"
    run(tmp_path, model, [task], controls=False)
    row = values(tmp_path, "axis == 'demo_seed'").set_index("metric")
    assert row.loc["accuracy", "value"] < 1.0
    assert "accuracy_first_token" not in row.index  # every answer has several letters
    answers = tables.read_all("answers", tmp_path).set_index("episode")
    assert answers.loc[0, "predicted"] == "x" and not answers.loc[0, "correct"]


def test_published_numbers_are_written_to_a_separate_file(letters, tmp_path: Path) -> None:
    run(tmp_path, correct_model([prompts(letters)]), [letters], controls=False)
    rows = tables.read("values", tmp_path / "tables" / "published" / "simple.values.parquet")
    mamba = rows.query("contestant == 'Mamba-2.8B' and n_context == 5")
    assert set(rows["kind"]) == {"published"} and set(rows["preset"]) == {"language"}
    assert single_value(mamba) == 0.85


def test_evaluation_is_deterministic(reviews, model_of, tmp_path: Path) -> None:
    model = model_of("gpt2")
    for folder in "ab":
        run(tmp_path / folder, model, [reviews], "deep-thinking", controls=False)
    files = [sorted(p.relative_to(tmp_path / f) for p in (tmp_path / f).rglob("*values.parquet")) for f in "ab"]
    assert files[0] == files[1] and files[0]
    for file in files[0]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
