"""The manners of the command line: light imports, one-line errors, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from iclbench import tables
from iclbench.cli.eval_runs import own_table
from iclbench.cli.main import main
from iclbench.cli.main import run as entry
from iclbench.config.resolution import resolve_task
from iclbench.core.errors import UsageError
from iclbench.families.linear import Linear
from iclbench.families.tabular.table_file import Table
from tests.conftest import heed_ctrl_c
from tests.forked import Command

RUN = "tiny-linear-gpt2-smoke-s0"
NOTHING = Table("none", np.zeros((1, 1)), np.zeros(1), ("x",), "y")
HEAVY = ("torch", "pandas", "sklearn", "transformers", "xgboost", "pyarrow", "altair")


def heavy_imports(folder: Path, *commands: list[str]) -> dict[str, list[str]]:
    """The heavy libraries that each command of a fresh process finds or leaves imported, in an empty folder, where no
    runs are listed; those that leave none are left out."""
    code = (
        "import json, sys; from iclbench.cli.main import main; found = {}\n"
        "for command in json.loads(sys.argv[1]):\n"
        f"    main(command); found[' '.join(command)] = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print(json.dumps({command: heavy for command, heavy in found.items() if heavy}), file=sys.stderr)"
    )
    asked = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(done.stderr.strip().splitlines()[-1])


def test_light_commands_import_nothing_heavy(tmp_path: Path) -> None:
    commands = ["--help"], ["list"], ["list", "tasks", "--json"], ["show", "linear"], ["train", "--help"], ["--version"]
    assert heavy_imports(tmp_path, *commands) == {}


@pytest.mark.slow
def test_the_import_check_can_fail(tmp_path: Path) -> None:
    asked = ["rm", "nothing", "--results", str(tmp_path)]
    found = heavy_imports(tmp_path, ["list"], asked)
    assert found.keys() == {" ".join(asked)} and "pandas" in found[" ".join(asked)]


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "linaer", "gpt2"], "unknown task 'linaer'; did you mean 'linear'"),
        (["train", "linear", "gtp2"], "unknown backbone 'gtp2'; did you mean 'gpt2'"),
        (["train", "linear", "gpt2", "--preset", "smal"], "unknown preset 'smal'; did you mean 'small'"),
        (["train", "linear"], "Missing argument"),
        (["train", "linear", "gpt2", "--preset"], "requires an argument"),
        (["train", "linear", "gpt2", "-o", "lr=3"], "write -o root.key=value"),
        (["train", "linear", "gpt2", "-o", "train.lrr=3"], "did you mean 'lr'"),
        (["train", "linear", "gpt2", "--name", "../escape"], "cannot be a run name"),
        (["train", "linear", "gpt2", "--device", "tpu"], "is not a device"),
        (["train", "linear", "gpt2", "--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["train", "./nowhere.toml", "gpt2"], "cannot read nowhere.toml"),
        (["trian", "linear", "gpt2"], "No such command"),
        (["show", "linaer"], "did you mean 'linear'"),
        (["list", "taks"], "did you mean 'tasks'"),
        (["eval", "nothing"], "unknown run 'nothing'"),
        (["eval", "--csv", "x.csv"], "--csv FILE and --target COLUMN"),
        (["eval"], "no finished run"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ICLBENCH_RESULTS", str(tmp_path))
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_results_folder_names_the_option(card_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("train", card_path, "gpt2", "-p", "smoke", "--results", "/proc/nowhere", capsys=capsys)
    assert code == 2
    assert "--results" in err


def test_results_folder_that_is_a_file_names_the_option(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    code, _, err = run("train", card_path, "gpt2", "-p", "smoke", "--results", tmp_path / "taken", capsys=capsys)
    assert code == 2
    assert "--results" in err
    assert err.count("\n") == 1


def test_train_eval_report_from_the_command_line(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ("--results", tmp_path / "results")
    code, out, _ = run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    assert (code, out.strip()) == (0, "tiny-linear-gpt2-smoke-s0")
    code, out, err = run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    assert code == 0 and "finished" in err
    code, out, err = run("train", card_path, "gpt2", "-p", "smoke", "-o", "train.lr=0.5", *results, capsys=capsys)
    assert code == 2 and "train.lr: 0.001 -> 0.5" in err
    code, out, _ = run("eval", "--extrapolate", *results, capsys=capsys)
    assert code == 0
    assert "knn-3" in out and "least-squares" in out and "shift points-32" in out
    code, out, _ = run("list", "runs", "--json", *results, capsys=capsys)
    assert json.loads(out)[0]["state"] == "finished"
    code, out, _ = run("report", *results, capsys=capsys)
    assert code == 0
    assert (tmp_path / "results" / "report" / "index.html").is_file()


def test_extrapolating_within_the_trained_length_is_refused(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    for number in ("0", "5", "8", "1x"):
        code, out, err = run("eval", RUN, "--extrapolate", number, *results, capsys=capsys)
        assert (code, out) == (2, "") and "not beyond the trained length" in err and err.count("\n") == 1
    for text in ("-3", "-4x"):
        code, out, err = run("eval", RUN, "--extrapolate", text, *results, capsys=capsys)
        assert (code, out) == (2, "") and f"not '{text}'" in err and err.count("\n") == 1


@pytest.mark.slow
def test_sizes_beyond_learned_positions_are_skipped_rows_and_all_others_stand(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    trained = ("-p", "smoke", "-o", "train.steps=2", "--results", folder)
    run("train", card_path, "gpt2-learned", *trained, "--name", "learned", capsys=capsys)
    run("train", card_path, "gpt2", *trained, "--name", "plain", capsys=capsys)
    command = ("eval", "learned", "plain", "--extrapolate", "2x", "--baseline", "zero", "--results", folder)
    code, out, err = run(*command, capsys=capsys)
    assert code == 0, err
    assert "skipped: learned: it takes in at most 8 examples and a query" in out
    rows = tables.read_all("values", folder / "tables")
    rows = rows[rows["run"].eq("learned") & rows["evaluator"].eq("next")]
    beyond = rows[rows["shift"].eq("points-16")]
    at = {status: sorted(own["n_context"].dropna()) for status, own in beyond.groupby("status")}
    assert at == {"ok": list(range(9)), "skipped": list(range(9, 17))}
    skipped = beyond[beyond["status"].eq("skipped")]
    assert skipped["value"].isna().all() and set(skipped["metric"]) == {"squared_error", "auc"}
    assert set(rows.loc[rows["shift"].eq("none"), "status"]) == {"ok"}
    costs = tables.read_all("costs", folder / "tables").query("phase == 'evaluate'").groupby("run")["n_points"]
    assert costs.agg(set).to_dict() == {"learned": {8}, "plain": {8, 16}, "zero": {8, 16}}, "8 points cost less than 16"
    # The first sizes are asked on the same episodes as everybody is asked.
    cached = run(*command, capsys=capsys)
    assert cached[0] == 0 and "evaluate" not in cached[1]


def test_a_table_of_the_users_own_meets_the_model_and_the_baselines(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    rows = [f"{i},{i * i % 7},{3 * i - i * i % 7}" for i in range(40)]
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(["a,b,price", *rows]))
    code, out, _ = run("eval", RUN, "--csv", table, "--target", "price", "--baseline", "zero", *results, capsys=capsys)
    assert code == 0 and "csv-mine" in out and RUN in out
    assert "mine: all 2 features (a, b) and 1 columns of zeros, of 40 rows" in out
    assert "XGBoost" in out
    code, _, err = run("eval", RUN, "--csv", table, "--target", "prise", *results, capsys=capsys)
    assert code == 2 and "did you mean 'price'" in err
    table.write_text("\n".join(["a,b,price", *rows[:6]]))
    code, _, err = run("eval", RUN, "--csv", table, "--target", "price", *results, capsys=capsys)
    assert code == 2 and "rows" in err and err.count("\n") == 1


def test_weights_of_another_model_are_refused(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    weights = next((tmp_path / "results").glob("runs/*/model.safetensors"))
    whole = weights.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"garbage"):
        weights.write_bytes(damaged)
        code, _, err = run("eval", RUN, *results, capsys=capsys)
        assert code == 2
        assert "does not hold the weights" in err
        assert weights.read_bytes() == damaged


@pytest.mark.slow
def test_without_names_a_broken_run_does_not_stop_the_others(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ("--results", tmp_path / "results")
    for name in ("a", "b"):
        run("train", card_path, "gpt2", "-p", "smoke", "--name", name, *results, capsys=capsys)
    (tmp_path / "results/runs/a/config.toml").write_text("seed = 'x'")
    code, out, err = run("eval", *results, capsys=capsys)
    assert code == 1
    assert "skipped run 'a'" in err and "knn-3" in out


def test_a_shown_card_is_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("show", "linear", "--card", capsys=capsys)
    (tmp_path / "mine.toml").write_text(out)
    assert code == 0
    code, out, _ = run("show", tmp_path / "mine.toml", "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["family"] == "linear"


def test_json_results_are_rows(card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ("--results", tmp_path / "results")
    run("train", card_path, "gpt2", "-p", "smoke", *results, capsys=capsys)
    code, out, _ = run("eval", "--json", *results, capsys=capsys)
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
        assert command.interrupted(within=60) == 130
    finally:
        command.kill()
    err = command.errors
    assert "continues run" in err.splitlines()[-1]
    reached = err.rsplit("from step ", 1)[1].strip()
    newest = sorted(tmp_path.glob("results/runs/*/checkpoints/step-*"))[-1]
    assert int(newest.stem.removeprefix("step-")) == int(reached)


def test_ctrl_c_while_another_is_answered_is_130_and_from_then_on_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def impatient(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    codes: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("iclbench.cli.main.main", impatient)
    monkeypatch.setattr(os, "_exit", codes.append)
    try:
        with pytest.raises(SystemExit) as ended:
            entry([])
        os.kill(os.getpid(), signal.SIGINT)  # while Python takes itself down
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert codes == [130]


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1, 0.3])
def test_three_ctrl_c_end_with_130_and_without_a_traceback(card_path: Path, tmp_path: Path, pause: float) -> None:
    command = [sys.executable, "-m", "iclbench", "train", str(card_path), "gpt2", "-p", "smoke"]
    command += ["-o", "train.steps=100000", "--results", str(tmp_path / "results")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    )
    while not list(tmp_path.glob("results/runs/*/checkpoints/step-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err


def test_check_runs_the_contracts_and_fails_on_a_broken_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("check", "knn", capsys=capsys)
    assert code == 0 and "FAILED" not in out and out.count("ok ") >= 10
    (tmp_path / "plugin_under_test.py").write_text(
        "from iclbench.estimators.knn import NearestNeighbours\n"
        "class Leaky(NearestNeighbours):\n"
        "    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):\n"
        "        answer = super().predict_next(points, related, x_query=x_query, prefixes=prefixes)\n"
        "        return answer.map(lambda t: t + points.y.mean())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = run("check", "plugin_under_test:Leaky", capsys=capsys)
    assert code == 1
    assert "FAILED no_answer_sees_its_own_label" in out
    code, _, err = run("check", "nowhere:Nothing", capsys=capsys)
    assert code == 2 and "cannot load" in err
    code, _, err = run("check", "pathlib:Path", capsys=capsys)
    assert code == 2 and "neither a Backbone" in err


def test_a_training_that_is_refused_leaves_no_run_behind(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Width and heads are only compared when the backbone is built."""
    refused = ["-p", "smoke", "-o", "backbone.width=10", "-o", "backbone.heads=3", "--results", tmp_path / "results"]
    code, _, err = run("train", card_path, "gpt2", *refused, capsys=capsys)
    assert code == 2
    assert "is not a multiple" in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\u202eb", "a\x07\x08b", "a\udce9b"])
def test_nothing_that_a_terminal_obeys_is_printed_of_names(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder received from elsewhere must not clear the screen or turn the writing round."""
    (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / name / "config.toml").write_text("")
    main(["list", "runs", "--results", str(tmp_path)])
    assert main(["show", "nothing", "--results", str(tmp_path)]) == 2
    found = "".join(capfd.readouterr())
    assert all(c.isprintable() or c == "\n" for c in found), found
    assert ascii(name)[1:-1] in found


@pytest.mark.parametrize(("task", "answers"), [("point-process", "events"), ("bursty", "class labels")])
def test_a_table_of_numbers_is_not_asked_of_a_run_that_answers_otherwise(task: str, answers: str) -> None:
    made = SimpleNamespace(name="mine", config=SimpleNamespace(task=resolve_task(task, "smoke")[0]))
    with pytest.raises(UsageError, match=f"run 'mine' .*{answers}.*--csv"):
        own_table(made, NOTHING, Path("none.csv"))


def test_a_table_is_not_given_to_a_run_on_images_or_of_several_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    faces = resolve_task("image-completion-celeba32", "smoke")[0]
    colours = SimpleNamespace(name="mine", config=SimpleNamespace(task=faces))
    with pytest.raises(UsageError, match=r"run 'mine' .*3 numbers"):
        own_table(colours, NOTHING, Path("none.csv"))
    monkeypatch.setattr(Linear, "x_shape", (1, 5))
    images = SimpleNamespace(name="mine", config=SimpleNamespace(task=resolve_task("linear", "smoke")[0]))
    with pytest.raises(UsageError, match=r"run 'mine' .*images"):
        own_table(images, NOTHING, Path("none.csv"))
