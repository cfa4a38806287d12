"""Hand-made rows of the table `values`, and the results and slices that consist of them."""

from collections.abc import Sequence

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.slices import Results, Slice

Row = dict[str, object]

SHARED: Row = {"task": "t", "family": "f", "preset": "smoke", "shift": "none", "status": "ok", "prompt_set": "p"}
SHARED |= {"card": "c", "version": "0"}
MODEL = SHARED | {"kind": "backbone", "run": "m-s0", "contestant": "m", "value": 1.0}
ZERO = SHARED | {"kind": "baseline", "run": "zero", "contestant": "zero", "value": 1.0}
FAILED: Row = {"status": "failed", "reason": "r", "value": None}


def results_of(rows: Sequence[Row], errors: Sequence[Row] = (), hidden: Sequence[Row] = ()) -> Results:
    frame, hidden_frame = (tables.frame("values", list(part)) for part in (rows, hidden))
    hidden_frame.index += len(frame)
    scores = EpisodeScores([tables.frame("errors", list(errors))], {str(row["prompt_set"]) for row in rows})
    return Results(frame, scores, tables.frame("costs", []), hidden_rows=hidden_frame)


def slice_of(*rows: Row, length: int | None = None) -> Slice:
    return Slice(results_of(rows), "t", "smoke", length)
