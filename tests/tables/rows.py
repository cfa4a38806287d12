"""Rows of `values` that tests make up, with the columns that iclbench writes and that names repeat."""

import re
from typing import Any

_METHOD = re.compile(r"(.+?)(\+(?:deep-thinking|repeat).*)")
_LONGER = re.compile(r"(?:(.+)\+)?points-(\d+)")
_DEMONSTRATIONS = re.compile(r"-d(\d+)(?:-o(\d+))?-q?[0-9a-f]+$")
_CAUSAL = ("gpt2", "coqe", "mamba", "s4")
_SETS = ("cnp", "tnp", "pt-tnp", "lbanp", "cmanp", "icicl-cnp", "icicl-tnp")


def complete(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the columns about its contestant, shift, score and demonstrations that it lacks.

    >>> complete({"contestant": "lasso-1e-2", "kind": "baseline", "shift": "skewed+points-64"})["distribution"]
    'skewed'
    """
    name, shift = row["contestant"], row["shift"]
    plain, method = found.groups() if (found := _METHOD.fullmatch(name)) else (name, None)
    model = plain.removesuffix(f"@{row.get('trained_on')}")
    longer = _LONGER.fullmatch(shift)
    more: dict[str, Any] = {
        "model": re.sub(r"-\d.*", "", model) if row["kind"] in ("baseline", "oracle") else model,
        "method": method,
        "distribution": (longer[1] or "none") if longer else shift,
        "extrapolated_to": int(longer[2]) if longer else None,
    }
    if row["kind"] == "backbone" and row.get("evaluator") not in ("train", "probe"):
        more["context_order"] = "causal" if model.startswith(_CAUSAL) else "set" if model.startswith(_SETS) else None
    if found := re.search(r"(?:^|\+)mismatch-([a-z]+)", shift):
        more["related_from"] = found[1]
    if (axis := row.get("axis") or "").startswith("stratum:"):
        more["stratum"] = axis.removeprefix("stratum:")
    if row.get("metric") == "score" and ": 1 is " in (row.get("reason") or ""):
        more["score_of"], more["score_one"] = row["reason"].split(": 1 is ")
    if row["preset"] == "language" and (found := _DEMONSTRATIONS.search(row.get("prompt_set") or "")):
        more |= {"demo_seed": int(found[1]), "demo_order": int(found[2] or 0)}
    return more | row
