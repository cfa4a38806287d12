"""Episodes from files of event sequences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from iclbench.core.events import GAP, MARK, TIME
from iclbench.families.events.sequences import EventParameters, Events
from iclbench.families.request import Request
from tests.families.events import sequence_files
from tests.families.sampling import new_generator
from tests.refusals import refused


def build_family(path, **parameters):
    return Events(EventParameters(path=str(path), **parameters))


@pytest.fixture
def file(tmp_path):
    return sequence_files.write_jsonl(tmp_path / "events.jsonl", *sequence_files.sequences(count=40))


def all_sequences(events, points=9):
    """Sample all sequences of a part. Return the row of each sequence by its number in the file, and the episodes."""
    count = {"train": 24, "validation": 8, "test": 8}[events._part]
    episodes = events.sample_prompts(Request(count, points, new_generator()))
    return dict(zip(episodes.truth["sequence"].tolist(), range(count), strict=True)), episodes


def test_episodes_are_sequences_with_padding_at_the_end(file):
    times, marks = sequence_files.sequences(count=40)
    for part in (build_family(file), build_family(file).held_out(), build_family(file).validation()):
        rows, episodes = all_sequences(part)
        assert episodes.context.x.shape == (len(rows), 9, 0) and episodes.context.y.dtype == torch.float32
        for number, row in rows.items():
            n, y = len(times[number]), episodes.context.y[row]
            assert episodes.context.mask[row].tolist() == [i < n for i in range(9)]
            np.testing.assert_array_equal(y[:n, TIME], times[number].astype(np.float32))
            np.testing.assert_array_equal(y[:n, GAP], np.diff(times[number], prepend=0.0).astype(np.float32))
            assert y[:n, MARK].tolist() == marks[number].tolist()
            assert (y[n:] == torch.tensor([1.0, 0.0, 0.0])).all()
            assert episodes.truth["event"][row] == sum(map(len, times[:number]))
        assert torch.equal(episodes.scored, episodes.context.mask)


def test_longer_sequences_are_truncated(file):
    complete, truncated = (all_sequences(build_family(file), points)[1] for points in (9, 4))
    torch.testing.assert_close(truncated.context.y, complete.context.y[:, :4], atol=0, rtol=0)
    assert torch.equal(truncated.scored, complete.scored[:, :4])


def test_parts_do_not_overlap_and_have_60_20_and_20_percent_of_the_sequences(file):
    events = build_family(file)
    parts = [set(all_sequences(part)[0]) for part in (events, events.validation(), events.held_out())]
    assert [len(part) for part in parts] == [24, 8, 8] and len(set.union(*parts)) == 40
    assert set(all_sequences(build_family(file, split_seed=1))[0]) != parts[0]
    assert set(all_sequences(build_family(file))[0]) == parts[0]
    events = build_family(file, split="file")
    parts = [sorted(all_sequences(part)[0]) for part in (events, events.validation(), events.held_out())]
    assert parts == [list(range(24)), list(range(24, 32)), list(range(32, 40))]


def test_parts_in_file_order_have_the_same_sizes_as_in_the_released_code(tmp_path):
    """In the code of Meta TPP, 0.6 S of S sequences are for training and 0.2 S for validation (both rounded down). The
    remaining sequences are for testing. Mooc has 4,228, 1,409 and 1,410 sequences in these parts."""
    for count, sizes in ((7047, [4228, 1409, 1410]), (10_000, [6000, 2000, 2000]), (13, [7, 2, 4])):
        np.savez(tmp_path / "events.npz", times=np.ones((count, 1)))
        events = build_family(tmp_path / "events.npz", split="file")
        assert [len(events._sequences(part)) for part in ("train", "validation", "test")] == sizes


def test_training_draws_with_replacement_and_prompts_have_a_fixed_order(file):
    events = build_family(file)
    sequence_numbers = events.sample(Request(4800, 9, new_generator())).truth["sequence"]
    counts = torch.bincount(sequence_numbers, minlength=40)
    assert set(counts.nonzero().flatten().tolist()) == set(all_sequences(events)[0])
    assert (counts[counts > 0] - 200).abs().max() < 5 * (200 * 23 / 24) ** 0.5
    assert torch.equal(sequence_numbers, events.sample(Request(4800, 9, new_generator())).truth["sequence"])
    assert not torch.equal(sequence_numbers, events.sample(Request(4800, 9, new_generator(1))).truth["sequence"])
    requests = [Request(10, 9, new_generator(n), before=10 * n) for n in range(5)]
    order = torch.cat([events.sample_prompts(request).truth["sequence"] for request in requests])
    assert len(set(order[:24].tolist())) == 24
    assert torch.equal(order[24:48], order[:24]), "sequences repeat after all were used"


def test_a_prompt_set_contains_every_sequence_of_the_part_once(tmp_path):
    """Each block of 64 prompts continues where the previous one ended."""
    from iclbench.config.resolution import TaskConfig
    from iclbench.evaluation.prompts import PromptSet

    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", *sequence_files.sequences(count=1000, longest=3))
    task = TaskConfig(
        name="mine",
        card="0",
        family="events",
        code=1,
        parameters={"path": str(path)},
        head="event",
        points=3,
        episodes=200,
    )
    prompts = PromptSet(task, "smoke", built_family=build_family(path).held_out())
    assert len(set(prompts.episodes.truth["sequence"].tolist())) == 200
    validation = PromptSet(task, "smoke", built_family=build_family(path).validation())
    larger = replace(validation, task=task.model_copy(update={"episodes": 300}))
    assert len(validation.episodes) == len(larger.episodes) == 200, "repeated episodes do not make scores more precise"


def test_open_intervals_are_points_that_are_not_scored(tmp_path):
    times = [[1.0, 2.5], [4.0], [1.0, 2.0, 3.0, 4.0]] * 4
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", times, ends=[3.0, None, 9.0] * 4)
    episodes = build_family(path, time_scale=0.5, split="file").sample_prompts(Request(7, 4, new_generator()))
    rows = dict(zip(episodes.truth["sequence"].tolist(), range(7), strict=True))
    censored, plain, full = (rows[number] for number in (0, 1, 2))
    assert episodes.context.y[censored].tolist() == [[2, 0, 2], [3, 0, 5], [1, -1, 6], [1, 0, 0]]
    assert episodes.context.mask[censored].tolist() == [True, True, True, False]
    assert episodes.scored[censored].tolist() == [True, True, False, False]
    assert episodes.context.mask[plain].tolist() == episodes.scored[plain].tolist() == [True, False, False, False]
    assert (episodes.context.y[full, :, MARK] == 0).all() and episodes.scored[full].all(), (
        "the open interval is truncated"
    )


def test_times_are_in_units_of_the_time_scale(file):
    plain, scaled = (
        build_family(file, time_scale=scale).sample(Request(30, 9, new_generator())).context for scale in (1.0, 0.25)
    )
    factors = {GAP: 4, MARK: 1, TIME: 4}
    for column, factor in factors.items():
        assert torch.equal(scaled.y[..., column][plain.mask], factor * plain.y[..., column][plain.mask])
    events = build_family(file, time_scale="mean-gap")
    _, episodes = all_sequences(events)
    assert episodes.context.y[..., GAP][episodes.scored].mean().item() == pytest.approx(1, rel=1e-5)
    assert events.held_out().time_unit == events.time_unit, "all parts have the unit of the training sequences"


def test_windows_of_a_sequence_are_in_the_same_part(file):
    complete, windows = build_family(file), build_family(file, max_events=3)
    assert set(windows._sequences("test").sequence_numbers.tolist()) == set(
        complete._sequences("test").sequence_numbers.tolist()
    )
    assert len(windows._sequences("test")) > len(complete._sequences("test"))
    assert windows.held_out().sample(Request(50, 9, new_generator())).scored.sum(1).max() == 3


def test_all_formats_give_the_same_episodes(tmp_path):
    times, marks = sequence_files.sequences(count=30)
    times.sort(key=lambda sequence: sequence[0])
    marks = [np.resize(np.arange(4), len(sequence)) for sequence in times]
    files = [
        sequence_files.write_jsonl(tmp_path / "events.jsonl", times, marks),
        sequence_files.write_npz(tmp_path / "events.npz", times, marks),
        sequence_files.write_jodie(tmp_path / "events.csv", times, marks),
    ]
    expected, *others = (build_family(file).sample(Request(20, 6, new_generator())).tensors() for file in files)
    for tensors in others:
        assert all(torch.equal(expected[key], tensors[key]) for key in expected if key != "truth.event")
    assert len({build_family(file).fingerprint for file in files}) == 1


def test_files_in_the_data_folder_take_precedence_over_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "data" / "events").mkdir(parents=True)
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    current = sequence_files.write_jsonl(tmp_path / "current" / "mine.jsonl", *sequence_files.sequences(10, seed=1))
    from_current = Events(EventParameters(path="mine.jsonl"), tmp_path / "data")
    assert from_current.fingerprint == build_family(current).fingerprint == build_family("mine.jsonl").fingerprint
    stored = tmp_path / "data" / "events" / "mine.jsonl"
    sequence_files.write_jsonl(stored, *sequence_files.sequences(10, seed=2))
    from_data = Events(EventParameters(path="mine.jsonl"), tmp_path / "data")
    assert from_data.fingerprint == build_family(stored).fingerprint != from_current.fingerprint
    assert Events(EventParameters(), tmp_path / "data").fingerprint == from_data.fingerprint
    sequence_files.write_npz(tmp_path / "data" / "events" / "other.npz", *sequence_files.sequences(10, seed=2))
    with refused("missing-value", tmp_path / "data" / "events", 2, "-o task.path=mine.jsonl"):
        _ = Events(EventParameters(), tmp_path / "data").fingerprint
    with refused("unknown-name", "'othr.npz'", "'other.npz'", tmp_path / "data" / "events"):
        _ = Events(EventParameters(path="othr.npz"), tmp_path / "data").fingerprint


def test_missing_files_are_refused_on_first_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data_dir in (None, tmp_path, tmp_path / "nowhere"):
        with refused("missing-value", "-o task.path=my.jsonl"):
            Events(EventParameters(), data_dir).sample(Request(1, 5, new_generator()))
    with refused("missing-file", "'mine.jsonl'", "'events'", "--data-dir", "ICLBENCH_DATA"):
        _ = build_family("mine.jsonl").marks
    with refused("missing-file", "'mine.jsonl'", tmp_path / "events", "-o task.path"):
        _ = Events(EventParameters(path="mine.jsonl"), tmp_path).marks
    with refused("missing-file", f"'{tmp_path / 'mine.jsonl'}'", "-o task.path"):
        _ = build_family(tmp_path / "mine.jsonl").marks
    assert build_family("mine.jsonl", marks=5).marks == 5, "a number of marks on the card needs no file"


def test_too_few_sequences_are_refused(tmp_path):
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", [[1.0]] * 4)
    with refused("bad-data", path, 4, 5):
        build_family(path).sample(Request(1, 5, new_generator()))
    sequence_files.write_jsonl(path, [[1.0]] * 5)
    assert build_family(path).held_out().sample(Request(1, 5, new_generator())).scored.sum() == 1
    with refused("bad-data", path, 0, 5):
        build_family(path, start="first").sample(Request(1, 5, new_generator()))


def test_more_marks_than_the_model_has_are_refused(tmp_path):
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", *sequence_files.sequences(count=40))
    events = build_family(path)
    events.learned = {"marks": 3}
    with refused("not-applicable", path, 4, 3):
        events.sample(Request(1, 5, new_generator()))


def test_the_parameter_ties_sets_the_treatment_of_ties(tmp_path):
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", [[1.0, 1.0, 3.0]] * 10)
    with refused("bad-data", f"{path}, line 1, event 2", 9, "-o task.ties"):
        build_family(path).sample(Request(1, 5, new_generator()))
    times = {
        ties: build_family(path, ties=ties).sample(Request(1, 5, new_generator())).context.y[0, :, TIME].tolist()
        for ties in ("keep-first", "spread")
    }
    assert times == {"keep-first": [1, 3, 0, 0, 0], "spread": [1, 1.5, 3, 0, 0]}


def test_times_out_of_range_for_float32_are_refused(tmp_path):
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", [[1.0, 1.5]] * 10)
    for scale in (1e-39, 1e300):
        with refused("bad-data", path, "event 1", f"{scale:g}", "-o task.time_scale"):
            build_family(path, time_scale=scale).sample(Request(1, 5, new_generator()))
    sequence_files.write_jsonl(path, [[1.7e9, 1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3]] * 10)
    with refused("bad-data", path, "event 2", "1.7e+09", "-o task.start=first"):
        build_family(path, start="zero").sample(Request(1, 5, new_generator()))
    assert build_family(path, start="first").sample(Request(1, 3, new_generator())).context.y[0, :, TIME].tolist() == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"path": "a\nb"},
        {"marks": 0},
        {"time_scale": 0.0},
        {"time_scale": "hours"},
        {"ties": "jitter"},
        {"max_events": 0},
    ],
)
def test_invalid_parameters_are_refused(values):
    with pytest.raises(ValidationError, match=next(iter(values))):
        EventParameters.model_validate(values)


def test_padding_and_open_intervals_give_finite_losses_and_gradients(tmp_path):
    """Masked gaps of 0 would make gradients NaN."""
    from iclbench.config.resolution import resolve_tables

    times, marks = sequence_files.sequences(count=40)
    path = sequence_files.write_jsonl(
        tmp_path / "events.jsonl", times, marks, ends=[float(sequence[-1]) + 1 for sequence in times]
    )
    card = tmp_path / "mine.toml"
    card.write_text(
        'family = "events"\nsummary = "mine"\nhead = "event"\n[presets.smoke]\npoints = 12\nepisodes = 8\n'
        "budget = 25_000\n[presets.smoke.train]\nsteps = 10\n"
    )
    config = resolve_tables(str(card), "gpt2", "smoke", tables={"task": {"path": str(path)}})
    events = config.task.build()
    model = config.build(events)
    loss, _ = model.loss(events.sample(Request(16, 13, new_generator())), 0.5, new_generator())
    loss.backward()
    assert loss.isfinite()
    assert all(weights.grad.isfinite().all() for weights in model.parameters() if weights.grad is not None)


def test_absolute_timestamps_are_refused_without_the_parameter_start(tmp_path):
    """If times are seconds since 1970, as in most logs, every first gap is half a century."""
    late_times = [[1.7e9 + 600 * n, 1.7e9 + 600 * n + 1e5, 1.7e9 + 600 * n + 4e5] for n in range(10)]
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", late_times)
    with refused("missing-value", f"{path}, line 1, event 1", "2e+05", "-o task.start=first", "-o task.start=zero"):
        _ = build_family(path, time_scale="mean-gap").sample(Request(1, 5, new_generator()))
    zero = build_family(path, start="zero", time_scale="mean-gap").sample(Request(1, 3, new_generator()))
    assert zero.context.y[0, 0, GAP] > 2 * zero.context.y[0, 1:, GAP].sum()
    first = build_family(path, start="first").sample(Request(1, 3, new_generator()))
    assert first.context.y[0, :, TIME].tolist() == [1e5, 4e5, 0]
    for gap, is_late in ((999, False), (1001, True)):
        sequence_files.write_jsonl(path, [[float(gap), gap + 1.0, gap + 2.0]] * 10)
        events = build_family(path)
        if is_late:
            with refused("missing-value", path, "-o task.start=first"):
                events.sample(Request(1, 5, new_generator()))
        else:
            assert events.sample(Request(1, 5, new_generator())).scored.any()
    sequence_files.write_jsonl(path, [[1e6]] * 10)
    assert build_family(path).sample(Request(1, 5, new_generator())).scored.any(), (
        "single events have no later gaps to compare with"
    )
