"""Runs whose data change after training: training and evaluation are refused, and predictions do not need the data."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

import iclbench as icl
from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import DataChangedError, Interrupted
from iclbench.report.data import load_results
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create, find
from iclbench.sweep.cells import grid_cells
from iclbench.training import run as training

TINY = ["-o", "backbone.layers=1", "-o", "backbone.width=8", "-o", "train.steps=4", "-o", "train.checkpoint_every=2"]
EVENTS = ["train", "events", "mamba", "-p", "smoke", "-o", "task.time_scale=mean-gap", *TINY]


def write(path: Path, sequences: int = 40, scale: float = 1.0, marks: int = 2) -> None:
    """Write sequences of ten events with two marks.

    After the first 40 sequences, gaps are multiplied by `scale`, and there are `marks` marks.
    """
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1.0, (sequences, 10))
    gaps[40:] *= scale
    rows = [
        {"times": sequence.cumsum().tolist(), "marks": [(n + k) % (marks if n >= 40 else 2) for k in range(10)]}
        for n, sequence in enumerate(gaps)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def grow(path: Path, marks: int = 2) -> None:
    """Add twenty sequences whose gaps are ten times as large."""
    write(path, 60, scale=10.0, marks=marks)


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `mine` and its training data."""
    folder = tmp_path_factory.mktemp("trained")
    write(folder / "log.jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main([*EVENTS, "-o", "task.path=log.jsonl", "--name", "mine", "--results", "results"]) == 0
    return folder


@pytest.fixture
def results(trained_folder: Path, tmp_path: Path) -> Path:
    """A results folder with copies of the run and its data, which a test may change."""
    original = trained_folder / "results" / "runs" / "mine"
    copy = tmp_path / "results" / "runs" / "mine"
    copy.mkdir(parents=True)
    write(tmp_path / "log.jsonl")
    for path in original.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    config = copy / "config.toml"
    config.write_text(config.read_text().replace(str(trained_folder / "log.jsonl"), str(tmp_path / "log.jsonl")))
    return tmp_path / "results"


def evaluate(results: Path, *words: str) -> int:
    return main(["eval", "mine", "--results", str(results), "--baseline", "poisson", *words])


def gaps(results: Path) -> list[float]:
    return icl.next_event(icl.load("mine", results), [0.5, 1.5, 2.0], [0, 1, 0])["gap"].tolist()


def stream_predictions(results: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    events = results / "events.csv"
    events.write_text("time,mark\n0.5,0\n1.5,1\n?,?\n")
    capsys.readouterr()
    assert main(["stream", "mine", "--results", str(results), "--csv", str(events), *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_run_stores_the_fingerprint_marks_and_time_unit_of_its_data(trained_folder: Path) -> None:
    rows = [json.loads(line) for line in (trained_folder / "log.jsonl").read_text().splitlines()]
    learned = find(trained_folder / "results", "mine").config.task.learned
    assert learned.keys() == {"fingerprint", "marks", "time_unit"} and learned["marks"] == 2
    means = [np.mean(np.diff(row["times"], prepend=0)) for row in rows]
    assert min(means) < learned["time_unit"] < max(means)


@pytest.mark.parametrize("change", [grow, Path.unlink])
def test_predictions_do_not_need_the_data_file_after_training(change, results, tmp_path, capsys) -> None:
    state = results / "state"
    predictions = gaps(results), stream_predictions(results, capsys, "--save", str(state))
    change(tmp_path / "log.jsonl")
    assert (gaps(results), stream_predictions(results, capsys)) == predictions
    (results / "query.csv").write_text("time,mark\n?,?\n")
    capsys.readouterr()
    words = ["stream", "mine", "--results", str(results), "--csv", str(results / "query.csv"), "--state", str(state)]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == predictions[1]


def test_evaluating_a_run_on_changed_data_is_refused(results, tmp_path, capsys) -> None:
    trained_fingerprint = find(results, "mine").config.task.learned["fingerprint"]
    grow(tmp_path / "log.jsonl", marks=3)
    capsys.readouterr()
    assert evaluate(results) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()
    assert trained_fingerprint in message and "--data-changed" in message and "delete" not in message
    assert not (results / "tables").exists()
    with pytest.raises(DataChangedError):
        icl.evaluate(
            find(results, "mine"),
            icl.task("events", "smoke", path=str(tmp_path / "log.jsonl"), time_scale="mean-gap"),
        )


def test_training_a_run_on_changed_data_is_refused(results, tmp_path, capsys) -> None:
    run, command = find(results, "mine"), [*EVENTS, "-o", f"task.path={tmp_path / 'log.jsonl'}", "--name", "mine"]
    weights = run.weights.read_bytes()
    assert main([*command, "--results", str(results)]) == 0, "an equal file at a different path is accepted"
    grow(tmp_path / "log.jsonl")
    capsys.readouterr()
    assert main([*command, "--results", str(results)]) == 2
    assert run.config.task.learned["fingerprint"] in capsys.readouterr().err
    assert run.weights.read_bytes() == weights


def test_an_interrupted_run_does_not_continue_on_changed_data(tmp_path, monkeypatch, capsys) -> None:
    results, file = tmp_path / "results", tmp_path / "log.jsonl"
    write(file)
    words = [*EVENTS, "-o", f"task.path={file}", "--name", "mine", "--results", str(results)]

    with monkeypatch.context() as patched:
        make_callback = training._checkpoint_callback

        def make_interrupting_callback(*args):
            callback = make_callback(*args)

            def write_checkpoint_and_stop(state) -> None:
                callback(state)
                if state.progress.step == 2:
                    raise Interrupted("interrupted")

            return write_checkpoint_and_stop

        patched.setattr(training, "_checkpoint_callback", make_interrupting_callback)
        assert main(words) == 130
    assert find(results, "mine").checkpoint_step == 2
    grow(file)
    assert main(words) == 2
    with pytest.raises(DataChangedError):
        training.train(find(results, "mine"))
    write(file)
    assert main(words) == 0


@pytest.mark.slow
def test_a_data_file_can_be_moved_after_training(results, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(results)
    assert evaluate(results) == 0, "the path does not depend on the current folder"
    prompt_sets = {path.name for path in (results / "tables").iterdir()}
    (tmp_path / "moved").mkdir()
    (tmp_path / "log.jsonl").rename(tmp_path / "moved" / "other.jsonl")
    assert evaluate(results) == 2
    assert evaluate(results, "-o", f"task.path={tmp_path / 'moved' / 'other.jsonl'}") == 0
    assert {path.name for path in (results / "tables").iterdir()} == prompt_sets
    grow(tmp_path / "moved" / "other.jsonl")
    assert evaluate(results, "-o", f"task.path={tmp_path / 'moved' / 'other.jsonl'}") == 2
    capsys.readouterr()
    assert evaluate(results, "-o", "task.pth=x") == 2
    assert "path" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_on_changed_data_have_both_fingerprints_and_are_excluded_from_reports(results, tmp_path, capsys) -> None:
    assert evaluate(results) == 0
    grow(tmp_path / "log.jsonl")
    capsys.readouterr()
    assert evaluate(results, "--data-changed") == 0
    trained_fingerprint = find(results, "mine").config.task.learned["fingerprint"]
    values = tables.read_all("values", results)
    is_changed = values["trained_data"].notna()
    assert set(values.loc[is_changed, "trained_data"]) == {trained_fingerprint}
    fingerprint = icl.task("events", "smoke", path=str(tmp_path / "log.jsonl")).family.fingerprint
    assert values.loc[is_changed, "data"].str.contains(fingerprint).all() and fingerprint != trained_fingerprint
    assert trained_fingerprint in capsys.readouterr().out
    assert set(values.loc[is_changed, "prompt_set"]).isdisjoint(values.loc[~is_changed, "prompt_set"])
    report_data = load_results(results)
    assert report_data.rows["trained_data"].isna().all() and len(report_data.rows)
    assert any(trained_fingerprint in line for line in report_data.excluded_rows)


def test_evaluation_on_changed_data_uses_the_time_unit_and_marks_of_training(results, tmp_path) -> None:
    grow(tmp_path / "log.jsonl")
    task = find(results, "mine").config.task
    family = task.build_held_out(data_changed=True)
    assert family.time_unit == task.learned["time_unit"] != task.model_copy(update={"learned": {}}).build().time_unit
    grow(tmp_path / "log.jsonl", marks=3)
    assert evaluate(results, "--data-changed") == 2


def test_the_variant_of_a_run_depends_on_the_contents_but_not_the_paths_of_data_files(tmp_path) -> None:
    variants, paths = [], []
    for name, write_file in (("a", write), ("b", write), ("c", grow)):
        (tmp_path / name).mkdir()
        write_file(tmp_path / name / f"{name}.jsonl")
        words = [f"task.path={tmp_path / name / name}.jsonl", "task.time_scale=mean-gap", "backbone.layers=1"]
        config = resolve_run("events", "mamba", "smoke", overrides=words).on_data()
        variants.append(variant_id(config))
        paths.append(str(config.task.files["path"]))
    first, second, third = variants
    assert first == second != third and len(set(paths)) == 3


def test_evaluating_a_model_in_memory_on_changed_data_is_refused(tmp_path) -> None:
    file = tmp_path / "log.jsonl"
    write(file)
    task = icl.task("events", "smoke", path=str(file), time_scale="mean-gap")
    model = icl.Mamba(task, layers=1, width=8)
    icl.fit(model, task, steps=1)
    grow(file)
    with pytest.raises(DataChangedError):
        icl.evaluate(model, icl.task("events", "smoke", path=str(file), time_scale="mean-gap"))


def write_table(folder: Path, rows: int) -> list[str]:
    (folder / "tabular").mkdir(exist_ok=True)
    values = np.random.default_rng(1).normal(size=(rows, 4))
    pd.DataFrame(values, columns=list("abcy")).to_csv(folder / "tabular" / "mine.csv", index=False)
    return ["tabular", "cnp", "-o", "task.dim=3", "-o", "task.tables=[]"]


def write_images(folder: Path, brightness: int) -> list[str]:
    """Write the four MNIST files with a few noise images, and return the arguments of `iclbench train`."""
    rng = np.random.default_rng(2)
    (folder / "mnist").mkdir(exist_ok=True)
    for name, count in (("train", 200), ("t10k", 100)):
        images = rng.integers(0, brightness, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = np.array([0x803, count, 28, 28], dtype=">i4").tobytes()
        (folder / "mnist" / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = np.array([0x801, count], dtype=">i4").tobytes()
        (folder / "mnist" / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return ["image-completion-mnist", "cnp"]


@pytest.mark.parametrize(("write_data", "sizes"), [(write_table, (80, 90)), (write_images, (255, 99))])
def test_using_a_run_on_changed_tables_or_images_is_refused(write_data, sizes, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ICLBENCH_DATA", str(tmp_path))
    results = ["--results", str(tmp_path / "results"), "--name", "mine"]
    words = ["train", *write_data(tmp_path, sizes[0]), "-p", "smoke", "-o", "train.steps=2", "-o", "backbone.width=8"]
    assert main([*words, *results]) == 0
    assert Run(tmp_path / "results" / "runs" / "mine").config.task.learned.keys() == {"fingerprint"}
    write_data(tmp_path, sizes[1])
    capsys.readouterr()
    assert main([*words, *results]) == 2
    assert main(["eval", "mine", "--baseline", "zero", "--results", str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err.count("--data-changed") == 2
    assert main(["eval", "mine", "--baseline", "zero", "--data-changed", "--results", str(tmp_path / "results")]) == 0
    assert icl.load("mine", tmp_path / "results").model is not None


def test_on_data_does_not_change_the_configuration_of_tasks_without_data_files() -> None:
    for task in ("linear", "climate", "image-completion", "bursty", "gp-mixture", "point-process"):
        config = resolve_run(task, "gpt2", "smoke")
        assert config.on_data() == config
        assert not config.task.learned and not config.task.files


def grid_card(folder: Path, *files: Path) -> Path:
    """Write a grid card with one run and one baseline for each file, and return its path."""
    card, tiny = folder / "grid.toml", [word for word in TINY if word != "-o"]
    grid = {
        "summary": "events",
        "source": "none",
        "tasks": ["events"],
        "backbones": ["mamba"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"baselines": ["poisson"]},
        "overrides": {"smoke": {file.stem: [f"task.path={file}", "task.time_scale=mean-gap", *tiny] for file in files}},
    }
    card.write_text(tomli_w.dumps(grid))
    return card


def test_a_grid_evaluates_its_baseline_on_every_data_file(tmp_path) -> None:
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file in files:
        write(file)
    cells = grid_cells([str(grid_card(tmp_path, *files))])
    paths = {cell.hash: cell.task_config.files["path"] for cell in cells if cell.baseline == "poisson"}
    assert sorted(paths.values()) == list(map(str, files))
    assert len({cell.hash for cell in cells if cell.run == "summary"}) == 2


def test_repeating_a_sweep_on_changed_data_is_refused(tmp_path, capsys) -> None:
    file = tmp_path / "log.jsonl"
    write(file)
    card = grid_card(tmp_path, file)
    words = ["sweep", str(card), "--results", str(tmp_path / "results"), "--workers", "1"]
    train_cell = next(cell for cell in grid_cells([str(card)]) if cell.kind == "train")
    assert train_cell.config is not None
    run = create(tmp_path / "results", train_cell.config, train_cell.run)
    training.train(run)
    assert main([*words, "--dry-run"]) == 0
    grow(file)
    capsys.readouterr()
    assert main([*words, "--dry-run"]) == main(words) == 2
    assert capsys.readouterr().err.count("--data-changed") == 2
