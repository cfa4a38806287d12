"""A mixer that another package registers through an entry point."""

from importlib.metadata import EntryPoint

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench import registry
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import Sizes, head_channels, join_heads, split_heads
from iclbench.layers.mixers.window import Window
from iclbench.registry import MIXERS, Registry


class Fading(LinearMixer):
    """The mixer S_t = S_{t-1} / 2 + k_t v_t^T."""

    def __init__(self, sizes: Sizes) -> None:
        value = head_channels(sizes)
        super().__init__(Window(3 * sizes.width, self.taps(sizes)), (sizes.heads, value, value))
        self.heads = sizes.heads
        self.in_proj = nn.Linear(sizes.width, 3 * sizes.width)

    def terms(self, u: Tensor, bypass: Tensor) -> Terms:
        q, k, v = (split_heads(t, self.heads) for t in u.chunk(3, -1))
        return Terms(q, F.elu(k) + 1, v, torch.full_like(v[..., :1], 0.5).log())

    def out(self, o: Tensor, terms: Terms, u: Tensor, bypass: Tensor) -> Tensor:
        return join_heads(o)


def test_a_mixer_from_another_package_is_registered_and_matches_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("fading", f"{__name__}:Fading", "iclbench.mixers")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "iclbench.mixers" else [])
    mixers = Registry("mixer", dict(MIXERS.builtin_entries))
    assert mixers.names() == sorted([*MIXERS.builtin_entries, "fading"])
    torch.manual_seed(0)
    mixer, x = mixers.get("fading")(Sizes(8, heads=2)).double(), torch.randn(3, 40, 8, dtype=torch.float64)
    outputs, (_, state) = mixer(x, mixer.start(3))
    q, k, v = (t.unflatten(-1, (2, 4)) for t in mixer.in_proj(x).chunk(3, -1))
    S = torch.zeros(3, 2, 4, 4, dtype=torch.float64)
    for t in range(40):
        S = S / 2 + (F.elu(k[:, t]) + 1).unsqueeze(-1) * v[:, t].unsqueeze(-2)
        expected = torch.einsum("bhk,bhkv->bhv", q[:, t], S).flatten(1)
        torch.testing.assert_close(outputs[:, t], expected)
    torch.testing.assert_close(state, S)
