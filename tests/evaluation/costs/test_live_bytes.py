"""The counter of live bytes against explicit sums."""

import torch

from iclbench.evaluation.costs.live_bytes import LiveBytes


def test_a_storage_is_counted_once_until_it_is_freed() -> None:
    outside = torch.zeros(50)
    with LiveBytes() as count:
        a = torch.zeros(1000)
        view = a.view(10, 100)[2:]
        assert count.current == 4000
        del a
        assert count.current == 4000
        b = view.double()
        assert count.current == 4000 + 6400
        del view
        b.add_(1)
        outside.mul_(2)
        assert count.current == 6400
        del b
    assert (count.current, count.peak) == (0, 10400)


def test_tensors_saved_for_the_backward_pass_count() -> None:
    weight = torch.ones(100, requires_grad=True)
    with LiveBytes() as count:
        loss = (weight * torch.ones(100)).exp().sum()  # autograd saves the factor and the exponential
        assert count.current == 400 + 400 + 4
        loss.backward()
        del loss
    assert count.current == 400  # only the gradient of the weight remains
