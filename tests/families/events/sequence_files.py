"""Writers of event sequences in all formats, independent of the readers."""

import json

import numpy as np

HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


def sequences(count=12, longest=9, kinds=4, seed=0):
    """Draw times and marks of `count` sequences of 1 to `longest` events. Times are multiples of 1/64, so that sums
    and differences are exact."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    times = [np.cumsum(rng.integers(1, 200, n)) / 64 for n in lengths]
    marks = [rng.integers(0, kinds, n) for n in lengths]
    marks[0][0] = kinds - 1
    return times, marks


def npz_arrays(times, marks):
    """Return the arrays in the format of Meta TPP."""
    longest = max(map(len, times))
    arrays = {name: np.zeros((len(times), longest), dtype=np.float32) for name in ("times", "marks", "masks")}
    for row, (row_times, row_marks) in enumerate(zip(times, marks, strict=True)):
        gaps = row_times - np.concatenate([[0.0], row_times[:-1]])
        for name, values in (("times", gaps), ("marks", row_marks + 1), ("masks", np.ones(len(gaps)))):
            arrays[name][row, : len(gaps)] = values
    return arrays


def write_npz(path, times, marks):
    np.savez(path, **npz_arrays(times, marks))
    return path


def write_jsonl(path, times, marks=None, ends=None):
    records = [{"times": list(map(float, sequence))} for sequence in times]
    for index, record in enumerate(records):
        if marks is not None:
            record["marks"] = list(map(int, marks[index]))
        if ends is not None and ends[index] is not None:
            record["end"] = ends[index]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_jodie(path, times, marks, features=4):
    """Write the rows of all users in order of time. The header has a single column for all `features` features."""
    rows = [
        (float(t), index, user, k)
        for user, sequence in enumerate(zip(times, marks, strict=True))
        for index, (t, k) in enumerate(zip(*sequence, strict=True))
    ]
    lines = [f"u{user},{k},{t!r},0,{','.join(['0.5'] * features)}" for t, _, user, k in sorted(rows)]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path
