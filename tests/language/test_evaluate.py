"""Evaluation of a language model whose answers are known, and of tiny ones: rows, controls, and what is refused."""

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
from iclbench.core.errors import DataError, UsageError
from iclbench.core.measure import Measure
from iclbench.deep_thinking.methods import method
from iclbench.evaluation.cells import CellResult
from iclbench.language.evaluate import evaluate_model
from iclbench.language.models.model import LanguageModel, load
from iclbench.language.prompting.fitting import PromptCache
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.tasks.cards import LanguageTask
from iclbench.language.tasks.chosen import language_tasks
from tests.language.scripted import Scripted, _readings, right
from tests.language.tiny_models import tiny

REVIEWS = [
    (f"a {word} film number {i}", label) for i in range(20) for word, label in [("fine", "good"), ("dull", "bad")]
]


@pytest.fixture
def reviews(tmp_path: Path) -> LanguageTask:
    """A choice between two classes, of which the first is asked twice as often."""
    path = tmp_path / "reviews.jsonl"
    kept = [pair for i, pair in enumerate(REVIEWS) if i % 4 != 3]
    path.write_text("\n".join(json.dumps({"text": x, "label": y}) for x, y in kept))
    task = language_tasks([str(path)])[0]
    return replace(task, card=task.card.model_copy(update={"shots": 4}))


@pytest.fixture
def letters() -> LanguageTask:
    return language_tasks(["to-upper"])[0]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory):
    """Tiny models with a token for every letter, each made once."""

    def made(kind: str) -> LanguageModel:
        longer = {"n_positions": 400} if kind == "gpt2" else {"max_position_embeddings": 400}
        folder = tmp_path_factory.mktemp("models") / "model"
        return load(str(tiny(kind, folder, "chars", **({} if kind == "mamba" else longer))))

    return cache(made)


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
    context, how = Context(results, data_dir), method(name, settings or {})
    return list(evaluate_model(context, model, tasks, how, **{"episodes": 8} | options))  # type: ignore[arg-type]


def values(results: Path, query: str = "") -> pd.DataFrame:
    found = tables.read_all("values", results).query("kind != 'published'")
    return found.query(query) if query else found


def one(frame: pd.DataFrame, column: str = "value") -> float:
    assert len(frame) == 1, frame
    return frame[column].iloc[0]


CELL = "axis == 'demo_seed' and metric == 'accuracy'"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icl", "deep-thinking", "repeat"])
@pytest.mark.parametrize("forgets", ["", "it is scripted to"])
def test_a_model_that_copies_the_answer_is_always_right(
    name: str, forgets: str, reviews, letters, tmp_path: Path
) -> None:
    if forgets and name == "deep-thinking":
        return
    model = right([prompts(reviews), prompts(letters)], forgets=forgets)
    cells = run(tmp_path, model, [reviews, letters], name, controls=False)
    assert not [cell for cell in cells if cell.reason]
    own = values(tmp_path, "kind == 'backbone'")
    for name in ("accuracy", "accuracy_per_token", "accuracy_per_byte", "balanced_accuracy", "accuracy_first_token"):
        assert (own.loc[own["metric"] == name, "value"] == 1).all()
    assert (own.query("metric == 'log_likelihood'")["value"] > -0.01).all()


@pytest.mark.slow
def test_controls_are_scored_on_the_same_questions(reviews, tmp_path: Path) -> None:
    run(tmp_path, right([prompts(reviews)]), [reviews], "deep-thinking", demo_seeds=[0, 1], orders=[0, 2])
    found = values(tmp_path, "metric == 'accuracy' and axis in ['demo_seed', 'order']")
    asked = found.groupby(["contestant", "shift", "n_context", "axis"])["axis_value"].agg(list).to_dict()
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
    assert asked == {(name, *at): where for name, own in seeds.items() for at, where in own.items()}
    answers = tables.read_all("answers", tmp_path)
    questions = answers.groupby(["run", "prompt_set"])["target"].agg(" ".join)
    assert len(questions) == 20 and len(set(questions)) == 1
    assert set(found["preset"]) == {"language"} and set(found["evaluator"]) == {"choice"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reviews", pytest.param("letters", marks=pytest.mark.slow)])
def test_thinking_without_moving_is_plain_icl_to_the_last_digit(task: str, model_of, tmp_path: Path, request) -> None:
    """Whether all queries share their demonstrations or each has its own."""
    model = model_of("gpt2")
    run(tmp_path, model, [request.getfixturevalue(task)], "deep-thinking", settings={"passes": 3}, shots=[4])
    found = values(tmp_path, "axis == 'demo_seed' and shift == 'none' and n_context == 4").set_index("metric")
    plain, still = (found[found["run"].eq(model.name + name)] for name in ("", "+deep-thinking-eta-0-passes-3"))
    columns = ["value", "low", "high", "n_episodes"]
    assert len(plain) > 1
    pd.testing.assert_frame_equal(still[columns].loc[plain.index], plain[columns], check_exact=True)
    trace = values(tmp_path, "metric == 'kl_to_icl' and axis == 'passes' and n_context == 4 and shift == 'none'")
    moved = trace["run"].eq(f"{model.name}+deep-thinking-passes-3") & trace["axis_value"].gt(1)
    assert trace.loc[trace["run"].str.contains("eta-0"), "value"].eq(0).all() and (trace.loc[moved, "value"] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param("reviews", marks=pytest.mark.slow), "letters"])
def test_all_who_are_compared_see_the_same_demonstrations(task: str, tmp_path: Path, request) -> None:
    """Deep-Thinking has room for fewer than plain ICL."""
    asked = request.getfixturevalue(task)
    model = right([prompts(asked)], longest={"reviews": 230, "letters": 60}[task])
    alone = run(tmp_path / "alone", model, [asked], shots=[4], controls=False, overlength="drop")
    cells = run(tmp_path, model, [asked], "deep-thinking", shots=[4], overlength="drop")
    assert not any(cell.reason for cell in [*alone, *cells])
    answers = tables.read_all("answers", tmp_path / "tables")
    answers = answers[answers["prompt_set"].eq(prompts(asked).id)]
    own = answers[~answers["run"].isin(["majority", "scripted+repeat-2"])]
    given = own.pivot_table("prompt", "episode", "run", aggfunc="first")
    assert set(given) == {"scripted", "scripted+deep-thinking", "scripted+deep-thinking-eta-0"}
    assert given.nunique(axis=1).eq(1).all()
    more = tables.read_all("answers", tmp_path / "alone").set_index("episode")["prompt"]
    assert (more.str.len() > given["scripted"].str.len()).any(), "alone it has room for more"
    assert any("demonstrations dropped" in cell.note for cell in cells if cell.contestant.name == "scripted")
    again = run(tmp_path, model, [asked], "deep-thinking", shots=[4], overlength="drop")
    assert all(cell.cached for cell in again)
    assert not run(tmp_path, model, [asked], shots=[4], controls=False, overlength="drop")[0].cached


@pytest.mark.slow
@pytest.mark.parametrize("trace", [True, False])
def test_what_deep_thinking_costs_is_measured_without_the_answers_after_earlier_passes(
    trace: bool, reviews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = right([prompts(reviews)])
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
    demonstrations = len(PromptCache().tokenised(model, prompts(reviews)).questions[0].demonstrations)
    assert spent[1] - spent[0] == 3 * demonstrations, "three more readings of the demonstrations"


@pytest.mark.slow
def test_nothing_is_computed_twice_and_a_changed_card_is_another_prompt_set(reviews, tmp_path: Path) -> None:
    model = right([prompts(reviews)])
    first = run(tmp_path, model, [reviews])
    read = model.tokens_read
    again = run(tmp_path, model, [reviews])
    assert model.tokens_read == read
    assert not any(cell.cached for cell in first) and all(cell.cached for cell in again)
    free = replace(reviews, card=reviews.card.model_copy(update={"answers": "greedy"}))
    assert not run(tmp_path, model, [free], controls=False)[0].cached


def test_summaries_are_of_the_last_evaluation(reviews, tmp_path: Path) -> None:
    model = right([prompts(reviews)])
    for episodes in (4, 8):
        run(tmp_path, model, [reviews], episodes=episodes, controls=False)
    assert one(values(tmp_path, "axis.isna() and metric == 'accuracy'"), "n_episodes") == 8


def test_a_failed_cell_is_a_row_and_the_others_go_on(reviews, letters, tmp_path: Path) -> None:
    model = right([prompts(reviews), prompts(letters)])
    del model.known[next(iter(model.known))]
    broken = replace(reviews, card=reviews.card.model_copy(update={"shots": 1000}))
    cells = run(tmp_path, model, [broken, letters], controls=False)
    assert [bool(cell.reason) for cell in cells] == [True, False]
    assert "smaller --shots" in cells[0].reason
    failed = values(tmp_path, "status == 'failed'")
    assert one(failed, "reason") == cells[0].reason and one(failed, "metric") == "accuracy"
    assert one(failed, "n_context") == 1000


class Broken(Scripted):
    """Its logits are no numbers, always or after a memory that was read so often."""

    broken_after: int | None = None

    def logits(self, ids, mask, memory=None, keep=None):
        found = super().logits(ids, mask, memory, keep)
        sound = self.broken_after is not None and (memory is None or _readings(memory) != self.broken_after)
        return found if sound else torch.full_like(found, torch.nan)


def test_logits_that_are_no_numbers_choose_no_candidate_and_write_no_token(reviews, letters, tmp_path: Path) -> None:
    """The largest of NaNs is the first of them: a right answer in every second question."""
    cells = run(tmp_path, Broken({}), [reviews, letters], controls=False)
    reasons = {cell.prompts.task.name: cell.reason for cell in cells}
    assert reasons == {
        "reviews": "the log-probabilities of candidates are not finite in 8 of 8 questions",
        "to-upper": "the model's logits are not finite: there is no next token",
    }
    found = values(tmp_path, "kind == 'backbone'")
    assert set(found["status"]) == {"failed"} and found["value"].isna().all()


def test_passes_after_which_logits_are_no_numbers_are_failed_rows_of_the_trace(reviews, tmp_path: Path) -> None:
    model = Broken({})
    model.broken_after = 3
    settings = {"passes": 4, "eta": 1.0}
    (cell,) = run(tmp_path, model, [reviews], "deep-thinking", controls=False, settings=settings)
    assert cell.reason is not None
    own = values(tmp_path, "kind == 'backbone' and prompt_set.notna()")
    trace = own[own["axis"].eq("passes") & own["metric"].eq("accuracy")].set_index("axis_value")["status"]
    assert trace.to_dict() == {1.0: "ok", 2.0: "ok", 3.0: "failed", 4.0: "ok"}
    assert own[own["axis"].eq("demo_seed")]["status"].eq("ok").all()


def test_a_task_without_answers_to_choose_from_is_refused_before_anything_is_computed(letters, tmp_path: Path) -> None:
    free = replace(letters, card=letters.card.model_copy(update={"answers": "choice"}))
    with pytest.raises(UsageError, match="there is nothing to choose from"):
        run(tmp_path, right([prompts(letters)]), [free])
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"passes": "dev", "eta": 1.0}, "development episodes"),
        ({"setting": "released", "momentum": 0.0, "eta": 1.0}, "best T on the evaluation data"),
    ],
)
def test_the_number_of_passes_is_chosen_where_it_is_said(settings: dict, where: str, reviews, tmp_path: Path) -> None:
    development = prompts(reviews, split="development", episodes=400)
    model = right([prompts(reviews), development], only_after=3)
    run(tmp_path, model, [reviews], "deep-thinking", settings={"max_passes": 4, **settings}, controls=False)
    final = values(tmp_path, CELL)
    assert one(final) == 1.0
    assert one(final, "reason").startswith("T = 3 of 1..4") and where in one(final, "reason")
    wrong_way = {1.0, 2.0, 4.0}
    for evaluator in ("choice", "development") if "dev" in settings.values() else ("choice",):
        trace = values(tmp_path, f"axis == 'passes' and metric == 'accuracy' and evaluator == '{evaluator}'")
        by_pass = trace.dropna(subset="prompt_set").set_index("axis_value")["value"]
        assert by_pass[3.0] == 1.0 and (by_pass[list(wrong_way)] < 1.0).all()


def test_the_number_of_passes_is_not_chosen_on_what_is_asked(reviews, tmp_path: Path) -> None:
    """Two passes answer all of the development split, none anything of what is asked."""
    model = right([prompts(reviews, split="development", episodes=400)], only_after=2)
    settings = {"passes": "dev", "eta": 1.0, "max_passes": 3}
    run(tmp_path, model, [reviews], "deep-thinking", settings=settings, controls=False)
    assert one(values(tmp_path, CELL), "reason").startswith("T = 2 of 1..3")


def test_where_passes_are_chosen_behind_other_demonstrations_than_are_used_it_is_said(tmp_path: Path) -> None:
    """Development queries are short: all demonstrations fit before them, not before those that are asked."""
    for split, more in {"train": "", "dev": "", "test": " and it goes on" * 30}.items():
        lines = [json.dumps({"text": f"{x} in {split}{more}", "label": y}) for x, y in REVIEWS]
        (tmp_path / f"lengthy.{split}.jsonl").write_text("\n".join(lines))
    (task,) = language_tasks([str(tmp_path / "lengthy.train.jsonl")])
    asked = prompts(task)
    model = right([asked, replace(asked, split="development")])
    whole = PromptCache().tokenised(model, asked)
    model.longest = max(len(q.demonstrations) + q.query_length for q in whole.questions) - 1
    settings = {"passes": "dev", "max_passes": 2}
    run(tmp_path, model, [task], "deep-thinking", settings=settings, shots=[4], controls=False, overlength="drop")
    said = one(values(tmp_path, CELL), "reason")
    assert "development episodes (nothing left out of theirs); up to 1 of 4 demonstrations dropped" in said


@pytest.mark.slow
def test_plain_answers_are_kept_whatever_stands_beside_them(reviews, letters, tmp_path: Path) -> None:
    model = right([prompts(reviews), prompts(letters)])
    run(tmp_path, model, [reviews, letters], shots=[4])
    for name in ("deep-thinking", "icl"):
        cells = run(tmp_path, model, [reviews, letters], name, shots=[4])
        assert all(cell.cached for cell in cells if cell.contestant.name in ("scripted", "majority"))


def test_the_distance_of_the_released_setting_is_to_plain_icl_and_not_to_its_own_rounded_first_pass(
    letters, model_of, tmp_path: Path
) -> None:
    for setting in ("released", "paper"):
        settings = {"setting": setting, "passes": 2}
        run(tmp_path / setting, model_of("gpt2"), [letters], "deep-thinking", settings=settings, controls=False)
    first = {
        setting: one(values(tmp_path / setting, "metric == 'kl_to_icl' and axis_value == 1 and not prompt_set.isna()"))
        for setting in ("released", "paper")
    }
    assert first["released"] > first["paper"] == 0


@pytest.mark.slow
def test_the_trace_of_five_passes_contains_that_of_three(reviews, letters, model_of, tmp_path: Path) -> None:
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
        moved = five[task].xs("kl_to_icl", level="metric")
        assert moved[1.0] < 1e-6 and moved[5.0] > moved[3.0] > moved[2.0] > 0
        assert five[task, 2.0, "memory_change"] > 0
    final = values(tmp_path / "3", CELL).set_index("task")["value"]
    assert final.to_dict() == {task: three[task, 3.0, "accuracy"] for task in ("reviews", "to-upper")}


@pytest.mark.parametrize("trace", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_pass_answers_as_plain_icl(trace: bool, reviews, letters, model_of, tmp_path: Path) -> None:
    model = model_of("llama")
    for name, settings in {"deep-thinking": {"passes": 4, "eta": 0.5, "trace": trace}, "icl": {}}.items():
        run(tmp_path, model, [reviews, letters], name, settings=settings, controls=False)
    found = values(tmp_path, "metric == 'accuracy' and not prompt_set.isna()")
    traced = found.query("axis == 'passes'")
    assert sorted(set(traced["axis_value"])) == ([1, 2, 3, 4] if trace else [1, 4])
    first = traced.query("axis_value == 1").set_index("task")["value"]
    plain = found.query("contestant == 'model'").set_index("task")["value"]
    assert first.to_dict() == plain.to_dict()


@pytest.mark.slow
def test_rows_do_not_depend_on_the_batch_size(reviews, letters, model_of, tmp_path: Path) -> None:
    model = model_of("llama")
    for batch in (1, 3, 64):
        options = {"settings": {"passes": 2}, "batch": batch, "controls": False}
        run(tmp_path / str(batch), model, [reviews, letters], "deep-thinking", **options)
    one_by_one, three, all_ = (values(tmp_path / b).drop(columns=["reason"]) for b in ("1", "3", "64"))
    for other in (three, all_):
        pd.testing.assert_frame_equal(one_by_one, other, rtol=1e-4, atol=1e-6)


def test_out_of_memory_halves_the_batch_and_changes_nothing(reviews, letters, tmp_path: Path) -> None:
    sets = [prompts(reviews), prompts(letters)]
    for rows in (3, 64):
        model = right(sets, rows_at_most=rows)
        cells = run(tmp_path / str(rows), model, [reviews, letters], "deep-thinking", controls=False)
        assert not [cell.reason for cell in cells if cell.reason]
    pd.testing.assert_frame_equal(values(tmp_path / "3"), values(tmp_path / "64"))
    with_none = run(tmp_path / "0", right(sets, rows_at_most=0), [reviews], controls=False)
    assert with_none[0].reason == "OutOfMemoryError: scripted"


# Four reviews have some 170 letters, a query some 40 more.
def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_computed(reviews, tmp_path: Path) -> None:
    model = right([prompts(reviews)], longest=150)
    plain, thinking = (run(tmp_path / n, model, [reviews], n, controls=False)[0] for n in ("icl", "deep-thinking"))
    assert model.tokens_read == 0
    for cell in (plain, thinking):
        assert cell.reason and "150" in cell.reason and "--overlength skip or drop" in cell.reason
    assert "twice" in thinking.reason and "of the query with its answer" in plain.reason


def test_prompts_that_do_not_fit_are_skipped_and_counted_out(reviews, tmp_path: Path) -> None:
    sizes = sorted({len(e.query.x) for e in prompts(reviews, episodes=30).drawn})
    assert len(sizes) > 1
    model = right([prompts(reviews, episodes=30)])
    run(tmp_path / "whole", model, [reviews], episodes=30, controls=False)
    answers = tables.read_all("answers", tmp_path / "whole")
    first = answers["prompt"].iloc[0]
    demonstrations = len(first) - len(prompts(reviews, episodes=30).drawn[0].query.x)
    model.longest = demonstrations + sizes[-1] + len("bad") + 1
    run(tmp_path, model, [reviews], episodes=30, controls=False, overlength="skip")
    row = values(tmp_path, CELL)
    asked = tables.read_all("answers", tmp_path / "tables")
    assert 0 < one(row, "n_episodes") == len(asked) < 30
    assert "skipped" in one(row, "reason") and one(row) == 1.0
    again = [run(tmp_path, model, [reviews], episodes=30, controls=False, overlength=o)[0] for o in ("skip", "drop")]
    assert [cell.cached for cell in again] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icl", "deep-thinking", "repeat"])
@pytest.mark.parametrize("task", ["reviews", "letters"])
def test_demonstrations_are_dropped_from_the_front_until_the_prompt_fits(
    name: str, task: str, tmp_path: Path, request
) -> None:
    asked = request.getfixturevalue(task)
    own = prompts(asked)
    model = right([own], longest={"reviews": 190, "letters": 42}[task])
    cells = run(tmp_path, model, [asked], name, shots=[4], controls=False, overlength="drop")
    assert cells[0].reason is None and "demonstrations dropped" in cells[0].note
    row = values(tmp_path, CELL)
    assert one(row) == 1.0 and one(row, "n_context") == 4 and one(row, "n_episodes") == 8
    text = tables.read_all("answers", tmp_path)["prompt"].iloc[0]
    kept = [f"{e.x}" for e in own.drawn[0].demonstrations if text.count(f"{e.x}\n") + text.count(f"{e.x}->")]
    assert len(text) + 1 <= model.longest
    assert kept == [e.x for e in own.drawn[0].demonstrations[-len(kept) :]] and 0 < len(kept) < 4
    assert run(tmp_path, replace_longest(model, 10), [asked], name, controls=False, overlength="drop")[0].reason


@pytest.mark.parametrize("name", ["icl", "deep-thinking", "repeat"])
@pytest.mark.parametrize("task", ["reviews", "letters"])
def test_a_query_that_does_not_fit_alone_is_refused_before_anything_is_computed(
    name: str, task: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = request.getfixturevalue(task)
    model = right([prompts(asked)], longest=4)
    cells = run(tmp_path, model, [asked], name, shots=[4], controls=False, overlength="drop")
    assert cells[0].reason is not None
    assert cells[0].reason.endswith("and dropping demonstrations is not enough; give --overlength skip")
    assert model.tokens_read == 0
    assert not len(tables.read_all("answers", tmp_path))


def replace_longest(model: Scripted, longest: int) -> Scripted:
    model.longest, model.identity = longest, str(longest)
    return model


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({"forgets": "it was scripted so"}, {"name": "deep-thinking"}, "cannot do Deep-Thinking: it was scripted so"),
        ({}, {"name": "deep-thinking", "shots": [2, 0]}, "needs demonstrations; give --shots from 1 on"),
        ({}, {"name": "repeat", "shots": [0]}, "needs demonstrations; give --shots from 1 on"),
        ({"called": "majority"}, {}, "choose another with --name"),
        ({"called": "../up"}, {}, "cannot be a run name"),
    ],
)
def test_what_cannot_be_done_is_one_line_before_anything_is_computed(
    changes, options, line, reviews, tmp_path: Path
) -> None:
    model = right([prompts(reviews)], **{k: v for k, v in changes.items() if k == "forgets"})
    model.name = changes.get("called", model.name)
    with pytest.raises(UsageError, match=line) as raised:
        run(tmp_path, model, [reviews], **options)
    assert "\n" not in str(raised.value) and model.tokens_read == 0
    assert not tmp_path.joinpath("tables").exists()


def test_missing_data_are_told_before_another_task_is_asked(letters, tmp_path: Path) -> None:
    model = right([prompts(letters)])
    with pytest.raises(DataError):
        run(tmp_path, model, [letters, *language_tasks(["trec"])], data_dir=tmp_path / "nothing")
    assert model.tokens_read == 0


def test_mamba_does_not_think_deeply_and_says_why(reviews, model_of, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'model' cannot do Deep-Thinking: mamba"):
        run(tmp_path, model_of("mamba"), [reviews], "deep-thinking")


def test_the_most_frequent_answer_is_told_and_its_balanced_accuracy_is_that_of_one_class(
    reviews, tmp_path: Path
) -> None:
    own = prompts(reviews, episodes=30)
    run(tmp_path, right([own]), [reviews], episodes=30)
    targets = [e.query.y for e in own.drawn]
    most = max(set(targets), key=targets.count)
    found = values(tmp_path, "contestant == 'majority' and axis == 'demo_seed' and n_context == 4").set_index("metric")
    assert found.loc["accuracy", "value"] == targets.count(most) / len(targets)
    assert found.loc["balanced_accuracy", "value"] == balanced_accuracy_score(targets, [most] * len(targets)) == 0.5
    assert f"always '{most}', the right answer to {targets.count(most)} of" in found.loc["accuracy", "reason"]


def test_greedy_accuracies_of_words_of_several_tokens(tmp_path: Path) -> None:
    """Of a whole answer, and of its first token where the answer is no longer."""
    task = language_tasks(["country-capital"])[0]
    own = prompts(task, shots=5)
    model = right([own])
    wrong = own.drawn[0]
    for end in list(model.known):
        if wrong.query.x in end:
            model.known[end] = "x\n"
    run(tmp_path, model, [task], controls=False)
    row = values(tmp_path, "axis == 'demo_seed'").set_index("metric")
    assert row.loc["accuracy", "value"] < 1.0
    assert "accuracy_first_token" not in row.index  # no capital is one letter
    said = tables.read_all("answers", tmp_path).set_index("episode")
    assert said.loc[0, "predicted"] == "x" and not said.loc[0, "correct"]


def test_published_rows_stand_in_a_file_of_their_own(letters, tmp_path: Path) -> None:
    run(tmp_path, right([prompts(letters)]), [letters], controls=False)
    rows = tables.read("values", tmp_path / "tables" / "published" / "simple.values.parquet")
    mamba = rows.query("contestant == 'Mamba-2.8B' and n_context == 5")
    assert set(rows["kind"]) == {"published"} and set(rows["preset"]) == {"language"}
    assert one(mamba) == 0.85


def test_evaluation_is_deterministic(reviews, model_of, tmp_path: Path) -> None:
    model = model_of("gpt2")
    for folder in "ab":
        run(tmp_path / folder, model, [reviews], "deep-thinking", controls=False)
    files = [sorted(p.relative_to(tmp_path / f) for p in (tmp_path / f).rglob("*values.parquet")) for f in "ab"]
    assert files[0] == files[1] and files[0]
    for file in files[0]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
