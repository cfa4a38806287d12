"""Which rows may stand beside each other, and which runs are repetitions of one another.

Numbers are comparable when they were scored on the same frozen prompts, whatever else has changed in the card. Runs
are repetitions (seeds) of one contestant when what was trained differs in nothing but the seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.analysis.evaluators import is_test
from iclbench.core.formats import plural, shared_words
from iclbench.tables.evaluators import INSIDE, PROBES
from iclbench.tables.runs import replaced_rows

# Machines round differently; what is drawn differs by more.
_SAME_SPAN = 1e-4


def trained_again(packed: pd.DataFrame, own: pd.DataFrame) -> tuple[set[str], tuple[str, ...]]:
    """The packed runs that the user has trained otherwise under the same name, and one line for each."""
    other = replaced_rows(packed, own)
    lines = [
        f"{task} · {preset}: packed rows of run '{run}' left out, as a run of this name was trained here under other "
        "settings or has other weights"
        for task, preset, run in other[["task", "preset", "run"]].drop_duplicates().itertuples(index=False)
    ]
    return set(other["run"]), tuple(lines)


def on_one_line(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows without scores that were measured against another best or another span than most of their contest, and
    one line per contest that lost some. Spans that differ by rounding alone, since they were measured on other
    machines, are the same."""
    keys = ["task", "preset", "shift", "evaluator", "prompt_set"]
    scores = values[values["metric"].eq("score") & values["kind"].ne("published")]
    scores = scores.assign(line=(scores["score_of"] + ": " + scores["score_one"]).fillna(""))
    scores = scores.assign(span=scores["normaliser"].astype(float).fillna(0.0))
    scores = scores.assign(span=_alike(scores, [*keys, "line"]))
    users = scores.groupby([*keys, "line", "span"], dropna=False)["run"].nunique().reset_index()
    users = users.sort_values(["run", "line", "span"], ascending=[False, True, True]).drop_duplicates(keys)
    most = scores[keys].merge(users, "left", keys)
    columns = ["line", "span"]
    others = scores[(scores[columns].to_numpy() != most[columns].to_numpy()).any(axis=1)]
    lines = [
        f"{where[0]} · {where[1]} · {where[2]}: scores of {', '.join(sorted(set(own['run'])))} left out, which were "
        "measured against another best; evaluate them beside the oracles and baselines of the task"
        for where, own in others.groupby(keys, dropna=False)
    ]
    return values.drop(index=others.index).reset_index(drop=True), tuple(lines)


def _alike(scores: pd.DataFrame, keys: list[str]) -> pd.Series:
    """The span of every row; of those of one line that differ by rounding alone the smallest stands for all."""
    rising = scores.sort_values("span", kind="stable")
    lower = rising.groupby(keys, dropna=False)["span"].shift()
    same = np.isclose(rising["span"], lower, rtol=_SAME_SPAN, atol=0)
    rising = rising.assign(span=rising["span"].mask(same))
    return rising.groupby(keys, dropna=False)["span"].ffill()


def comparable(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows on the most used prompt set of each task, preset, shift and test, and one line per group left out.

    A prompt set is named after everything that the episodes depend on. The card's hash is no such name: it changes with
    the size of a backbone that is added.
    """
    values, lines = _on_trained_data(values)
    own = values["kind"] != "published"
    probed = values["evaluator"].isin(INSIDE)
    # Runs trained with different numbers of examples differ in their prompts too, unless they are all evaluated up to
    # the same one.
    alone = ~probed & values["extrapolated_to"].isna()
    values = values.assign(test=_tests(values), length=trained_with(values).where(alone).fillna(0))
    columns = ["task", "preset", "shift", "test", "length", "prompt_set"]
    rows = values[own & values["prompt_set"].notna()]
    users = rows.groupby(columns)["run"].nunique().reset_index()
    users = users.sort_values(["run", "prompt_set"], ascending=[False, True])
    others = users[users.duplicated(columns[:-1])].sort_values(columns)
    keep = pd.Series(True, index=values.index)
    for other in others.to_dict("records"):
        where = [other[c] for c in ("task", "preset", "shift", "test") if other[c] != "prompts"]
        left_out = f"{plural(other['run'], 'run')} on another prompt set ({other['prompt_set']}) left out"
        dropped = own & (values[columns] == pd.Series(other)[columns]).all(axis=1)
        again = _again(values[dropped.fillna(False).astype(bool)])
        lines.append(f"{' · '.join(where)}: {left_out}; {again} again")
        keep &= ~dropped.fillna(False).astype(bool)
    return values[keep].drop(columns=["test", "length"]).reset_index(drop=True), tuple(lines)


def _on_trained_data(values: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of runs on the data that they were trained on, and one line per prompt set of other data."""
    changed = values["trained_data"].notna()
    keys = ["task", "preset", "data", "trained_data", "prompt_set"]
    sets = values.loc[changed, keys].drop_duplicates()
    lines = [
        f"{task} · {preset}: rows of {prompt_set} left out, whose data ({data}) are not those of the training "
        f"(fingerprint={trained})"
        for task, preset, data, trained, prompt_set in sets.itertuples(index=False)
    ]
    return values[~changed].reset_index(drop=True), lines


def _tests(values: pd.DataFrame) -> pd.Series:
    """What has prompts of its own at one shift: a probe, for each number of examples; each test of a family; and both
    once more where they are asked in training."""
    names = values["evaluator"].where(is_test(values["evaluator"]), "prompts")
    probes = values["evaluator"].where(~values["evaluator"].isin(PROBES), "probe")
    names = names.where(~values["evaluator"].isin(INSIDE), probes + " of n = " + values["n_context"].astype("string"))
    names = names.fillna(values["evaluator"])
    return names.where(values["axis"].ne("train_step").fillna(True).astype(bool), names + " in training")


def _again(rows: pd.DataFrame) -> str:
    """What repeats these rows: to evaluate, to probe or to train."""
    if rows["evaluator"].isin(INSIDE).any():
        return "probe"
    return "train" if rows["axis"].eq("train_step").any() else "evaluate"


def name_variants(values: pd.DataFrame) -> pd.DataFrame:
    """A contestant is what was trained, whatever the seed: where the runs of a backbone, trained with one number of
    examples, differ in anything else (column `variant`), each variant gets a name of its own.

    Runs that share variant and seed, or of which only the seed is known (tables without `variant`) and shared, are no
    repetitions of one another: they go by their own names, and nothing is averaged over them. The column `backbone`
    keeps the name that all of them had. Runs of another task keep `@TASK` behind whatever they are called.
    """
    elsewhere = values["trained_on"].notna()
    values = values.assign(backbone=values["model"] + values["method"].fillna(""))
    keys = ["task", "preset", "contestant"]
    known = values.groupby(["task", "preset", "run"])["variant"].transform("first").fillna("")
    # What a run is asked about on another task has the length of the prompts there.
    of_run = [values[key] for key in ("task", "preset", "run")]
    length = trained_with(values).fillna(0).groupby(of_run).transform("max")
    trained = values["seed"].notna() | known.ne("")
    runs = values.assign(length=length, variant=known)[values["kind"].eq("backbone") & trained]
    runs = runs.assign(method=runs["method"].fillna(""))
    runs = runs[[*keys, "length", "variant", "seed", "run", "method"]].drop_duplicates()
    several = runs.groupby([*keys, "length"])["variant"].transform("nunique").gt(1)
    varied = runs[several][keys].drop_duplicates()
    twice = runs[runs.duplicated([*keys, "length", "variant", "seed"], keep=False)]
    names: dict[tuple[str, str, str], str] = {}
    for (task, preset, _), own in runs.merge(varied, on=keys).groupby(keys):
        labels = _labels(str(task), str(preset), own)
        names |= {(str(task), str(preset), run): name for run, name in labels.items()}
    same = runs.merge(twice[[*keys, "variant"]].drop_duplicates(), on=[*keys, "variant"])
    names |= {(row["task"], row["preset"], row["run"]): row["run"] for row in same.to_dict("records")}
    if not names:
        return values
    named = pd.Series(zip(values["task"], values["preset"], values["run"], strict=True), index=values.index).map(names)
    named = named.astype("string")
    named = named.where(~elsewhere, named + "@" + values["trained_on"])
    return values.assign(contestant=named.fillna(values["contestant"]))


def _labels(task: str, preset: str, runs: pd.DataFrame) -> dict[str, str]:
    """For every run of a varied backbone the name of its variant; two that would share one carry their hashes."""
    labels = {
        str(variant): label(own["run"].tolist(), own["seed"].tolist(), task, preset, str(own["method"].iloc[0]))
        for variant, own in runs.groupby("variant")
    }
    shared = {name for name in labels.values() if list(labels.values()).count(name) > 1}
    labels = {v: f"{name} ({v[:4] or 'unknown'})" if name in shared else name for v, name in labels.items()}
    return {str(run): labels[str(v)] for run, v in zip(runs["run"], runs["variant"], strict=True)}


def label(runs: Sequence[str], seeds: Sequence[int], task: str, preset: str, method: str = "") -> str:
    """The name of a variant: what its runs' names share, without task, preset and seed, which stand elsewhere; the
    method comes last.

    >>> label(["bursty-coqe-noise-5-small-s0", "bursty-coqe-noise-5-small-s12"], [0, 12], "bursty", "small")
    'coqe-noise-5'
    >>> label(["mine-s1"], [1], "bursty", "small"), label(["left", "right"], [0, 1], "bursty", "small")
    ('mine', 'left')
    >>> label(["linear-gpt2-wide-small-s0+deep-thinking"], [0], "linear", "small", "+deep-thinking")
    'gpt2-wide+deep-thinking'
    """
    trained = [run.removesuffix(method) for run in runs]
    common = shared_words([run.removesuffix(f"-s{seed}") for run, seed in zip(trained, seeds, strict=True)])
    stem = common.removeprefix(f"{task}-").removesuffix(f"-{preset}") or min(trained)
    return stem + method


def trained_with(values: pd.DataFrame) -> pd.Series:
    """For every row how many examples its run was trained with: where the run's in-distribution curve ends.

    Baselines are not trained, and runs of another task were trained otherwise: they go with the backbones on the same
    prompts, if those agree. Missing where it is not known or where all lengths share the row.
    """
    backbone = values["kind"].eq("backbone") & values["trained_on"].isna()
    curve = backbone & (values["shift"] == "none") & values["axis"].isna() & ~values["evaluator"].isin(INSIDE)
    keys = ["task", "preset", "run"]
    of_run = values[curve].groupby(keys)["n_context"].max().rename("trained").reset_index()
    found = values[[*keys, "prompt_set"]].merge(of_run, "left", keys).set_axis(values.index)
    of_prompts = found[backbone].groupby("prompt_set")["trained"].agg(["min", "max"])
    agreed = of_prompts["min"].where(of_prompts["min"] == of_prompts["max"])
    return found["trained"].where(backbone, found["prompt_set"].map(agreed)).astype("Int64")
