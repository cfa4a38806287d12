"""Sequence models of any mixers: settings, sizes, states, and what is refused."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.sequence_model import SequenceModel, UniformModel
from iclbench.config.resolution import resolve_run
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES, MIXERS

SHAPE = TaskShape(x_dim=4, points=12)
ALONE = [name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), UniformModel)]


def model(name: str, **settings: object) -> SequenceModel:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**{"layers": 2, "width": 16, **settings}), SHAPE).eval()


def points(count: int) -> Points:
    draw = torch.Generator().manual_seed(1)
    return Points.full(torch.randn(2, count, 4, generator=draw), torch.randn(2, count, 1, generator=draw))


def test_the_page_of_the_guide_names_every_mixer() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sequence-mixers.md").read_text()
    assert [name for name in MIXERS.shipped if f"`{name}`" not in text] == []


def test_every_mixer_is_a_backbone_of_its_own_name() -> None:
    assert set(ALONE) | {"mamba"} == set(MIXERS.shipped)
    for name in ALONE:
        assert BACKBONES.get(name).mixer == name


@pytest.mark.parametrize("name", ALONE)
def test_a_backbone_has_the_settings_that_its_mixer_has_a_use_for(name: str) -> None:
    uses, settings = MIXERS.subclass(name).uses, BACKBONES.get(name).Settings.model_fields
    for key in ("heads", "inner", "state", "rank"):
        assert (key in settings) == (key in uses)
    assert ("max_points" in settings) == ("longest" in uses)
    # The controlled factors of all.
    assert {"conv", "mlp", "feedforward"} <= settings.keys() and "conv" in uses


# Parameters of one layer of width D with H heads, as papers and released code have them.
D, H = 64, 4
COUNTS = {
    "linear-attention": 4 * D * D,
    "based": 2 * D * 16 * H + 2 * D * D,
    "retnet": 8 * D * D,
    "mamba2": D * (2 * 2 * D + 2 * 64 + H) + 5 * (2 * D + 2 * 64) + 3 * H + 2 * D + 2 * D * D,
    "gla": 4 * D * D + 24.5 * D + D // H,
    "deltanet": 4 * D * D + D * H + 12 * D + D // H,
    "gated-deltanet": 6 * D * D + 2 * D * H + 4 * 3 * D + 2 * H + 2 * 12,
    "kda": 4 * D * D + 4 * D * (D // H) + D * H + 12 * D + H + D + D // H,
    "mlstm": 6 * D * D + (38 + 12 * H) * D + 2 * H,
    "lstm": 8 * D * D + 8 * D,
    "gru": 6 * D * D + 6 * D,
    "attention": 4 * D * D + 4 * D,
    "hyena": 4 * D * D + 81 * D + 8768,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_mixer_has_the_published_number_of_parameters(name: str) -> None:
    heads = {"heads": H} if "heads" in BACKBONES.get(name).Settings.model_fields else {}
    mixer = model(name, layers=1, width=D, **heads).layers[0].mixer
    assert sum(weight.numel() for weight in mixer.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", ALONE)
def test_a_state_is_what_is_kept(name: str) -> None:
    """Rows times channels of values, and the window; of attention and hyena all that was read."""
    longer = {"max_points": 30} if name == "hyena" else {}
    built = model(name, layers=1, width=D, **longer)
    sizes = [built.condition(points(count)).nbytes // 4 for count in (5, 20)]
    values = {"retnet": 2 * D, "mamba2": 2 * D, "mlstm": 2 * D, "gated-deltanet": 2 * 3 * D // 4}.get(name, D)
    rows = {"based": 1 + 16 + 136, "mamba2": 64, "gla": D // H // 2, "mlstm": 2 * D // H, "gated-deltanet": 12}
    if name in ("attention", "hyena"):
        assert sizes[1] > 2 * sizes[0]
        return
    assert sizes[0] == sizes[1]
    if name in ("lstm", "gru"):
        assert sizes[0] == 2 * D * (2 if name == "lstm" else 1)
        return
    normaliser = H if name in ("linear-attention", "based", "mlstm") else 0
    matrix = rows.get(name, D // H) * (values + normaliser)
    kept = {"mamba2": 3 * (2 * D + 128), "deltanet": 9 * D, "gated-deltanet": 9 * D, "kda": 9 * D, "rwkv7": D}
    window = {**kept, "mlstm": 3 * 2 * D}.get(name, 0)
    assert sizes[0] == 2 * (matrix + window + (H if name == "mlstm" else 0))


def test_a_pattern_of_mixers_starts_again_until_all_layers_have_one() -> None:
    built = model("hybrid", layers=5, mixers=["mamba", "attention"])
    found = [type(block.mixer).__name__ for block in built.layers]
    assert found == ["Mamba", "Attention", "Mamba", "Attention", "Mamba"]


@pytest.mark.parametrize(("preset", "pairs"), [("grid", 1), ("small", 2)])
def test_mambaformer_is_a_mamba_block_and_pairs_of_attention_and_mamba(preset: str, pairs: int) -> None:
    """n_layer blocks of the released code, n_layer even, come behind a first one."""
    config = resolve_run("linear", "mambaformer", preset)
    built = config.build(config.task.build())
    found = [type(block.mixer).__name__ for block in built.layers]
    assert found == ["Mamba", *["Attention", "Mamba"] * pairs]
    assert all(block.mlp is None for block in built.layers)


def test_values_are_handed_past_other_mixers() -> None:
    """RWKV-7's first layer reaches its later ones through attention."""
    built = model("hybrid", layers=3, mixers=["rwkv7", "attention", "rwkv7"], heads=2)
    assert [getattr(block.mixer, "first", None) for block in built.layers] == [True, None, False]
    first = built.layers[0](torch.randn(2, 6, 16))
    later = built.layers[1](first)
    assert first.shape[-1] == 32 and torch.equal(later[..., 16:], first[..., 16:])
    assert not torch.equal(later[..., :16], first[..., :16])


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("hybrid", {"mixers": ["mamba3"]}, "unknown mixer 'mamba3'.*did you mean.*mamba"),
        ("gla", {"heads": 3}, r"backbone\.width=16 is not a multiple of backbone\.heads=3; 18 is"),
        ("hybrid", {"heads": 3, "mixers": ["attention"]}, r"not a multiple of backbone\.heads=3"),
        ("gla", {"inner": 18}, r"backbone\.inner=18 is not a multiple of backbone\.heads=4; 20 is"),
        (
            "hybrid",
            {"layers": 2, "mixers": ["gru", "gla", "hyena"]},
            r"3 mixers for 2 layers; give -o backbone\.layers=3 or a shorter list",
        ),
        ("retnet", {"width": 12}, "must be even, not 3"),
        (
            "hybrid",
            {"mixers": ["attention"], "state": 3},
            r"backbone\.state is nothing that attention has; leave it out",
        ),
        ("hybrid", {"mixers": ["rwkv7"], "inner": 64}, r"backbone\.inner is nothing that rwkv7 has; leave it out"),
        ("lstm", {"feedforward": 3}, r"backbone\.feedforward is for a channel MLP; add -o backbone\.mlp=swiglu"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(name: str, settings: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        model(name, **settings)


@pytest.mark.parametrize("taps", [1, -4])
def test_a_convolution_over_one_token_is_none(taps: int) -> None:
    with pytest.raises(
        UsageError, match=f"conv: {taps} is no number of taps; write 0 for no convolution, or at least 2"
    ):
        resolve_run("linear", "gla", "smoke", overrides=[f"backbone.conv={taps}"])


def test_a_convolution_over_one_token_is_none_of_mamba_either() -> None:
    with pytest.raises(UsageError, match="conv: 1 is no number of taps; write at least 2"):
        resolve_run("linear", "mamba", "smoke", overrides=["backbone.conv=1"])


def test_a_convolution_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(UsageError, match="conv: expected less than or equal to 1000000000"):
        resolve_run("linear", "gla", "smoke", overrides=[f"backbone.conv={10**20}"])


def test_hyena_ends_at_its_longest_sequence() -> None:
    built = model("hyena")
    assert built.longest == 13 and built.too_long(12) is None and "at most 12 examples" in str(built.too_long(13))
    with pytest.raises(UsageError, match=r"hyena's filter ends at 13 points, asked for 14; .*max_points=14 or more"):
        built.predict_next(points(14))
    assert model("hyena", max_points=30).predict_next(points(14)).point().shape == (2, 14, 1)


def test_a_filter_that_ends_before_the_trained_sequence_does_is_refused_before_there_is_a_model() -> None:
    with pytest.raises(UsageError, match="max_points is 12, but the longest sequence has 13, the query included"):
        model("hyena", max_points=12)


def test_a_filter_made_for_long_sequences_costs_what_is_asked() -> None:
    """Half a billion points are no allocation of so many numbers."""
    built = model("hyena", max_points=500_000_000)
    assert bool(built.predict_next(points(6)).point().isfinite().all())


def test_mixers_are_named_as_on_the_command_line() -> None:
    mixers = 'backbone.mixers=["Mamba2", "gated_deltanet "]'
    assert resolve_run("linear", "hybrid", "smoke", overrides=[mixers]).backbone.settings["mixers"] == [
        "mamba2",
        "gated-deltanet",
    ]


def test_mamba_without_a_convolution_is_a_hybrid() -> None:
    with pytest.raises(UsageError, match=r'conv: mamba has a convolution.*mixers=\["mamba"\] -o backbone.conv=0'):
        resolve_run("linear", "mamba", "smoke", overrides=["backbone.conv=0"])
    resolve_run("linear", "hybrid", "smoke", overrides=['backbone.mixers=["mamba"]', "backbone.conv=0"])


def test_growing_states_of_unequal_episodes_are_one_batch() -> None:
    """An update of episodes with other numbers of new points each: keys and values are padded on the left."""
    built, given = model("hybrid", layers=3, mixers=["mamba2", "attention", "hyena"], max_points=40), points(9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 4:] = False
    gappy = Points(given.x, given.y, mask)
    with torch.no_grad():
        state = built.update(built.condition(given), gappy)
        found = built.query(state, given.x[:, :3]).point()
        alone = built.condition(given[:1].append(given.span(0, 4)[:1]))
        torch.testing.assert_close(found[:1], built.query(alone, given.x[:1, :3]).point(), atol=1e-5, rtol=1e-4)
