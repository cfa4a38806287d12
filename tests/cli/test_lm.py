"""`iclbench lm`: what is typed wrong is one line, what is missing is named, and what was found stands in a table."""

import json
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from iclbench import tables
from iclbench.cli.lm import demo_model as lm_demo_model
from iclbench.cli.lm.eval import and_others
from iclbench.cli.lm.eval_models import remarks
from iclbench.cli.lm.overview import models_of, overview_board
from iclbench.cli.lm.tables import orders_board, passes_board, print_summaries, task_board
from iclbench.cli.main import main
from iclbench.language.models.loading import quiet
from tests.cli.test_main import heavy_imports
from tests.conftest import heed_ctrl_c
from tests.language.tiny_models import tiny
from tests.tables.rows import complete

QUICK = ("--episodes", 6, "--demo-seeds", 0, "--shots", 2)
NOWHERE = "/nowhere/my-model"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    def made(kind: str) -> Path:
        with quiet():
            return tiny(kind, tmp_path_factory.mktemp("lm") / f"tiny-{kind}", "chars")

    return cache(made)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ICLBENCH_DATA", raising=False)


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["lm", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line."""
    code, out, err = run(*arguments, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def test_names_and_settings_are_read_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    thinking = ["--method", "deep-thinking", "-o", "method.etta=1"]
    commands = [
        ["lm", "--help"],
        ["lm", "eval", "--help"],
        ["lm", "tasks", "to-upper"],
        ["lm", "eval", "--model", "gpt2", "--tasks", "to-uper"],
        ["lm", "eval", "--model", "gpt2", "--tasks", "to-upper", *thinking],
        ["lm", "eval", "--model", NOWHERE, "--tasks", "to-upper"],
        ["lm", "eval", "--model", "nobody/no-model", "--tasks", "to-upper", "--offline"],
    ]
    assert heavy_imports(tmp_path, *commands) == {}


def test_two_models_that_would_have_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / parent / "lm" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (folder / name).touch()
    models = [word for folder in folders for word in ("--model", folder)]
    line = refused("eval", *models, "--tasks", "to-upper", "--offline", capsys=capsys)
    assert "'lm'" in line and "--name" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "to-uper"], "unknown language task 'to-uper'; did you mean 'to-upper'"),
        (
            ["--tasks", "to-upper", "--method", "deepthinking"],
            "unknown method 'deepthinking'; did you mean 'deep-think",
        ),
        (["--tasks", "to-upper", "--method", "repeat", "-o", "method.eta=1"], "unknown key 'eta'"),
        (["--tasks", "to-upper", "--method", "deep-thinking", "-o", "method.eta=-1"], "eta: expected greater than or"),
        (["--tasks", "to-upper", "-o", "eta=1"], "write -o root.key=value with root one of method"),
        (["--tasks", "to-upper", "-o", "train.lr=1"], "unknown key 'train'; known: method"),
        (["--tasks", "to-upper", "--dtype", "float31"], "unknown --dtype 'float31'; did you mean 'float32'"),
        (["--tasks", "to-upper", "--overlength", "cut"], "unknown --overlength 'cut'; known: drop, error, skip"),
        (["--tasks", "to-upper", "--shots", "many"], "--shots"),
        (["--tasks", "to-upper", "--demo-seeds", "3:1"], "--demo-seeds"),
        (["--tasks", "to-upper", "--model", "b", "--name", "x"], "--name and --revision"),
        (["--tasks", "to-upper", "--name", "a/b"], "'a/b' cannot be a run name"),
        (["--tasks", "to-upper"], f"'{NOWHERE}'"),
        (["--tasks", "./none.jsonl"], "cannot read none.jsonl: no such file"),
        (["--tasks", "./reviews.csv"], "'./reviews.csv'"),
        (["--tasks", " , "], "iclbench lm tasks"),
        ([], "Missing option '--tasks'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused("eval", "--model", NOWHERE, *arguments, capsys=capsys)
    assert not any(tmp_path.iterdir())


def test_a_model_that_is_not_here_fails_at_once_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code = (
        "import socket, sys, time\n"
        "def attempt(*_, **__): sys.exit('network')\n"
        "socket.socket.connect = socket.getaddrinfo = attempt\n"
        "from iclbench.cli.main import main\n"
        "begun = time.monotonic()\n"
        "code = main(['lm', 'eval', '--model', 'nobody/no-model', '--tasks', 'to-upper', '--offline'])\n"
        "print(code, time.monotonic() - begun)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, seconds = done.stdout.split()
    assert exit_code == "2" and float(seconds) < 10
    assert done.stderr.count("\n") == 1 and "nobody/no-model" in done.stderr and "network" not in done.stderr


# Slow: answers that are generated, letter by letter.
@pytest.mark.slow
def test_an_evaluation_ends_in_a_table_and_is_kept(models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("eval", "--model", models("llama"), "--tasks", "to-upper,list-first", "--name", "demo-lm")
    sizes = ("--episodes", 6, "--shots", 2, "--demo-seeds", "0:2")
    thinking = (*sizes, "--method", "deep-thinking", "-o", "method.passes=2")
    code, out, err = run(*asked, *thinking, capsys=capsys)
    assert code == 0, err
    assert "to-upper (algorithmic, greedy)" in out
    assert "demo-lm+deep-thinking-passes-2" in out and "demo-lm+repeat-2" in out and "majority" in out
    assert "± standard deviation over 2 sets of demonstrations; gain: over plain ICL" in out
    assert "KL to plain ICL" in out and "mean of all (2)" in out
    assert all(len(line.rstrip()) <= 120 for line in out.splitlines()), "readable in a terminal"
    values = {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")}
    code, rows, _ = run(*asked, *thinking, "--json", capsys=capsys)
    assert code == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")} == values
    found = pd.DataFrame(json.loads(rows))
    assert set(found["task"]) == {"to-upper", "list-first"} and {"", "demo_seed", "passes"} == set(
        found["axis"].fillna("")
    )
    assert set(found["contestant"]) == {
        "demo-lm",
        "demo-lm+deep-thinking-passes-2",
        "demo-lm+deep-thinking-eta-0-passes-2",
        "demo-lm+repeat-2",
        "majority",
    }
    assert set(found["preset"]) == {"language"}
    assert "Loading" not in err and "Loading" not in out and "it/s" not in err


@pytest.mark.slow
def test_a_choice_with_a_method_has_rows_of_its_controls_and_is_kept(
    models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"film {i}", "label": "ab"[i % 2]}) for i in range(20)))
    asked = ("eval", "--model", models("llama"), "--tasks", path, "--name", "demo-lm", *QUICK, "--json")
    first, second = (run(*asked, "--method", "deep-thinking", "-o", "method.passes=2", capsys=capsys) for _ in range(2))
    assert first[0] == second[0] == 0, first[2]
    assert first[1] == second[1]
    assert {row["contestant"] for row in json.loads(first[1])} == {
        "demo-lm",
        "demo-lm+deep-thinking-passes-2",
        "demo-lm+deep-thinking-eta-0-passes-2",
        "demo-lm+repeat-2",
        "majority",
    }


def test_what_was_skipped_is_said_again_of_cells_that_are_kept(models, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("eval", "--model", models("gpt2"), "--tasks", "list-first", "--episodes", 20, "--demo-seeds", 0)
    asked += ("--shots", 8, "--overlength", "skip", "--no-controls")
    first, second = (run(*asked, capsys=capsys)[2] for _ in range(2))
    assert "prompts skipped, too long for 160 tokens" in first
    assert "prompts skipped, too long for 160 tokens" in second


def test_tasks_without_data_are_skipped_among_several_and_refused_alone(
    models, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run("eval", "--model", models("gpt2"), "--tasks", "sst2,to-upper", *QUICK, capsys=capsys)
    assert code == 1 and "to-upper" in out
    assert "skipped sst2: " in err and "1 failed; the same command tries them again" in err
    assert "--data-dir" in refused("eval", "--model", models("gpt2"), "--tasks", "sst2", capsys=capsys)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": "a fine film", "label": "good"}', '{"text": "a dull film"}'], "label"),
        (['{"text": "a fine film", "label": "good"}', "no json"], "2"),
        ([], "mine"),
    ],
)
def test_a_bad_file_of_ones_own_is_one_line(
    lines: list[str], message: str, models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    said = refused("eval", "--model", models("gpt2"), "--tasks", path, capsys=capsys)
    assert message in said and "mine" in said


def test_unknown_labels_are_named_with_file_and_line(
    models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"film {i}", "label": "positive" if i % 2 else "negative"} for i in range(40)]
    rows[6]["label"] = "sad"
    (tmp_path / "sst2.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = refused("eval", "--model", models("gpt2"), "--tasks", "sst2", "--data-dir", tmp_path, capsys=capsys)
    assert "sst2.jsonl" in said and "7" in said and "sad" in said and "positive" in said


@pytest.mark.slow
def test_a_prompt_beyond_the_context_names_the_numbers_and_finished_rows_stay(
    models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (
        "eval",
        "--model",
        models("llama"),
        "--tasks",
        "to-upper",
        "--episodes",
        6,
        "--demo-seeds",
        0,
        "--no-controls",
    )
    assert run(*asked, "--shots", 2, capsys=capsys)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*shot-d0*/*.values.parquet")}
    code, _, err = run(*asked, "--shots", "2,20", capsys=capsys)
    (line,) = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert code == 1 and "160" in line and "--overlength" in line
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")}.items()
    code, _, err = run(*asked, "--shots", "2,20", "--overlength", "drop", capsys=capsys)
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "why"), [("mamba", "no keys and values"), ("mistral", "window")])
def test_deep_thinking_needs_a_memory(kind: str, why: str, models, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("eval", "--model", models(kind), "--tasks", "to-upper,to-lower", *QUICK)
    assert why in refused(*asked, "--method", "deep-thinking", capsys=capsys)
    assert run(*asked, "--no-controls", capsys=capsys)[0] == 0


def test_code_of_a_checkpoint_is_not_run_unless_asked_for(
    models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(models("llama"), tmp_path / "foreign"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "foreign",
        "auto_map": {"AutoModelForCausalLM": "code.Foreign", "AutoConfig": "code.Config"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "--trust-remote-code" in refused("eval", "--model", folder, "--tasks", "to-upper", capsys=capsys)
    assert not (tmp_path / "ran").exists()


def test_of_several_models_the_others_go_on(models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = Path(shutil.copytree(models("llama"), tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"nothing")
    both = ("--model", damaged, "--model", models("llama"))
    code, out, err = run("eval", *both, "--tasks", "to-upper", *QUICK, "--no-controls", capsys=capsys)
    assert code == 1 and "tiny-llama" in out
    assert "skipped model" in err and "damaged" in err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(
    models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the midst of the second cell."""
    write, written = tables.write, []

    def interrupted(table: str, rows: object, path: Path, *more: object) -> None:
        written.append(path)
        if len([path for path in written if path.name == "tiny-llama.values.parquet"]) == 2:
            signal.raise_signal(signal.SIGINT)
        write(table, rows, path, *more)

    monkeypatch.setattr(tables, "write", interrupted)
    asked = ("--model", models("llama"), "--tasks", "algorithmic", "--shots", 2, "--demo-seeds", "0:10")
    code, _, err = run("eval", *asked, capsys=capsys)
    assert code == 130 and "the same command continues" in err.splitlines()[-1]
    assert written[-1].name == "tiny-llama.values.parquet"
    (kept,) = tmp_path.rglob("tiny-llama.values.parquet")
    assert kept in written[:-1] and set(tables.read("values", kept)["status"]) == {"ok"}
    assert not list(tmp_path.rglob(".*tmp*"))


# Slow: a process that imports torch and transformers.
@pytest.mark.slow
def test_ctrl_c_at_any_moment_keeps_what_is_finished(models, tmp_path: Path) -> None:
    asked = ["--model", str(models("llama")), "--tasks", "algorithmic", "--shots", "2", "--demo-seeds", "0:10"]
    command = [sys.executable, "-m", "iclbench", "lm", "eval", *asked, "--results", str(tmp_path / "results")]
    started = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("tiny-llama.values.parquet")) and time.monotonic() < deadline:
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130 and "the same command continues" in err.splitlines()[-1]
    kept = list(tmp_path.rglob("tiny-llama.values.parquet"))
    assert kept and all(set(tables.read("values", path)["status"]) == {"ok"} for path in kept)
    assert not list(tmp_path.rglob(".*tmp*"))


def test_lm_tasks_lists_what_is_there_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("tasks", capsys=capsys)
    assert code == 0
    lines = {line.split()[0]: line for line in reversed(out.splitlines()) if line}
    assert " 26 " in lines["to-upper"] and " - " in lines["sst2"]
    assert "57 tasks" in lines["mmlu"] and "excluded)" in lines["bbh"] and " suite " in lines["simple"]
    assert "no data: sst2" in out and "ICLBENCH_DATA" in out and "bbh-dyck-languages" in out
    assert "mmlu-anatomy" not in lines
    code, out, _ = run("tasks", "mmlu-stem", "to-lower", "--json", capsys=capsys)
    rows = json.loads(out)
    assert code == 0 and len(rows) == 19
    assert rows[-1]["task"] == "to-lower" and rows[-1]["examples"] == 26
    assert rows[0]["examples"] is None and rows[0]["missing"]


def test_one_prompt_is_printed_as_a_model_is_given_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("tasks", "to-upper", "--prompt", "--shots", 2, capsys=capsys)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 3
    for line in lines[:2]:
        x, _, y = line.removeprefix("example:").partition("->")
        assert y == x.upper() != x
    assert lines[2].endswith("->") and lines[2][8].upper() in err
    assert "--prompt" in refused("tasks", "simple", "--prompt", capsys=capsys)
    assert "--prompt" in refused("tasks", "to-upper", "--shots", 2, capsys=capsys)


@pytest.mark.slow
def test_the_demo_model_is_trained_asked_and_can_be_evaluated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lm_demo_model, "_EPISODES", 2)
    code, out, err = run("demo-model", tmp_path / "demo-lm", "--steps", 2, capsys=capsys)
    assert code == 0, err
    assert "no demonstrations  5 demonstrations" in out and "list-last" in out and "it/s" not in err
    following = out.splitlines()[-1].removeprefix("next: iclbench lm ").split()
    assert following[:3] == ["eval", "--model", str(tmp_path / "demo-lm")]
    assert run(*following, *QUICK, "--no-controls", capsys=capsys)[0] == 0
    assert str(tmp_path / "demo-lm") in refused("demo-model", tmp_path / "demo-lm", capsys=capsys)


def rows(task: str, family: str, *given: tuple[str, int, str, float], **further: object) -> list[dict[str, object]]:
    """Rows of a summary: contestant, demonstrations, metric or shift, value."""
    found = []
    for contestant, shots, what, value in given:
        baseline = contestant == "majority"
        row = {
            "run": contestant,
            "contestant": contestant,
            "task": task,
            "family": family,
            "preset": "language",
            "kind": "baseline" if baseline else "backbone",
            "shift": what if what == "shuffled-labels" else "none",
            "metric": "accuracy" if what == "shuffled-labels" else what,
            "value": value,
            "low": value - 0.1,
            "high": value + 0.1,
            "n_context": shots,
            "evaluator": "choice",
            "status": "ok",
            "card": "c",
            "version": "0",
            **further,
        }
        found.append(complete(row))
    return found


BOTH = (
    ("lm", 0, "accuracy", 0.2),
    ("lm", 4, "accuracy", 0.6),
    ("lm", 4, "accuracy_sd", 0.05),
    ("lm", 4, "balanced_accuracy", 0.55),
    ("lm", 4, "shuffled-labels", 0.3),
    ("lm+repeat-2", 4, "accuracy", 0.7),
    ("lm+repeat-2", 4, "accuracy_gain", 0.1),
    ("majority", 4, "accuracy", 0.5),
    ("majority", 0, "accuracy", 0.5),
    ("majority", 4, "accuracy_sd", 0.0),
)


def test_a_tasks_table_has_every_contestant_once_for_each_number_of_demonstrations() -> None:
    columns, lines = task_board(tables.frame("values", rows("sst2", "sentiment", *BOTH)))
    assert columns == ["contestant", "shots", "accuracy", "balanced", "shuffled", "gain"]
    assert lines == [
        ["[bold]lm[/bold]", "0", "0.200", "", "", ""],
        ["[bold]lm[/bold]", "4", "0.600 ±0.050", "0.550", "0.300", ""],
        ["[bold]lm+repeat-2[/bold]", "4", "0.700", "", "", "+0.100 [0.000, 0.200]"],
        ["majority", "", "0.500", "", "", ""],
    ]
    single = tables.frame("values", rows("sst2", "sentiment", ("lm", 4, "accuracy", 0.6)))
    assert task_board(single)[1] == [["[bold]lm[/bold]", "4", "0.600 [0.500, 0.700]"]]


def test_a_method_without_plain_icl_beside_it_is_not_called_plain() -> None:
    alone = [*rows("sst2", "sentiment", ("lm+deep-thinking-eta-0.1", 4, "accuracy", 0.6))]
    values = tables.frame("values", alone)
    assert models_of(values) == ["lm"]
    assert overview_board(values, "lm")[0] == ["task", "shots", "deep-thinking-\neta-0.1"]


def test_the_overview_has_means_of_families_and_none_where_a_task_is_missing() -> None:
    values = [
        *rows("sst2", "sentiment", *BOTH),
        *rows("mr", "sentiment", ("lm", 4, "accuracy", 0.8), *BOTH[7:]),
        *rows("trec", "type", ("lm", 4, "accuracy", 0.1), ("lm", 8, "accuracy", 0.3)),
    ]
    columns, lines = overview_board(tables.frame("values", values), "lm")
    assert columns == ["task", "shots", "zero-shot", "plain", "repeat-2", "shuffled", "majority"]
    assert lines == [
        ["sst2", "4", "0.200", "0.600", "0.700", "0.300", "0.500"],
        ["mr", "4", "", "0.800", "", "", "0.500"],
        ["[bold]mean of sentiment (2)[/bold]", "4", "", "0.700", "", "", "0.500"],
        ["trec", "4", "", "0.100", "", "", ""],
        ["trec", "8", "", "0.300", "", "", ""],
        ["[bold]mean of all (3)[/bold]", "4", "", "0.500", "", "", ""],
    ]


def test_the_majority_of_the_overview_is_of_the_queries_of_its_line() -> None:
    values = rows("to-upper", "letters", ("lm", 5, "accuracy", 0.9), ("majority", 5, "accuracy", 0.05))
    values += rows("to-upper", "letters", ("majority", 0, "accuracy", 0.04))
    values += rows("to-lower", "letters", ("lm", 5, "accuracy", 0.8), ("majority", 0, "accuracy", 0.03))
    columns, lines = overview_board(tables.frame("values", values), "lm")
    assert [line[columns.index("majority")] for line in lines[:2]] == ["0.050", "0.030"]


def test_passes_and_orders_have_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    trace = [
        row
        for t in range(1, 16)
        for row in rows("sst2", "s", ("lm+repeat-2", 4, "accuracy", t / 100), axis="passes", axis_value=t)
    ]
    columns, lines = passes_board(tables.frame("values", trace))
    assert columns[-1] == "15" and len(columns) <= 9
    assert lines == [["accuracy", *(f"{int(t) / 100:.3f}" for t in columns[1:])]]
    cells = [
        *rows("sst2", "s", ("lm", 4, "accuracy", 0.5), axis="demo_seed", axis_value=0, prompt_set="p0"),
        *rows("sst2", "s", ("lm", 4, "accuracy", 0.7), axis="order", axis_value=1, prompt_set="p1"),
    ]
    assert orders_board(tables.frame("values", cells))[1] == [
        ["[bold]lm[/bold]", "4", "2", "0.600 ±0.141", "0.500", "0.700"]
    ]
    print_summaries(tables.frame("values", []), 0)
    assert capsys.readouterr().out == ""


def test_failures_of_a_task_are_a_line_for_each_contestant() -> None:
    def cell(name: str, reason: str | None, note: str = "") -> SimpleNamespace:
        return SimpleNamespace(contestant=SimpleNamespace(name=name), reason=reason, note=note)

    cells = [
        cell("lm", "too long"),
        cell("lm", "too long, too"),
        cell("lm+repeat-2", None, "T = 7"),
        cell("lm+repeat-2", None, "T = 7"),
    ]
    assert remarks("sst2", cells) == [
        "failed: lm on sst2, 2 of its prompt sets: too long",
        "lm+repeat-2 on sst2: T = 7",
    ]
    assert and_others(["a", "b", "c", "d", "e"]) == "a, b and 3 others"
