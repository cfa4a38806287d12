"""A synthetic results folder with tasks of the question `targets`.

`gp-mixture` has related datasets, oracles, strata, shifts and one input; `image-completion` has images of 8 x 8 pixels.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import __version__, tables
from tests.tables.rows import complete_row

EPISODES, SIDE, DRAWS = 64, 8, 5
# Kind, whether related datasets are used, and log-likelihood without them, for each contestant.
GP = {
    "oracle-kernel": ("oracle", False, -0.3),
    "oracle-bayes": ("oracle", True, -0.4),
    "icicl-tnp": ("backbone", True, -0.6),
    "pt-tnp": ("backbone", False, -0.6),
    "cnp": ("backbone", False, -0.8),
    "knn-3": ("baseline", False, None),
}
IMAGES = {
    "icicl-tnp": ("backbone", True, 0.7),
    "cnp": ("backbone", False, 0.4),
    "mean": ("baseline", False, None),
}
MAX_RELATED = {"gp-mixture": 3, "image-completion": 2}
SHIFTS = {
    "gp-mixture": ["none", "ood-lengthscale", "mismatch-same", "mismatch-rbf", "mismatch-near", "mismatch-far"],
    "image-completion": ["none", "other-label"],
}
PUBLISHED = {0: -0.607, 1: -0.499, 5: -0.466}


def write(folder: Path) -> Path:
    """Write the folder and return it."""
    for task, contestants in (("gp-mixture", GP), ("image-completion", IMAGES)):
        for shift in SHIFTS[task]:
            values, frames = [], []
            for name in contestants:
                rows, errors = _scores(task, name, shift)
                values += rows
                frames.append(errors)
            tables_folder = folder / "tables" / prompt_set(task, shift)
            if shift == "none":
                tables.write("errors", pd.concat(frames), tables_folder / "all.errors.parquet", {})
                values += _published() if task == "gp-mixture" else []
            tables.write("values", values, tables_folder / "all.values.parquet", {})
            drawn = [_prompts(task, shift), *(_predictions(task, name, shift) for name in contestants)]
            examples = tables.frame("examples", pd.concat(drawn, ignore_index=True))
            tables.write("examples", examples, tables_folder / "all.examples.parquet", {})
    return folder


def prompt_set(task: str, shift: str) -> str:
    return f"{task}-small-{shift}-0"


def run_of(task: str, contestant: str) -> str:
    kind = (GP if task == "gp-mixture" else IMAGES)[contestant][0]
    return f"{task}-{contestant}-small-s0" if kind == "backbone" else contestant


def context_sizes(task: str) -> np.ndarray:
    """Return the number of context points of each episode."""
    rng = np.random.default_rng(len(task))
    return rng.integers(1, 65 if task == "gp-mixture" else SIDE * SIDE // 2, EPISODES)


def log_likelihoods(task: str, contestant: str, shift: str = "none") -> dict[int, np.ndarray]:
    """Return the log-likelihood of each episode by number of related datasets."""
    _, uses_related, level = (GP if task == "gp-mixture" else IMAGES)[contestant]
    assert level is not None
    # Episodes are equally difficult for all contestants, so that paired intervals are narrower than unpaired ones.
    difficulty = np.random.default_rng(len(shift)).normal(0, 0.5, EPISODES) + 0.1 * np.log(context_sizes(task))
    noise = np.random.default_rng([ord(c) for c in contestant]).normal(0, 0.02, EPISODES)
    gain = -0.2 if shift == "mismatch-far" else 0.0 if contestant == "oracle-kernel" else 0.1
    counts = range(MAX_RELATED[task] + 1) if uses_related else [0]
    return {n: level + difficulty + noise + gain * (1 - 0.3**n) - 0.2 * (shift == "ood-lengthscale") for n in counts}


def joint(contestant: str, marginal: np.ndarray) -> np.ndarray:
    """Return joint log-likelihoods per target. Only oracles use the dependence between targets."""
    return marginal + 0.3 * contestant.startswith("oracle")


def _row(task: str, contestant: str, kind: str, run: str, shift: str, **columns: object) -> dict[str, object]:
    row = {
        "run": run,
        "task": task,
        "family": task.replace("-", "_"),
        "contestant": contestant,
        "kind": kind,
        "preset": "small",
        "seed": 0 if kind == "backbone" else None,
        "shift": shift,
        "evaluator": "targets",
        "n_episodes": EPISODES,
        "normaliser": 1.0,
        "status": "ok",
        "prompt_set": prompt_set(task, shift),
        "card": "c0ffee",
        "version": __version__,
        **columns,
    }
    return complete_row(row)


def episode_groups(task: str) -> list[tuple[dict[str, object], np.ndarray]]:
    """Return the groups of episodes over which scores are averaged: pairs of the columns of their rows and a mask."""
    sizes, groups = context_sizes(task), [({}, np.ones(EPISODES, dtype=bool))]
    for low, end in ((1, 4), (5, 16), (17, 64)):
        groups.append(({"axis": "n_context", "axis_value": float(end)}, (sizes >= low) & (sizes <= end)))
    if task == "gp-mixture":
        for i, name in enumerate(("rbf", "periodic")):
            groups.append(({"axis": f"stratum:{name}"}, np.arange(EPISODES) % 2 == i))
    return groups


def _scores(task: str, contestant: str, shift: str) -> tuple[list[dict[str, object]], pd.DataFrame]:
    """Return rows of the tables `values` and `errors`."""
    kind, _, level = (GP if task == "gp-mixture" else IMAGES)[contestant]
    run = run_of(task, contestant)
    metrics: dict[str, dict[int, np.ndarray]] = {"squared_error": {0: np.full(EPISODES, 0.7)}}
    if level is not None:
        likelihoods = log_likelihoods(task, contestant, shift)
        metrics = {
            "log_likelihood": likelihoods,
            "squared_error": {n: np.exp(-2 * s) / 2 for n, s in likelihoods.items()},
            "covered_50": {n: np.full(EPISODES, 0.52) for n in likelihoods},
            "covered_90": {n: np.full(EPISODES, 0.881) for n in likelihoods},
        }
        if task == "gp-mixture" and contestant != "oracle-kernel":
            best = log_likelihoods(task, "oracle-kernel", shift)[0]
            metrics["gap"] = {n: best - s for n, s in likelihoods.items()}
        metrics["log_likelihood_joint"] = {n: joint(contestant, s) for n, s in likelihoods.items()}
        if "gap" in metrics:
            joint_likelihoods = metrics["log_likelihood_joint"].items()
            metrics["gap_joint"] = {n: joint("oracle-kernel", best) - s for n, s in joint_likelihoods}
    rows, errors = [], []
    for metric, by_n_related in metrics.items():
        for n, scores in by_n_related.items():
            for columns, in_group in episode_groups(task):
                mean, half = scores[in_group].mean(), 1.96 * scores[in_group].std() / np.sqrt(in_group.sum())
                columns = columns | {"metric": metric, "n_related": n}
                columns |= {"value": mean, "low": mean - half, "high": mean + half}
                rows.append(_row(task, contestant, kind, run, shift, **columns))
            if metric not in ("gap", "gap_joint"):
                episodes = {"episode": np.arange(EPISODES), "value": scores, "n_context": context_sizes(task)}
                errors.append(pd.DataFrame(episodes | {"metric": metric, "n_related": n}))
    return rows, pd.concat(errors).assign(run=run, prompt_set=prompt_set(task, shift))


def _published() -> list[dict[str, object]]:
    return [
        _row(
            "gp-mixture",
            "icicl-tnp",
            "published",
            "published",
            "none",
            metric="log_likelihood",
            n_related=n,
            value=value,
            preset="paper",
            prompt_set=None,
            n_episodes=None,
            reason="table 1",
        )
        for n, value in PUBLISHED.items()
    ]


def image(episode: int) -> np.ndarray:
    """Return the pixels of an episode's image in [0, 1], row by row. The image is a white bar on black."""
    pixels = np.zeros((SIDE, SIDE))
    pixels[:, episode] = 1.0
    return pixels.ravel()


def _inputs(task: str) -> pd.DataFrame:
    """Return the inputs of predictions."""
    if task == "gp-mixture":
        return pd.DataFrame({"x1": np.linspace(-4, 4, 33), "x2": None})
    rows, columns = np.divmod(np.arange(SIDE * SIDE), SIDE)
    return pd.DataFrame({"x1": np.linspace(-1, 1, SIDE)[rows], "x2": np.linspace(-1, 1, SIDE)[columns]})


def _truth(task: str, episode: int) -> pd.DataFrame:
    """Return the true values at `_inputs`."""
    inputs = _inputs(task)
    value = np.sin(inputs["x1"].astype(float) + episode) if task == "gp-mixture" else image(episode)
    return inputs.assign(value=value, point=np.arange(len(inputs)), episode=episode, output=0)


def _prompts(task: str, shift: str) -> pd.DataFrame:
    shared = {
        "run": "prompts",
        "contestant": "prompts",
        "kind": "prompts",
        "task": task,
        "preset": "small",
        "shift": shift,
        "prompt_set": prompt_set(task, shift),
        "version": __version__,
    }
    frames = []
    for episode in range(2):
        truth = _truth(task, episode)
        is_context = truth["point"] % 4 == 0
        frames += [truth[is_context].assign(role="context"), truth[~is_context].assign(role="target")]
        frames.append(truth[truth["point"] % 2 == 0].assign(role="related", set=0))
    return pd.concat(frames).assign(**shared)


def _predictions(task: str, contestant: str, shift: str) -> pd.DataFrame:
    kind, uses_related, level = (GP if task == "gp-mixture" else IMAGES)[contestant]
    shared = {
        "run": run_of(task, contestant),
        "contestant": contestant,
        "kind": kind,
        "task": task,
        "preset": "small",
        "seed": 0 if kind == "backbone" else None,
        "shift": shift,
        "prompt_set": prompt_set(task, shift),
        "version": __version__,
    }
    frames = []
    for episode in range(2):
        for n in sorted({0, 1, MAX_RELATED[task]} if uses_related else {0}):
            rows = _truth(task, episode).assign(n_related=n, role="predicted")
            rows["value"] *= 0.5 + 0.1 * n
            half = 0.5 - 0.1 * n
            frames.append(rows if level is None else rows.assign(low=rows["value"] - half, high=rows["value"] + half))
    if task == "gp-mixture" and shift == "none" and level is not None:
        for sample in range(DRAWS):
            rows = _truth(task, 0).assign(n_related=0, role="drawn", set=sample)
            frames.append(rows.assign(value=rows["value"] + 0.1 * sample))
    return pd.concat(frames).assign(**shared)
