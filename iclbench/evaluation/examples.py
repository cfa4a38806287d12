"""A few episodes of a prompt set with their predictions, for the figures of a report."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench import __version__, tables
from iclbench.core.answers import check_answer
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import NonFiniteError
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.runs import write_errors

EPISODES = 4
# Number of joint samples for the first episode. They are drawn at every `SPACING`-th display input, because noise that
# is independent between inputs is easier to see at fewer inputs.
DRAWS, SPACING = 5, 3


def prediction_rows(contestant: PredictorContestant, prompts: PromptSet, failed: Collection[int] = ()) -> pd.DataFrame:
    """Return rows of the table `examples` with the predictions of a contestant at the family's display inputs.

    If the contestant uses related datasets, the rows contain predictions with zero, one and all related datasets. For
    one-dimensional inputs, rows with the role `drawn` contain samples for the first episode without related datasets.
    The result is empty if the family has no display inputs, or if a context is longer than the contestant allows.

    Args:
        contestant: the contestant.
        prompts: the prompt set.
        failed: numbers of related datasets to skip, because the evaluation with them failed.

    Raises:
        NonFiniteError: an answer is NaN or infinite.
    """
    inputs = prompts.family.display_inputs()
    if inputs is None:
        return tables.frame("examples", [])
    episodes = prompts.episodes[:EPISODES].to(contestant.device)
    predictor = contestant.predictor
    if predictor.too_long(int(episodes.context.counts.max())):
        return tables.frame("examples", [])
    informed = predictor.informed(episodes.truth)
    informed_first = predictor.informed(episodes[:1].truth)
    max_count = prompts.family.related_sets if predictor.uses_related else 0
    counts = sorted({0, min(1, max_count), max_count} - set(failed))
    x = inputs.to(contestant.device).expand(len(episodes), -1, -1)
    shared = _shared_columns(prompts) | {
        "run": contestant.run,
        "contestant": contestant.name,
        "kind": contestant.kind,
        "seed": contestant.seed,
    }
    frames = []
    with torch.inference_mode():
        answers = informed.predict_by_related(episodes.context, x, episodes.related, counts)
        for count, answer in zip(counts, answers, strict=True):
            check_answer(informed, "predict_by_related", answer, x.shape, episodes.context.y)
            mean, ends = answer.point(), answer.interval(0.9)
            band = {} if ends is None else dict(zip(("low", "high"), ends, strict=True))
            if not all(values.isfinite().all() for values in (mean, *band.values())):
                raise NonFiniteError(f"an answer for the figures is not finite, with {count} related datasets")
            frames.append(_rows(shared | {"role": "predicted", "n_related": count}, x, mean, **band))
            if not count and band and x.shape[-1] == 1:
                sparse_inputs = x[:1, ::SPACING]
                # All contestants use the same random numbers.
                generator = torch.Generator(x.device).manual_seed(0)
                for index, values in enumerate(
                    informed_first.sample_targets(episodes.context[:1], sparse_inputs, DRAWS, generator)
                ):
                    frames.append(
                        _rows(shared | {"role": "drawn", "n_related": 0, "set": index}, sparse_inputs, values)
                    )
    return tables.frame("examples", pd.concat(frames, ignore_index=True) if frames else [])


def write_prompts(results: Path, prompts: PromptSet) -> None:
    """Write the points of the first episodes to the table `examples`, if the family has display inputs."""
    inputs = prompts.family.display_inputs()
    path = results / "tables" / prompts.id / "prompts.examples.parquet"
    if inputs is None or tables.is_intact(path):
        return
    with write_errors(results):
        tables.write("examples", _prompt_rows(prompts.episodes[:EPISODES], inputs, prompts), path, {})


def _prompt_rows(episodes: Episodes, inputs: Float[Tensor, "points Dx"], prompts: PromptSet) -> pd.DataFrame:
    shared = _shared_columns(prompts) | {"run": "prompts", "contestant": "prompts", "kind": "prompts"}
    frames = [
        _point_rows(shared | {"role": "context"}, episodes.context),
        _point_rows(shared | {"role": "target"}, episodes.queries),
    ]
    for index in range(0 if episodes.related is None else episodes.related.mask.shape[1]):
        related_set = episodes.related.map(lambda t: t[:, index])  # type: ignore[union-attr]  # noqa: B023
        frames.append(_point_rows(shared | {"role": "related", "set": index}, related_set))
    if "display" in episodes.truth:
        x = inputs.expand(len(episodes), -1, -1)
        frames.append(_rows(shared | {"role": "function"}, x, episodes.truth["display"]))
    return pd.concat(frames, ignore_index=True)


def _shared_columns(prompts: PromptSet) -> dict[str, object]:
    return {
        "task": prompts.task.name,
        "preset": prompts.preset,
        "shift": prompts.shift,
        "prompt_set": prompts.id,
        "version": __version__,
    }


def _point_rows(shared: dict[str, object], points: Points) -> pd.DataFrame:
    return _rows(shared, points.x, points.y, points.mask)


def _rows(
    shared: dict[str, object],
    x: Float[Tensor, "B N Dx"],
    y: Float[Tensor, "B N Dy"],
    mask: Tensor | None = None,
    **band: Float[Tensor, "B N Dy"],
) -> pd.DataFrame:
    """Return one row per valid point and output dimension."""
    batch, points, outputs = y.shape
    episode, point, output = np.indices((batch, points, outputs)).reshape(3, -1)
    valid = np.ones(len(episode), dtype=bool)
    if mask is not None:
        valid = mask.cpu().numpy()[episode, point]
    index = (episode[valid], point[valid])
    inputs = x.cpu().numpy()[index]
    columns: dict[str, object] = shared | {
        "episode": index[0],
        "point": index[1],
        "x1": inputs[:, 0],
        "x2": inputs[:, 1] if inputs.shape[1] > 1 else None,
        "output": output[valid],
    }
    for name, values in {"value": y, **band}.items():
        columns[name] = values.cpu().numpy()[(*index, output[valid])]
    frame = pd.DataFrame(columns).reindex(columns=list(tables.EXAMPLES))
    return frame.astype({name: dtype for name, (dtype, _, _) in tables.EXAMPLES.items()})
