"""Related datasets from files, on which the model of a stream is conditioned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch.nn.utils.rnn import pad_sequence

from iclbench.backbones.base import Backbone
from iclbench.core import limits
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.file_errors import cannot_read
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.stream import as_points


def read_related(backbone: Backbone, files: Sequence[Path], columns: LineFormat) -> Points:
    """Read one dataset per file, in the format of the stream. The result has shape `(1, J, N, .)` and is padded to the
    longest dataset.

    Raises:
        UsageError: the model does not use related datasets, or was trained with fewer related datasets than the number
            of files.
        DataError: a file cannot be read, has different columns from the stream, contains a query, or has no points.
    """
    max_related = backbone.shape.related if backbone.uses_related else 0
    if not max_related:
        raise UsageError(
            "--related: this model does not use related datasets; train icicl-tnp, icicl-cnp or a causal backbone on a "
            "task with related datasets, such as gp-mixture",
            code="not-applicable",
        )
    if len(files) > max_related:
        raise UsageError(
            f"--related: {len(files)} datasets, but this model was trained with at most {max_related}",
            code="not-applicable",
        )
    datasets = [_read(backbone, file, columns) for file in files]
    x, y, mask = (
        pad_sequence([getattr(dataset, field)[0] for dataset in datasets], batch_first=True)
        for field in ("x", "y", "mask")
    )
    return Points(x, y, mask).map(lambda t: t.unsqueeze(0))


def _read(backbone: Backbone, path: Path, columns: LineFormat) -> Points:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = list(columns.read(limits.lines(file, str(path)), str(path)))
    except OSError as error:
        raise cannot_read(path, error, "pass --related a file of points") from error
    query_number = next((line.number for line in lines if line.y is None), None)
    if query_number is not None:
        raise DataError(f"{path}, line {query_number}: related datasets cannot contain queries")
    if not lines:
        raise DataError(f"{path} has no points; remove this --related")
    return as_points(backbone, lines)
