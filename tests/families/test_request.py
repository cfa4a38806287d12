"""Requests, and families and callers of version 0.1.0, which name their parts."""

from dataclasses import replace

import pytest
import torch

from iclbench.core.errors import UsageError
from iclbench.families.base import Family
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from iclbench.families.shifts import FUNCTION_KINDS


def request(**options):
    return Request(3, 5, torch.Generator().manual_seed(0), **options)


def same(one, other):
    return all(torch.equal(t, other.tensors()[name]) for name, t in one.tensors().items())


@pytest.fixture(scope="module")
def old():
    """A family written for version 0.1.0: it draws on inputs twice as large, and takes no related datasets."""
    with pytest.warns(DeprecationWarning, match=r"Old.sample\(self, episodes, points, .*sample\(self, request\)"):

        class Old(Linear):
            def sample(self, episodes, points, generator, *, active_dims=None, shift="none"):
                return super().sample(episodes, points, generator, active_dims=active_dims, shift=f"{shift}+noisy-2")

    return Old(Linear.Parameters(dim=3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", [{"shift": "orthants"}, {"shift": "skewed", "active_dims": 2}])
def test_a_family_that_names_the_parts_is_asked_for_them(old, options):
    wanted = request(**options | {"shift": f"{options['shift']}+noisy-2"})
    expected = Linear(Linear.Parameters(dim=3)).sample(wanted)
    assert same(old.sample(request(**options)), expected)
    if "active_dims" not in options:
        assert same(old.sample_prompts(request(**options)), expected)


def test_prompts_drawn_by_a_family_that_names_the_parts():
    with pytest.warns(DeprecationWarning, match="Spread.sample_prompts"):

        class Spread(GPMixture):
            def sample_prompts(self, episodes, points, generator, shift="none"):
                return self.sample_all_related(episodes, points, generator, shift)

    family = Spread(GPParameters(max_related=2, related_points=(4, 6)))
    with pytest.warns(DeprecationWarning, match="sample_all_related"):
        drawn = family.sample_prompts(request(shift="rbf-1"))
    assert same(drawn, family.sample(request(shift="rbf-1", related=2)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_family_that_names_the_parts_is_not_told_of_earlier_blocks(old):
    """It could not take the word, and draws every block from a generator of its own."""
    assert same(*(old.sample_prompts(request(shift="orthants", **o)) for o in ({"before": 64}, {})))


def test_a_caller_that_names_the_parts_gets_the_same_episodes():
    family = Linear(Linear.Parameters(dim=3))
    with pytest.warns(DeprecationWarning, match=r"'sample\(episodes, points, .*'sample\(Request\(...\)\)'"):
        found = family.sample(3, points=5, generator=torch.Generator().manual_seed(0), shift="orthants")
    assert same(found, family.sample(request(shift="orthants")))
    with pytest.raises(TypeError, match="generater"), pytest.warns(DeprecationWarning):
        family.sample(3, 5, generater=torch.Generator())


def test_a_family_that_takes_requests_is_defined_without_a_warning(recwarn):
    class New(Linear):
        def sample(self, request):
            return super().sample(request)

    assert issubclass(New, Family) and not [w for w in recwarn if w.category is DeprecationWarning]
    assert same(New(Linear.Parameters(dim=3)).sample(request()), Linear(Linear.Parameters(dim=3)).sample(request()))


@pytest.mark.parametrize("named", [frozenset({"noisy", "points"}), FUNCTION_KINDS - {"orthants"}])
def test_a_family_of_version_0_1_0_names_its_shifts_in_a_set(named: object) -> None:
    class Older(Linear):
        shift_kinds = named

    family = Older(Linear.Parameters(dim=3))
    asked = Request(2, 4, torch.Generator().manual_seed(0), shift="noisy-0.5")
    expected = Linear(Linear.Parameters(dim=3)).sample(replace(asked, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(family.sample(asked).context.y, expected.context.y)
    assert family.parse_shift("noisy-0.5").kind == "noisy" and family.parse_shift("points-9").examples == 9
    with pytest.raises(UsageError, match="orthants"):
        family.parse_shift("orthants")
