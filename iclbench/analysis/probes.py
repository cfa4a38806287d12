"""The metrics that score the layers of a model in the rows of probes."""

from __future__ import annotations

import pandas as pd

# Metrics of layers that are not scores: the fitted scale and shift, and the error before they are applied.
_FITTED = ("squared_error_raw", "scale", "shift", "scale_std", "shift_std")


def layer_scores(rows: pd.DataFrame) -> list[str]:
    """The metrics that score layers and their references, in the order of the rows: `squared_error` or, for streams,
    one metric per target."""
    is_score = rows["evaluator"].eq("probe") & rows["status"].eq("ok") & ~rows["metric"].isin(_FITTED)
    return [str(name) for name in rows.loc[is_score, "metric"].unique()]
