"""Recall: sequences against a parser in plain Python, and the oracle against a dictionary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.evaluation.evaluate import canonical_shifts
from iclbench.families.request import Request
from iclbench.families.streams.recall import Recall, RecallParameters
from iclbench.families.streams.recall_oracle import RecallOracle, RecallVectorOracle
from iclbench.families.streams.recall_vectors import RecallVectorParameters, RecallVectors
from tests.refusals import refused

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "overwrite": {"overwrite": 0.3},
    "compound": {"keys": 16, "values": 32, "key_tokens": [2, 2], "pairs": [4, 24]},
    "fuzzy": {"keys": 16, "values": 16, "key_tokens": [1, 3], "value_tokens": [1, 3], "pairs": [2, 8]},
    "gaps": {"gap_power": 0.01, "pairs": [4, 8]},
}
POINTS = 96


def family(**parameters: object) -> Recall:
    return Recall(validate(RecallParameters, parameters, "task"))


def sample(recall: Recall, episodes: int = 64, points: int = POINTS, shift: str = "none", seed: int = 0) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    return recall.sample(Request(episodes, points, generator, shift=shift))


def segments(recall: Recall, tokens: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Return key, value and position of the first value token for each pair and query of a sequence."""
    keys, filler = recall.parameters.keys, recall.filler
    parsed, key, value, start = [], [], [], 0
    for position, token in enumerate([*tokens, filler]):
        if token < keys or token == filler:
            if value:
                parsed.append((tuple(key), tuple(value), start))
                key, value = [], []
            if token == filler:
                key = []
            else:
                key.append(token)
        else:
            if not value:
                start = position
            value.append(token)
    return parsed


@pytest.mark.parametrize("name", VARIANTS)
def test_a_query_is_followed_by_the_last_value_of_its_key_and_only_this_value_is_scored(name: str) -> None:
    recall = family(**VARIANTS[name])
    low, high = recall.parameters.pairs
    episodes = sample(recall)
    assert int(episodes.truth["pairs"].min()) >= low and int(episodes.truth["pairs"].max()) <= high
    for y, scored, count in zip(episodes.context.y, episodes.scored, episodes.truth["pairs"], strict=True):
        parsed = segments(recall, y.tolist())
        pairs, queries = parsed[: int(count)], parsed[int(count) :]
        values = {key: value for key, value, _ in pairs}
        if not recall.parameters.overwrite:
            assert len(values) == count  # all keys are different
        assert queries
        expected = torch.zeros_like(scored)
        for key, value, start in queries:
            is_last = start + len(value) == len(y)
            assert values[key][: len(value)] == value if is_last else values[key] == value
            expected[start : start + len(value)] = True
        assert torch.equal(scored, expected)


def test_lengths_of_fuzzy_keys_and_values_cover_their_ranges() -> None:
    recall = family(**VARIANTS["fuzzy"])
    episodes = sample(recall, 200)
    parsed = [segments(recall, y.tolist())[:2] for y in episodes.context.y]
    for part in (0, 1):
        assert {len(segment[part]) for pairs in parsed for segment in pairs} == {1, 2, 3}


def test_the_given_share_of_pairs_overwrites_a_key_with_a_different_value() -> None:
    recall = family(overwrite=0.3, pairs=[32, 32], values=3)
    repeats = total = 0
    steps = torch.zeros(3)
    for y in sample(recall, 500).context.y:
        values: dict[int, int] = {}
        for key, value in y[:64].view(32, 2).tolist():
            if key in values:
                repeats += 1
                assert value != values[key]
                steps[(value - values[key]) % 3] += 1
            total += bool(values)
            values[key] = value
    standard_error = (0.3 * 0.7 / total) ** 0.5
    assert repeats / total == pytest.approx(0.3, abs=4 * standard_error)
    assert steps[1] / steps.sum() == pytest.approx(0.5, abs=4 * 0.5 / float(steps.sum()) ** 0.5)


def test_compound_keys_are_distinct_but_share_tokens() -> None:
    recall = family(**{**VARIANTS["compound"], "pairs": [32, 32]})
    y = sample(recall, points=99).context.y[:, :96].view(64, 32, 3)
    for first, second, _ in y.transpose(1, 2):
        assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 32
        assert len(first.unique()) < 32 and len(second.unique()) < 32


def test_every_key_is_queried_once_at_a_power_law_distance_between_fillers() -> None:
    recall = family(gap_power=0.01, pairs=[8, 8])
    episodes = sample(recall, 2000, 128)
    y = episodes.context.y.view(2000, 64, 2)
    queries = y[:, 8:]
    is_query = queries[..., 0] != recall.filler
    assert (is_query.sum(1) == 8).all()
    assert (queries[~is_query] == recall.filler).all()
    assert torch.equal(torch.where(is_query, queries[..., 0], 1000).sort(1).values[:, :8], y[:, :8, 0].sort(1).values)
    # Positions are drawn one by one without replacement, as by `numpy.random.choice(replace=False, p=...)`.
    weights = torch.arange(1, 57, dtype=torch.float64) ** (0.01 - 1)
    reference = torch.multinomial(weights.expand(20_000, -1), 8, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(20_000, 56).scatter_(1, reference, 1.0).mean(0)
    assert (is_query.float().mean(0) - expected).abs().max() < 4 * 0.5 / 2000**0.5


def test_sequences_depend_on_their_seed_and_not_on_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = sample(family(**VARIANTS["fuzzy"]))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.context.y, sample(family(**VARIANTS["fuzzy"])).context.y)


def test_shifts_set_pairs_and_overwriting() -> None:
    assert (sample(family(), shift="pairs-7").truth["pairs"] == 7).all()
    assert (sample(family(), points=160, shift="pairs-64").truth["pairs"] == 64).all()
    y = sample(family(pairs=[32, 32]), shift="overwrite-0.9").context.y[:, :64:2]
    assert max(len(row.unique()) for row in y) < 16


def test_a_shift_that_needs_longer_prompts_is_refused_before_the_evaluation() -> None:
    for name in ("recall", "recall-vectors"):
        task = resolve_task(name, "smoke", {})[0]
        assert canonical_shifts(task, ["pairs-8", "pairs-64+points-159"]) == ["pairs-8", "pairs-64+points-159"]
        with refused("conflict", "points-129+pairs-64"):
            canonical_shifts(task, ["pairs-64"])
    with refused("bad-value", "radius of 1.9", "501 points"):
        canonical_shifts(resolve_task("linear-system", "smoke", {})[0], ["radius-1.9+points-500"])


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"keys": 16}, "task.keys"),
        ({"keys": 2, "key_tokens": [1, 2], "pairs": [1, 7]}, "task.keys"),
        ({"pairs": [8, 4]}, "pairs"),
        ({"gap_power": 0.1, "key_tokens": [1, 2]}, "gap_power"),
        ({"overwrite": 1.0}, "overwrite"),
    ],
)
def test_inconsistent_parameters_are_refused(parameters: dict[str, object], name: str) -> None:
    with refused("bad-value", name):
        family(**parameters)


def test_too_short_sequences_and_shifts_with_too_many_pairs_are_refused() -> None:
    with refused("conflict", "points-65+pairs-32"):
        sample(family(), points=64, shift="pairs-32")
    assert set(sample(family(), 1000, points=64).truth["pairs"].tolist()) == set(range(4, 32))
    assert set(sample(family(pairs=[4, 9]), points=12).truth["pairs"].tolist()) == {4, 5}
    with refused("bad-value", "pairs-129", "task.keys"):
        family().parse_shift("pairs-129")
    with refused("bad-value", "overwrite-1"):
        family().parse_shift("overwrite-1")


@pytest.mark.parametrize("name", ["recall", "recall-vectors"])
def test_a_task_whose_sequences_have_no_space_for_all_pairs_and_a_query_is_refused(name: str) -> None:
    for pairs, points, advice in (
        ([1, 1], 2, ["task.points=3"]),
        ([4, 32], 31, ["task.points=65", "task.pairs=[4,15]"]),
        ([8, 8], 9, ["task.points=17", "task.pairs=[4,4]"]),
    ):
        task = resolve_task(name, "grid", {"pairs": pairs, "points": points})[0]
        with refused("conflict", *advice):
            task.build()
        accepted = resolve_task(name, "grid", {"pairs": pairs, "points": int(advice[0].partition("=")[2])})[0]
        assert accepted.build().sample(Request(8, accepted.points + 1, torch.Generator())).scored.any(1).all()


def test_shorter_sequences_of_a_shift_have_the_requested_numbers_of_pairs_that_fit() -> None:
    task = resolve_task("recall", "grid", {})[0]
    assert canonical_shifts(task, ["points-15"]) == ["points-15"]
    assert set(sample(family(), points=16, shift="points-15").truth["pairs"].tolist()) == {4, 5, 6, 7}
    with refused("conflict", "points-7", "points-9"):
        canonical_shifts(task, ["points-7"])
    with refused("conflict", "4 pairs", "10 elements"):
        sample(family(), points=8)


def test_a_number_is_a_range_of_one_number() -> None:
    assert (
        family(pairs=5, key_tokens=2, value_tokens=3).parameters
        == family(pairs=[5, 5], key_tokens=[2, 2], value_tokens=[3, 3]).parameters
    )
    with refused("bad-value", "pairs"):
        family(pairs="5")


def is_correct(answer: Tensor, episodes: Episodes) -> Tensor:
    return (answer == episodes.context.y)[episodes.scored]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_oracle_is_correct_and_certain_at_all_scored_positions(name: str) -> None:
    recall = family(**VARIANTS[name])
    episodes = sample(recall)
    answer = RecallOracle(facts=TaskFacts(family=recall)).ask(episodes, "next")
    assert is_correct(answer.point(), episodes).all()
    assert float(answer.loss(episodes.context.y)[episodes.scored].max()) < 1e-6


def test_the_oracle_agrees_with_a_dictionary_and_is_uniform_for_a_new_key() -> None:
    recall = family(overwrite=0.5, pairs=[8, 8])
    episodes = sample(recall, 50, 40)
    logits = RecallOracle(facts=TaskFacts(family=recall)).ask(episodes, "next").logits
    for y, answer in zip(episodes.context.y.tolist(), logits, strict=True):
        values: dict[int, int] = {}
        for position in range(0, 40, 2):
            key, value = y[position : position + 2]
            if key in values:
                assert int(answer[position + 1].argmax()) == values[key]
            else:
                assert (answer[position + 1] == 0).all()
            values[key] = value


def test_the_vector_oracle_has_no_error_at_scored_positions_and_keys_lie_on_the_sphere() -> None:
    recall = RecallVectors(RecallVectorParameters())
    episodes = recall.sample(Request(64, 96, torch.Generator().manual_seed(0)))
    answer = RecallVectorOracle(facts=TaskFacts(family=recall)).ask(episodes, "next")
    assert float(answer.scores(episodes.context.y)["squared_error"][episodes.scored].max()) == 0
    norms = episodes.context.y.norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 20**0.5))
    for y, count, scored in zip(episodes.context.y, episodes.truth["pairs"], episodes.scored, strict=True):
        assert scored.nonzero().squeeze(1).tolist() == list(range(2 * int(count) + 1, 96, 2))
        context = y[: 2 * int(count) : 2]
        assert all(bool((context == query).all(1).any()) for query in y[2 * int(count) :: 2])


def test_oracles_refuse_other_families() -> None:
    with refused("not-applicable", "RecallOracle"):
        RecallOracle()
    with refused("not-applicable", "RecallVectorOracle"):
        RecallVectorOracle(facts=TaskFacts(family=family()))


@pytest.mark.parametrize("pairs", [2, 5])
def test_all_ordered_pairs_of_different_keys_are_equally_likely(pairs: int) -> None:
    """Two keys are drawn by redrawing repetitions, and five by sorting. The test counts the first two keys."""
    recall = family(keys=5, values=2, pairs=[pairs, pairs])
    y = sample(recall, 24_000, 2 * pairs + 2).context.y[:, : 2 * pairs : 2]
    counts = torch.unique(y[:, :2], dim=0, return_counts=True)[1].double()
    expected = 24_000 / 20
    assert len(counts) == 20
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 43.8  # the 99.9 % quantile for 19 degrees of freedom


def test_bigrams_fail_on_compound_keys_and_are_right_on_most_overwritten_keys() -> None:
    """The shares on the cards. Counts in plain Python; the smallest token wins a tie."""
    for name, expected in (("recall-compound", 0.40), ("recall-overwrite", 0.95)):
        task = resolve_task(name, "grid")[0]
        episodes = task.build().sample(Request(400, task.points + 1, torch.Generator().manual_seed(0)))
        assert episodes.scored is not None
        hits = []
        for y, scored in zip(episodes.context.y.tolist(), episodes.scored.tolist(), strict=True):
            followers: dict[int, list[int]] = {}
            for last, token, is_scored in zip(y, y[1:], scored[1:], strict=False):
                seen = followers.setdefault(last, [])
                if is_scored:
                    hits.append(bool(seen) and max(sorted(set(seen)), key=seen.count) == token)
                seen.append(token)
        assert sum(hits) / len(hits) == pytest.approx(expected, abs=0.02)
