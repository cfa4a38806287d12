"""Select comparable rows, and name the variants of backbones.

Values are comparable if they were computed on the same frozen prompts, even if parts of the task card that do not
affect the prompts have changed. Runs are repetitions (seeds) of one contestant if they differ only in the training
seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.analysis.evaluators import is_test
from iclbench.core.formats import plural, shared_words
from iclbench.tables.evaluators import DIAGNOSTICS, POOL, PROBES, SOLUTIONS
from iclbench.tables.runs import replaced_rows

# Spans are treated as equal up to this relative difference, which rounding on different machines can cause. The spans
# of different prompts differ by more.
_SPAN_TOLERANCE = 1e-4


def retrained_runs(packed_rows: pd.DataFrame, local_rows: pd.DataFrame) -> tuple[set[str], tuple[str, ...]]:
    """The names of the packed runs that are replaced by a local run of the same name with other settings or weights,
    and a message for each of these runs."""
    replaced_packed_rows = replaced_rows(packed_rows, local_rows)
    lines = [
        f"{task} · {preset}: packed rows of run '{run}' are not used, as a local run of this name has other settings "
        "or weights"
        for task, preset, run in replaced_packed_rows[["task", "preset", "run"]]
        .drop_duplicates()
        .itertuples(index=False)
    ]
    return set(replaced_packed_rows["run"]), tuple(lines)


def drop_other_scales(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Remove scores whose scale differs from the scale of most runs with the same task, preset, shift, evaluator and
    prompt set.

    A scale consists of the metric of the score, the predictor that scores 1, and the span, which is the difference in
    the metric between the scores 0 and 1. Spans that differ only by rounding are treated as equal.

    Returns:
        The remaining rows, and a message for each combination of these keys with removed scores.
    """
    keys = ["task", "preset", "shift", "evaluator", "prompt_set"]
    scores = values[values["metric"].eq("score") & values["kind"].ne("published")]
    scores = scores.assign(reference=(scores["score_of"] + ": " + scores["score_one"]).fillna(""))
    scores = scores.assign(span=scores["normaliser"].astype(float).fillna(0.0))
    scores = scores.assign(span=_merged_spans(scores, [*keys, "reference"]))
    scale = ["reference", "span"]
    run_counts = scores.groupby([*keys, *scale], dropna=False)["run"].nunique().reset_index()
    most_used = run_counts.sort_values(["run", *scale], ascending=[False, True, True]).drop_duplicates(keys)
    main_scales = scores[keys].merge(most_used, "left", keys)
    other_scores = scores[(scores[scale].to_numpy() != main_scales[scale].to_numpy()).any(axis=1)]
    lines = [
        f"{contest[0]} · {contest[1]} · {contest[2]}: scores of {', '.join(sorted(set(contest_rows['run'])))} are not "
        "used, as they have another scale; evaluate these runs with the oracles and baselines of the task"
        for contest, contest_rows in other_scores.groupby(keys, dropna=False)
    ]
    return values.drop(index=other_scores.index).reset_index(drop=True), tuple(lines)


def _merged_spans(scores: pd.DataFrame, keys: list[str]) -> pd.Series:
    """The span of each row. Spans of rows with the same `keys` that differ only by rounding are replaced by the
    smallest of them."""
    sorted_scores = scores.sort_values("span")
    previous = sorted_scores.groupby(keys, dropna=False)["span"].shift()
    is_same = np.isclose(sorted_scores["span"], previous, rtol=_SPAN_TOLERANCE, atol=0)
    sorted_scores = sorted_scores.assign(span=sorted_scores["span"].mask(is_same))
    return sorted_scores.groupby(keys, dropna=False)["span"].ffill()


def drop_other_prompt_sets(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Remove rows that were not computed on the most used prompt set of their task, preset, shift and test.

    A prompt set of a task with a limited pool of truths is used only if other prompt sets are missing. Distances from
    known solutions are not compared between pools, so they are used for all pools.

    The name of a prompt set is a hash of everything that determines its episodes. The hash of the task card cannot
    replace it, because that hash changes whenever the size of another backbone is added to the card.

    Rows of baselines and oracles are also removed if no run with a known training length has the same prompts, but a
    run with other prompts has a known training length. This happens after a run is deleted, because the rows of its
    baselines and oracles remain. The same rule applies to distances from known solutions during training, because the
    training length of a run is unknown until the run is evaluated.

    Returns:
        The remaining rows, and a message for each removed prompt set.
    """
    values, lines = _drop_other_data(values)
    is_measured = values["kind"] != "published"
    # Runs that were trained with different numbers of examples have different prompts, unless a shift sets this number.
    is_diagnostic = values["evaluator"].isin(DIAGNOSTICS) & values["evaluator"].ne(SOLUTIONS)
    has_trained_length = ~is_diagnostic & values["extrapolated_to"].isna()
    lengths = trained_lengths(values).where(has_trained_length).fillna(0)
    values = values.assign(test=_prompt_groups(values), length=lengths)
    columns = ["task", "preset", "shift", "test", "length", "prompt_set"]
    rows = values[is_measured & values["prompt_set"].notna()]
    run_counts = rows.groupby(columns)["run"].nunique().reset_index()
    run_counts["is_pool"] = run_counts["prompt_set"].isin(_pool_prompt_sets(values))
    run_counts = run_counts.sort_values(["is_pool", "run", "prompt_set"], ascending=[True, False, True])
    group = columns[:4]
    longest = run_counts.groupby([*group, "prompt_set"])["length"].transform("max")
    is_orphan = longest.eq(0) & run_counts.groupby(group)["length"].transform("max").gt(0)
    is_less_used = run_counts.duplicated(columns[:-1])
    other_sets = run_counts.assign(is_less_used=is_less_used)[is_orphan | is_less_used]
    is_used = pd.Series(True, index=values.index)
    # Rows without a prompt set are kept, since groups have no missing values.
    positions = values.groupby(columns).indices if len(other_sets) else {}
    for other_set in other_sets.sort_values(columns).to_dict("records"):
        context = " · ".join(other_set[c] for c in ("task", "preset", "shift", "test") if other_set[c] != "prompts")
        is_other = pd.Series(False, index=values.index)
        is_other.iloc[positions[tuple(other_set[c] for c in columns)]] = True
        is_removed = is_measured & is_other
        if not other_set["is_less_used"]:
            is_removed &= values["kind"].ne("backbone") | values["evaluator"].eq(SOLUTIONS)
        if not is_removed.any():
            continue
        runs = values.loc[is_removed, "run"].nunique()
        rerun = f"{_rerun_verb(values[is_removed])} again"
        lines.append(
            f"{context}: {plural(runs, 'run')} on another prompt set ({other_set['prompt_set']}) cannot be used; "
            + ("its prompts are from another pool of truths" if other_set["is_pool"] else rerun)
        )
        is_used &= ~is_removed
    return values[is_used].drop(columns=["test", "length"]).reset_index(drop=True), tuple(lines)


def _drop_other_data(values: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Remove rows of runs whose training data differ from the evaluation data. Also return a message for each prompt
    set with removed rows."""
    is_other_data = values["trained_data"].notna()
    keys = ["task", "preset", "data", "trained_data", "prompt_set"]
    lines = [
        f"{task} · {preset}: rows of {prompt_set} are not used, as its data ({data}) differ from the training "
        f"data (fingerprint={trained})"
        for task, preset, data, trained, prompt_set in values.loc[is_other_data, keys]
        .drop_duplicates()
        .itertuples(index=False)
    ]
    return values[~is_other_data].reset_index(drop=True), lines


def _prompt_groups(values: pd.DataFrame) -> pd.Series:
    """The group of each row. All rows of a group should have the same prompts. Each test of a family is a group.
    Diagnostics have a group for each number of examples. Measurements during training and measurements for each size of
    a pool have separate groups. All other evaluators share the group "prompts"."""
    groups = values["evaluator"].where(is_test(values["evaluator"]), "prompts")
    probes = values["evaluator"].where(~values["evaluator"].isin(PROBES), "probe")
    groups = groups.where(
        ~values["evaluator"].isin(DIAGNOSTICS), probes + " of n = " + values["n_context"].astype("string")
    )
    groups = groups.fillna(values["evaluator"])
    sizes = values["axis_value"].astype("string").fillna("all")
    groups = groups.where(values["axis"].ne(POOL).fillna(True).astype(bool), groups + " of pool " + sizes)
    return groups.where(values["axis"].ne("train_step").fillna(True).astype(bool), groups + " in training")


def _pool_prompt_sets(values: pd.DataFrame) -> set[str]:
    """The prompt sets of tasks with a limited pool of truths."""
    is_limited = values["axis"].eq(POOL).fillna(False) & values["axis_value"].notna()
    return set(values.loc[is_limited, "prompt_set"].dropna())


def _rerun_verb(rows: pd.DataFrame) -> str:
    """The step that recomputes these rows, as a verb for a message: train, evaluate or probe."""
    if rows["evaluator"].eq(SOLUTIONS).any():
        return "train" if rows["length"].gt(0).any() else "evaluate"
    if rows["evaluator"].isin(DIAGNOSTICS).any():
        return "probe"
    return "train" if rows["axis"].eq("train_step").any() else "evaluate"


def name_variants(values: pd.DataFrame) -> pd.DataFrame:
    """Give each variant of a backbone its own contestant name.

    Runs of one backbone that were trained with the same number of examples are different variants if they differ in
    more than the seed (column `variant`). Runs with an unknown variant count as one variant. Two runs with the same
    variant and seed are not repetitions. In this case, each run of the variant becomes a contestant with the name of
    the run. The column `backbone` contains the original name. If a run was trained on another task, the name of its
    contestant gets the suffix `@TASK`.
    """
    values = values.assign(backbone=values["model"] + values["method"].fillna(""))
    keys = ["task", "preset", "contestant"]
    run_keys = ["task", "preset", "run"]
    variants = values.groupby(run_keys)["variant"].transform("first").fillna("")
    # A run that was trained on another task has the training length of the backbones on the same prompts.
    lengths = trained_lengths(values).fillna(0).groupby([values[key] for key in run_keys]).transform("max")
    is_training = values["kind"].eq("backbone") & (values["seed"].notna() | variants.ne(""))
    runs = values.assign(length=lengths, variant=variants)[is_training]
    runs = runs.assign(method=runs["method"].fillna(""))
    runs = runs[[*keys, "length", "variant", "seed", "run", "method"]].drop_duplicates()
    has_variants = runs.groupby([*keys, "length"])["variant"].transform("nunique").gt(1)
    varied_backbones = runs[has_variants][keys].drop_duplicates()
    repeated_runs = runs[runs.duplicated([*keys, "length", "variant", "seed"], keep=False)]
    names: dict[tuple[str, str, str], str] = {}
    for (task, preset, _), backbone_runs in runs.merge(varied_backbones, on=keys).groupby(keys):
        run_names = _variant_names(str(task), str(preset), backbone_runs)
        names |= {(str(task), str(preset), run): name for run, name in run_names.items()}
    repeated_runs = runs.merge(repeated_runs[[*keys, "variant"]].drop_duplicates(), on=[*keys, "variant"])
    names |= {(row["task"], row["preset"], row["run"]): row["run"] for row in repeated_runs.to_dict("records")}
    if not names:
        return values
    row_runs = zip(*(values[key].to_numpy(object) for key in run_keys), strict=True)
    contestants = pd.Series(row_runs, index=values.index).map(names).astype("string")
    contestants = contestants.where(values["trained_on"].isna(), contestants + "@" + values["trained_on"])
    return values.assign(contestant=contestants.fillna(values["contestant"]))


def _variant_names(task: str, preset: str, runs: pd.DataFrame) -> dict[str, str]:
    """The variant's name for each run of a backbone. A name that several variants share is followed by the first digits
    of the variant's hash."""
    names = {
        str(variant): variant_name(rows["run"].tolist(), rows["seed"].tolist(), task, preset, rows["method"].iloc[0])
        for variant, rows in runs.groupby("variant")
    }
    duplicates = {name for name in names.values() if list(names.values()).count(name) > 1}
    names = {v: f"{name} ({v[:4] or 'unknown'})" if name in duplicates else name for v, name in names.items()}
    return {str(run): names[str(v)] for run, v in zip(runs["run"], runs["variant"], strict=True)}


def variant_name(runs: Sequence[str], seeds: Sequence[int], task: str, preset: str, method: str = "") -> str:
    """The name of a variant: the words that the names of its runs have in common, without task, preset and seed,
    followed by the method. If they have no words in common, the alphabetically first run name is used.

    >>> variant_name(["bursty-coqe-noise-5-small-s0", "bursty-coqe-noise-5-small-s12"], [0, 12], "bursty", "small")
    'coqe-noise-5'
    >>> variant_name(["mine-s1"], [1], "bursty", "small"), variant_name(["left", "right"], [0, 1], "bursty", "small")
    ('mine', 'left')
    >>> variant_name(["linear-gpt2-wide-small-s0+deep-thinking"], [0], "linear", "small", "+deep-thinking")
    'gpt2-wide+deep-thinking'
    """
    trained_runs = [run.removesuffix(method) for run in runs]
    common = shared_words([run.removesuffix(f"-s{seed}") for run, seed in zip(trained_runs, seeds, strict=True)])
    stem = common.removeprefix(f"{task}-").removesuffix(f"-{preset}") or min(trained_runs)
    return stem + method


def trained_lengths(values: pd.DataFrame) -> pd.Series:
    """The number of examples per episode with which the run of each row was trained: the largest context size of the
    learning curve on the training distribution.

    For baselines and for runs that were trained on another task, it is the training length of the backbones on the same
    prompts. It is missing if it is unknown or differs between these backbones.
    """
    is_backbone = values["kind"].eq("backbone") & values["trained_on"].isna()
    is_curve = (
        is_backbone & (values["shift"] == "none") & values["axis"].isna() & ~values["evaluator"].isin(DIAGNOSTICS)
    )
    keys = ["task", "preset", "run"]
    by_run = values[is_curve].groupby(keys)["n_context"].max().rename("length")
    rows = values[[*keys, "prompt_set"]].merge(by_run, "left", keys).set_axis(values.index)
    by_prompt_set = rows[is_backbone].groupby("prompt_set")["length"].agg(["min", "max"])
    common_lengths = by_prompt_set["min"].where(by_prompt_set["min"] == by_prompt_set["max"])
    return rows["length"].where(is_backbone, rows["prompt_set"].map(common_lengths)).astype("Int64")
