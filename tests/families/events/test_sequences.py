"""The user's own sequences as episodes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.settings import validate
from iclbench.families.events.sequences import EventParameters, Events
from iclbench.families.request import Request
from tests.families.events import made


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def family(path, **parameters):
    return Events(EventParameters(path=str(path), **parameters))


@pytest.fixture
def file(tmp_path):
    return made.write_jsonl(tmp_path / "made.jsonl", *made.sequences(count=40))


def all_of(events, points=9):
    """Every sequence of a part, each once, by its number in the file."""
    count = {"train": 24, "validation": 8, "test": 8}[events._part]
    episodes = events.sample_prompts(Request(count, points, stream()))
    return dict(zip(episodes.truth["sequence"].tolist(), range(count), strict=True)), episodes


def test_an_episode_is_a_sequence_from_its_beginning_with_padding_at_the_end(file):
    times, marks = made.sequences(count=40)
    for part in (family(file), family(file).held_out(), family(file).validation()):
        found, episodes = all_of(part)
        assert episodes.context.x.shape == (len(found), 9, 0) and episodes.context.y.dtype == torch.float32
        for number, row in found.items():
            n, y = len(times[number]), episodes.context.y[row]
            assert episodes.context.mask[row].tolist() == [i < n for i in range(9)]
            np.testing.assert_array_equal(y[:n, TIME], times[number].astype(np.float32))
            np.testing.assert_array_equal(y[:n, GAP], np.diff(times[number], prepend=0.0).astype(np.float32))
            assert y[:n, MARK].tolist() == marks[number].tolist()
            assert (y[n:] == torch.tensor([1.0, 0.0, 0.0])).all()
            assert episodes.truth["event"][row] == sum(map(len, times[:number]))
        assert torch.equal(episodes.scored, episodes.context.mask)


def test_a_longer_sequence_is_cut_behind_its_first_events(file):
    whole, cut = (all_of(family(file), points)[1] for points in (9, 4))
    torch.testing.assert_close(cut.context.y, whole.context.y[:, :4], atol=0, rtol=0)
    assert torch.equal(cut.scored, whole.scored[:, :4])


def test_no_sequence_is_in_two_parts_and_the_shares_are_three_one_and_one_fifth(file):
    seeded = [set(all_of(part)[0]) for part in (family(file), family(file).validation(), family(file).held_out())]
    assert [len(part) for part in seeded] == [24, 8, 8] and len(set.union(*seeded)) == 40
    other = family(file, split_seed=1)
    assert set(all_of(other)[0]) != seeded[0] and set(all_of(family(file))[0]) == seeded[0]
    fixed = family(file, split="file")
    parts = [sorted(all_of(part)[0]) for part in (fixed, fixed.validation(), fixed.held_out())]
    assert parts == [list(range(24)), list(range(24, 32)), list(range(32, 40))]


def test_the_parts_of_mooc_and_reddit_in_the_order_of_the_file_are_those_of_the_released_code(tmp_path):
    """Whole numbers below 0.6 S and 0.2 S, and what is left: 4,228, 1,409 and 1,410 of 7,047."""
    for count, sizes in ((7047, [4228, 1409, 1410]), (10_000, [6000, 2000, 2000]), (13, [7, 2, 4])):
        np.savez(tmp_path / "made.npz", times=np.ones((count, 1)))
        events = family(tmp_path / "made.npz", split="file")
        assert [len(events._sequences(part)) for part in ("train", "validation", "test")] == sizes


def test_training_draws_with_replacement_from_the_generator_and_prompts_are_each_once_in_a_fixed_order(file):
    events = family(file)
    drawn = events.sample(Request(4800, 9, stream())).truth["sequence"]
    counts = torch.bincount(drawn, minlength=40)
    assert set(counts.nonzero().flatten().tolist()) == set(all_of(events)[0])
    assert (counts[counts > 0] - 200).abs().max() < 5 * (200 * 23 / 24) ** 0.5
    again = events.sample(Request(4800, 9, stream())).truth["sequence"]
    assert torch.equal(drawn, again) and not torch.equal(
        drawn, events.sample(Request(4800, 9, stream(1))).truth["sequence"]
    )
    blocks = [events.sample_prompts(Request(10, 9, stream(n), before=10 * n)).truth["sequence"] for n in range(5)]
    order = torch.cat(blocks)
    assert len(set(order[:24].tolist())) == 24
    assert torch.equal(order[24:48], order[:24]), "where there are no more they come again"


def test_a_prompt_set_has_every_sequence_of_the_part_once(tmp_path):
    """Blocks of 64 go on where the last one ended."""
    from iclbench.config.resolution import TaskConfig
    from iclbench.evaluation.prompts import PromptSet

    path = made.write_jsonl(tmp_path / "made.jsonl", *made.sequences(count=1000, longest=3))
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
    prompts = PromptSet(task, "smoke", built_family=family(path).held_out())
    assert len(set(prompts.episodes.truth["sequence"].tolist())) == 200
    few = PromptSet(task, "smoke", built_family=family(path).validation())
    more = replace(few, task=task.model_copy(update={"episodes": 300}))
    assert len(few.episodes) == len(more.episodes) == 200, "an episode that comes twice makes nothing surer"


def test_the_open_interval_behind_the_last_event_is_a_point_that_is_not_scored(tmp_path):
    times = [[1.0, 2.5], [4.0], [1.0, 2.0, 3.0, 4.0]] * 4
    path = made.write_jsonl(tmp_path / "made.jsonl", times, ends=[3.0, None, 9.0] * 4)
    episodes = family(path, time_scale=0.5, split="file").sample_prompts(Request(7, 4, stream()))
    found = dict(zip(episodes.truth["sequence"].tolist(), range(7), strict=True))
    censored, plain, full = (found[number] for number in (0, 1, 2))
    assert episodes.context.y[censored].tolist() == [[2, 0, 2], [3, 0, 5], [1, -1, 6], [1, 0, 0]]
    assert episodes.context.mask[censored].tolist() == [True, True, True, False]
    assert episodes.scored[censored].tolist() == [True, True, False, False]
    assert episodes.context.mask[plain].tolist() == episodes.scored[plain].tolist() == [True, False, False, False]
    assert (episodes.context.y[full, :, MARK] == 0).all() and episodes.scored[full].all(), "the cut comes before it"


def test_times_are_in_units_of_the_time_scale(file):
    plain, scaled = (family(file, time_scale=scale).sample(Request(30, 9, stream())).context for scale in (1.0, 0.25))
    factors = {GAP: 4, MARK: 1, TIME: 4}
    for column, factor in factors.items():
        assert torch.equal(scaled.y[..., column][plain.mask], factor * plain.y[..., column][plain.mask])
    mean = family(file, time_scale="mean-gap")
    _, episodes = all_of(mean)
    assert episodes.context.y[..., GAP][episodes.scored].mean().item() == pytest.approx(1, rel=1e-5)
    assert mean.held_out().time_unit == mean.time_unit, "of the sequences trained on, for all parts"


def test_windows_of_a_sequence_stay_in_its_part(file):
    whole, cut = family(file), family(file, max_events=3)
    assert set(cut._sequences("test").sequences.tolist()) == set(whole._sequences("test").sequences.tolist())
    assert len(cut._sequences("test")) > len(whole._sequences("test"))
    assert cut.held_out().sample(Request(50, 9, stream())).scored.sum(1).max() == 3


def test_all_formats_give_the_same_episodes(tmp_path):
    times, marks = made.sequences(count=30)
    times.sort(key=lambda each: each[0])
    marks = [np.resize(np.arange(4), len(each)) for each in times]
    files = [
        made.write_jsonl(tmp_path / "made.jsonl", times, marks),
        made.write_npz(tmp_path / "made.npz", times, marks),
        made.write_jodie(tmp_path / "made.csv", times, marks),
    ]
    first, *others = (family(file).sample(Request(20, 6, stream())).tensors() for file in files)
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first if key != "truth.event")
    assert len({family(file).fingerprint for file in files}) == 1


def test_a_file_is_found_in_the_data_folder_before_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "data" / "events").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    here = made.write_jsonl(tmp_path / "here" / "mine.jsonl", *made.sequences(10, seed=1))
    by_name = Events(EventParameters(path="mine.jsonl"), tmp_path / "data")
    assert by_name.fingerprint == family(here).fingerprint == family("mine.jsonl").fingerprint
    kept = made.write_jsonl(tmp_path / "data" / "events" / "mine.jsonl", *made.sequences(10, seed=2))
    again = Events(EventParameters(path="mine.jsonl"), tmp_path / "data")
    assert again.fingerprint == family(kept).fingerprint != by_name.fingerprint
    only = Events(EventParameters(), tmp_path / "data")
    assert only.fingerprint == again.fingerprint
    made.write_npz(tmp_path / "data" / "events" / "other.npz", *made.sequences(10, seed=2))
    with pytest.raises(DataError, match=r"events holds 2 files; name the file .*-o task\.path=mine\.jsonl"):
        _ = Events(EventParameters(), tmp_path / "data").fingerprint
    with pytest.raises(
        UnknownNameError, match=r"'othr\.npz'; did you mean 'other\.npz'\? \(in .*events or the current"
    ):
        _ = Events(EventParameters(path="othr.npz"), tmp_path / "data").fingerprint


def test_missing_data_is_one_clear_line_and_only_on_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data_dir in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"sequences of your own; name the file .*-o task\.path=my\.jsonl"):
            Events(EventParameters(), data_dir).sample(Request(1, 5, stream()))
    with pytest.raises(DataError, match=r"no file 'mine\.jsonl' in the current folder; put it into 'events' below --d"):
        _ = family("mine.jsonl").marks
    with pytest.raises(DataError, match=r"no file 'mine\.jsonl' in .*events or the current .*or name another file \("):
        _ = Events(EventParameters(path="mine.jsonl"), tmp_path).marks
    assert family("mine.jsonl", marks=5).marks == 5, "sizes need no file where the card says them"


def test_too_few_sequences_are_one_clear_line(tmp_path):
    path = made.write_jsonl(tmp_path / "made.jsonl", [[1.0]] * 4)
    with pytest.raises(DataError, match=r"made\.jsonl: 4 sequence\(s\) with events, fewer than the 5 that make parts"):
        family(path).sample(Request(1, 5, stream()))
    made.write_jsonl(path, [[1.0]] * 5)
    assert family(path).held_out().sample(Request(1, 5, stream())).scored.sum() == 1
    with pytest.raises(DataError, match=r"0 sequence\(s\) with events"):
        family(path, start="first").sample(Request(1, 5, stream()))


def test_ties_are_refused_by_default_and_otherwise_as_the_parameter_says(tmp_path):
    path = made.write_jsonl(tmp_path / "made.jsonl", [[1.0, 1.0, 3.0]] * 10)
    with pytest.raises(DataError, match=r"made\.jsonl, line 1, event 2: at the same time .*\(and 9 more events\)"):
        family(path).sample(Request(1, 5, stream()))
    times = {
        ties: family(path, ties=ties).sample(Request(1, 5, stream())).context.y[0, :, TIME].tolist()
        for ties in ("keep-first", "spread")
    }
    assert times == {"keep-first": [1, 3, 0, 0, 0], "spread": [1, 1.5, 3, 0, 0]}


def test_units_beyond_float32_are_one_clear_line_with_the_place(tmp_path):
    path = made.write_jsonl(tmp_path / "made.jsonl", [[1.0, 1.5]] * 10)
    for scale in (1e-39, 1e300):
        with pytest.raises(DataError, match=r"line \d+, event 1: a gap of 1 in units of .*task\.time_scale"):
            family(path, time_scale=scale).sample(Request(1, 5, stream()))
    made.write_jsonl(path, [[1.7e9, 1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3]] * 10)
    with pytest.raises(DataError, match=r"event 2: at 1\.7e\+09 float32 does not tell most events .*task\.start=first"):
        family(path, start="zero").sample(Request(1, 5, stream()))
    assert family(path, start="first").sample(Request(1, 3, stream())).context.y[0, :, TIME].tolist() == [1, 2, 3]


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
def test_a_parameter_that_makes_no_sense_is_one_clear_line(values):
    with pytest.raises(UsageError, match=next(iter(values))) as error:
        validate(EventParameters, values, "card")
    assert "\n" not in str(error.value)


def test_padding_and_open_intervals_give_finite_losses_and_gradients(tmp_path):
    """A masked gap of 0 would give the gradient NaN."""
    from iclbench.config.resolution import resolve_tables

    times, marks = made.sequences(count=40)
    path = made.write_jsonl(tmp_path / "made.jsonl", times, marks, ends=[float(when[-1]) + 1 for when in times])
    card = tmp_path / "mine.toml"
    card.write_text(
        'family = "events"\nsummary = "mine"\nhead = "event"\n[presets.smoke]\npoints = 12\nepisodes = 8\n'
        "budget = 25_000\n[presets.smoke.train]\nsteps = 10\n"
    )
    config = resolve_tables(str(card), "gpt2", "smoke", tables={"task": {"path": str(path)}})
    events = config.task.build()
    model = config.build(events)
    loss, _ = model.loss(events.sample(Request(16, 13, stream())), 0.5, stream())
    loss.backward()
    assert loss.isfinite()
    assert all(weights.grad.isfinite().all() for weights in model.parameters() if weights.grad is not None)


def test_times_that_count_from_elsewhere_are_refused_until_the_start_is_typed(tmp_path):
    """Seconds since 1970 as in most logs: the first gap of all sequences is half a century."""
    late = [[1.7e9 + 600 * n, 1.7e9 + 600 * n + 1e5, 1.7e9 + 600 * n + 4e5] for n in range(10)]
    path = made.write_jsonl(tmp_path / "made.jsonl", late)
    with pytest.raises(DataError, match=r"line 1, event 1: .* 2e\+05 .*task\.start=first.*start=zero"):
        _ = family(path, time_scale="mean-gap").sample(Request(1, 5, stream()))
    typed = family(path, start="zero", time_scale="mean-gap").sample(Request(1, 3, stream()))
    assert typed.context.y[0, 0, GAP] > 2 * typed.context.y[0, 1:, GAP].sum()
    first = family(path, start="first").sample(Request(1, 3, stream()))
    assert first.context.y[0, :, TIME].tolist() == [1e5, 4e5, 0]
    for gap, refused in ((999, False), (1001, True)):
        made.write_jsonl(path, [[float(gap), gap + 1.0, gap + 2.0]] * 10)
        events = family(path)
        if refused:
            with pytest.raises(DataError, match="start=first"):
                events.sample(Request(1, 5, stream()))
        else:
            assert events.sample(Request(1, 5, stream())).scored.any()
    made.write_jsonl(path, [[1e6]] * 10)
    assert family(path).sample(Request(1, 5, stream())).scored.any(), "of single events nothing is known"
