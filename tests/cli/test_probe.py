"""`iclbench probe`: tables, skipped runs and errors."""

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.main import main
from tests.cli.conftest import RunCommand
from tests.conftest import small_card

RUN = "tiny-linear-gpt2-smoke-s0"
SMALL = ("--tasks", 8, "--fit", 3, "--test", 4)


@pytest.fixture(scope="module")
def trained_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    assert main(["train", str(card), "gpt2", "-p", "smoke", "--results", str(folder / "results")]) == 0
    return folder / "results"


@pytest.fixture
def results(trained_results: Path, tmp_path: Path) -> tuple[str, Path]:
    return "--results", shutil.copytree(trained_results, tmp_path / "results")


@pytest.mark.slow
def test_a_probe_prints_a_table_for_each_context_size(results: tuple[str, Path], run: RunCommand) -> None:
    command = ("probe", RUN, "--context", 8, "--context", 12, *SMALL, *results)
    code, out, err = run(*command)
    assert code == 0
    assert "8 examples" in out and "12 examples" in out
    (line,) = [line for line in out.split("12 examples")[1].splitlines() if line.startswith(RUN)]
    assert "2 layers" in line and "±" in line
    assert any(line.startswith("gd-plus-plus-transformed") and "24 steps" in line for line in out.splitlines())
    code, second_out, err = run(*command)
    assert (code, second_out) == (0, out)
    assert err.count("(cached)") == 2


@pytest.mark.slow
def test_json_output_consists_of_rows(results: tuple[str, Path], run: RunCommand) -> None:
    code, out, _ = run("probe", "--json", *SMALL, *results)
    assert code == 0
    assert {row["axis"] for row in json.loads(out)} == {"layer", "gd_step", "gamma", None}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--context", "0"], "'--context'"),
        (["--fit", "1"], "'--fit'"),
        (["--tasks", "1"], "'--tasks'"),
        (["--shift", "orthant"], "'orthants'"),
        (["--shift", "points-9"], "--context"),
        (["--shift", "repeated-query"], "repeated-query"),
        (["--queries", "9"], "--queries"),
        (["--rank", "--tasks", "9"], "--tasks"),
        (["--representation", "--fit", "9"], "--fit"),
        (["--representation", "--contexts", "9"], "--contexts"),
    ],
)
def test_invalid_requests_give_an_error_of_one_line(
    arguments: list[str], name: str, results: tuple[str, Path], run: RunCommand
) -> None:
    code, out, err = run("probe", RUN, *arguments, *results)
    assert (code, out) == (2, "")
    assert name in err and err.count("\n") == 1
    assert not (results[1] / "tables").exists()


@pytest.mark.slow
def test_a_run_without_layers_is_refused_if_it_is_named_and_skipped_otherwise(
    results: tuple[str, Path], card_path: Path, run: RunCommand
) -> None:
    plugin = "tests.probing.test_probe:Unlayered"
    run("train", card_path, plugin, "-p", "smoke", "--name", "flat", *results)
    code, out, err = run("probe", "flat", *results)
    assert (code, out) == (2, "")
    assert "'flat'" in err and err.count("\n") == 1
    code, out, err = run("probe", *SMALL, *results)
    assert code == 0 and RUN in out
    assert "run 'flat'" in err


@pytest.mark.parametrize(
    ("shift", "name"),
    [
        ("orthants+points-160", "--context"),
        ("repeated-query", "repeated-query"),
        ("orthant", "'orthants'"),
    ],
)
def test_a_shift_that_cannot_be_probed_is_refused_once_for_all_runs(
    shift: str, name: str, results: tuple[str, Path], run: RunCommand
) -> None:
    shutil.copytree(results[1] / "runs" / RUN, results[1] / "runs" / "another")
    code, out, err = run("probe", "--shift", shift, *results)
    assert (code, out) == (2, "")
    assert name in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_context_beyond_learned_positions_is_skipped(
    results: tuple[str, Path], card_path: Path, run: RunCommand
) -> None:
    settings = ("-p", "smoke", "-o", "train.steps=2", "--name", "learned")
    run("train", card_path, "gpt2-learned", *settings, *results)
    code, out, err = run("probe", "--context", 12, *SMALL, *results)
    assert code == 0 and RUN in out
    assert "skipped: learned: " in out and "failed" not in err


def test_without_runs_the_error_names_the_command_to_train_a_run(tmp_path: Path, run: RunCommand) -> None:
    code, _, err = run("probe", "--results", tmp_path)
    assert code == 2 and "iclbench train" in err


def test_the_table_of_ranks_has_a_column_per_number_of_contexts(results: tuple[str, Path], run: RunCommand) -> None:
    code, out, err = run("probe", "--rank", "--contexts", 12, "--queries", 9, *results)
    assert code == 0, err
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("con", "least", RUN))}
    assert lines["contestant"] == ["m=4", "m=8", "m=12"]
    assert lines["least-squares"][1::2] == ["(3)", "(3)", "(3)"], "the inputs have three dimensions"
    effective = [float(lines[name][-2]) for name in list(lines)[1:]]
    assert len(effective) == 2 and effective == sorted(effective), "effective ranks are sorted in ascending order"


def test_the_table_of_a_representation_has_a_column_per_feature(
    results: tuple[str, Path], card_path: Path, run: RunCommand
) -> None:
    settings = ("-p", "smoke", "-o", "train.steps=2", "-o", "backbone.width=16", "--name", "dual")
    run("train", card_path, "coqe", *settings, *results)
    code, out, err = run("probe", "--representation", *results)
    assert code == 0, err
    assert f"'{RUN}'" in err
    assert "dual-untrained" in out and "R² 3" in out
    (line,) = [line for line in out.splitlines() if line.startswith("least-squares")]
    assert line.split()[1:] == ["1.000", "1.000", "1.000", "1.000", "[1.000,", "1.000]"], (
        "linear features are the inputs"
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--rank", "--representation"], "--representation"),
        (["--representation", "--context", "4"], "--context"),
        (["--representation", "--shift", "orthants"], "--shift"),
        (["--representation"], RUN),
        (["--rank", "--contexts", "2"], "'--contexts'"),
        (["--rank", "--shift", "repeated-query"], "repeated-query"),
    ],
)
def test_invalid_requests_to_other_probes_give_an_error_of_one_line(
    arguments: list[str], name: str, results: tuple[str, Path], run: RunCommand
) -> None:
    code, out, err = run("probe", RUN, *arguments, *results)
    assert (code, out) == (2, "")
    assert name in err and err.count("\n") == 1


def test_runs_on_streams_have_a_row_per_target_and_are_skipped_with_the_option_tasks(
    results: tuple[str, Path], run: RunCommand
) -> None:
    settings = ("-p", "smoke", "-o", "train.steps=1", "--name", "chain")
    run("train", "markov", "gru", *settings, *results)
    code, out, err = run("probe", "chain", "--fit", 40, "--test", 20, *results)
    assert code == 0, err
    rows = [line for line in out.splitlines() if line.startswith("chain")]
    assert len(rows) == 4 and sum("R²" in line for line in rows) == 2 and all("2 layers" in line for line in rows)
    code, out, err = run("probe", "chain", "--context", 1, "--fit", 40, "--test", 20, *results)
    assert code == 0 and "'previous_element'" in out and "'prediction'" in out
    code, out, err = run("probe", *SMALL, *results)
    assert code == 0 and RUN in out and "chain" not in out
    assert "'chain'" in err and "--fit" in err
