"""Sequence models with any mixers. A block consists of a norm, a mixer, a norm and an optional channel MLP.

Factors that differ between the papers on these architectures are settings: the short convolution, the channel MLP, and
the size of the state per channel of the values, for mixers with a matrix per head. The budget of a preset gives all
models the same number of parameters. `iclbench.layers.mixers` has one file per mixer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from jaxtyping import Float
from pydantic import AfterValidator, Field
from torch import Tensor

from iclbench.backbones.base import description, split_by_weight_decay
from iclbench.backbones.mixer_block import MixerBlock, make_norm, residual
from iclbench.backbones.recurrent import RecurrentBackbone, RecurrentSettings
from iclbench.backbones.sequence import LoopedSettings
from iclbench.core.errors import UsageError
from iclbench.core.formats import plural
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.channel_mlp import ChannelMLP
from iclbench.layers.mixers.mixer import Eigenvalues, Mixer, Mlp, Sizes
from iclbench.registry import MIXERS, canonical_name

_MAMBAFORMER_MIXERS = ("mamba", "attention")
# Settings that only some mixers use.
_MIXER_SETTINGS = ("heads", "inner", "state", "rank", "filter_order", "eigenvalues", "householders")


def _check_taps(value: int) -> int:
    if value < 0 or value == 1:
        raise ValueError(f"{value} is not a number of taps; write 0 for no convolution, or at least 2 (4 is usual)")
    return value


class SequenceSettings(RecurrentSettings):
    """Settings that all mixers share; the mixer sets a default for settings that are None."""

    layers: PositiveInt = 12
    """Mixer blocks."""
    width: PositiveInt = 256
    """Width D of a token."""
    conv: Annotated[int, Field(le=1_000_000_000), AfterValidator(_check_taps)] | None = None
    """Taps of the short convolution (4 is usual), 0 for none; by default set by the mixer."""
    mlp: Mlp | None = None
    """Channel MLP of a block: none, gelu, swiglu, relu2; by default set by the mixer."""
    feedforward: PositiveInt | None = None
    """Hidden width of the channel MLP; by default four times the width of a token, 8/3 times for swiglu."""
    norm: Literal["rms", "layer"] = "rms"
    """Norms before mixers and channel MLPs, and after the last block: rms, layer."""


class SettingsWithHeads(SequenceSettings):
    """Settings of mixers with heads."""

    heads: PositiveInt = 4
    """Number of heads H of a mixer."""


class SettingsWithInnerWidth(SettingsWithHeads):
    """Settings of mixers whose values may be wider or narrower than tokens."""

    inner: PositiveInt | None = None
    """Total number of channels of the values of all heads; by default a multiple of the width set by the mixer."""


class SettingsWithState(SettingsWithInnerWidth):
    """Settings of mixers whose heads have a matrix as state."""

    state: PositiveInt | None = None
    """Number of rows of a head's state, which is the size of the state per channel of the values (for based: f, which
    gives (f + 1)(f + 2) / 2 rows); by default set by the mixer."""


class SettingsWithEigenvalues(SettingsWithState):
    """Settings of delta rules."""

    eigenvalues: Eigenvalues = "positive"
    """Eigenvalues of the transition of a token: positive (beta = sigmoid), negative (beta = 2 sigmoid, so that a state
    can be reflected)."""


class SettingsWithRank(SequenceSettings):
    """Settings of mixers with low-rank maps."""

    rank: PositiveInt | None = None
    """Rank of low-rank maps (gates of gla, kda and rwkv7, step sizes of mamba, directions of path); by
    default set by the mixer."""


class SettingsWithFilter(SequenceSettings):
    """Settings of mixers with a computed filter."""

    max_points: PositiveInt | None = None
    """Length of hyena's filter in points; by default the length of the longest sequence in training."""
    filter_order: PositiveInt | None = None
    """Units in each hidden layer of the network that computes hyena's filter; by default 64. With 16, more of a small
    budget is available for the rest of the model."""


class MambaFormerSettings(SettingsWithState, SettingsWithRank):
    """Settings of Mamba with attention."""

    layers: PositiveInt = 6
    """Pairs of an attention block and a Mamba block after the first Mamba block."""
    mlp: Mlp = "none"
    """Channel MLP of a block: none, gelu, swiglu, relu2."""


class HybridSettings(SettingsWithState, SettingsWithRank, SettingsWithFilter, LoopedSettings):
    """Settings of all mixers, and the mixer of every layer."""

    mixers: Annotated[list[Annotated[str, AfterValidator(canonical_name)]], Field(min_length=1)] = [
        "mamba2",
        "attention",
    ]
    """Mixers of the layers, first to last; a shorter list is repeated."""
    eigenvalues: Eigenvalues | None = None
    """Eigenvalues of the transitions of delta rules: positive, negative; by default set by the mixer."""
    householders: PositiveInt | None = None
    """Steps of the delta rule per token for gated-deltaproduct; by default set by the mixer."""


_Settings = TypeVar("_Settings", bound=SequenceSettings)


class SequenceModel(RecurrentBackbone[_Settings], abstract=True):
    """A stack of mixer blocks and a norm, without positions.

    Raises:
        UsageError: a mixer does not exist, the list has more mixers than the model has layers, the width is not a
            multiple of the number of heads, or a setting is set that no mixer of the model uses.
    """

    def __init__(self, settings: _Settings, shape: TaskShape, mixers: Sequence[str]) -> None:
        depth = self.depth(settings)
        if len(mixers) > depth:
            raise UsageError(
                f"backbone.mixers has {plural(len(mixers), 'mixer')} for {plural(depth, 'layer')}; pass "
                f"-o backbone.layers={len(mixers)} or a shorter list",
                code="conflict",
            )
        classes = [MIXERS.subclass(name) for name in mixers]
        points = self._max_points(settings, shape)
        self._check_unused_settings(settings, mixers, classes)
        super().__init__(settings, shape, settings.width, self._blocks_of(settings, depth, classes, points))
        self.norm = make_norm(settings.norm, settings.width)
        self.longest = points if any("longest" in cls.uses for cls in classes) else None

    @classmethod
    def mixers_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the mixers with these settings."""
        raise NotImplementedError

    @classmethod
    def depth(cls, settings: _Settings) -> int:
        """Return the number of blocks."""
        return settings.layers

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings for a budget, without the state size, which is varied separately."""
        return {key: value for key, value in super().at_budget(budget, shape).items() if key != "state"}

    @classmethod
    def _mixer_classes(cls, settings: Mapping[str, Any]) -> list[type[Mixer]]:
        return [MIXERS.subclass(name) for name in cls.mixers_of(settings)]

    @classmethod
    def searched_settings(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the width and, as a finer adjustment, the hidden width of the channel MLP. Without a channel MLP, the
        finer adjustment is the inner width, if exactly one mixer uses it."""
        classes, mlp = cls._mixer_classes(settings), settings.get("mlp", cls.Settings.model_fields["mlp"].default)
        if any((mlp or mixer.mlp) != "none" for mixer in classes):
            return "width", "feedforward"
        return ("width", "inner") if len({mixer for mixer in classes if "inner" in mixer.uses}) == 1 else ("width",)

    @classmethod
    def state_settings(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        used_keys = {key for mixer in cls._mixer_classes(settings) for key in mixer.uses}
        return tuple(key for key in super().state_settings(settings) if key in used_keys)

    @classmethod
    def step(cls, key: str, settings: Mapping[str, Any]) -> int:
        """Return the step size of a setting in the search. For widths and rows of a state, it is the multiple that all
        mixers require; the number of heads counts only if a mixer has heads."""
        classes = cls._mixer_classes(settings)
        uses_heads = key not in ("width", "inner") or any("heads" in mixer.uses for mixer in classes)
        multiple = super().step("width" if key == "inner" else key, settings) if uses_heads else 1
        if key == "inner":
            return math.lcm(multiple, *(mixer.block for mixer in classes))
        if key in ("width", "state"):
            return multiple * math.lcm(*(mixer.head_step for mixer in classes))
        return multiple

    @staticmethod
    def _max_points(settings: SequenceSettings, shape: TaskShape) -> int:
        """Return the setting `max_points` or, by default, the number of points of the longest sequence in training,
        including the query and separators.

        Raises:
            UsageError: `max_points` is less than this number.
        """
        max_points = settings.max_points if isinstance(settings, SettingsWithFilter) else None
        training_points = shape.points + 1 + shape.related * (shape.related_points + 1)
        if max_points is not None and max_points < training_points:
            raise UsageError(
                f"backbone.max_points={max_points} is less than the {training_points} points of the longest sequence, "
                f"including the query; pass -o backbone.max_points={training_points} or remove it",
                code="bad-value",
            )
        return max_points or training_points

    @staticmethod
    def _blocks_of(
        settings: SequenceSettings, depth: int, classes: Sequence[type[Mixer]], points: int
    ) -> Iterator[MixerBlock]:
        mlp_names = [settings.mlp or cls.mlp for cls in classes]
        rounds, remainder = divmod(depth, len(classes))
        mlp_counts = [
            rounds * sum(name != "none" for name in mlp_names),
            sum(name != "none" for name in mlp_names[:remainder]),
        ]
        residuals = depth + sum(mlp_counts)
        for layer in range(depth):
            cls, mlp_name = classes[layer % len(classes)], mlp_names[layer % len(classes)]
            sizes = Sizes(
                settings.width,
                **{
                    key: value for key in _MIXER_SETTINGS if key in cls.uses and (value := getattr(settings, key, None))
                },
                conv=settings.conv,
                longest=2 * points,
                residuals=residuals,
                layers=depth,
                layer=layer,
                first=cls not in classes[:layer],
            )
            mlp = None if mlp_name == "none" else ChannelMLP(mlp_name, settings.width, settings.feedforward, residuals)
            yield MixerBlock(cls(sizes), settings.width, settings.norm, mlp)

    @staticmethod
    def _check_unused_settings(
        settings: SequenceSettings, mixers: Sequence[str], classes: Sequence[type[Mixer]]
    ) -> None:
        used_keys = {key for cls in classes for key in cls.uses}
        used_keys |= {"max_points" for cls in classes if "longest" in cls.uses}
        for key in ("state", "inner", "rank", "max_points", "filter_order", "eigenvalues", "householders"):
            if getattr(settings, key, None) is not None and key not in used_keys:
                names = " or ".join(dict.fromkeys(mixers))
                raise UsageError(f"{names} does not use backbone.{key}; remove it", code="not-applicable")
        if settings.feedforward is not None and all((settings.mlp or cls.mlp) == "none" for cls in classes):
            raise UsageError(
                "backbone.feedforward is for a channel MLP; add -o backbone.mlp=swiglu, or remove it",
                code="conflict",
            )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups in which A_log, D, dt_bias, penalty, skip and frequency have no weight decay. For
        Mamba and Mamba-2, this is as in mamba-ssm. In Safari, the other parameters of Hyena's filter have no weight
        decay either; in the release of RWKV, this holds for all parameters that are not matrices."""
        return split_by_weight_decay(self, (".A_log", ".D", ".dt_bias", ".penalty", ".skip", ".frequency"))

    def finish(self, hidden: Float[Tensor, "B Q _"]) -> Float[Tensor, "B Q D"]:
        return self.norm(residual(self.norm, hidden[..., : self.settings.width]))


class Hybrid(SequenceModel[HybridSettings]):
    """A sequence model with a separate mixer for every layer, for example
    `backbone.mixers = ["mamba2", "attention"]`."""

    Settings = HybridSettings

    def __init__(self, settings: HybridSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape, settings.mixers)

    @classmethod
    def mixers_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        return settings.get("mixers") or HybridSettings().mixers

    @classmethod
    def explanation(cls) -> str:
        mixers = "\n".join(
            f"- {name}: {entry.summary}; {MIXERS.subclass(name).block_summary()}"
            for name, entry in sorted(MIXERS.entries.items())
        )
        return f"{super().explanation()}\n\nMixers:\n\n{mixers}"


class MambaFormer(SequenceModel[MambaFormerSettings]):
    """A Mamba block instead of positions, followed by alternating attention and Mamba blocks. The Mamba blocks replace
    the channel MLPs of a Transformer (Park et al. 2024, arXiv 2402.04248, section 5). The last block is a Mamba block.

    Attention and norms are as in `hybrid`; the released code has layer norms (`backbone.norm=layer`).
    """

    Settings = MambaFormerSettings

    def __init__(self, settings: MambaFormerSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape, _MAMBAFORMER_MIXERS)

    @classmethod
    def depth(cls, settings: MambaFormerSettings) -> int:
        return 1 + 2 * settings.layers

    @classmethod
    def mixers_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        return _MAMBAFORMER_MIXERS

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings for a budget. A layer is a pair of blocks, so the model has half as many layers as usual,
        in addition to the first block."""
        sizes = super().at_budget(budget, shape)
        return sizes | {"layers": sizes["layers"] // 2}


class UniformModel(SequenceModel[_Settings], abstract=True):
    """The same mixer in every layer.

    Attributes:
        mixer: name of the mixer.
    """

    mixer: ClassVar[str]

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape, (self.mixer,))

    @classmethod
    def mixers_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        return (cls.mixer,)

    @classmethod
    def explanation(cls) -> str:
        mixer = MIXERS.subclass(cls.mixer)
        block = f"By default, its block has {mixer.block_summary()}, and RMS norms."
        return f"{description(mixer.__doc__)}\n\n{block}"
