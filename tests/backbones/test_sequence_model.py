"""Sequence models with arbitrary mixers: settings, sizes, states, and errors."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.sequence_model import SequenceModel, UniformModel
from iclbench.config.resolution import resolve_run
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES, MIXERS
from tests.backbones.random_points import points
from tests.refusals import refused

SHAPE = TaskShape(x_dim=4, points=12)
UNIFORM = [name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), UniformModel)]


def model(name: str, **settings: object) -> SequenceModel:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**{"layers": 2, "width": 16, **settings}), SHAPE).eval()


def test_the_documentation_lists_every_mixer() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sequence-mixers.md").read_text()
    missing = [name for name in MIXERS.builtin_entries if f"`{name}`" not in text]
    assert not missing, f"name {missing} in docs/templates/sequence-mixers.md, and run `make pages`"


def test_every_mixer_has_a_backbone_with_its_name() -> None:
    assert set(UNIFORM) | {"mamba"} == set(MIXERS.builtin_entries)
    for name in UNIFORM:
        assert BACKBONES.get(name).mixer == name


@pytest.mark.parametrize("name", UNIFORM)
def test_a_backbone_has_the_settings_that_its_mixer_uses(name: str) -> None:
    uses, settings = MIXERS.subclass(name).uses, BACKBONES.get(name).Settings.model_fields
    for key in ("heads", "inner", "state", "rank", "filter_order", "eigenvalues", "householders"):
        assert (key in settings) == (key in uses)
    assert ("max_points" in settings) == ("longest" in uses)
    # These settings are common to all backbones with a single mixer.
    assert {"conv", "mlp", "feedforward"} <= settings.keys() and "conv" in uses


# The numbers of parameters of one layer of width D with H heads, as in papers and released code.
D, H = 64, 4
COUNTS = {
    "linear-attention": 4 * D * D,
    "based": 2 * D * 16 * H + 2 * D * D,
    "retnet": 8 * D * D,
    "mamba2": D * (2 * 2 * D + 2 * 64 + H) + 5 * (2 * D + 2 * 64) + 3 * H + 2 * D + 2 * D * D,
    "mamba3": D * (6 * D + 2 * 64 + 3 * H + 16) + 2 * H * 65 + 2 * 64,
    "gla": 4 * D * D + 24.5 * D + D // H,
    "deltanet": 4 * D * D + D * H + 12 * D + D // H,
    "gated-deltanet": 6 * D * D + 2 * D * H + 4 * 3 * D + 2 * H + 2 * 12,
    "gated-deltaproduct": 8.25 * D * D + 3 * D * H + 4 * 5.25 * D + 2 * H + 2 * 12,
    "mesa": 4 * D * D + 8 * D + D + 2 * (D + 1) * H + D // H,
    "kda": 4 * D * D + 4 * D * (D // H) + D * H + 12 * D + H + D + D // H,
    "mlstm": 6 * D * D + (38 + 12 * H) * D + 2 * H,
    "lstm": 8 * D * D + 8 * D,
    "gru": 6 * D * D + 6 * D,
    "attention": 4 * D * D + 4 * D,
    "fox": 4 * D * D + (D + 1) * H,
    "path": 4 * D * D + 2 * D * (D // H) + 3 * D + (D + 1) * H,
    "hyena": 4 * D * D + 81 * D + 8768,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_mixer_has_the_published_number_of_parameters(name: str) -> None:
    heads = {"heads": H} if "heads" in BACKBONES.get(name).Settings.model_fields else {}
    mixer = model(name, layers=1, width=D, **heads).layers[0].mixer
    assert sum(weight.numel() for weight in mixer.parameters()) == COUNTS[name]


@pytest.mark.parametrize("units", [16, 64])
def test_the_setting_filter_order_determines_the_number_of_parameters_of_hyena(units: int) -> None:
    mixer = model("hyena", layers=1, width=D, filter_order=units).layers[0].mixer
    assert (
        sum(weight.numel() for weight in mixer.parameters()) == 4 * D * D + (units + 17) * D + 2 * units**2 + 9 * units
    )


@pytest.mark.parametrize("name", UNIFORM)
def test_a_state_has_the_documented_size(name: str) -> None:
    """For most mixers, the state of an episode consists of a matrix and of a window of the last tokens. The states of
    mixers with attention and of Hyena grow with the number of tokens.
    """
    longer = {"max_points": 30} if name == "hyena" else {}
    backbone = model(name, layers=1, width=D, **longer)
    memory = [backbone.condition(points(2, count, 4)).nbytes for count in (5, 20)]
    # Keys and values, decays, and the mask of valid tokens.
    caches = {"attention": 4 * 2 * D + 1, "fox": 4 * (2 * D + H) + 1, "path": 4 * 2 * D + 1}
    if name in caches:
        assert memory[1] - memory[0] == 2 * 2 * (20 - 5) * caches[name]  # for two episodes, with two tokens per point
        return
    sizes = [size // 4 for size in memory]
    wide = 2 * 3 * D // 4
    values = {"retnet": 2 * D, "mamba2": 2 * D, "mamba3": 2 * D, "mlstm": 2 * D}
    values |= {"gated-deltanet": wide, "gated-deltaproduct": wide, "mesa": D + D}  # mesa: H and G
    rows = {"based": 1 + 16 + 136, "mamba2": 64, "mamba3": 64, "gla": D // H // 2, "mlstm": 2 * D // H}
    rows |= {"gated-deltanet": 12, "gated-deltaproduct": 12}
    if name == "hyena":
        assert sizes[1] > 2 * sizes[0]
        return
    assert sizes[0] == sizes[1]
    if name in ("lstm", "gru"):
        assert sizes[0] == 2 * D * (2 if name == "lstm" else 1)
        return
    normaliser = H if name in ("linear-attention", "based", "mlstm") else 0
    matrix = rows.get(name, D // H) * (values.get(name, D) + normaliser)
    windows = {"mamba2": 3 * (2 * D + 128), "deltanet": 9 * D, "gated-deltanet": 9 * D, "kda": 9 * D, "rwkv7": D}
    windows |= {"mlstm": 3 * 2 * D, "gated-deltaproduct": 3 * 21 * D // 4, "mesa": 3 * 2 * D}
    windows |= {"mamba3": 2 * D + 64}  # x and B of the last token
    window = windows.get(name, 0)
    expected = 2 * (matrix + window + (H if name == "mlstm" else 0))
    assert sizes[0] == expected, "add the documented rows, values and window of the mixer to this test"


def test_a_list_of_mixers_is_repeated_for_all_layers() -> None:
    backbone = model("hybrid", layers=5, mixers=["mamba", "attention"])
    mixers = [type(block.mixer).__name__ for block in backbone.layers]
    assert mixers == ["Mamba", "Attention", "Mamba", "Attention", "Mamba"]


@pytest.mark.parametrize("name", ["deltanet", "gated-deltanet", "kda", "gated-deltaproduct"])
def test_hybrids_have_the_eigenvalues_of_the_backbone_of_each_mixer(name: str) -> None:
    hybrid = model("hybrid", mixers=[name])
    for eigenvalues in ("positive", "negative"):
        uniform = model(name, eigenvalues=eigenvalues)
        is_default = eigenvalues == BACKBONES.get(name).Settings().eigenvalues
        answers = [m.predict_next(points(2, 5, 4)).point() for m in (hybrid, uniform)]
        assert torch.equal(*answers) == is_default
        answers[0] = model("hybrid", mixers=[name], eigenvalues=eigenvalues).predict_next(points(2, 5, 4)).point()
        assert torch.equal(*answers)


@pytest.mark.parametrize(("preset", "pairs"), [("grid", 1), ("small", 2)])
def test_mambaformer_has_a_mamba_block_followed_by_pairs_of_attention_and_mamba(preset: str, pairs: int) -> None:
    """In the released code, an even number of blocks (`n_layer`) follows the first Mamba block."""
    config = resolve_run("linear", "mambaformer", preset)
    backbone = config.build(config.task.build())
    mixers = [type(block.mixer).__name__ for block in backbone.layers]
    assert mixers == ["Mamba", *["Attention", "Mamba"] * pairs]
    assert all(block.mlp is None for block in backbone.layers)


def test_other_mixers_pass_on_the_values_of_the_first_rwkv7_layer() -> None:
    """Later RWKV-7 layers mix their values with those of the first one."""
    backbone = model("hybrid", layers=3, mixers=["rwkv7", "attention", "rwkv7"], heads=2)
    assert [getattr(block.mixer, "first", None) for block in backbone.layers] == [True, None, False]
    first = backbone.layers[0](torch.randn(2, 6, 16))
    later = backbone.layers[1](first)
    assert first.shape[-1] == 32 and torch.equal(later[..., 16:], first[..., 16:])
    assert not torch.equal(later[..., :16], first[..., :16])


@pytest.mark.parametrize(
    ("name", "settings", "code", "names"),
    [
        ("hybrid", {"mixers": ["mamba4"]}, "unknown-name", ["mamba4", "mamba3"]),
        ("gla", {"heads": 3}, "bad-value", ["backbone.width=16", "backbone.heads=3", 18]),
        ("hybrid", {"heads": 3, "mixers": ["attention"]}, "bad-value", ["backbone.heads=3"]),
        ("gla", {"inner": 18}, "bad-value", ["backbone.inner=18", "backbone.heads=4", 20]),
        ("hybrid", {"layers": 2, "mixers": ["gru", "gla", "hyena"]}, "conflict", ["-o backbone.layers=3"]),
        ("retnet", {"width": 12}, "bad-value", ["backbone.state", "backbone.width", 3]),
        ("hybrid", {"mixers": ["attention"], "state": 3}, "not-applicable", ["backbone.state", "attention"]),
        ("hybrid", {"mixers": ["rwkv7"], "inner": 64}, "not-applicable", ["backbone.inner", "rwkv7"]),
        ("hybrid", {"mixers": ["gla"], "eigenvalues": "negative"}, "not-applicable", ["backbone.eigenvalues", "gla"]),
        ("hybrid", {"mixers": ["kda"], "householders": 2}, "not-applicable", ["backbone.householders", "kda"]),
        ("lstm", {"feedforward": 3}, "conflict", ["backbone.feedforward", "-o backbone.mlp=swiglu"]),
    ],
)
def test_invalid_settings_are_refused(name: str, settings: dict[str, object], code: str, names: list[object]) -> None:
    with refused(code, *names):
        model(name, **settings)


def assert_conv_is_refused(backbone: str, taps: int, *names: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve_run("linear", backbone, "smoke", overrides=[f"backbone.conv={taps}"])
    assert all(name in str(error.value) for name in ("conv", *names)), error.value


@pytest.mark.parametrize(("backbone", "taps"), [("gla", 1), ("gla", -4), ("gla", 10**20), ("mamba", 1)])
def test_invalid_numbers_of_convolution_taps_are_refused(backbone: str, taps: int) -> None:
    assert_conv_is_refused(backbone, taps, str(taps))


def test_hyena_refuses_sequences_longer_than_its_filter() -> None:
    backbone = model("hyena")
    assert backbone.longest == 13 and backbone.too_long(12) is None and "12" in str(backbone.too_long(13))
    with refused("not-applicable", "hyena", 13, "-o backbone.max_points=14"):
        backbone.predict_next(points(2, 14, 4))
    assert model("hyena", max_points=30).predict_next(points(2, 14, 4)).point().shape == (2, 14, 1)


def test_a_filter_shorter_than_the_training_sequences_is_refused() -> None:
    with refused("bad-value", "backbone.max_points=12", "-o backbone.max_points=13"):
        model("hyena", max_points=12)


def test_a_filter_is_computed_only_up_to_the_length_of_the_sequence() -> None:
    """A model for up to half a billion points predicts six points without computing a filter for all positions."""
    backbone = model("hyena", max_points=500_000_000)
    assert bool(backbone.predict_next(points(2, 6, 4)).point().isfinite().all())


def test_names_of_mixers_are_normalised() -> None:
    mixers = 'backbone.mixers=["Mamba2", "gated_deltanet "]'
    assert resolve_run("linear", "hybrid", "smoke", overrides=[mixers]).backbone.settings["mixers"] == [
        "mamba2",
        "gated-deltanet",
    ]


def test_the_error_for_mamba_without_a_convolution_suggests_the_hybrid_backbone() -> None:
    assert_conv_is_refused("mamba", 0, '-o backbone.mixers=["mamba"]', "-o backbone.conv=0")
    resolve_run("linear", "hybrid", "smoke", overrides=['backbone.mixers=["mamba"]', "backbone.conv=0"])


def test_states_that_grow_by_different_numbers_of_points_per_episode_are_padded() -> None:
    """Keys and values are padded on the left."""
    backbone, batch = model("hybrid", layers=3, mixers=["mamba2", "attention", "hyena"], max_points=40), points(2, 9, 4)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 4:] = False
    masked = Points(batch.x, batch.y, mask)
    with torch.no_grad():
        state = backbone.update(backbone.condition(batch), masked)
        actual = backbone.query(state, batch.x[:, :3]).point()
        single = backbone.condition(batch[:1].append(batch.span(0, 4)[:1]))
        torch.testing.assert_close(actual[:1], backbone.query(single, batch.x[:1, :3]).point(), atol=1e-5, rtol=1e-4)
