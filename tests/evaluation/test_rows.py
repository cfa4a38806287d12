"""The tables that an evaluation writes, with all columns, and errors while writing them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from iclbench import __version__, tables
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.hashing import content_hash
from iclbench.core.memory import EVALUATION_REMEDY
from iclbench.core.predictions import Gaussian, Point
from iclbench.core.predictor import Predictor
from iclbench.core.version import provenance
from iclbench.evaluation import cells, evaluate, examples, gaps, scores, scoring, targets
from iclbench.evaluation.contestant import Contestant
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.costs import costs
from iclbench.evaluation.evaluate import evaluate_cell
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Evaluator
from tests.prototypes import Prototypes

RELATED = {"episodes": 12, "points": 6, "targets": 4, "max_related": 2, "related_points": [4, 5]}


def rows_of(table: tables.TableName, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file as dicts without missing values."""
    rows = tables.read(table, path).to_dict("records")
    return [{str(name): value for name, value in row.items() if pd.notna(value)} for row in rows]


class Half(Predictor):
    """Predicts 0.5 with standard deviation 1."""

    order = "causal"
    heads = ("gaussian",)
    uses_related = True

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.full_like(points.y, 0.5)
        return Gaussian(mean, torch.ones_like(mean)).map(lambda t: t if prefixes is None else t[:, list(prefixes)])

    def predict_targets(self, context, x_target, related=None):
        mean = torch.full((*x_target.shape[:2], 1), 0.5)
        return Gaussian(mean, torch.ones_like(mean))


def make_contestant(**changes: Any) -> PredictorContestant:
    fields: dict[str, Any] = {
        "name": "gpt2",
        "run": "a-run",
        "kind": "backbone",
        "predictor": Half(),
        "identity": "identity",
        "seed": 3,
        "variant": "as trained",
        "libraries": {"torch": "2"},
    }
    return PredictorContestant(**fields | changes)


def shared_columns(prompts: PromptSet, evaluator: str) -> dict[str, Any]:
    return {
        "run": "a-run",
        "task": prompts.task.name,
        "family": prompts.task.family,
        "contestant": "gpt2",
        "model": "gpt2",
        "kind": "backbone",
        "preset": "smoke",
        "seed": 3,
        "variant": "as trained",
        "context_order": "causal",
        "shift": prompts.shift,
        "distribution": prompts.shift,
        "evaluator": evaluator,
        "prompt_set": prompts.id,
        "card": prompts.task.card,
        "status": "ok",
        **provenance(),
    }


@pytest.fixture
def related() -> PromptSet:
    task = resolve_task("gp-mixture", "smoke", RELATED)[0]
    return PromptSet(task.model_copy(update={"oracles": ["bayes"]}), "smoke")


def test_an_evaluation_of_the_question_next_writes_all_columns(task: TaskConfig, tmp_path: Path) -> None:
    contestant, prompts = make_contestant(), PromptSet(task, "smoke", "orthants", seed=2)
    assert evaluate_cell(tmp_path, contestant, prompts) is None
    path = tmp_path / "tables" / prompts.id / "a-run.values.parquet"
    rows = rows_of("values", path)
    errors = (0.5 - prompts.episodes.queries.y[..., 0].double().numpy()) ** 2 / 3
    expected = shared_columns(prompts, "next") | {"normaliser": 3.0, "n_episodes": 48}
    by_metric = {metric: [row for row in rows if row["metric"] == metric] for metric in Gaussian.metrics}
    for n, row in enumerate(by_metric["squared_error"]):
        assert expected | {"metric": "squared_error", "n_context": n} == without_value_and_interval(row)
        assert row["value"] == pytest.approx(errors[:, n].mean(), rel=1e-6) and row["low"] < row["value"] < row["high"]
    for n, row in enumerate(by_metric["log_likelihood"]):
        assert expected | {"metric": "log_likelihood", "n_context": n, "normaliser": 1.0} == without_value_and_interval(
            row
        )
        assert row["value"] == pytest.approx(-1.5 * errors[:, n].mean() - 0.5 * np.log(2 * np.pi), rel=1e-6)
    (area,) = [row for row in rows if row["metric"] == "auc"]
    assert expected | {"metric": "auc"} == without_value_and_interval(area)
    assert area["value"] == pytest.approx(np.trapezoid(errors.mean(0)) / 8)
    assert len(rows) == 9 * len(Gaussian.metrics) + 1
    metadata = tables.metadata(path)
    assert metadata["cell"] == content_hash({"contestant": "identity", "prompts": prompts.id, "normaliser": 1})
    assert metadata["other_tables"] == "costs errors"
    assert metadata["library.torch"] == "2" and cells.pack_name_of(tmp_path, contestant, prompts) == ""
    path = cells.cell_path(tmp_path, contestant, prompts, "errors")
    assert tables.metadata(path)["cell"] == metadata["cell"] and "other_tables" not in tables.metadata(path)
    rows = [row for row in rows_of("errors", path) if row["metric"] == "squared_error"]
    assert len(rows) == 48 * 9
    for row in rows:
        position = (row["episode"], row["n_context"])
        assert row.pop("value") == pytest.approx(errors[position], rel=1e-6)
        assert row == {
            "run": "a-run",
            "prompt_set": prompts.id,
            "metric": "squared_error",
            "episode": position[0],
            "n_context": position[1],
        }


def test_the_values_file_is_written_last(task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the values file exists, the cell is complete."""
    written: list[str] = []
    monkeypatch.setattr(tables, "write", lambda name, *rest: written.append(name))
    empty: cells.Tables = {"values": [], "errors": [], "costs": []}
    cells.write_finished(tmp_path, make_contestant(), PromptSet(task, "smoke"), empty, {})
    assert sorted(written[:-1]) == ["costs", "errors"] and written[-1] == "values"


def test_a_cell_with_a_failed_row_is_written_but_not_done(task: TaskConfig, tmp_path: Path) -> None:
    contestant, prompts = make_contestant(), PromptSet(task, "smoke")
    row = cells.shared_columns(contestant, prompts, "next") | {"metric": "squared_error", "n_context": 1}
    rows = [row | {"value": 1.0}, row | {"n_context": 2, "status": "failed", "reason": "out of luck"}]
    values = tables.frame("values", rows)
    assert cells.compute_cell(tmp_path, contestant, prompts, row, lambda: {"values": values}) == "out of luck"
    assert len(tables.read("values", cells.cell_path(tmp_path, contestant, prompts))) == 2
    assert not cells.is_done(tmp_path, contestant, prompts)


def test_the_context_order_is_none_if_it_is_unknown(task: TaskConfig) -> None:
    model = Contestant("lm", "lm", "backbone", "identity")
    assert cells.shared_columns(model, PromptSet(task, "smoke"), "next")["context_order"] is None


def without_value_and_interval(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("value", "low", "high")}


def test_the_row_of_a_failed_cell_has_a_reason_and_no_value(task: TaskConfig, tmp_path: Path) -> None:
    class Broken(Half):
        def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
            raise RuntimeError("out of luck")

    prompts = PromptSet(task, "smoke")
    contestant = make_contestant(predictor=Broken())
    evaluate_cell(tmp_path, make_contestant(), prompts)
    reason = evaluate_cell(tmp_path, contestant, prompts)
    assert reason is not None and "Broken.predict_next" in reason and "RuntimeError: out of luck" in reason
    path = cells.cell_path(tmp_path, contestant, prompts)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "files of the previous contestant are removed"
    failed = {"metric": "squared_error", "status": "failed", "reason": reason}
    assert rows_of("values", path) == [shared_columns(prompts, "next") | failed]
    assert "cell" not in tables.metadata(path) and tables.metadata(path)["library.torch"] == "2"


def test_a_cell_is_done_only_for_its_contestant_and_prompt_set(task: TaskConfig, tmp_path: Path) -> None:
    prompts, other = PromptSet(task, "smoke"), PromptSet(task, "smoke", seed=1)
    evaluate_cell(tmp_path, make_contestant(), prompts)
    assert cells.is_done(tmp_path, make_contestant(), prompts)
    assert not cells.is_done(tmp_path, make_contestant(identity="another"), prompts)
    path = cells.cell_path(tmp_path, make_contestant(), other)
    path.parent.mkdir()
    path.write_bytes(cells.cell_path(tmp_path, make_contestant(), prompts).read_bytes())
    assert not cells.is_done(tmp_path, make_contestant(), other), (
        "the file and its folder belong to different prompt sets"
    )


def test_a_cell_in_another_table_schema_is_not_done(
    task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contestant, prompts = make_contestant(), PromptSet(task, "smoke")
    with monkeypatch.context() as earlier:
        earlier.setattr("iclbench.tables.parquet.SCHEMA_VERSION", tables.SCHEMA_VERSION - 1)
        evaluate_cell(tmp_path, contestant, prompts)
    assert not cells.is_done(tmp_path, contestant, prompts)
    evaluate_cell(tmp_path, contestant, prompts)
    assert cells.is_done(tmp_path, contestant, prompts)


def test_a_cell_is_done_if_its_values_are_intact_and_its_other_files_exist(task: TaskConfig, tmp_path: Path) -> None:
    contestant, prompts = make_contestant(), PromptSet(task, "smoke")
    evaluate_cell(tmp_path, contestant, prompts)
    path = cells.cell_path(tmp_path, contestant, prompts)
    content = path.read_bytes()
    path.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    assert tables.metadata(path)["cell"] == cells.cell_hash(contestant, prompts)
    assert not cells.is_done(tmp_path, contestant, prompts)
    shared = cells.shared_columns(contestant, prompts, "next") | {"value": 1.0}
    values = tables.frame("values", [shared | {"metric": metric} for metric in Point.metrics])
    metadata = {"cell": cells.cell_hash(contestant, prompts)}
    cells.cell_path(tmp_path, contestant, prompts, "errors").unlink()
    for other_tables, is_done in ({"other_tables": ""}, True), ({"other_tables": "errors"}, False), ({}, False):
        tables.write("values", values, path, metadata | other_tables)
        assert cells.is_done(tmp_path, contestant, prompts) == is_done


@pytest.mark.parametrize(("shift", "points"), [("none", 8), ("points-20", 20), ("orthants", None)])
def test_costs_are_written_unless_the_distribution_is_shifted(
    task: TaskConfig, tmp_path: Path, shift: str, points: int | None
) -> None:
    prompts = PromptSet(task, "smoke", shift)
    evaluate_cell(tmp_path, make_contestant(), prompts)
    rows = rows_of("costs", cells.cell_path(tmp_path, make_contestant(), prompts, "costs"))
    assert bool(rows) == (points is not None)
    for row in rows:
        assert row.pop("value") > 0
        assert row.pop("metric") in ("seconds", "bytes")
        assert row == {
            "run": "a-run",
            "task": "tiny-linear",
            "contestant": "gpt2",
            "preset": "smoke",
            "phase": "evaluate",
            "n_points": points,
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "version": __version__,
        }


def test_an_evaluation_of_the_question_targets_writes_all_columns_and_gaps(related: PromptSet, tmp_path: Path) -> None:
    for contestant in (
        make_contestant(),
        make_contestant(name="bayes", run="bayes", kind="oracle", seed=None, variant=None),
    ):
        assert evaluate_cell(tmp_path, contestant, related) is None
    gaps.write_gaps(PromptSetRows(tmp_path, related))
    folder = tmp_path / "tables" / related.id
    rows = [row for row in rows_of("values", folder / "a-run.values.parquet") if row["metric"] == "log_likelihood"]
    means = [row for row in rows if "axis" not in row]
    expected = shared_columns(related, "targets") | {"normaliser": 1.0, "n_episodes": 12}
    metadata = tables.metadata(folder / "a-run.values.parquet")
    assert metadata["other_tables"] == "costs errors examples"
    assert metadata["cell"] == cells.cell_hash(make_contestant(), related)
    assert [without_value_and_interval(row) for row in means] == [
        expected | {"metric": "log_likelihood", "n_related": n} for n in (0, 1, 2)
    ]
    gap_rows = [row for row in rows_of("values", folder / "summary" / "gaps.values.parquet") if "axis" not in row]
    assert gap_rows == [
        expected | {"metric": gap, "n_related": n, "value": 0.0, "low": 0.0, "high": 0.0}
        for gap in ("gap", "gap_joint")
        for n in (0, 1, 2)
    ]


def test_episodes_are_moved_to_the_device_of_the_contestant(
    task: TaskConfig, related: PromptSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[object] = []
    monkeypatch.setattr(Episodes, "to", lambda self, device: devices.append(device) or self)
    contestant, prompts = make_contestant(device="an accelerator"), PromptSet(task, "smoke")
    for work in (
        lambda: evaluate_cell(tmp_path, contestant, prompts),
        lambda: scoring.target_scores(Half(), related, "an accelerator"),
        lambda: costs._answering_setup(contestant, prompts.family, 3, costs.CostSizes((3,), episodes=2)),
    ):
        work()
        assert devices and set(devices) == {"an accelerator"}
        devices.clear()


def test_an_oracle_gets_the_truth_when_its_costs_are_measured(task: TaskConfig) -> None:
    class Informed(Half):
        def informed(self, truth):
            assert truth["weights"].shape == (2, 3)
            return Half()

        def predict_targets(self, context, x_target, related=None):
            raise NotImplementedError

    contestant, family = make_contestant(predictor=Informed()), PromptSet(task, "smoke").family
    _, works, _ = costs._answering_setup(contestant, family, 3, costs.CostSizes((3,), episodes=2))
    assert isinstance({work.phase: work.call for work in works}["query"](), Gaussian)


@pytest.mark.parametrize("question", ["next", "targets"])
def test_an_out_of_memory_error_names_the_settings_to_reduce(
    task: TaskConfig, related: PromptSet, tmp_path: Path, question: str
) -> None:
    class OutOfMemory(Half):
        def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
            raise MemoryError

        def predict_targets(self, context, x_target, related=None):
            raise MemoryError

    contestant = make_contestant(predictor=OutOfMemory())
    reason = evaluate_cell(tmp_path, contestant, PromptSet(task, "smoke") if question == "next" else related)
    assert reason is not None and "out of memory" in reason and EVALUATION_REMEDY in reason


def test_the_chance_level_is_written_as_a_row(tmp_path: Path) -> None:
    class Tested(Prototypes):
        def evaluators(self):
            return {"icl": Evaluator(0.5), "thirds": Evaluator(1 / 3)}

    task = resolve_task("gp-mixture", "smoke", RELATED)[0]
    prompts = PromptSet(task, "smoke", built_family=Tested(Prototypes.Parameters()), evaluator="thirds")
    targets.write_chance(tmp_path, prompts)
    path = tmp_path / "tables" / prompts.id / "summary" / "chance.values.parquet"
    (row,) = rows_of("values", path)
    assert row == {
        "run": "chance",
        "task": task.name,
        "family": task.family,
        "contestant": "chance",
        "model": "chance",
        "kind": "baseline",
        "preset": "smoke",
        "shift": "none",
        "distribution": "none",
        "evaluator": "thirds",
        "n_related": 0,
        "metric": "accuracy_within_choices",
        "value": pytest.approx(1 / 3),
        "normaliser": 1.0,
        "status": "ok",
        "prompt_set": prompts.id,
        "card": task.card,
        **provenance(),
    }


def test_published_numbers_are_written_to_the_table_values(task: TaskConfig, tmp_path: Path) -> None:
    published_task = resolve_task("gp-mixture", "smoke")[0]
    evaluate.write_published(tmp_path, published_task)
    path = tmp_path / "tables" / "published" / "gp-mixture.values.parquet"
    rows = rows_of("values", path)
    assert len(rows) == len(published_task.published)
    for row, number in zip(rows, published_task.published, strict=True):
        fields = {name: value for name, value in number.model_dump(exclude={"data"}).items() if value is not None}
        source, read = fields.pop("source"), fields.pop("read")
        assert row == {"evaluator": "targets"} | fields | {
            "run": f"published-{number.contestant}",
            "task": "gp-mixture",
            "family": published_task.family,
            "model": number.contestant,
            "distribution": number.shift,
            "kind": "published",
            "status": "ok",
            "reason": f"{source}; {read}",
            "card": published_task.card,
            **provenance(),
        }
    evaluate.write_published(tmp_path, task)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a card without numbers has no file"


def test_examples_are_written_with_all_columns(related: PromptSet, tmp_path: Path) -> None:
    evaluate_cell(tmp_path, make_contestant(), related)
    examples.write_prompts(tmp_path, related)
    folder = tmp_path / "tables" / related.id
    expected = {
        "task": "gp-mixture",
        "preset": "smoke",
        "shift": "none",
        "prompt_set": related.id,
        "output": 0,
        "version": __version__,
    }
    inputs = related.family.display_inputs()
    assert inputs is not None
    rows = [row for row in rows_of("examples", folder / "a-run.examples.parquet") if row["role"] == "predicted"]
    assert len(rows) == 4 * 3 * len(inputs)
    for row in rows:
        columns = {"run": "a-run", "contestant": "gpt2", "kind": "backbone", "seed": 3, "role": "predicted"}
        position = {name: row.pop(name) for name in ("episode", "point", "n_related")}
        assert position["n_related"] in (0, 1, 2) and position["episode"] < 4
        assert row.pop("x1") == pytest.approx(float(inputs[position["point"], 0]))
        ends = pytest.approx([-1.1448536, 0.5, 2.1448536], rel=1e-5)
        assert [row.pop(name) for name in ("low", "value", "high")] == ends
        assert row == expected | columns
    episodes = related.episodes
    sets = {"context": episodes.context, "target": episodes.queries}
    points = rows_of("examples", folder / "prompts.examples.parquet")
    assert {row["role"] for row in points} == {"context", "target", "related", "function"}
    for row in points:
        position, role = (row.pop("episode"), row.pop("point")), row.pop("role")
        x, y = row.pop("x1"), row.pop("value")
        assert position[0] < 4
        if role == "function":
            point = (float(inputs[position[1], 0]), float(episodes.truth["display"][position][0]))
        else:
            if role == "related":
                assert episodes.related is not None
                index = row.pop("set")
                dataset = episodes.related.map(lambda t, index=index: t[:, index])
            else:
                dataset = sets[role]
            assert dataset.mask[position]
            point = (float(dataset.x[position][0]), float(dataset.y[position][0]))
        assert (x, y) == pytest.approx(point)
        assert row == expected | {"run": "prompts", "contestant": "prompts", "kind": "prompts"}


@pytest.mark.slow
def test_an_error_while_writing_names_the_results_folder(
    task: TaskConfig, related: PromptSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for contestant in (make_contestant(), make_contestant(name="bayes", run="bayes", kind="oracle")):
        evaluate_cell(tmp_path, contestant, related)
    plain = PromptSet(task, "smoke")
    for name in ("zero", "another"):
        evaluate_cell(tmp_path, make_contestant(name=name, run=name, kind="baseline"), plain)
    test = PromptSet(related.task, "smoke", built_family=Prototypes(Prototypes.Parameters()), evaluator="icl")

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tables, "write", refuse)
    for write in (
        lambda: gaps.write_gaps(PromptSetRows(tmp_path, related)),
        lambda: examples.write_prompts(tmp_path, related),
        lambda: scores.write_scores(PromptSetRows(tmp_path, plain)),
        lambda: targets.write_chance(tmp_path, test),
        lambda: evaluate.write_published(tmp_path, related.task),
        lambda: evaluate_cell(tmp_path, make_contestant(), plain),
    ):
        with pytest.raises(UsageError) as error:
            write()
        assert str(tmp_path) in str(error.value) and "Permission denied" in str(error.value)
