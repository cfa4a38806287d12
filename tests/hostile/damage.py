"""Truncated, corrupted, empty or exchanged files are refused in one line or recomputed, but never used."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.hostile.process import Limits
from tests.hostile.stage import EVAL, LANGUAGE, LONG, PROBE, READERS, REPORT, STREAM, TRAIN, write_mnist
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_outcome, check_unchanged, contents, value_tables

DAMAGES = ("cut", "empty", "flip", "garbage", "foreign", "html", "folder", "gone", "longer", "zeros")


def damage(trial: Trial, path: Path, how: str | None = None) -> str:
    """Damage a file, and return the kind of damage."""
    dice, content = trial.dice, path.read_bytes()
    how = how or dice.choice(DAMAGES)
    at = dice.randrange(max(1, len(content)))
    if how == "cut":
        path.write_bytes(content[:at])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flip" and content:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :])
    elif how == "garbage":
        path.write_bytes(content[:at] + dice.randbytes(24) + content[at + 24 :])
    elif how == "foreign":
        others = [p for p in trial.folder.rglob("*") if p.is_file() and p != path and p.stat().st_size < 1_000_000]
        path.write_bytes(dice.choice(sorted(others)).read_bytes())
    elif how == "html":
        path.write_bytes(b"<!DOCTYPE html><html><body>404 not found</body></html>\n")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "gone":
        path.unlink()
    elif how == "longer":
        path.write_bytes(content + dice.randbytes(dice.choice((1, 8, 500))))
    elif how == "zeros":
        path.write_bytes(bytes(len(content)))
    return f"{how}{f' at byte {at} of {len(content)}' if how in ('cut', 'flip', 'garbage') else ''}"


def _repair(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _check_reader(trial: Trial, arguments: Sequence[str], target: Path) -> list[str]:
    """Run a command on a damaged file. If it succeeds, its output and files must equal those without damage."""
    damaged_bytes = target.read_bytes() if target.is_file() else b""
    name = str(target.relative_to(trial.results)) if target.is_relative_to(trial.results) else ""
    outcome = trial.run(arguments)
    complaints = check_outcome(outcome, {0, 1, 2})
    is_recomputed = outcome.code == 0 and arguments == (PROBE if "probe" in name else EVAL)
    complaints += trial.check_tables() if is_recomputed else trial.check_tables({name: damaged_bytes}, complete=False)
    is_named = "damaged" in outcome.err or target.name in outcome.err
    if outcome.code == 0 and arguments in (EVAL, PROBE) and outcome.out != trial.stage.outputs[arguments]:
        complaints.append(f"{arguments[0]} prints different numbers with exit code 0")
    if outcome.code == 0 and arguments == REPORT and not is_named and target.exists():
        ours, theirs = (contents(p / "report/tables") for p in (trial.results, trial.stage.home / "results"))
        differing = [n for n in theirs if ours.get(n) != theirs[n]]
        if differing and target.name not in (trial.results / "report/index.html").read_text():
            complaints.append(f"report shows different tables without a message: {differing[:3]}")
    return [f"{arguments[0]}: {complaint}" for complaint in complaints]


def _result_file(
    trial: Trial, pattern: str, readers: Sequence[Sequence[str]], damages: Sequence[str] = DAMAGES
) -> list[str]:
    """Damage a file of the results folder. After the user deletes the file, as error messages advise, the command
    restores all tables.
    """
    trial.copy()
    target = trial.dice.choice(sorted(trial.results.glob(pattern)))
    others = {n: c for n, c in contents(trial.results, "runs/**/*").items() if not target.match(n)}
    how = damage(trial, target, trial.dice.choice(damages))
    complaints = []
    sampled_readers = trial.dice.sample(list(readers), min(2, len(readers)))
    for arguments in sorted(
        sampled_readers, key=lambda arguments: arguments != REPORT
    ):  # REPORT runs first, before another command recomputes the file
        complaints += _check_reader(trial, arguments, target)
    complaints += check_unchanged(others, contents(trial.results, "runs/**/*"))
    if target.match("tables/*/*.parquet"):
        _repair(target)
        complaints += trial.check_command(PROBE if "probe" in str(target) else EVAL)
    return [f"{target.relative_to(trial.folder)}, {how}: {complaint}" for complaint in complaints]


def _weights(trial: Trial) -> list[str]:
    """Damage weights. All commands refuse them. After they are deleted, training again gives identical weights."""
    trial.copy()
    target = trial.results / "runs/gpt/model.safetensors"
    good = target.read_bytes()
    how = damage(trial, target)
    shutil.rmtree(trial.results / "tables")
    outcome = trial.run(EVAL)
    complaints = check_outcome(outcome, {0, 1, 2})
    served = [n for n in value_tables(trial.results) if "/gpt." in n]
    wrong = [n for n in served if value_tables(trial.results)[n] != trial.stage.values[n]]
    if wrong and outcome.code == 0:
        complaints.append(f"{wrong[0]} was computed with damaged weights")
    if outcome.code == 0 and how != "gone" and target.is_file() and target.read_bytes() != good:
        complaints.append("evaluated damaged weights without a message")
    if trial.dice.random() < 0.5:
        complaints += check_outcome(
            trial.run(trial.dice.choice((PROBE, ("cost", "gpt", "--points", "4", "--episodes", "2"))))
        )
    _repair(target)
    complaints += check_outcome(trial.run(TRAIN), {0})
    if not target.is_file() or target.read_bytes() != good:
        complaints.append("the weights are different after training again")
    return [f"weights, {how}: {complaint}" for complaint in complaints]


def _checkpoint(trial: Trial) -> list[str]:
    """Damage a checkpoint. The run continues from an earlier checkpoint and ends with the same weights."""
    trial.copy("half")
    folder = trial.results / "runs/long/checkpoints"
    old, new = sorted(folder.glob("step-*.safetensors"))
    how = trial.dice.choice(("damaged", "both damaged", "renamed", "exchanged", "foreign", "metadata"))
    if how == "damaged":
        how = damage(trial, trial.dice.choice((old, new)))
    elif how == "both damaged":
        how = f"{damage(trial, old)} and {damage(trial, new)}"
    elif how == "renamed":
        new.rename(folder / f"step-{trial.dice.choice((1, 159, 160, 161, 999_999_999)):09d}.safetensors")
    elif how == "exchanged":
        old_bytes, new_bytes = old.read_bytes(), new.read_bytes()
        new.write_bytes(old_bytes), old.write_bytes(new_bytes)
    elif how == "foreign":
        new.write_bytes((trial.stage.home / "trained/runs/gpt/model.safetensors").read_bytes())
    else:
        how = f"metadata: {_write_impossible_metadata(trial, new)}"
    outcome = trial.run(LONG)
    complaints, weights = check_outcome(outcome, {0, 1, 2}), trial.results / "runs/long/model.safetensors"
    if outcome.code == 0 and not weights.is_file():
        complaints.append("exit code 0, but no weights")
    if weights.is_file() and weights.read_bytes() != trial.stage.weights:
        complaints.append("the finished weights differ from those of the undisturbed run")
    return [f"checkpoint, {how}: {complaint}" for complaint in complaints]


def _write_impossible_metadata(trial: Trial, path: Path) -> str:
    """Rewrite a checkpoint with impossible metadata, and return the changed entry."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    key, value = trial.dice.choice(
        [
            ("step", "-5"),
            ("step", "999999999"),
            ("step", "NaN"),
            ("seconds", "nan"),
            ("seconds", "-1e999"),
            ("scored", "{"),
            ("scored", "7"),
            ("scored", '[{"<b>": 1}]'),
            ("bytes", '"x"'),
            ("bytes", "[]"),
            ("step", "1"),
        ]
    )
    save_file(tensors, path, metadata | {key: value})
    return f"{key}={value}"


def _card(trial: Trial) -> list[str]:
    """Damage a card. The card is refused, or a run is trained with its changed settings. Other runs do not change."""
    trial.copy()
    before = contents(trial.results, "runs/**/*")
    how = damage(trial, trial.folder / "tiny.toml")
    name = f"new-{trial.dice.randrange(10)}"
    outcome = trial.run((*TRAIN[:-1], name))
    complaints = check_outcome(outcome, {0, 1, 2}) + check_outcome(trial.run(("show", "./tiny.toml")), {0, 1, 2})
    return [f"card, {how}: {c}" for c in complaints + check_unchanged(before, contents(trial.results, "runs/**/*"))]


def _grid(trial: Trial) -> list[str]:
    trial.copy()
    how = damage(trial, trial.folder / trial.dice.choice(("grid.toml", "swept.toml")))
    complaints = []
    for arguments in (("sweep", "grid.toml", "--dry-run"), ("show", "./grid.toml")):
        complaints += check_outcome(trial.run(arguments), {0, 1, 2})
    return [f"grid, {how}: {c}" for c in complaints]


def _user_table(trial: Trial) -> list[str]:
    """Damage a table of the user. The command reads it, or reports an error in one line."""
    trial.copy("trained")
    table = trial.folder / trial.dice.choice(("table.csv", "table.csv.gz", "table.parquet"))
    how = damage(trial, table)
    outcome = trial.run(("eval", "gpt", "--csv", table.name, "--target", "y", "--baseline", "zero"))
    return [f"{table.name}, {how}: {c}" for c in check_outcome(outcome, {0, 1, 2})]


def _points(trial: Trial) -> list[str]:
    """Damage the points or the saved state of a stream. The command does not continue from a damaged state."""
    trial.copy()
    trial.run(STREAM)
    target = trial.folder / trial.dice.choice(("points.csv", "state"))
    good, how = target.read_bytes(), damage(trial, target)
    outcome = trial.run(("stream", "cnp", "--csv", "points.csv", "--state", "state"))
    complaints = check_outcome(outcome, {0, 1, 2})
    if target.name == "state" and outcome.code == 0 and target.read_bytes() != good:
        complaints.append("the command continued from a damaged state")
    return [f"{target.name}, {how}: {c}" for c in complaints]


def _images(trial: Trial) -> list[str]:
    """Damage the files of MNIST."""
    trial.copy("")
    write_mnist(trial.folder / "data")
    target = trial.dice.choice(sorted((trial.folder / "data/mnist").iterdir()))
    how = damage(trial, target)
    arguments = (
        "train",
        "image-completion-mnist",
        "cnp",
        "--preset",
        "smoke",
        "--data-dir",
        "data",
        "-o",
        "train.steps=2",
        "-o",
        "train.batch=2",
        "-o",
        "backbone.width=8",
    )
    return [f"{target.name}, {how}: {c}" for c in check_outcome(trial.run(arguments), {0, 1, 2})]


def _archive(trial: Trial) -> list[str]:
    """Replace the contents of archives of Omniglot."""
    trial.copy("")
    folder, outside = trial.folder / "data/omniglot", trial.folder / "evil.png"
    folder.mkdir(parents=True)
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / f"{part}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in (
                f"{part}/A/character01/0001_01.png",
                "../../../evil.png",
                "/evil.png",
                f"{part}/\x1b[31m/x.png",
            ):
                archive.writestr(name, bytes(trial.dice.choice((10, 10_000_000))))
    how = damage(trial, folder / "images_background.zip") if trial.dice.random() < 0.5 else "hostile members"
    outcome = trial.run(("train", "bursty-omniglot", "gpt2", "--preset", "smoke", "--data-dir", "data"))
    complaints = check_outcome(outcome, {1, 2})
    return [f"archive, {how}: {c}" for c in complaints + ["a member was unpacked outside"] * outside.exists()]


def _write_event_log(path: Path, sequences: int = 20, marks: int = 2, step: float = 1.0) -> None:
    """Write a file of event sequences, each with six events."""
    gaps = [[step * (1 + (i * 7 + j * 3) % 5) for j in range(6)] for i in range(sequences)]
    rows = [{"times": [sum(row[: j + 1]) for j in range(6)], "marks": [j % marks for j in range(6)]} for row in gaps]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def _data_that_change(trial: Trial) -> list[str]:
    """Change the data of a run. Its predictions do not change. By default, training and scoring on the new data are
    refused."""
    trial.copy("")
    log, keys = trial.folder / "log.jsonl", ("train.steps=3", "train.batch=2", "backbone.width=8", "backbone.layers=1")
    _write_event_log(log)
    train = ("train", "events", "gpt2", "--preset", "smoke", "-o", "task.path=log.jsonl", "--name", "mine")
    train += ("-o", "task.time_scale=mean-gap", *(word for key in keys for word in ("-o", key)))
    (trial.folder / "query.csv").write_text("time,mark\n3,0\n?,?\n")
    stream, evaluate = ("stream", "mine", "--csv", "query.csv"), ("eval", "mine", "--baseline", "poisson")
    complaints, answers = check_outcome(trial.run(train), {0}), trial.run(stream).out
    how = trial.dice.choice(("grown", "replaced", "in another unit", "with a new mark", "damaged", "gone", "moved"))
    path_option: tuple[str, ...] = ()
    if how == "moved":
        log.rename(trial.folder / "elsewhere.jsonl")
        path_option = ("-o", "task.path=elsewhere.jsonl")
    elif how == "damaged":
        how = f"damaged: {damage(trial, log, trial.dice.choice([kind for kind in DAMAGES if kind != 'longer']))}"
    elif how == "gone":
        log.unlink()
    else:
        changes = {"grown": {"sequences": 30}, "replaced": {"sequences": 19}, "in another unit": {"step": 60.0}}
        _write_event_log(log, **changes.get(how, {"marks": 3}))
    if trial.run(stream).out != answers:
        complaints.append("stream gives different answers")
    codes = {0} if path_option else {2}
    for arguments in (evaluate, train):
        complaints += check_outcome(trial.run((*arguments, *path_option)), codes)
    if not path_option and (trial.results / "tables").exists():
        complaints.append("scores on other data were written")
    complaints += check_outcome(trial.run((*evaluate, *path_option, "--data-changed")), {0, 1, 2})
    return [f"{how}: {complaint}" for complaint in complaints]


def _model(trial: Trial) -> list[str]:
    """Damage files of a language model and of its data."""
    trial.copy("")
    model = Path(shutil.copytree(trial.stage.home / "model", trial.folder / "model"))
    rows = [json.dumps({"text": f"text {i}", "label": "ab"[i % 2]}) for i in range(40)]
    (trial.folder / "mine.jsonl").write_text("\n".join(rows) + "\n")
    target = trial.dice.choice([*sorted(model.iterdir()), trial.folder / "mine.jsonl"])
    how = damage(trial, target)
    outcome = trial.run(LANGUAGE, limits=Limits(memory=3_000_000_000))
    return [f"{target.name}, {how}: {c}" for c in check_outcome(outcome, {0, 1, 2})]


_RUN = (*READERS, TRAIN, ("stream", "gpt", "--csv", "points.csv"))
KINDS: dict[str, Kind] = {
    "a value table": partial(_result_file, pattern="tables/*/*.values.parquet", readers=(EVAL, REPORT, PROBE)),
    "weights": _weights,
    "a checkpoint": _checkpoint,
    "a run's configuration": partial(_result_file, pattern="runs/gpt/config.toml", readers=_RUN),
    "a task card": _card,
    "a user's table": _user_table,
    "one bit of a value table": partial(
        _result_file, pattern="tables/*/*.values.parquet", readers=(EVAL, REPORT), damages=("flip",)
    ),
    "an errors, costs or examples table": partial(
        _result_file, pattern="tables/*/*.[ec]*s.parquet", readers=(EVAL, REPORT)
    ),
    "points or a state": _points,
    "a run's tables": partial(
        _result_file, pattern="runs/*/*.parquet", readers=(REPORT, EVAL, ("list", "runs"), TRAIN)
    ),
    "a grid": _grid,
    "image files": _images,
    "data that change": _data_that_change,
    "an archive": _archive,
    "a language model": _model,
}
