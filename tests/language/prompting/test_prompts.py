"""Frozen language prompts: what stays, what changes, and what never happens."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from iclbench.core.errors import UsageError
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.tasks.cards import LanguageCard, LanguageTask
from iclbench.language.tasks.pools import Example, Pool
from iclbench.language.tasks.selection import language_tasks

LABELS = ("no", "yes", "so")


def texts(prefix, count, labels=LABELS):
    return tuple(Example(f"{prefix}{i}", labels[i % len(labels)]) for i in range(count))


POOL = Pool(texts("train", 60), texts("test", 40), LABELS)


def prompts(pool=POOL, demonstrations="shared", answers="choice", **changes):
    card = LanguageCard(
        family="own",
        summary="",
        reader="mapping",
        template="{x}>{y}",
        shots=6,
        answers=answers,
        demonstrations=demonstrations,
    )
    settings = {"shots": 6, "episodes": 30} | changes
    return LanguagePrompts(LanguageTask("mine", card, None, "own"), **settings).with_pool(pool)


def own(**changes):
    """As in the mapping tasks: every query has its own demonstrations, from the same pool."""
    pairs = texts("word", 20, [f"out{i}" for i in range(20)])
    return prompts(Pool(pairs, pairs), "own", "greedy", **changes)


def asked(made):
    return [episode.query for episode in made.drawn]


def shown(made):
    return [list(episode.demonstrations) for episode in made.drawn]


def test_queries_that_come_again_are_known_and_have_a_name_of_their_own():
    again, apart = own(), own(episodes=20)
    assert again.repeated.tolist() == [*apart._query_index, *apart._query_index[:10]]
    assert apart.repeated is None and own(shots=0).repeated is None and prompts().repeated is None


@pytest.mark.parametrize("make", [prompts, own])
def test_queries_are_the_same_whatever_is_demonstrated(make):
    first = asked(make())
    for changes in ({"demo_seed": 1}, {"order": 2}, {"shots": 2}, {"shift": "shuffled-labels"}):
        assert asked(make(**changes)) == first
    # Without demonstrations a query that comes again would be the same prompt.
    once = list(dict.fromkeys(first))
    assert asked(make(shots=0)) == once and shown(make(shots=0)) == [[]] * len(once)
    assert asked(make(episodes=10)) == first[:10]
    assert asked(make(seed=1)) != first


@pytest.mark.parametrize("make", [prompts, own])
def test_the_same_settings_give_the_same_prompts_and_ids(make):
    assert make().drawn == make().drawn
    assert make().id == make().id


@pytest.mark.parametrize("make", [prompts, own])
def test_demonstration_seeds_really_change_the_demonstrations(make):
    """A known fault of published code: seeds that reach nothing."""
    sets = [frozenset(e.x for e in shown(make(demo_seed=seed))[0]) for seed in range(10)]
    assert len(set(sets)) >= 9


@pytest.mark.parametrize("make", [prompts, own])
def test_fewer_shots_are_some_of_more(make):
    more = shown(make(shots=6))
    for shots in (1, 3, 5):
        for few, many in zip(shown(make(shots=shots)), more, strict=True):
            assert len(few) == shots
            assert set(few) <= set(many)


@pytest.mark.parametrize("seed", range(20))
def test_classes_are_demonstrated_equally_often_in_a_random_order(seed):
    made = shown(prompts(demo_seed=seed))[0]
    assert Counter(e.y for e in made) == dict.fromkeys(LABELS, 2)
    assert len(set(made)) == 6
    every = {tuple(e.y for e in shown(prompts(demo_seed=other))[0][-2:]) for other in range(60)}
    assert len(every) == 9, "the last two show any two classes, also the same one twice"


@pytest.mark.parametrize("make", [prompts, own])
def test_no_query_is_among_its_demonstrations(make):
    for seed in range(5):
        for episode in make(demo_seed=seed).drawn:
            assert episode.query.x not in {e.x for e in episode.demonstrations}
            assert len({e.x for e in episode.demonstrations}) == 6


def test_shared_demonstrations_are_never_asked_even_where_the_data_have_them_twice():
    """TREC's training file has ten of its test questions; a mapping has one pool for everything."""
    twice = Pool((*texts("test", 40), *texts("train", 20)), texts("test", 40), LABELS)
    one = Pool(POOL.demonstrations, POOL.demonstrations, LABELS)
    for pool in (twice, one):
        for split in ("test", "development"):
            queries = {e.x for seed in range(5) for e in asked(prompts(pool, episodes=99, seed=seed, split=split))}
            for seed in range(10):
                assert not queries & {e.x for e in shown(prompts(pool, demo_seed=seed))[0]}


@pytest.mark.parametrize(
    "pool", [POOL, replace(POOL, development=texts("dev", 9)), Pool(texts("a", 50), texts("a", 50))]
)
def test_development_queries_are_neither_asked_nor_demonstrated(pool):
    pool = replace(pool, labels=LABELS)
    development = {e.x for e in asked(prompts(pool, split="development", episodes=99))}
    assert development
    assert not development & {e.x for e in asked(prompts(pool, episodes=99))}
    for seed in range(20):
        assert not development & {e.x for e in shown(prompts(pool, demo_seed=seed))[0]}


@pytest.mark.parametrize("make", [prompts, own])
def test_orders_permute_the_same_demonstrations(make):
    drawn = shown(make())
    orders = [shown(make(order=order)) for order in range(1, 6)]
    for other in orders:
        assert [Counter(d) for d in other] == [Counter(d) for d in drawn]
    assert len({tuple(d[0]) for d in [drawn, *orders]}) >= 5


def test_shuffled_labels_keep_the_inputs_and_the_multiset_of_outputs():
    for make in (prompts, own):
        for plain, shuffled in zip(shown(make()), shown(make(shift="shuffled-labels")), strict=True):
            assert [e.x for e in plain] == [e.x for e in shuffled]
            assert Counter(e.y for e in plain) == Counter(e.y for e in shuffled)
    for plain, shuffled in zip(shown(own()), shown(own(shift="shuffled-labels")), strict=True):
        assert all(a.y != b.y for a, b in zip(plain, shuffled, strict=True)), "different outputs: none keeps its own"


def test_labels_are_shuffled_anew_for_every_query_and_every_seed():
    def exchanged(**changes):
        pairs = zip(shown(own(**changes)), shown(own(shift="shuffled-labels", **changes)), strict=True)
        return [tuple([e.y for e in plain].index(e.y) for e in shuffled) for plain, shuffled in pairs]

    assert len(set(exchanged())) > 10
    assert len({exchanged(demo_seed=seed)[0] for seed in range(10)}) > 5


@pytest.mark.parametrize("shots", [2, 3])
def test_shuffling_two_classes_always_moves_a_label_if_there_are_both(shots):
    pool = Pool(texts("train", 60, ("no", "yes")), texts("test", 40, ("no", "yes")), ("no", "yes"))
    for seed in range(40):
        plain, mixed = (prompts(pool, shots=shots, demo_seed=seed, shift=s).shared for s in ("none", "shuffled-labels"))
        assert len({e.y for e in plain}) == 2
        assert [e.y for e in plain] != [e.y for e in mixed]


def test_a_single_label_cannot_be_shuffled_but_for_other_candidates():
    assert not prompts(shots=1).can_shuffle and prompts(shots=2).can_shuffle
    choice = Pool((Example("q", "a", ("a", "b")),) * 3, (Example("r", "a", ("a", "b")),), fixed=True)
    assert prompts(choice, shots=1).can_shuffle


def test_shuffled_labels_of_examples_with_candidates_are_other_candidates():
    pool = Pool(*[tuple(Example(f"{p}{i}", f"r{i}", (f"r{i}", f"w{i}", f"v{i}")) for i in range(20)) for p in "dq"])
    for plain, shuffled in zip(*(shown(prompts(pool, shift=s)) for s in ("none", "shuffled-labels")), strict=True):
        assert all(b.y in a.candidates and b.y != a.y for a, b in zip(plain, shuffled, strict=True))


def test_fixed_demonstrations_stay_and_seeds_change_their_order():
    pool = Pool(texts("dev", 5), texts("test", 20), LABELS, fixed=True)
    assert shown(prompts(pool, shots=5))[0] == list(pool.demonstrations)
    assert shown(prompts(pool, shots=3))[0] == list(pool.demonstrations[:3])
    orders = {tuple(shown(prompts(pool, shots=5, demo_seed=seed))[0]) for seed in range(10)}
    assert len(orders) >= 8
    assert {frozenset(order) for order in orders} == {frozenset(pool.demonstrations)}
    with pytest.raises(UsageError, match=r"no examples to choose settings on; give -o method\.passes=5"):
        prompts(pool, shots=5, split="development").drawn  # noqa: B018


def test_ids_differ_whenever_anything_differs():
    base = prompts()
    relabelled = replace(POOL, labels=(*LABELS, "more"))
    longer = replace(POOL, demonstrations=texts("train", 61))
    card = base.task.card
    others = [
        *(
            prompts(**{key: value})
            for key, value in {
                "shots": 5,
                "episodes": 29,
                "demo_seed": 1,
                "order": 1,
                "shift": "shuffled-labels",
                "seed": 1,
                "split": "development",
                "demonstrations": "own",
            }.items()
        ),
        prompts(relabelled),
        prompts(longer),
        prompts(replace(POOL, fixed=True)),
        *(
            replace(base, task=LanguageTask("mine", card.model_copy(update=change), None, "own")).with_pool(POOL)
            for change in ({"template": "{x}={y}"}, {"separator": "\n"})
        ),
        replace(base, task=LanguageTask("yours", card, None, "own")).with_pool(POOL),
    ]
    ids = [made.id for made in (base, *others)]
    assert len(set(ids)) == len(ids)
    assert all("-language-" in name and "/" not in name for name in ids)
    assert prompts(demo_seed=3).id.startswith("mine-language-none-6shot-d3-")


def test_what_cannot_be_drawn_is_one_line():
    for changes, expected in (
        ({"shots": 61}, "has 30 examples to demonstrate with, asked for 61; give a smaller --shots"),
        ({"shift": "shufled"}, "unknown shift 'shufled' of language prompts; known: none, shuffled-labels"),
        ({"shots": 0, "shift": "shuffled-labels"}, "no labels to shuffle"),
        ({"pool": replace(POOL, labels=())}, "the answers of task 'mine' are free"),
    ):
        with pytest.raises(UsageError) as caught:
            prompts(**changes).drawn  # noqa: B018
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="has 19 examples to demonstrate with, asked for 20"):
        own(shots=20).drawn  # noqa: B018


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: corpora are elsewhere")
@pytest.mark.parametrize("name", ["sst2", "trec", "mr", "bbh-hyperbaton", "bbh-navigate", "mmlu-college-physics"])
def test_real_prompts_keep_what_is_asked_apart(name):
    (task,) = language_tasks([name])
    data = Path(os.environ["ICLBENCH_DATA"])
    made = LanguagePrompts(task, task.card.shots, 9999, data_dir=data)
    for seed in range(3):
        again = replace(made, demo_seed=seed).with_pool(made.pool)
        assert not {e.asked for e in again.queries} & {e.asked for e in again.shared}
        assert len(again.shared) == task.card.shots
        assert again.queries == made.queries
