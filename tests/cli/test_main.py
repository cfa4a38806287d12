"""The command line: fast imports, one-line errors and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from iclbench import tables
from iclbench.cli.eval_runs import UserFile, table_task
from iclbench.cli.main import main
from iclbench.cli.main import run as entry
from iclbench.config.resolution import resolve_task
from iclbench.families.linear import Linear
from tests.cli.conftest import RunCommand
from tests.conftest import restore_ctrl_c
from tests.forked import Command
from tests.refusals import refused

RUN = "tiny-linear-gpt2-smoke-s0"
TABLE = UserFile(Path("none.csv"), pd.DataFrame({"x": [0.0]}), pd.Series([0.0], name="y"))
LARGE_LIBRARIES = ("torch", "pandas", "sklearn", "transformers", "xgboost", "pyarrow", "altair")


def heavy_imports(folder: Path, *commands: list[str]) -> dict[str, list[str]]:
    """Run these commands in one new process in the folder. Return the large libraries that are loaded after each one.

    Commands after which no large library is loaded are omitted.
    """
    code = (
        "import json, sys; from iclbench.cli.main import main; libraries = {}\n"
        "for command in json.loads(sys.argv[1]):\n"
        f"    main(command); libraries[' '.join(command)] = [m for m in {LARGE_LIBRARIES!r} if m in sys.modules]\n"
        "print(json.dumps({command: names for command, names in libraries.items() if names}), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, json.dumps(commands)]
    process = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(process.stderr.strip().splitlines()[-1])


def test_fast_commands_import_no_large_library(tmp_path: Path) -> None:
    commands = ["--help"], ["list"], ["list", "tasks", "--json"], ["show", "linear"], ["train", "--help"], ["--version"]
    assert heavy_imports(tmp_path, *commands) == {}


@pytest.mark.slow
def test_heavy_imports_detects_a_large_library(tmp_path: Path) -> None:
    command = ["rm", "missing", "--results", str(tmp_path)]
    libraries = heavy_imports(tmp_path, ["list"], command)
    assert libraries.keys() == {" ".join(command)} and "pandas" in libraries[" ".join(command)]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["train", "linaer", "gpt2"], ("'linaer'", "'linear'")),
        (["train", "linear", "gtp2"], ("'gtp2'", "'gpt2'")),
        (["train", "linear", "gpt2", "--preset", "smal"], ("'smal'", "'small'")),
        (["train", "linear"], ("backbone",)),
        (["train", "linear", "gpt2", "--preset"], ("--preset",)),
        (["train", "linear", "gpt2", "-o", "lr=3"], ("-o lr=3", "train")),
        (["train", "linear", "gpt2", "-o", "train.lrr=3"], ("'lr'",)),
        (["train", "linear", "gpt2", "--name", "../escape"], ("../escape",)),
        (["train", "linear", "gpt2", "--name", ""], ("''",)),
        (["train", "linear", "gpt2", "--device", "tpu"], ("tpu",)),
        (["train", "linear", "gpt2", "--config", "missing.toml"], ("missing.toml",)),
        (["train", "./missing.toml", "gpt2"], ("missing.toml",)),
        (["trian", "linear", "gpt2"], ("trian",)),
        (["show", "linaer"], ("'linear'",)),
        (["list", "taks"], ("'tasks'",)),
        (["eval", "missing"], ("'missing'",)),
        (["eval", "--csv", "x.csv"], ("--csv", "--target")),
        (["eval"], ("iclbench train",)),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    arguments: list[str],
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: RunCommand,
) -> None:
    monkeypatch.setenv("ICLBENCH_RESULTS", str(tmp_path))
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert all(name in err or name in err.lower() for name in names) and err.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can write everywhere")
def test_the_error_for_an_unwritable_results_folder_names_the_option(card_path: Path, run: RunCommand) -> None:
    code, _, err = run("train", card_path, "gpt2", "-p", "smoke", "--results", "/proc/missing")
    assert code == 2
    assert "--results" in err


def test_the_error_for_a_results_folder_that_is_a_file_names_the_option(
    card_path: Path, tmp_path: Path, run: RunCommand
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("train", card_path, "gpt2", "-p", "smoke", "--results", tmp_path / "file")
    assert code == 2
    assert "--results" in err
    assert err.count("\n") == 1


def test_a_run_is_trained_evaluated_listed_and_reported(card_path: Path, tmp_path: Path, run: RunCommand) -> None:
    results = ("--results", tmp_path / "results")
    code, out, _ = run("train", card_path, "gpt2", "-p", "smoke", *results)
    assert (code, out.strip()) == (0, "tiny-linear-gpt2-smoke-s0")
    code, out, err = run("train", card_path, "gpt2", "-p", "smoke", *results)
    assert code == 0 and "tiny-linear-gpt2-smoke-s0" in err
    code, out, err = run("train", card_path, "gpt2", "-p", "smoke", "-o", "train.lr=0.5", *results)
    assert code == 2 and "train.lr: 0.001 -> 0.5" in err
    code, out, _ = run("eval", "--extrapolate", *results)
    assert code == 0
    assert "knn-3" in out and "least-squares" in out and "shift points-32" in out
    code, out, _ = run("list", "runs", "--json", *results)
    assert json.loads(out)[0]["state"] == "finished"
    code, out, _ = run("report", *results)
    assert code == 0
    assert (tmp_path / "results" / "report" / "index.html").is_file()


def test_extrapolating_to_lengths_within_the_training_length_is_refused(
    card_path: Path, tmp_path: Path, run: RunCommand
) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results)
    for number in ("0", "5", "8", "1x"):
        code, out, err = run("eval", RUN, "--extrapolate", number, *results)
        assert (code, out) == (2, "") and "8" in err and err.count("\n") == 1
    for text in ("-3", "-4x"):
        code, out, err = run("eval", RUN, "--extrapolate", text, *results)
        assert (code, out) == (2, "") and f"'{text}'" in err and err.count("\n") == 1


@pytest.mark.slow
def test_context_sizes_beyond_learned_positions_are_skipped_rows(
    card_path: Path, tmp_path: Path, run: RunCommand
) -> None:
    folder = tmp_path / "results"
    options = ("-p", "smoke", "-o", "train.steps=2", "--results", folder)
    run("train", card_path, "gpt2-learned", *options, "--name", "learned")
    run("train", card_path, "gpt2", *options, "--name", "plain")
    command = ("eval", "learned", "plain", "--extrapolate", "2x", "--baseline", "zero", "--results", folder)
    code, out, err = run(*command)
    assert code == 0, err
    assert "skipped: learned: " in out
    rows = tables.read_all("values", folder / "tables")
    rows = rows[rows["run"].eq("learned") & rows["evaluator"].eq("next")]
    longer_contexts = rows[rows["shift"].eq("points-16")]
    sizes = {status: sorted(group["n_context"].dropna()) for status, group in longer_contexts.groupby("status")}
    assert sizes == {"ok": list(range(9)), "skipped": list(range(9, 17))}
    skipped = longer_contexts[longer_contexts["status"].eq("skipped")]
    assert skipped["value"].isna().all() and set(skipped["metric"]) == {"squared_error", "auc"}
    assert set(rows.loc[rows["shift"].eq("none"), "status"]) == {"ok"}
    costs = tables.read_all("costs", folder / "tables").query("phase == 'evaluate'").groupby("run")["n_points"]
    assert costs.agg(set).to_dict() == {"learned": {8}, "plain": {8, 16}, "zero": {8, 16}}, (
        "costs are measured up to the longest supported context"
    )
    # All contestants have the same episodes, so the second command computes nothing.
    cached = run(*command)
    assert cached[0] == 0 and "evaluate" not in cached[1]


def test_a_table_of_the_user_is_evaluated_with_models_and_baselines(
    card_path: Path, tmp_path: Path, run: RunCommand
) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results)
    rows = [f"{i},{i * i % 7},{3 * i - i * i % 7}" for i in range(40)]
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(["a,b,price", *rows]))
    code, out, _ = run("eval", RUN, "--csv", table, "--target", "price", "--baseline", "zero", *results)
    assert code == 0 and "csv-mine" in out and RUN in out
    assert "not used (a row index): a" in out and "b: number" in out and "price (target)" in out and "40 rows" in out
    code, _, err = run("eval", RUN, "--csv", table, "--target", "prise", *results)
    assert code == 2 and "'price'" in err
    table.write_text("\n".join(["a,b,price", *rows[:5]]))
    code, _, err = run("eval", RUN, "--csv", table, "--target", "price", *results)
    assert code == 2 and "rows" in err and err.count("\n") == 1


def test_damaged_weights_are_refused(card_path: Path, tmp_path: Path, run: RunCommand) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results)
    weights = next((tmp_path / "results").glob("runs/*/model.safetensors"))
    content = weights.read_bytes()
    for damaged in (content[: len(content) // 2], b"garbage"):
        weights.write_bytes(damaged)
        code, _, err = run("eval", RUN, *results)
        assert code == 2 and "model.safetensors" in err
        assert weights.read_bytes() == damaged


@pytest.mark.slow
def test_a_damaged_run_does_not_stop_the_evaluation_of_others(card_path: Path, tmp_path: Path, run: RunCommand) -> None:
    results = ("--results", tmp_path / "results")
    for name in ("a", "b"):
        run("train", card_path, "gpt2", "-p", "smoke", "--name", name, *results)
    (tmp_path / "results/runs/a/config.toml").write_text("seed = 'x'")
    code, out, err = run("eval", *results)
    assert code == 1
    assert "run 'a'" in err and "knn-3" in out


def test_the_printed_card_can_be_used_as_a_card(tmp_path: Path, run: RunCommand) -> None:
    code, out, _ = run("show", "linear", "--card")
    (tmp_path / "mine.toml").write_text(out)
    assert code == 0
    code, out, _ = run("show", tmp_path / "mine.toml", "--json")
    assert code == 0 and json.loads(out)["family"] == "linear"


def test_json_results_are_rows(card_path: Path, tmp_path: Path, run: RunCommand) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results)
    code, out, _ = run("eval", "--json", *results)
    assert code == 0
    assert {row["contestant"] for row in json.loads(out)} == {"gpt2", "zero", "mean", "knn-3", "least-squares"}


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_exits_130(card_path: Path, tmp_path: Path) -> None:
    arguments = ["train", str(card_path), "gpt2", "-p", "smoke", "-o", "train.steps=100000"]
    command = Command([*arguments, "--results", str(tmp_path / "results")], tmp_path / "errors")
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("results/runs/*/checkpoints/step-*")):
            assert command.code is None, command.errors
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert command.interrupt(within=60) == 130
    finally:
        command.kill()
    err = command.errors
    step = err.split()[-1]
    newest = sorted(tmp_path.glob("results/runs/*/checkpoints/step-*"))[-1]
    assert int(newest.stem.removeprefix("step-")) == int(step)


def test_a_second_ctrl_c_during_the_exit_ends_the_process_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    codes: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("iclbench.cli.main.main", interrupt)
    monkeypatch.setattr(os, "_exit", codes.append)
    try:
        with pytest.raises(SystemExit) as exit_error:
            entry([])
        os.kill(os.getpid(), signal.SIGINT)  # a second signal, as if it arrived while Python exits
    finally:
        signal.signal(signal.SIGINT, before)
    assert exit_error.value.code == 130
    assert codes == [130]


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1, 0.3])
def test_three_ctrl_c_end_training_with_130_and_without_a_traceback(
    card_path: Path, tmp_path: Path, pause: float
) -> None:
    command = [sys.executable, "-m", "iclbench", "train", str(card_path), "gpt2", "-p", "smoke"]
    command += ["-o", "train.steps=100000", "--results", str(tmp_path / "results")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_ctrl_c
    )
    while not list(tmp_path.glob("results/runs/*/checkpoints/step-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err and "Traceback" not in err


def test_check_accepts_an_estimator_and_rejects_a_broken_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    code, out, _ = run("check", "knn")
    assert code == 0 and "FAILED" not in out and out.count("ok ") >= 10
    (tmp_path / "plugin_under_test.py").write_text(
        "from iclbench.estimators.knn import NearestNeighbours\n"
        "class Leaky(NearestNeighbours):\n"
        "    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):\n"
        "        answer = super().predict_next(points, related, x_query=x_query, prefixes=prefixes)\n"
        "        return answer.map(lambda t: t + points.y.mean())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = run("check", "plugin_under_test:Leaky")
    assert code == 1
    assert "FAILED no_answer_sees_its_own_label" in out
    for target in ("missing_module:Missing", "pathlib:Path"):
        code, _, err = run("check", target)
        assert code == 2 and target in err


def test_a_refused_command_creates_no_run(card_path: Path, tmp_path: Path, run: RunCommand) -> None:
    """The backbone refuses its width and number of heads when it is built, which is before the run is created."""
    options = ["-p", "smoke", "-o", "backbone.width=10", "-o", "backbone.heads=3", "--results", tmp_path / "results"]
    code, _, err = run("train", card_path, "gpt2", *options)
    assert code == 2 and "width" in err and "heads" in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\u202eb", "a\x07\x08b", "a\udce9b"])
def test_control_characters_in_names_are_escaped(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The names in a folder from another user must not clear the screen or change the direction of text."""
    (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / name / "config.toml").write_text("")
    main(["list", "runs", "--results", str(tmp_path)])
    assert main(["show", "missing", "--results", str(tmp_path)]) == 2
    output = "".join(capfd.readouterr())
    assert all(c.isprintable() or c == "\n" for c in output), output
    assert ascii(name)[1:-1] in output


def test_a_run_that_cannot_be_read_is_listed_and_its_error_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "runs" / "mine" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("x")
    assert main(["list", "runs", "--results", str(tmp_path)]) == 0
    assert re.search(r"^mine +- +unreadable", capsys.readouterr().out, re.MULTILINE)
    assert [str(config) in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("task", ["point-process", "bursty"])
def test_tables_are_refused_for_runs_on_events_or_images(task: str) -> None:
    run = SimpleNamespace(name="mine", config=SimpleNamespace(task=resolve_task(task, "smoke")[0]))
    with refused("not-applicable", "'mine'", "--csv"):
        table_task(run, TABLE)


def test_tables_are_refused_for_runs_with_several_outputs_or_inputs_that_are_not_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faces = resolve_task("image-completion-celeba32", "smoke")[0]
    colours = SimpleNamespace(name="mine", config=SimpleNamespace(task=faces))
    with refused("not-applicable", "'mine'", 3, "--csv"):
        table_task(colours, TABLE)
    monkeypatch.setattr(Linear, "x_shape", (1, 5))
    images = SimpleNamespace(name="mine", config=SimpleNamespace(task=resolve_task("linear", "smoke")[0]))
    with refused("not-applicable", "'mine'", "--csv"):
        table_task(images, TABLE)
