"""`iclbench lm`: one-line errors, missing data, and the tables of results."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from iclbench import tables
from iclbench.cli.lm import demo_model as lm_demo_model
from iclbench.cli.lm.eval import abbreviated_names
from iclbench.cli.lm.eval_models import remarks
from iclbench.cli.lm.overview import models_of, overview_board
from iclbench.cli.lm.tables import orders_board, passes_board, print_summaries, task_board
from iclbench.language.models.loading import quiet_logs
from tests.cli.conftest import RunCommand
from tests.cli.test_main import heavy_imports
from tests.conftest import restore_ctrl_c
from tests.language.tiny_models import save_tiny_model
from tests.tables.rows import complete_row

QUICK = ("--episodes", 6, "--demo-seeds", 0, "--shots", 2)
MISSING = "/missing/my-model"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    def model(kind: str) -> Path:
        with quiet_logs():
            return save_tiny_model(kind, tmp_path_factory.mktemp("lm") / f"tiny-{kind}", "chars")

    return cache(model)


@pytest.fixture(autouse=True)
def _separate_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ICLBENCH_DATA", raising=False)


@pytest.fixture
def run(run: RunCommand) -> RunCommand:
    """Run `iclbench lm`."""
    return partial(run, "lm")


@pytest.fixture
def error_line(run: RunCommand) -> Callable[..., str]:
    """Run a command that is refused, and return its error line."""

    def run_refused(*words: object) -> str:
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    return run_refused


def test_names_and_settings_are_checked_before_large_imports(tmp_path: Path) -> None:
    thinking = ["--method", "deep-thinking", "-o", "method.etta=1"]
    commands = [
        ["lm", "--help"],
        ["lm", "eval", "--help"],
        ["lm", "tasks", "to-upper"],
        ["lm", "eval", "--model", "gpt2", "--tasks", "to-uper"],
        ["lm", "eval", "--model", "gpt2", "--tasks", "to-upper", *thinking],
        ["lm", "eval", "--model", MISSING, "--tasks", "to-upper"],
        ["lm", "eval", "--model", "owner/missing-model", "--tasks", "to-upper", "--offline"],
    ]
    assert heavy_imports(tmp_path, *commands) == {}


def test_two_models_with_the_same_name_are_refused(tmp_path: Path, error_line: Callable[..., str]) -> None:
    folders = [tmp_path / parent / "lm" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (folder / name).touch()
    models = [word for folder in folders for word in ("--model", folder)]
    line = error_line("eval", *models, "--tasks", "to-upper", "--offline")
    assert "'lm'" in line and "--name" in line


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--tasks", "to-uper"], ("'to-uper'", "'to-upper'")),
        (["--tasks", "to-upper", "--method", "deepthinking"], ("'deepthinking'", "'deep-thinking'")),
        (["--tasks", "to-upper", "--method", "repeat", "-o", "method.eta=1"], ("'eta'",)),
        (["--tasks", "to-upper", "--method", "deep-thinking", "-o", "method.eta=-1"], ("eta", "-1")),
        (["--tasks", "to-upper", "-o", "eta=1"], ("eta=1", "method")),
        (["--tasks", "to-upper", "-o", "train.lr=1"], ("'train'", "method")),
        (["--tasks", "to-upper", "--dtype", "float31"], ("--dtype", "'float31'", "'float32'")),
        (["--tasks", "to-upper", "--overlength", "cut"], ("--overlength", "'cut'", "drop", "error", "skip")),
        (["--tasks", "to-upper", "--shots", "many"], ("--shots", "many")),
        (["--tasks", "to-upper", "--demo-seeds", "3:1"], ("--demo-seeds", "3:1")),
        (["--tasks", "to-upper", "--model", "b", "--name", "x"], ("--name", "--revision", "--model")),
        (["--tasks", "to-upper", "--name", "a/b"], ("'a/b'",)),
        (["--tasks", "to-upper"], (MISSING,)),
        (["--tasks", "./none.jsonl"], ("none.jsonl",)),
        (["--tasks", "./reviews.csv"], (".json", ".jsonl")),
        (["--tasks", " , "], ("--tasks", "iclbench lm tasks")),
        ([], ("--tasks",)),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    arguments: list[str], names: tuple[str, ...], tmp_path: Path, error_line: Callable[..., str]
) -> None:
    line = error_line("eval", "--model", MISSING, *arguments)
    assert all(name in line for name in names), line
    assert not any(tmp_path.iterdir())


def test_a_model_that_is_not_cached_is_refused_with_the_option_offline_without_network_access(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code = (
        "import socket, sys, time\n"
        "def attempt(*_, **__): sys.exit('network')\n"
        "socket.socket.connect = socket.getaddrinfo = attempt\n"
        "from iclbench.cli.main import main\n"
        "start = time.monotonic()\n"
        "code = main(['lm', 'eval', '--model', 'owner/missing-model', '--tasks', 'to-upper', '--offline'])\n"
        "print(code, time.monotonic() - start)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, seconds = process.stdout.split()
    assert exit_code == "2" and float(seconds) < 10
    assert (
        process.stderr.count("\n") == 1 and "owner/missing-model" in process.stderr and "network" not in process.stderr
    )


# Slow, because answers are generated letter by letter.
@pytest.mark.slow
def test_an_evaluation_prints_tables_and_is_cached(models, tmp_path: Path, run: RunCommand) -> None:
    words = ("eval", "--model", models("llama"), "--tasks", "to-upper,list-first", "--name", "demo-lm")
    sizes = ("--episodes", 6, "--shots", 2, "--demo-seeds", "0:2")
    thinking = (*sizes, "--method", "deep-thinking", "-o", "method.passes=2")
    code, out, err = run(*words, *thinking)
    assert code == 0, err
    assert "to-upper (algorithmic, greedy)" in out
    assert "demo-lm+deep-thinking-passes-2" in out and "demo-lm+repeat-2" in out and "majority" in out
    assert "2 sets of demonstrations" in out and "mean of all (2)" in out
    assert all(len(line.rstrip()) <= 120 for line in out.splitlines()), "the table fits into a terminal of 120 columns"
    values = {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")}
    code, rows, _ = run(*words, *thinking, "--json")
    assert code == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")} == values
    frame = pd.DataFrame(json.loads(rows))
    assert set(frame["task"]) == {"to-upper", "list-first"}
    assert set(frame["axis"].fillna("")) == {"", "demo_seed", "passes"}
    assert set(frame["contestant"]) == {
        "demo-lm",
        "demo-lm+deep-thinking-passes-2",
        "demo-lm+deep-thinking-eta-0-passes-2",
        "demo-lm+repeat-2",
        "majority",
    }
    assert set(frame["preset"]) == {"language"}
    assert "Loading" not in err and "Loading" not in out and "it/s" not in err


@pytest.mark.slow
def test_a_choice_task_with_a_method_has_controls_and_is_cached(models, tmp_path: Path, run: RunCommand) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"film {i}", "label": "ab"[i % 2]}) for i in range(20)))
    words = ("eval", "--model", models("llama"), "--tasks", path, "--name", "demo-lm", *QUICK, "--json")
    first, second = (run(*words, "--method", "deep-thinking", "-o", "method.passes=2") for _ in range(2))
    assert first[0] == second[0] == 0, first[2]
    assert first[1] == second[1]
    assert {row["contestant"] for row in json.loads(first[1])} == {
        "demo-lm",
        "demo-lm+deep-thinking-passes-2",
        "demo-lm+deep-thinking-eta-0-passes-2",
        "demo-lm+repeat-2",
        "majority",
    }


@pytest.mark.slow
def test_skipped_prompts_of_cached_cells_are_reported(models, run: RunCommand) -> None:
    words = ("eval", "--model", models("gpt2"), "--tasks", "list-first", "--episodes", 20, "--demo-seeds", 0)
    words += ("--shots", 8, "--overlength", "skip", "--no-controls")
    first, second = (run(*words)[2] for _ in range(2))
    assert "160 tokens" in first and "160 tokens" in second


def test_a_task_without_data_is_skipped_among_several_and_refused_alone(
    models, run: RunCommand, error_line: Callable[..., str]
) -> None:
    code, out, err = run("eval", "--model", models("gpt2"), "--tasks", "sst2,to-upper", *QUICK)
    assert code == 1 and "to-upper" in out
    assert "sst2: " in err and "1 failed" in err
    assert "--data-dir" in error_line("eval", "--model", models("gpt2"), "--tasks", "sst2")


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (['{"text": "a fine film", "label": "good"}', '{"text": "a dull film"}'], "label"),
        (['{"text": "a fine film", "label": "good"}', "not json"], "2"),
        ([], "mine"),
    ],
)
def test_an_invalid_data_file_of_the_user_is_refused_in_one_line(
    lines: list[str], name: str, models, tmp_path: Path, error_line: Callable[..., str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    line = error_line("eval", "--model", models("gpt2"), "--tasks", path)
    assert name in line and "mine" in line


def test_the_error_for_an_unknown_label_names_file_and_line(
    models, tmp_path: Path, error_line: Callable[..., str]
) -> None:
    rows = [{"text": f"film {i}", "label": "positive" if i % 2 else "negative"} for i in range(40)]
    rows[6]["label"] = "sad"
    (tmp_path / "sst2.jsonl").write_text("\n".join(map(json.dumps, rows)))
    line = error_line("eval", "--model", models("gpt2"), "--tasks", "sst2", "--data-dir", tmp_path)
    assert all(name in line for name in ("sst2.jsonl", "7", "sad", "positive"))


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_fails_and_earlier_rows_remain(
    models, tmp_path: Path, run: RunCommand
) -> None:
    words = (
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
    assert run(*words, "--shots", 2)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*shot-d0*/*.values.parquet")}
    code, _, err = run(*words, "--shots", "2,20")
    (line,) = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert code == 1 and "160" in line and "--overlength" in line
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.rglob("*.values.parquet")}.items()
    code, _, err = run(*words, "--shots", "2,20", "--overlength", "drop")
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("mamba", "keys"), ("mistral", "window")])
def test_deep_thinking_needs_a_model_with_an_unlimited_cache_of_keys(
    kind: str, name: str, models, run: RunCommand, error_line: Callable[..., str]
) -> None:
    words = ("eval", "--model", models(kind), "--tasks", "to-upper,to-lower", *QUICK)
    assert name in error_line(*words, "--method", "deep-thinking")
    assert run(*words, "--no-controls")[0] == 0


def test_code_in_a_model_folder_is_executed_only_with_the_option_trust_remote_code(
    models, tmp_path: Path, error_line: Callable[..., str]
) -> None:
    folder = Path(shutil.copytree(models("llama"), tmp_path / "foreign"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "foreign",
        "auto_map": {"AutoModelForCausalLM": "code.Foreign", "AutoConfig": "code.Config"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    assert "--trust-remote-code" in error_line("eval", "--model", folder, "--tasks", "to-upper")
    assert not (tmp_path / "trace").exists()


def test_a_damaged_model_does_not_stop_the_other_models(models, tmp_path: Path, run: RunCommand) -> None:
    damaged = Path(shutil.copytree(models("llama"), tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"nothing")
    options = ("--model", damaged, "--model", models("llama"))
    code, out, err = run("eval", *options, "--tasks", "to-upper", *QUICK, "--no-controls")
    assert code == 1 and "tiny-llama" in out
    assert "damaged" in err


@pytest.mark.slow
def test_after_ctrl_c_completed_cells_remain(
    models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    """The signal arrives during the second cell."""
    write, paths = tables.write, []

    def write_and_interrupt(table: str, rows: object, path: Path, *arguments: object) -> None:
        paths.append(path)
        if len([path for path in paths if path.name == "tiny-llama.values.parquet"]) == 2:
            signal.raise_signal(signal.SIGINT)
        write(table, rows, path, *arguments)

    monkeypatch.setattr(tables, "write", write_and_interrupt)
    words = ("--model", models("llama"), "--tasks", "algorithmic", "--shots", 2, "--demo-seeds", "0:10")
    code, _, err = run("eval", *words)
    assert code == 130 and err
    assert paths[-1].name == "tiny-llama.values.parquet"
    (finished,) = tmp_path.rglob("tiny-llama.values.parquet")
    assert finished in paths[:-1] and set(tables.read("values", finished)["status"]) == {"ok"}
    assert not list(tmp_path.rglob(".*tmp*"))


# Slow, because a new process imports torch and transformers.
@pytest.mark.slow
def test_after_ctrl_c_in_a_terminal_completed_cells_remain(models, tmp_path: Path) -> None:
    words = ["--model", str(models("llama")), "--tasks", "algorithmic", "--shots", "2", "--demo-seeds", "0:10"]
    command = [sys.executable, "-m", "iclbench", "lm", "eval", *words, "--results", str(tmp_path / "results")]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=restore_ctrl_c,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("tiny-llama.values.parquet")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    finished = list(tmp_path.rglob("tiny-llama.values.parquet"))
    assert finished and all(set(tables.read("values", path)["status"]) == {"ok"} for path in finished)
    assert not list(tmp_path.rglob(".*tmp*"))


def test_lm_tasks_lists_available_tasks_and_missing_data(run: RunCommand) -> None:
    code, out, _ = run("tasks")
    assert code == 0
    lines = {line.split()[0]: line for line in reversed(out.splitlines()) if line}
    assert " 26 " in lines["to-upper"] and " - " in lines["sst2"]
    assert "57 tasks" in lines["mmlu"] and "excluded)" in lines["bbh"] and " suite " in lines["simple"]
    assert "sst2" in out and "ICLBENCH_DATA" in out and "bbh-dyck-languages" in out
    assert "mmlu-anatomy" not in lines
    code, out, _ = run("tasks", "mmlu-stem", "to-lower", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 19
    assert rows[-1]["task"] == "to-lower" and rows[-1]["examples"] == 26
    assert rows[0]["examples"] is None and rows[0]["missing"]


def test_prompts_are_printed_exactly_as_a_model_reads_them(run: RunCommand, error_line: Callable[..., str]) -> None:
    code, out, err = run("tasks", "to-upper", "--prompt", "--shots", 2)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 3
    for line in lines[:2]:
        x, _, y = line.removeprefix("example:").partition("->")
        assert y == x.upper() != x
    assert lines[2].endswith("->") and lines[2][8].upper() in err
    assert "--prompt" in error_line("tasks", "simple", "--prompt")
    assert "--prompt" in error_line("tasks", "to-upper", "--shots", 2)


@pytest.mark.slow
def test_the_demo_model_is_trained_and_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, error_line: Callable[..., str]
) -> None:
    monkeypatch.setattr(lm_demo_model, "_EPISODES", 2)
    code, out, err = run("demo-model", tmp_path / "demo-lm", "--steps", 2)
    assert code == 0, err
    assert "no demonstrations  5 demonstrations" in out and "list-last" in out and "it/s" not in err
    next_command = out.splitlines()[-1].removeprefix("next: iclbench lm ").split()
    assert next_command[:3] == ["eval", "--model", str(tmp_path / "demo-lm")]
    assert run(*next_command, *QUICK, "--no-controls")[0] == 0
    assert str(tmp_path / "demo-lm") in error_line("demo-model", tmp_path / "demo-lm")


def rows(task: str, family: str, *values: tuple[str, int, str, float], **columns: object) -> list[dict[str, object]]:
    """Rows of a summary, from tuples of contestant, number of demonstrations, metric or shift, and value."""
    summary_rows = []
    for contestant, shots, name, value in values:
        is_baseline = contestant == "majority"
        row = {
            "run": contestant,
            "contestant": contestant,
            "task": task,
            "family": family,
            "preset": "language",
            "kind": "baseline" if is_baseline else "backbone",
            "shift": name if name == "shuffled-labels" else "none",
            "metric": "accuracy" if name == "shuffled-labels" else name,
            "value": value,
            "low": value - 0.1,
            "high": value + 0.1,
            "n_context": shots,
            "evaluator": "choice",
            "status": "ok",
            "card": "c",
            "version": "0",
            **columns,
        }
        summary_rows.append(complete_row(row))
    return summary_rows


TASK_VALUES = (
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


def test_the_table_of_a_task_has_a_line_for_each_contestant_and_number_of_demonstrations() -> None:
    columns, lines = task_board(tables.frame("values", rows("sst2", "sentiment", *TASK_VALUES)))
    assert columns == ["contestant", "shots", "accuracy", "balanced", "shuffled", "gain"]
    assert lines == [
        ["[bold]lm[/bold]", "0", "0.200", "", "", ""],
        ["[bold]lm[/bold]", "4", "0.600 ±0.050", "0.550", "0.300", ""],
        ["[bold]lm+repeat-2[/bold]", "4", "0.700", "", "", "+0.100 [0.000, 0.200]"],
        ["majority", "", "0.500", "", "", ""],
    ]
    single = tables.frame("values", rows("sst2", "sentiment", ("lm", 4, "accuracy", 0.6)))
    assert task_board(single)[1] == [["[bold]lm[/bold]", "4", "0.600 [0.500, 0.700]"]]


def test_the_overview_has_no_column_for_plain_icl_if_only_a_method_was_evaluated() -> None:
    values = tables.frame("values", rows("sst2", "sentiment", ("lm+deep-thinking-eta-0.1", 4, "accuracy", 0.6)))
    assert models_of(values) == ["lm"]
    assert overview_board(values, "lm")[0] == ["task", "shots", "deep-thinking-\neta-0.1"]


def test_the_overview_has_means_over_families_for_columns_with_all_tasks() -> None:
    values = [
        *rows("sst2", "sentiment", *TASK_VALUES),
        *rows("mr", "sentiment", ("lm", 4, "accuracy", 0.8), *TASK_VALUES[7:]),
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


def test_the_accuracy_of_the_majority_baseline_is_for_the_queries_of_the_same_line() -> None:
    values = rows("to-upper", "letters", ("lm", 5, "accuracy", 0.9), ("majority", 5, "accuracy", 0.05))
    values += rows("to-upper", "letters", ("majority", 0, "accuracy", 0.04))
    values += rows("to-lower", "letters", ("lm", 5, "accuracy", 0.8), ("majority", 0, "accuracy", 0.03))
    columns, lines = overview_board(tables.frame("values", values), "lm")
    assert [line[columns.index("majority")] for line in lines[:2]] == ["0.050", "0.030"]


def test_passes_and_orders_have_separate_tables(capsys: pytest.CaptureFixture[str]) -> None:
    pass_rows = [
        row
        for t in range(1, 16)
        for row in rows("sst2", "s", ("lm+repeat-2", 4, "accuracy", t / 100), axis="passes", axis_value=t)
    ]
    columns, lines = passes_board(tables.frame("values", pass_rows))
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


def test_failures_and_notes_are_summarised_in_one_line_per_contestant() -> None:
    def cell(name: str, reason: str | None, note: str = "") -> SimpleNamespace:
        return SimpleNamespace(contestant=SimpleNamespace(name=name), reason=reason, note=note)

    cells = [
        cell("lm", "too long"),
        cell("lm", "too long, too"),
        cell("lm+repeat-2", None, "T = 7"),
        cell("lm+repeat-2", None, "T = 7"),
    ]
    failure, note = remarks("sst2", cells)
    assert all(text in failure for text in ("lm", "sst2", "2", "too long"))
    assert note == "lm+repeat-2 on sst2: T = 7"
    assert abbreviated_names(["a", "b", "c", "d", "e"]) == "a, b and 3 others"
