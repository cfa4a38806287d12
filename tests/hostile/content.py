"""Hostile texts in files, names and options must not execute code, inject scripts or write to other folders."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from tests.hostile.process import Limits, Outcome
from tests.hostile.stage import EVAL, LANGUAGE, PROBE, READERS, REPORT, TRAIN
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_formulas, check_outcome, check_page, check_unchanged, contents

TEXTS = (
    "<script>canary()</script>",
    '"><canary onclick="canary()">',
    "</script><script>canary()</script>",
    "<!-- canary",
    "javascript:canary()",
    "{{ canary }}{% raw %}",
    "${canary}",
    "[bold]canary[/bold][/]",
    "[link=http://canary]x[/link]",
    "=canary|' /C calc'!A0",
    "@canary",
    "+canary()",
    "-canary",
    "\x1b[2J\x1b[31mcanary",
    "a\nerror: canary",
    "a\rcanary",
    "\u202ecanary",
    "canary\0",
    "../../canary",
    "/canary",
    "..",
    ".",
    "~root",
    "C:\\canary",
    "canary\\..\\..",
    "canary" * 3000,
    "",
    " ",
    "%s%n%x",
    "$(touch canary)",
    "`touch canary`",
    "; touch canary;",
    "--canary",
    "-",
    "con",
    "\ud800",
    "ﬀ",
    "é" * 300,
    "😀",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "1_5",
    "NaN",
    "-inf",
    "1e999",
    "9" * 400,
    "0x10",
    "None",
    "true",
    "]]>",
    "&lt;canary&gt;",
)
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "0",
    "1e-320",
    "9" * 400,
    "1_5",
    "0x10",
    "true",
    "''",
    "[]",
    "{}",
    "[[[[[[[[[[1]]]]]]]]]]",
    "1.5",
    "2147483648",
    "9223372036854775808",
    "1979-05-27",
    "'''",
    "\N{FULLWIDTH DIGIT ONE}",
    "1e308",
    "=",
    "a=b",
)
HUGE = (
    "backbone.layers=1000000000",
    "backbone.width=1000000000",
    "backbone.heads=1000000000",
    "train.batch=1000000000",
    "task.dim=1000000000",
    "train.batch=100000000",
    "backbone.layers=3000000",
    "task.dim=300000",
)
ESCAPES = (
    "\x1b[2J\x1b[31m",
    "\x9b31m",
    "\x1b]0;canary\x07",
    "\u202e",
    "\u2066",
    "\u200f",
    "\x08\x08",
    "\x7f",
    "\rerror: canary",
    "\nerror: canary",
    "\u2028error: canary",
    "\x85error: canary",
)
# These limits prevent a trial from exhausting the machine.
ROOMY = Limits(memory=3_000_000_000)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (os.system, (f"touch {self.canary}",))


def _check_no_escape(trial: Trial, *outcomes: Outcome) -> list[str]:
    """Check that no file was written outside the folder of the trial, and that no hostile code was executed."""
    new_names = {p.name for p in trial.folder.parent.iterdir()} - {trial.folder.name}
    strays = [name for name in new_names if "canary" in name or name.startswith("evil")]
    touched = [str(p) for p in (trial.folder / "canary", trial.folder.parent / "canary", Path("/canary")) if p.exists()]
    return [f"written outside or executed: {name}" for name in strays + touched]


def is_usable(text: str) -> bool:
    """Return whether the text can be an argument or a file name."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _option(trial: Trial) -> list[str]:
    """Pass a hostile text as an argument or option."""
    text = trial.dice.choice([t for t in TEXTS if is_usable(t)])
    option = trial.dice.choice(
        [
            (*TRAIN[:-1],),
            ("eval", "--shift"),
            ("eval", "--evaluator"),
            ("eval", "--baseline"),
            ("probe", "--shift"),
            ("show",),
            ("list",),
            ("eval",),
            ("probe",),
            ("stream",),
            ("cost",),
            ("train", "tiny.toml"),
            ("train",),
            ("sweep",),
            ("check",),
            ("eval", "--csv"),
            ("eval", "gpt", "--csv", "table.csv", "--target"),
            ("report", "--formats"),
            ("stream", "cnp", "--state"),
            ("lm", "tasks"),
            (*TRAIN, "--preset"),
            (*TRAIN, "--device"),
            (*TRAIN, "--config"),
            (*TRAIN, "-o"),
            ("eval", "--method"),
            ("eval", "-o"),
            ("lm", "eval", "--offline", "--model", "canary", "--tasks"),
            ("sweep", "grid.toml", "--dry-run", "--only"),
        ]
    )
    trial.copy()
    before = contents(trial.results, "runs/**/*")
    outcome = trial.run((*option, text), limits=ROOMY)
    complaints = (
        check_outcome(outcome) + _check_no_escape(trial) + check_unchanged(before, contents(trial.results, "runs/**/*"))
    )
    return [f"{' '.join(option)} {text[:60]!r}: {c}" for c in complaints]


def _number(trial: Trial) -> list[str]:
    """Pass a hostile number as a setting."""
    key = trial.dice.choice(
        (
            "train.lr",
            "train.steps",
            "train.batch",
            "train.clip",
            "train.warmup",
            "train.betas",
            "train.checkpoint_every",
            "train.log_every",
            "train.evaluate_every",
            "task.points",
            "task.episodes",
            "task.dim",
            "backbone.layers",
            "backbone.width",
            "backbone.heads",
            "backbone.init_std",
            "train.curriculum",
            "train.schedule",
            "train",
            "",
            "task",
        )
    )
    value = trial.dice.choice(NUMBERS)
    steps = () if key == "train.steps" else ("-o", "train.steps=2")
    trial.copy("")
    outcome = trial.run((*TRAIN, "-o", f"{key}={value}", *steps), limits=ROOMY)
    return [f"-o {key}={value[:40]}: {c}" for c in check_outcome(outcome, {0, 1, 2})]


def _huge(trial: Trial) -> list[str]:
    """Pass huge sizes. The command refuses them, or reports in one line that memory is exhausted."""
    trial.copy("")
    override = trial.dice.choice(HUGE)
    outcome = trial.run((*TRAIN, "-o", override), limits=ROOMY)
    return [f"-o {override}: {c}" for c in check_outcome(outcome, {1, 2})]


def _card(trial: Trial) -> list[str]:
    """Write hostile texts into a card. They are escaped on the terminal, in the report and in exported tables."""
    trial.copy("")
    card: dict[str, Any] = tomllib.loads((trial.folder / "tiny.toml").read_text())
    one, two, three = ([t for t in TEXTS if t.isprintable() and is_usable(t)][i] for i in _text_indices(trial, 3))
    card |= {"summary": one, "source": two, "notes": three}
    card["published"] = [
        {"contestant": three or "x", "preset": "smoke", "value": 0.5, "n_context": 5, "source": one, "read": two}
    ]
    names = [t for t in TEXTS if is_usable(t) and t.strip(". ") and "/" not in t and len(t.encode()) < 200]
    name = trial.dice.choice([*names, "plain"]) + ".toml"
    (trial.folder / name).write_text(tomli_w.dumps(card))
    complaints = []
    training = trial.run(("train", f"./{name}", "gpt2", "--preset", "smoke", "--name", "gpt"))
    complaints += check_outcome(training, {0, 1, 2})
    if training.code == 0:
        for arguments in (EVAL, ("list", "runs"), ("show", "gpt"), ("show", f"./{name}")):
            complaints += check_outcome(trial.run(arguments), {0, 1, 2})
        complaints += _check_report(trial)
    return [
        f"card {name[:30]!r} with {one[:30]!r}, {two[:30]!r}, {three[:30]!r}: {c}"
        for c in complaints + _check_no_escape(trial)
    ]


def _text_indices(trial: Trial, count: int) -> list[int]:
    """Draw distinct indices of the printable texts that can be arguments."""
    return trial.dice.sample(range(len([t for t in TEXTS if t.isprintable() and is_usable(t)])), count)


def _check_report(trial: Trial) -> list[str]:
    outcome = trial.run(REPORT)
    complaints = check_outcome(outcome, {0, 1, 2})
    if outcome.code == 0:
        complaints += check_page(trial.results / "report/index.html")
        complaints += check_formulas(trial.results / "report")
        strays = [p for p in (trial.results / "report").rglob("*") if ".." in p.name or "\n" in p.name]
        complaints += [f"report writes {p.name!r}" for p in strays[:2]]
    return complaints


def _foreign_rows(trial: Trial) -> list[str]:
    """Add a value table from another source, with hostile names and numbers."""
    import pandas as pd

    trial.copy()
    source = trial.dice.choice(sorted(trial.results.glob("tables/*smoke*/*.values.parquet")))
    rows = pd.read_parquet(source)
    changed = trial.dice.sample(
        ["run", "task", "family", "contestant", "kind", "preset", "shift", "reason", "metric", "version"], 2
    )
    for column in changed:
        rows[column] = trial.dice.choice([t for t in TEXTS if is_usable(t)])
    if trial.dice.random() < 0.3:
        rows["value"] = trial.dice.choice((1e308, -1e308, 5e-324, float("inf"), float("nan")))
    rows.to_parquet(source.with_name("evil-rows.values.parquet"))
    complaints = check_outcome(trial.run(EVAL), {0, 1, 2}) + _check_report(trial)
    return [f"rows with {', '.join(changed)}: {c}" for c in complaints + _check_no_escape(trial)]


def _user_csv(trial: Trial) -> list[str]:
    """Put hostile names and cells into a table of the user."""
    trial.copy("trained")
    lines = (trial.folder / "table.csv").read_text().splitlines()
    text = trial.dice.choice(TEXTS).encode(errors="surrogatepass")
    how = trial.dice.choice(("name", "cell", "line", "target"))
    quoted = b'"' + text.replace(b'"', b'""') + b'"'
    if how in ("name", "target"):
        replaced = b"b" if how == "name" else b"y"
        data = b"a,b,c,y".replace(replaced, quoted) + b"\n" + "\n".join(lines[1:]).encode()
    elif how == "cell":
        data = "\n".join(lines[:40]).encode() + b"\n1," + quoted + b",3,4\n" + "\n".join(lines[40:]).encode()
    else:
        data = "\n".join(lines[:40]).encode() + b"\n" + text + b"\n" + "\n".join(lines[40:]).encode()
    (trial.folder / "table.csv").write_bytes(data)
    target = text.decode(errors="replace") if how == "target" and is_usable(text.decode(errors="replace")) else "y"
    outcome = trial.run(("eval", "gpt", "--csv", "table.csv", "--target", target, "--baseline", "zero"), limits=ROOMY)
    complaints = check_outcome(outcome, {0, 1, 2})
    if outcome.code == 0:
        complaints += _check_report(trial)
    return [f"csv {how} {text[:30]!r}: {c}" for c in complaints + _check_no_escape(trial)]


def _escapes(trial: Trial) -> list[str]:
    """Use terminal escapes in the names of columns, targets and files, and in the header of a stream."""
    trial.copy("trained")
    one, two, three = trial.dice.sample(ESCAPES, 3)
    rows = (trial.folder / "table.csv").read_text().splitlines()[1:]
    header = ",".join(f'"{name}"' for name in ("a", f"b{one}", two, f"y{three}"))
    table = trial.folder / f"mine{one}.csv"
    table.write_text("\n".join([header, *rows]), encoding="utf-8", newline="\n")
    complaints = []
    for target in (f"y{three}", "4", f"no{two}"):
        arguments = ("eval", "gpt", "--csv", table.name, "--target", target, "--baseline", "zero")
        complaints += check_outcome(trial.run(arguments, limits=ROOMY), {2} if target.startswith("no") else {0})
    points = f"a{one},b{two},c,d{three}\n0.5,1,2,3\n1,2,3,?\n".encode()
    complaints += check_outcome(trial.run(("stream", "cnp"), stdin=points, limits=ROOMY), {0, 2})
    return [f"{one!r}, {two!r}, {three!r}: {c}" for c in complaints + _check_no_escape(trial)]


def _table_faults(trial: Trial) -> list[str]:
    """Read tables in ambiguous formats. The command computes the correct numbers or reports an error in one line."""
    import numpy as np
    import pandas as pd

    trial.copy("trained")
    frame = pd.read_csv(trial.folder / "table.csv", dtype=float)
    fault = trial.dice.choice(
        ("numbers", "index", "parquet", "missing", "truth", "huge", "tiny", "both", "pipe", "mark", "twice", "ragged")
    )
    table, target, codes = trial.folder / "mine.csv", "y", {2}
    text = frame.to_csv(index=False)
    if fault == "numbers":
        text = pd.DataFrame(frame.to_numpy()).to_csv(index=False)
        target = "2"
    elif fault == "index":
        text, codes = frame.to_csv(), {0}
    elif fault == "parquet":
        table, target = table.with_suffix(".parquet"), "__index_level_0__"
        frame.iloc[::-1].to_parquet(table)
    elif fault == "missing":
        frame["a"] = frame["a"].astype(object)
        frame.loc[7, "a"] = trial.dice.choice(("#N/A", "<NA>", "-nan"))
        text, codes = frame.to_csv(index=False), {0}
    elif fault == "twice":
        text = text.replace("a,b", "a,a", 1)
    elif fault == "ragged":
        text = text.replace("\n", ",1\n", 3)
    else:
        codes = {0}
        frame["a"] = frame["a"] > 5 if fault == "truth" else frame["a"]
        unit = {"huge": 1e300, "tiny": 1e-300, "both": np.where(frame.index % 2, 1e298, 1e-300)}.get(fault, 1.0)
        frame["y"] *= unit
        text = ("\ufeff" if fault == "mark" else "") + frame.to_csv(index=False)
    if fault == "pipe":
        codes = {2}
        os.mkfifo(table)
    elif fault != "parquet":
        table.write_text(text, encoding="utf-8")
    arguments = ("eval", "gpt", "--csv", table.name, "--target", target, "--baseline", "zero")
    complaints = check_outcome(trial.run(arguments, limits=ROOMY), codes)
    if fault == "numbers":
        for option in ("--header", "--no-header"):
            complaints += check_outcome(trial.run((*arguments, option), limits=ROOMY), {0})
    return [f"{fault}: {c}" for c in complaints + _check_no_escape(trial)]


def _lines(trial: Trial) -> list[str]:
    """Send lines that are not points to a stream."""
    trial.copy("trained")
    line = trial.dice.choice(
        [t.encode(errors="surrogatepass") for t in TEXTS]
        + [b"1,2,3,%s" % n.encode() for n in NUMBERS]
        + [
            b"1," * 100_000,
            b"9" * 3_000_000,
            b"\xff\xfe1\x00,",
            b"\x00" * 5000,
            b"1,2,3",
            b",,,",
            b"?,?,?,?",
            b"1,2,3,1e300",
            b"1;2;3;4",
        ]
    )
    before = b"0.5,1,2,3\n" * trial.dice.randrange(3)
    outcome = trial.run(("stream", "cnp", "--save", "kept"), stdin=before + line + b"\n1,2,3,?\n", limits=ROOMY)
    complaints = check_outcome(outcome, {0, 1, 2})
    if outcome.code == 0 and "nan" in outcome.out.lower():
        complaints.append(f"answers NaN: {outcome.out.splitlines()[-1]}")
    if before and not (trial.folder / "kept").is_file():
        complaints.append("the state before the invalid line was not saved")
    return [f"line {line[:40]!r}: {c}" for c in complaints]


def _pickle(trial: Trial) -> list[str]:
    """Replace weights, a checkpoint, a state or a table with a pickle, which must not be loaded."""
    import torch

    trial.copy(trial.dice.choice(("results", "half")))
    canary = trial.folder / "canary"
    packed = pickle.dumps(Bomb(canary))
    torch.save(Bomb(canary), trial.folder / "packed.pt")
    packed = trial.dice.choice((packed, (trial.folder / "packed.pt").read_bytes()))
    places = [
        p
        for p in trial.results.rglob("*")
        if p.suffix in (".safetensors", ".parquet", ".toml") and "report" not in p.parts
    ]
    target = trial.dice.choice([*sorted(places), trial.folder / "state", trial.folder / "table.parquet"])
    target.write_bytes(packed)
    complaints = []
    table = ("eval", "gpt", "--csv", "table.parquet", "--target", "y")
    command = table if target.name == "table.parquet" else trial.dice.choice(READERS)
    resumed = (*TRAIN[:-1], "long", "-o", "train.steps=160")
    for arguments in (command, resumed, ("stream", "cnp", "--csv", "points.csv", "--state", "state")):
        complaints += check_outcome(trial.run(arguments), {0, 1, 2})
    if canary.exists():
        complaints.append("the pickle was executed")
    return [f"pickle as {target.relative_to(trial.folder)}: {c}" for c in complaints]


def _code(trial: Trial) -> list[str]:
    """Name a module in a run or a card. The module must not be imported, because it is not trusted."""
    trial.copy()
    canary = trial.folder / "canary"
    (trial.folder / "evil.py").write_text(f"open({str(canary)!r}, 'w').write('x')\nclass Evil: pass\n")
    config = trial.results / "runs/gpt/config.toml"
    table = tomllib.loads(config.read_text())
    if trial.dice.random() < 0.5:
        table["backbone"]["name"] = "evil:Evil"
    else:
        table["task"]["family"] = "evil:Evil"
    config.write_text(tomli_w.dumps(table))
    card = tomllib.loads((trial.folder / "tiny.toml").read_text()) | {"family": "evil:Evil"}
    (trial.folder / "evil.toml").write_text(tomli_w.dumps(card))
    (trial.folder / "evil-grid.toml").write_text(
        tomli_w.dumps(
            {"summary": "x", "tasks": ["evil.toml"], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0]}
        )
    )
    complaints = []
    others = (
        ("show", "./evil.toml"),
        ("train", "./evil.toml", "gpt2", "--preset", "smoke"),
        ("stream", "gpt"),
        PROBE,
        TRAIN,
        ("sweep", "evil-grid.toml", "--dry-run"),
        ("list", "tasks"),
        ("sweep", "evil-grid.toml"),
    )
    for arguments in trial.dice.sample([*READERS, *others], 5):
        complaints += [
            f"{arguments[0]}: {c}" for c in check_outcome(trial.run(arguments, path=[trial.folder]), {0, 1, 2})
        ]
        if canary.exists():
            complaints.append(f"{' '.join(arguments)} executed a module that a file names")
            canary.unlink()
    return complaints


def _links(trial: Trial) -> list[str]:
    """Add unusual folders, links to other places, loops of links, and endless files."""
    trial.copy()
    runs, how = (
        trial.results / "runs",
        trial.dice.choice(("loop", "out", "dangling", "device", "config", "deep", "tables")),
    )
    if how == "loop":
        (runs / "evil").symlink_to(runs)
    elif how == "out":
        (runs / "evil").symlink_to("/etc")
    elif how == "dangling":
        (runs / "evil").mkdir()
        (runs / "evil/config.toml").symlink_to("/nowhere/at/all")
    elif how == "device":
        (runs / "evil").mkdir()
        (runs / "evil/config.toml").symlink_to("/dev/zero" if trial.dice.random() < 0.5 else "/dev/null")
    elif how == "config":
        (runs / "evil").mkdir()
        (runs / "evil/config.toml").write_text(trial.dice.choice(("", "a = 1", "[task]", "= =", "\0", "x" * 100_000)))
        (runs / "evil/model.safetensors").write_bytes(b"{}")
    elif how == "deep":
        shutil.copytree(runs / "gpt", runs / ("e" * 200))
        shutil.copytree(runs / "gpt", runs / "a b\u202e<canary>")
    else:
        (trial.results / "tables/evil").symlink_to(trial.results / "tables")
    complaints = []
    for arguments in (*trial.dice.sample(list(READERS), 2), EVAL):
        complaints += [f"{arguments[0]}: {c}" for c in check_outcome(trial.run(arguments, limits=ROOMY), {0, 1, 2})]
    has_new_contestants = how == "deep"  # additional contestants change the scale of the scores
    return [f"{how}: {c}" for c in complaints + ([] if has_new_contestants else trial.check_tables(complete=False))]


def _language(trial: Trial) -> list[str]:
    """Use hostile texts and labels in the user's data for a tiny language model."""
    trial.copy("")
    model = Path(shutil.copytree(trial.stage.home / "model", trial.folder / "model"))
    texts = trial.dice.sample(TEXTS, 8)
    how = trial.dice.choice(("texts", "labels", "keys", "file", "config"))
    rows = [{"text": f"t{i} {texts[i % 8] if how == 'texts' else ''}"[:60], "label": "ab"[i % 2]} for i in range(40)]
    if how == "labels":
        rows = [row | {"label": texts[i % 2][:20]} for i, row in enumerate(rows)]
    if how == "keys":
        rows = [{texts[0]: row["text"], "label": row["label"]} for row in rows]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    if how == "file":
        position = trial.dice.randrange(len(lines))
        lines = lines[:position] + trial.dice.choice(TEXTS).encode(errors="surrogatepass") + lines[position:]
    (trial.folder / "mine.jsonl").write_bytes(lines)
    if how == "config":
        config = json.loads((model / "config.json").read_text())
        odd = trial.dice.choice(
            (
                {"model_type": texts[0]},
                {"model_type": 7},
                {"model_type": None},
                {"n_layer": -1},
                {"n_embd": "x"},
                {"architectures": [texts[0]]},
                {"auto_map": {"AutoConfig": "evil--evil.Evil"}},
                {"n_positions": 0},
            )
        )
        (model / "config.json").write_text(json.dumps(config | odd))
        how = f"config {odd}"
    outcome = trial.run(LANGUAGE, limits=ROOMY)
    complaints = check_outcome(outcome, {0, 1, 2})
    if outcome.code == 0:
        complaints += _check_report(trial)
    return [f"lm, {how[:80]}: {c}" for c in complaints + _check_no_escape(trial)]


KINDS: dict[str, Kind] = {
    "a word on the command line": _option,
    "a number in a setting": _number,
    "texts of a card": _card,
    "rows from elsewhere": _foreign_rows,
    "lines of a stream": _lines,
    "another word on the command line": _option,
    "code that files name": _code,
    "a pickle": _pickle,
    "cells of a table": _user_csv,
    "links and odd folders": _links,
    "another line of a stream": _lines,
    "a huge size": _huge,
    "texts for a language model": _language,
    "terminal escapes": _escapes,
    "faults of a table": _table_faults,
}
