"""Each of several independent queries attends to the cached past and to itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.layers.key_value_cache import attend_past_and_self


def random_tensors(queries: int, past: int) -> list[Tensor]:
    """Draw queries, keys and values of the past, a mask of visible tokens, and keys and values of the queries."""
    generator = torch.Generator().manual_seed(queries)

    def heads(n: int) -> Tensor:
        return torch.randn(3, 2, n, 16, generator=generator)

    visible = torch.rand(3, 1, queries, past, generator=generator) > 0.3
    return [heads(queries), heads(past), heads(past), visible, heads(queries), heads(queries)]


@pytest.mark.parametrize("past", [0, 1, 40])
def test_attention_equals_pytorch_with_a_mask_that_hides_other_queries(past: int) -> None:
    q, k_past, v_past, visible, k, v = random_tensors(7, past)
    mask = torch.cat([visible, torch.eye(7, dtype=torch.bool).expand(3, 1, 7, 7)], -1)
    expected = F.scaled_dot_product_attention(q, torch.cat([k_past, k], 2), torch.cat([v_past, v], 2), attn_mask=mask)
    torch.testing.assert_close(attend_past_and_self(q, k_past, v_past, visible, k, v), expected)


@pytest.mark.parametrize("queries", [2, 20, 33])
def test_outputs_are_identical_for_any_order_of_queries(queries: int) -> None:
    q, k_past, v_past, visible, k, v = random_tensors(queries, 40)
    order = torch.randperm(queries, generator=torch.Generator().manual_seed(0))
    q_permuted, *permuted = (t[:, :, order] for t in (q, visible, k, v))
    actual = attend_past_and_self(q_permuted, k_past, v_past, *permuted)
    assert torch.equal(actual, attend_past_and_self(q, k_past, v_past, visible, k, v)[:, :, order])
