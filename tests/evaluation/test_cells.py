"""Evaluation cells: finished cells are cached, failed or damaged ones recomputed, and errors paired by episode."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.estimators.knn import NearestNeighbours
from iclbench.evaluation.evaluate import evaluate_run, shifts_of
from iclbench.store.runs import Run, create
from iclbench.sweep.cleaning import remove_run
from iclbench.training.run import train
from tests.refusals import refused


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    import tomli_w

    from tests.conftest import small_card

    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    run = create(folder, resolve_run(str(card), "gpt2", "smoke", 0))
    train(run)
    return folder, run


@pytest.fixture(scope="module")
def evaluated_results(trained_run: tuple[Path, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with evaluations on the training distribution and under a shift. Tests must not modify it."""
    folder = tmp_path_factory.mktemp("evaluated")
    list(evaluate_run(Context(folder), trained_run[1], ("none", "orthants")))
    return folder


def bytes_of_values(results: Path) -> dict[str, bytes]:
    return {str(p.relative_to(results)): p.read_bytes() for p in tables.files("values", results / "tables")}


def test_model_baselines_and_oracle_are_evaluated_on_the_same_prompt_set(
    trained_run: tuple[Path, Run], tmp_path: Path
) -> None:
    _, run = trained_run
    cells = list(evaluate_run(Context(tmp_path), run))
    assert [c.contestant.name for c in cells] == ["gpt2", "least-squares", "zero", "mean", "knn-3"]
    assert {c.prompts.id for c in cells} == {cells[0].prompts.id}
    rows = tables.read_all("values", tmp_path)
    assert set(rows["kind"]) == {"backbone", "baseline", "oracle"}
    exact = rows.query("contestant == 'least-squares' and metric == 'squared_error' and n_context > 3")["value"]
    assert (exact < 1e-6).all()
    scores = rows.query("metric == 'score'").set_index("run")["value"]
    assert scores["zero"] == pytest.approx(0)
    assert scores["least-squares"] == pytest.approx(1)
    assert scores["knn-3"] < 1


@pytest.mark.slow
def test_a_second_evaluation_writes_the_same_bytes(
    trained_run: tuple[Path, Run], evaluated_results: Path, tmp_path: Path
) -> None:
    list(evaluate_run(Context(tmp_path), trained_run[1], ("none", "orthants")))
    assert bytes_of_values(tmp_path) == bytes_of_values(evaluated_results) != {}


@pytest.mark.slow
def test_finished_cells_are_cached_and_damaged_cells_recomputed(trained_run: tuple[Path, Run], tmp_path: Path) -> None:
    _, run = trained_run
    list(evaluate_run(Context(tmp_path), run))
    original = bytes_of_values(tmp_path)
    assert all(cell.cached for cell in evaluate_run(Context(tmp_path), run))
    truncated_file = next((tmp_path / "tables").rglob("knn-3.values.parquet"))
    truncated_file.write_bytes(truncated_file.read_bytes()[:200])
    assert [c.contestant.name for c in evaluate_run(Context(tmp_path), run) if not c.cached] == ["knn-3"]
    assert bytes_of_values(tmp_path) == original
    changed_file = next((tmp_path / "tables").rglob("knn-3.errors.parquet"))
    content = changed_file.read_bytes()
    changed_file.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    assert [c.contestant.name for c in evaluate_run(Context(tmp_path), run) if not c.cached] == ["knn-3"]
    assert changed_file.read_bytes() == content


def test_a_failed_cell_has_a_row_with_a_reason_and_is_recomputed(
    trained_run: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = trained_run
    with monkeypatch.context() as patched:
        patched.setattr(NearestNeighbours, "predict_next", _fail)
        reasons = {c.contestant.name: c.reason for c in evaluate_run(Context(tmp_path), run)}
    assert reasons.pop("knn-3") == "RuntimeError: out of luck"
    assert not any(reasons.values())
    row = tables.read_all("values", tmp_path).query("status == 'failed'").iloc[0]
    assert (row["contestant"], row["reason"]) == ("knn-3", "RuntimeError: out of luck")
    assert [c.contestant.name for c in evaluate_run(Context(tmp_path), run) if not c.cached] == ["knn-3"]
    assert (tables.read_all("values", tmp_path)["status"] == "ok").all()


def _fail(*arguments: object, **options: object) -> None:
    raise RuntimeError("out of luck")


def test_errors_are_paired_by_episode_and_their_means_are_the_values(evaluated_results: Path) -> None:
    errors = tables.read_all("errors", evaluated_results)
    rows = tables.read_all("values", evaluated_results).query("metric == 'squared_error'")
    keys = ["prompt_set", "run", "n_context"]
    means = errors.groupby(keys)["value"].mean()
    joined = rows.set_index(keys)["value"]
    pd.testing.assert_series_equal(means.sort_index(), joined.sort_index(), check_names=False, check_dtype=False)
    assert errors.groupby(keys)["episode"].nunique().eq(48).all()


@pytest.mark.slow
def test_shifts_and_extrapolation_have_separate_prompt_sets(trained_run: tuple[Path, Run], tmp_path: Path) -> None:
    _, run = trained_run
    shifts = shifts_of(run, ["all"], 20)
    assert shifts == ["none", "orthants", "noisy-1", "points-20"]
    list(evaluate_run(Context(tmp_path), run, shifts))
    rows = tables.read_all("values", tmp_path)
    assert set(rows["shift"]) == set(shifts)
    assert rows.query("shift == 'points-20'")["n_context"].max() == 20
    noisy = rows.query("shift == 'noisy-1' and contestant == 'zero' and metric == 'auc'")["value"].iloc[0]
    assert noisy == pytest.approx(1 + 1 / 3, rel=0.3)


def test_a_shift_can_be_combined_with_extrapolation(trained_run: tuple[Path, Run], tmp_path: Path) -> None:
    _, run = trained_run
    list(evaluate_run(Context(tmp_path), run, ["orthants", "orthants+points-20"], baseline_names=["zero"]))
    rows = tables.read_all("values", tmp_path).query("metric == 'squared_error' and contestant == 'zero'")
    assert rows.groupby("shift")["n_context"].max().to_dict() == {"orthants": 8, "orthants+points-20": 20}


def test_extrapolation_to_at_most_the_trained_length_is_refused(trained_run: tuple[Path, Run]) -> None:
    with refused("bad-value", "--extrapolate 8", trained_run[1].name):
        shifts_of(trained_run[1], [], 8)


def test_the_error_for_an_unknown_shift_names_similar_ones(trained_run: tuple[Path, Run]) -> None:
    with refused("unknown-name", "'orthant'", "'orthants'"):
        shifts_of(trained_run[1], ["orthant"], None)


def test_a_cached_evaluation_does_not_change_any_file(trained_run: tuple[Path, Run], evaluated_results: Path) -> None:
    """Results in a read-only folder can therefore be printed."""

    def state() -> dict[Path, tuple[int, int]]:
        return {
            path: (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in (evaluated_results, *evaluated_results.rglob("*"))
        }

    original = state()
    assert all(cell.cached for cell in evaluate_run(Context(evaluated_results), trained_run[1], ("none", "orthants")))
    assert state() == original


@pytest.mark.parametrize("when", ["before the first cell", "after the first cell"])
def test_no_files_remain_of_a_run_that_is_deleted_during_its_evaluation(
    when: str, trained_run: tuple[Path, Run], tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(trained_run[1].path, tmp_path / "runs" / trained_run[1].name)))
    cells = evaluate_run(
        Context(tmp_path),
        run,
        ("none", "orthants"),
        baseline_names=["zero"],
        on_start=lambda contestant, prompts: delete(contestant.run) if when == "before the first cell" else None,
    )

    def delete(name: str) -> None:
        if name == run.name and run.path.is_dir():
            remove_run(tmp_path, run.name)

    with refused("missing-file", run.name, exit_code=1):
        for cell in cells:
            delete(cell.contestant.run)
    assert [path for path in tmp_path.rglob("*") if run.name in path.name] == []
    assert run.name not in set(tables.read_all("values", tmp_path)["run"])


def test_deleting_a_run_also_removes_files_written_during_the_deletion(
    trained_run: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation may write files after the deletion has listed the files of the run."""
    run = Run(Path(shutil.copytree(trained_run[1].path, tmp_path / "runs" / trained_run[1].name)))
    list(evaluate_run(Context(tmp_path), run, baseline_names=["zero"]))
    values_file, rmtree = next(tmp_path.glob(f"tables/*/{run.name}.values.parquet")), shutil.rmtree
    content = values_file.read_bytes()

    def remove(path: Path) -> None:
        rmtree(path)
        values_file.with_name(f"{run.name}.errors.parquet").unlink(missing_ok=True)
        values_file.with_name(f"{run.name}.values.parquet").write_bytes(content)
        (tmp_path / "tables" / "later").mkdir()
        (tmp_path / "tables" / "later" / values_file.name).write_bytes(content)

    monkeypatch.setattr("iclbench.sweep.cleaning.shutil.rmtree", remove)
    remove_run(tmp_path, run.name)
    assert [path for path in tmp_path.rglob("*") if run.name in path.name] == []
