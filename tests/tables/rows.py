"""Rows of the table `values` for tests, completed with the columns that names imply."""

import re
from typing import Any

_METHOD = re.compile(r"(.+?)(\+(?:deep-thinking|repeat).*)")
_EXTRAPOLATION = re.compile(r"(?:(.+)\+)?points-(\d+)")
_DEMONSTRATIONS = re.compile(r"-d(\d+)(?:-o(\d+))?-q?[0-9a-f]+$")
_CAUSAL = ("gpt2", "coqe", "mamba", "s4")
_SETS = ("cnp", "tnp", "pt-tnp", "lbanp", "cmanp", "icicl-cnp", "icicl-tnp")


def complete_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its missing columns about the contestant, the shift, the score and the demonstrations.

    >>> complete_row({"contestant": "lasso-1e-2", "kind": "baseline", "shift": "skewed+points-64"})["distribution"]
    'skewed'
    """
    name, shift = row["contestant"], row["shift"]
    trained_name, method = match.groups() if (match := _METHOD.fullmatch(name)) else (name, None)
    model = trained_name.removesuffix(f"@{row.get('trained_on')}")
    extrapolation = _EXTRAPOLATION.fullmatch(shift)
    columns: dict[str, Any] = {
        "model": re.sub(r"-\d.*", "", model) if row["kind"] in ("baseline", "oracle") else model,
        "method": method,
        "distribution": (extrapolation[1] or "none") if extrapolation else shift,
        "extrapolated_to": int(extrapolation[2]) if extrapolation else None,
    }
    if row["kind"] == "backbone" and row.get("evaluator") not in ("train", "probe"):
        columns["context_order"] = "causal" if model.startswith(_CAUSAL) else "set" if model.startswith(_SETS) else None
    if match := re.search(r"(?:^|\+)mismatch-([a-z]+)", shift):
        columns["related_from"] = match[1]
    if (axis := row.get("axis") or "").startswith("stratum:"):
        columns["stratum"] = axis.removeprefix("stratum:")
    if row.get("metric") == "score" and ": 1 is " in (row.get("reason") or ""):
        columns["score_of"], columns["score_one"] = row["reason"].split(": 1 is ")
    if row["preset"] == "language" and (match := _DEMONSTRATIONS.search(row.get("prompt_set") or "")):
        columns |= {"demo_seed": int(match[1]), "demo_order": int(match[2] or 0)}
    return columns | row
