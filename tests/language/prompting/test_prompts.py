"""Frozen language prompts, and the settings that queries and demonstrations depend on."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.tasks.cards import LanguageCard, LanguageTask
from iclbench.language.tasks.pools import Example, Pool
from iclbench.language.tasks.selection import language_tasks
from tests.refusals import refused

LABELS = ("no", "yes", "so")


def examples(prefix, count, labels=LABELS):
    return tuple(Example(f"{prefix}{i}", labels[i % len(labels)]) for i in range(count))


POOL = Pool(examples("train", 60), examples("test", 40), LABELS)


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


def mapping_prompts(**changes):
    """Build prompts as in mapping tasks, where each query has separate demonstrations from the same pool."""
    pairs = examples("word", 20, [f"out{i}" for i in range(20)])
    return prompts(Pool(pairs, pairs), "own", "greedy", **changes)


def queries(prompt_set):
    return [episode.query for episode in prompt_set.drawn_episodes]


def demonstrations_of(prompt_set):
    return [list(episode.demonstrations) for episode in prompt_set.drawn_episodes]


def test_repeated_queries_have_the_number_of_their_first_occurrence():
    repeated, distinct = mapping_prompts(), mapping_prompts(episodes=20)
    assert repeated.repeated_queries.tolist() == [*distinct._query_index, *distinct._query_index[:10]]
    assert (
        distinct.repeated_queries is None
        and mapping_prompts(shots=0).repeated_queries is None
        and prompts().repeated_queries is None
    )


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_queries_do_not_depend_on_the_demonstrations(make):
    first = queries(make())
    for changes in ({"demo_seed": 1}, {"order": 2}, {"shots": 2}, {"shift": "shuffled-labels"}):
        assert queries(make(**changes)) == first
    # Without demonstrations, queries are not repeated, because their prompts would be identical.
    distinct = list(dict.fromkeys(first))
    assert queries(make(shots=0)) == distinct and demonstrations_of(make(shots=0)) == [[]] * len(distinct)
    assert queries(make(episodes=10)) == first[:10]
    assert queries(make(seed=1)) != first


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_equal_settings_give_equal_prompts_and_ids(make):
    assert make().drawn_episodes == make().drawn_episodes
    assert make().id == make().id


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_demonstration_seeds_change_the_demonstrations(make):
    """Some published code ignores the seed."""
    sets = [frozenset(e.x for e in demonstrations_of(make(demo_seed=seed))[0]) for seed in range(10)]
    assert len(set(sets)) >= 9


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_prompts_with_more_shots_contain_the_demonstrations_of_fewer_shots(make):
    six_shots = demonstrations_of(make(shots=6))
    for shots in (1, 3, 5):
        for smaller, larger in zip(demonstrations_of(make(shots=shots)), six_shots, strict=True):
            assert len(smaller) == shots
            assert set(smaller) <= set(larger)


@pytest.mark.parametrize("seed", range(20))
def test_classes_of_demonstrations_are_equally_frequent_and_in_random_order(seed):
    examples = demonstrations_of(prompts(demo_seed=seed))[0]
    assert Counter(e.y for e in examples) == dict.fromkeys(LABELS, 2)
    assert len(set(examples)) == 6
    last_classes = {tuple(e.y for e in demonstrations_of(prompts(demo_seed=other))[0][-2:]) for other in range(60)}
    assert len(last_classes) == 9, "the last two demonstrations have any two classes, or the same one twice"


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_a_query_is_never_one_of_its_demonstrations(make):
    for seed in range(5):
        for episode in make(demo_seed=seed).drawn_episodes:
            assert episode.query.x not in {e.x for e in episode.demonstrations}
            assert len({e.x for e in episode.demonstrations}) == 6


def test_shared_demonstrations_are_never_queries_even_if_the_data_overlap():
    """The training file of TREC contains ten of its test questions, and a mapping has a single pool."""
    overlapping = Pool((*examples("test", 40), *examples("train", 20)), examples("test", 40), LABELS)
    single = Pool(POOL.demonstrations, POOL.demonstrations, LABELS)
    for pool in (overlapping, single):
        for split in ("test", "development"):
            evaluated = [prompts(pool, episodes=99, seed=seed, split=split) for seed in range(5)]
            query_inputs = {e.x for prompt_set in evaluated for e in queries(prompt_set)}
            for seed in range(10):
                assert not query_inputs & {e.x for e in demonstrations_of(prompts(pool, demo_seed=seed))[0]}


@pytest.mark.parametrize(
    "pool", [POOL, replace(POOL, development=examples("dev", 9)), Pool(examples("a", 50), examples("a", 50))]
)
def test_development_queries_are_neither_test_queries_nor_demonstrations(pool):
    pool = replace(pool, labels=LABELS)
    development = {e.x for e in queries(prompts(pool, split="development", episodes=99))}
    assert development
    assert not development & {e.x for e in queries(prompts(pool, episodes=99))}
    for seed in range(20):
        assert not development & {e.x for e in demonstrations_of(prompts(pool, demo_seed=seed))[0]}


@pytest.mark.parametrize("make", [prompts, mapping_prompts])
def test_orders_permute_the_same_demonstrations(make):
    default_order = demonstrations_of(make())
    orders = [demonstrations_of(make(order=order)) for order in range(1, 6)]
    for other in orders:
        assert [Counter(d) for d in other] == [Counter(d) for d in default_order]
    assert len({tuple(d[0]) for d in [default_order, *orders]}) >= 5


def test_shuffled_labels_change_neither_the_inputs_nor_the_multiset_of_outputs():
    for make in (prompts, mapping_prompts):
        for plain, shuffled in zip(
            demonstrations_of(make()), demonstrations_of(make(shift="shuffled-labels")), strict=True
        ):
            assert [e.x for e in plain] == [e.x for e in shuffled]
            assert Counter(e.y for e in plain) == Counter(e.y for e in shuffled)
    for plain, shuffled in zip(
        demonstrations_of(mapping_prompts()), demonstrations_of(mapping_prompts(shift="shuffled-labels")), strict=True
    ):
        assert all(a.y != b.y for a, b in zip(plain, shuffled, strict=True)), "if all outputs differ, all change"


def test_the_permutation_of_labels_depends_on_the_query_and_the_seed():
    def permutations(**changes):
        pairs = zip(
            demonstrations_of(mapping_prompts(**changes)),
            demonstrations_of(mapping_prompts(shift="shuffled-labels", **changes)),
            strict=True,
        )
        return [tuple([e.y for e in plain].index(e.y) for e in shuffled) for plain, shuffled in pairs]

    assert len(set(permutations())) > 10
    assert len({permutations(demo_seed=seed)[0] for seed in range(10)}) > 5


@pytest.mark.parametrize("shots", [2, 3])
def test_shuffling_two_classes_always_changes_a_label(shots):
    pool = Pool(examples("train", 60, ("no", "yes")), examples("test", 40, ("no", "yes")), ("no", "yes"))
    for seed in range(40):
        plain, mixed = (prompts(pool, shots=shots, demo_seed=seed, shift=s).shared for s in ("none", "shuffled-labels"))
        assert len({e.y for e in plain}) == 2
        assert [e.y for e in plain] != [e.y for e in mixed]


def test_a_single_demonstration_can_be_shuffled_only_if_it_has_candidates():
    assert not prompts(shots=1).can_shuffle and prompts(shots=2).can_shuffle
    choice = Pool((Example("q", "a", ("a", "b")),) * 3, (Example("r", "a", ("a", "b")),), fixed=True)
    assert prompts(choice, shots=1).can_shuffle


def test_shuffled_labels_are_wrong_candidates_of_the_same_example():
    pool = Pool(*[tuple(Example(f"{p}{i}", f"r{i}", (f"r{i}", f"w{i}", f"v{i}")) for i in range(20)) for p in "dq"])
    for plain, shuffled in zip(
        *(demonstrations_of(prompts(pool, shift=s)) for s in ("none", "shuffled-labels")), strict=True
    ):
        assert all(b.y in a.candidates and b.y != a.y for a, b in zip(plain, shuffled, strict=True))


def test_seeds_change_only_the_order_of_fixed_demonstrations():
    pool = Pool(examples("dev", 5), examples("test", 20), LABELS, fixed=True)
    assert demonstrations_of(prompts(pool, shots=5))[0] == list(pool.demonstrations)
    assert demonstrations_of(prompts(pool, shots=3))[0] == list(pool.demonstrations[:3])
    orders = {tuple(demonstrations_of(prompts(pool, shots=5, demo_seed=seed))[0]) for seed in range(10)}
    assert len(orders) >= 8
    assert {frozenset(order) for order in orders} == {frozenset(pool.demonstrations)}
    with refused("not-applicable", "'mine'", "-o method.passes=5"):
        prompts(pool, shots=5, split="development").drawn_episodes  # noqa: B018


def test_the_id_of_a_prompt_set_depends_on_every_setting():
    base = prompts()
    relabelled = replace(POOL, labels=(*LABELS, "more"))
    longer = replace(POOL, demonstrations=examples("train", 61))
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
    ids = [prompt_set.id for prompt_set in (base, *others)]
    assert len(set(ids)) == len(ids)
    assert all("-language-" in name and "/" not in name for name in ids)
    assert prompts(demo_seed=3).id.startswith("mine-language-none-6shot-d3-")


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"shots": 61}, "bad-value", ("'mine'", 30, 61, "--shots")),
        ({"shift": "shufled"}, "unknown-name", ("'shufled'", "shuffled-labels")),
        ({"shots": 0, "shift": "shuffled-labels"}, "conflict", ("shuffled-labels",)),
        ({"pool": replace(POOL, labels=())}, "not-applicable", ("'mine'", 'answers = "greedy"')),
    ],
)
def test_prompts_that_cannot_be_drawn_are_refused(changes, code, names):
    with refused(code, *names):
        prompts(**changes).drawn_episodes  # noqa: B018


def test_more_demonstrations_than_the_pool_contains_are_refused():
    with refused("bad-value", 19, 20, "--shots"):
        mapping_prompts(shots=20).drawn_episodes  # noqa: B018


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="needs real corpora: ICLBENCH_DATA is not set")
@pytest.mark.parametrize("name", ["sst2", "trec", "mr", "bbh-hyperbaton", "bbh-navigate", "mmlu-college-physics"])
def test_real_queries_are_not_demonstrations(name):
    (task,) = language_tasks([name])
    data = Path(os.environ["ICLBENCH_DATA"])
    prompt_set = LanguagePrompts(task, task.card.shots, 9999, data_dir=data)
    for seed in range(3):
        seeded_prompts = replace(prompt_set, demo_seed=seed).with_pool(prompt_set.pool)
        assert not {e.question for e in seeded_prompts.queries} & {e.question for e in seeded_prompts.shared}
        assert len(seeded_prompts.shared) == task.card.shots
        assert seeded_prompts.queries == prompt_set.queries
