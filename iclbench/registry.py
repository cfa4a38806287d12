"""Names to lazily imported classes. Built-in names stand here; third parties add theirs through entry points.

A plug-in declares, in its own `pyproject.toml`:

    [project.entry-points."iclbench.backbones"]
    my-net = "my_package.net:MyNet"

    [project.entry-points."iclbench.variants"]
    my-net-wide = "my_package.net:WIDE"

    [project.entry-points."iclbench.tests"]
    my-test = "my_package.tests:MY_TEST"

where `WIDE = Variant("my-net", {"width": 512}, "what it is in a line")`, and `MY_TEST = Meaning("its title", "what it
asks")` (`iclbench.core.meaning`) is what reports say of an evaluator that a family has of its own.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from importlib.machinery import all_suffixes
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from iclbench.core import plugins, trust
from iclbench.core.errors import UnknownNameError, UsageError, one_line, said, shortened
from iclbench.core.formats import canonical
from iclbench.core.signals import heed_ctrl_c

log = logging.getLogger("iclbench")


def spelling(name: str) -> str:
    """The canonical spelling of a registered name; a target `package.module:Class` as it stands."""
    return name if ":" in name else canonical(name)


def is_target(name: str) -> bool:
    """Whether it reads `package.module:Class`."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", name) is not None


def imported(target: str) -> Any:
    """What `module:name` names, imported when this is called."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def model_for_task() -> Any:
    """The function that builds a backbone for the shape of a task, with an image encoder if its inputs are images."""
    return imported("iclbench.backbones.image_backbone:for_task")


def _imported_from_outside(target: str) -> Any:
    """The same for code that may change torch's default dtype when it is imported."""
    with imported("iclbench.core.guard:fixed_state")():
        return imported(target)


@dataclass(frozen=True)
class Entry:
    """One registered class.

    Attributes:
        target: where it is, `module:Class`.
        summary: what it is in one line.
        package: which package brought it ...
        group: ... and in which group of entry points.
        code: of iclbench's own: raised in the commit that changes what the class answers for the same settings
            (`iclbench.config.codes`).
        prompts, normaliser: the further codes of a family: of the choice of frozen prompts, and of what errors are
            divided by.
    """

    target: str
    summary: str = ""
    package: str = "iclbench"
    group: str = ""
    code: int = 1
    prompts: int = 1
    normaliser: int = 1

    def load(self) -> Any:
        """Import the class; raises `UsageError` with the import's own words when it cannot be had here."""
        try:
            ours = trust.package_of(self.target) == "iclbench"
            found = imported(self.target) if ours else _imported_from_outside(self.target)
        except ModuleNotFoundError as error:
            if error.name != trust.package_of(self.target):
                raise UsageError(f"cannot load '{self.target}' (from {self.package}): {said(error)}") from error
            where = f"neither installed nor in the current folder {Path.cwd()}"
            raise UsageError(f"cannot load '{self.target}': module '{error.name}' is {where}") from error
        except AttributeError as error:
            raise UsageError(
                f"cannot load '{self.target}' (from {self.package}): {said(error)}{self._near()}"
            ) from error
        except SystemExit as error:
            raise UsageError(
                f"cannot load '{self.target}': importing it calls sys.exit({shortened(repr(error.code))})"
            ) from error
        except Exception as error:  # whatever a third party's module does when it is imported
            heed_ctrl_c(error)
            raise UsageError(f"cannot load '{self.target}' (from {self.package}): {said(error)}") from error
        if isinstance(found, type) and not ours:
            plugins.check_settings(found, self.target)
        return found

    def _near(self) -> str:
        """A class of the module with nearly this name, as advice; empty: there is none, or no module."""
        module, _, name = self.target.partition(":")
        classes = [own for own, value in vars(sys.modules.get(module, object)).items() if isinstance(value, type)]
        same = [own for own in classes if own.lower() == name.lower()]
        near = same or get_close_matches(name, classes, n=1)
        return f"; did you mean '{module}:{near[0]}'?" if near else ""

    def availability(self) -> str:
        """
        "yes", or why the class cannot be had here; looks for the module without importing it, or the package that it
        is in."""
        module = self.target.partition(":")[0]
        top, *inner = module.split(".")
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            spec = None
        except Exception as error:  # whatever a third party's finder does
            return one_line(error)
        folders = (spec.submodule_search_locations or []) if spec else []
        inside = [Path(folder, *inner) for folder in folders]
        files = [Path(f"{path}{suffix}") for path in inside for suffix in all_suffixes()]
        found = any(path.is_dir() for path in inside) or any(path.is_file() for path in files)
        return "yes" if (found if inner else spec) else f"no module '{module}'"


class Registry:
    """The classes of one kind (family, backbone, estimator) by name.

    Names may be written with hyphens or underscores, or be a target `package.module:Class` that needs no registration.

    Args:
        kind: of the classes.
        builtin: those of iclbench.
        base: `module:Class` that all of them derive from.
    """

    def __init__(self, kind: str, builtin: dict[str, Entry], base: str = "builtins:object") -> None:
        self.kind = kind
        self.base = base
        self.group = f"iclbench.{'families' if kind == 'family' else kind + 's'}"
        self._builtin = builtin
        self._groups = [self.group]

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All entries, built-in and third-party; two packages claiming one name is an error that shows both."""
        found = dict(self._builtin)
        for group in self._groups:
            for point in entry_points(group=group):
                self._add(found, canonical(point.name), Entry(point.value, package=_package(point), group=group))
        return found

    def _add(self, found: dict[str, Entry], name: str, entry: Entry) -> None:
        other = found.get(name)
        if other is not None and other.target == entry.target:
            return  # the same class, which the entry that stands knows more of
        if other is not None:
            raise UsageError(
                f"two packages register the {self.kind} '{name}': {other.target} ({other.package}) and "
                f"{entry.target} ({entry.package}); uninstall one of them"
            )
        found[name] = entry

    @property
    def shipped(self) -> dict[str, Entry]:
        """The entries of iclbench itself, in the order in which they stand here."""
        return {name: self.entries[name] for name in self._builtin}

    def names(self) -> list[str]:
        return sorted(self.entries)

    def entry(self, name: str) -> Entry:
        if ":" in name:
            return Entry(name, package=trust.package_of(name))
        found = self.entries.get(canonical(name))
        if found is None:
            raise UnknownNameError(self.kind, name, self.entries)
        return found

    def get(self, name: str) -> Any:
        """The class behind `name`.

        Raises:
            UntrustedError: a target outside the registry whose module is not trusted (`iclbench.core.trust`).
        """
        if ":" in name:
            trust.require(name)
        return self.entry(name).load()

    def subclass(self, name: str) -> Any:
        """The same; raises `UsageError` when it does not derive from `base`."""
        cls = self.get(name)
        if not (isinstance(cls, type) and issubclass(cls, imported(self.base))):
            raise UsageError(f"'{name}' is no {self.kind}: it must be a subclass of {self.base.replace(':', '.')}")
        return cls

    def available(self) -> list[str]:
        """The names of iclbench's own classes whose modules are installed, which is not the same as imported, and of
        the plug-ins that load; a broken one warns and never takes the tool down."""
        names = []
        for name, entry in self.entries.items():
            try:
                if entry.package != "iclbench":
                    self.get(name)
                elif (why := entry.availability()) != "yes":
                    raise UsageError(why)
            except Exception as error:
                log.warning("%s '%s' is not available: %s", self.kind, name, said(error))
            else:
                names.append(name)
        return names


@dataclass(frozen=True)
class Variant:
    """What a contestant's name stands for: a backbone and the settings that are frozen under this name.

    Attributes:
        backbone: its registered name, or `package.module:Class`.
        frozen: settings that are the same wherever this name stands; None: left at their default.
        summary: one line.
    """

    backbone: str
    frozen: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


class Backbones(Registry):
    """Backbones by name, and their variants, which are contestants like any other.

    The entry of a built-in variant is that of its backbone with another summary, that of a third party's says where its
    `Variant` is.
    """

    _VARIANTS = "iclbench.variants"

    def __init__(self, builtin: dict[str, Entry], variants: dict[str, Variant]) -> None:
        made = {n: replace(builtin[v.backbone], summary=v.summary) for n, v in variants.items() if v.backbone != n}
        super().__init__("backbone", builtin | made, "iclbench.backbones.base:Backbone")
        self._variants = variants
        self._groups.append(self._VARIANTS)

    def architectures(self) -> list[str]:
        """The names that are no variant of another."""
        return [
            name
            for name, entry in sorted(self.entries.items())
            if entry.group != self._VARIANTS and self._variants.get(name, Variant(name)).backbone == name
        ]

    def variant(self, name: str) -> Variant:
        """What a name or target stands for; one that is no variant stands for itself, with nothing frozen.

        Raises:
            UnknownNameError: there is none of this name.
            UsageError: a third party's variant cannot be loaded, or is made of no backbone.
        """
        if ":" in name:
            return Variant(name)
        entry, name = self.entry(name), canonical(name)
        if entry.group != self._VARIANTS:
            return self._variants.get(name, Variant(name))
        found = entry.load()
        if not isinstance(found, Variant):
            written = f"{Variant.__module__}.{Variant.__name__}"
            raise UsageError(f"'{entry.target}' (from {entry.package}) is no variant: it must be a {written}")
        if ":" in found.backbone:
            return found
        if canonical(found.backbone) not in self.architectures():
            known = ", ".join(self.architectures())
            raise UsageError(f"variant '{name}' (from {entry.package}) is of '{found.backbone}'; give one of {known}")
        own = self.variant(found.backbone)
        return replace(found, backbone=own.backbone, frozen={**own.frozen, **found.frozen})

    def names_in_cards(self, name: str) -> list[str]:
        """The names under which a card speaks of a contestant: that of its backbone, and its own, which comes last."""
        return list(dict.fromkeys([self.variant(name).backbone, name]))

    def contradiction(self, name: str, given: Mapping[str, Any]) -> str | None:
        """Why such settings cannot be given under this name, and the name to give instead; None: they can."""
        own = self.variant(name)
        for key, frozen in own.frozen.items():
            if key not in given or given[key] == frozen:
                continue
            wanted = Variant(own.backbone, {**own.frozen, key: given[key]})
            others = [
                n for n, v in self._variants.items() if (v.backbone, v.frozen) == (wanted.backbone, wanted.frozen)
            ]
            stands = "leaves it at its default" if frozen is None else f"stands for {key}={frozen}"
            advice = f"write {others[0]}" if others else f"leave {key} out"
            return f"{key}={given[key]} contradicts the name '{name}', which {stands}; {advice}"
        return None

    def get(self, name: str) -> Any:
        return super().get(self.variant(name).backbone)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


FAMILIES = Registry(
    "family",
    {
        "linear": Entry("iclbench.families.linear:Linear", "w·x with w ~ N(0, I)"),
        "sparse-linear": Entry("iclbench.families.linear:SparseLinear", "w·x with s random non-zero weights"),
        "skewed-linear": Entry("iclbench.families.linear:SkewedLinear", "w·x, inputs with eigenvalues 1/i²"),
        "noisy-linear": Entry("iclbench.families.linear:NoisyLinear", "w·x + N(0, sigma²)"),
        "relu-network": Entry("iclbench.families.relu_network:ReluNetwork", "two-layer ReLU networks"),
        "decision-tree": Entry("iclbench.families.decision_tree:DecisionTree", "axis-aligned trees of depth 4"),
        "combination": Entry("iclbench.families.combination:Combination", "CoQE's five fixed features"),
        "quadratic": Entry("iclbench.families.quadratic:Quadratic", "sum of w_j x_j² / sqrt(3)"),
        "tabular": Entry("iclbench.families.tabular.tabular:Tabular", "episodes from real regression tables"),
        "events": Entry("iclbench.families.events.sequences:Events", "event sequences from your own files"),
        "gp-mixture": Entry(
            "iclbench.families.gaussian_processes.gp_mixture:GPMixture", "Gaussian processes with related datasets"
        ),
        "image-completion": Entry(
            "iclbench.families.images.image_completion:ImageCompletion", "images from some of their pixels"
        ),
        "point-process": Entry(
            "iclbench.families.events.point_process:PointProcess", "marked events: Poisson, renewal, Hawkes and more"
        ),
        "climate": Entry(
            "iclbench.families.climate.climate:Climate", "temperatures in space and time over central Europe, synthetic"
        ),
        "era5": Entry("iclbench.families.climate.era5:ERA5", "the same from your own netCDF files"),
        "bursty": Entry(
            "iclbench.families.images.bursty:Bursty", "labels from the context against labels from the weights"
        ),
    },
    "iclbench.families.base:Family",
)

# A backbone without an entry here has one name and nothing frozen. Positions decide rankings, so that they are part of
# the name. `gpt2` is the Mamba paper's (A.1.1: no positions), `coqe` has none for numbers and sinusoidal ones for class
# labels; Garg et al. and the released code of CoQE learn them.
VARIANTS = {
    "gpt2": Variant("gpt2", {"positions": "none"}),
    "gpt2-learned": Variant("gpt2", {"positions": "learned"}, "gpt2 with learned positions (Garg et al. 2022)"),
    "gpt2-sinusoidal": Variant(
        "gpt2", {"positions": "sinusoidal"}, "gpt2 with sinusoidal positions (waves of Chan et al. 2022)"
    ),
    "gpt2-rotary": Variant("gpt2", {"positions": "rotary"}, "gpt2 with rotary positions (Su et al. 2021)"),
    "coqe": Variant("coqe", {"positions": None}),
    "coqe-learned": Variant("coqe", {"positions": "learned"}, "coqe with learned positions, as its released code"),
    "coqe-sinusoidal": Variant(
        "coqe", {"positions": "sinusoidal"}, "coqe with sinusoidal positions (waves of Chan et al. 2022)"
    ),
    "coqe-rotary": Variant("coqe", {"positions": "rotary"}, "coqe with rotary positions (Su et al. 2021)"),
}

# What mixes tokens in a layer of `hybrid`, and of the backbones of one mixer each.
MIXERS = Registry(
    "mixer",
    {
        "mamba": Entry("iclbench.layers.mixers.mamba:Mamba", "selective state spaces (Gu and Dao 2023)"),
        "attention": Entry(
            "iclbench.layers.mixers.attention:Attention",
            "causal softmax attention without positions, generic block (Vaswani et al. 2017)",
        ),
        "linear-attention": Entry(
            "iclbench.layers.mixers.linear_attention:LinearAttention",
            "linear attention, elu + 1, normalised (Katharopoulos et al. 2020)",
        ),
        "based": Entry(
            "iclbench.layers.mixers.based:Based", "linear attention with Taylor features of exp (Arora et al. 2024)"
        ),
        "retnet": Entry("iclbench.layers.mixers.retnet:RetNet", "retention: fixed decays, rotary (Sun et al. 2023)"),
        "mamba2": Entry("iclbench.layers.mixers.mamba2:Mamba2", "state-space duality (Dao and Gu 2024)"),
        "gla": Entry("iclbench.layers.mixers.gla:GLA", "gated linear attention (Yang et al. 2024)"),
        "deltanet": Entry(
            "iclbench.layers.mixers.deltanet:DeltaNet", "the delta rule (Schlag et al. 2021; Yang et al. 2024)"
        ),
        "gated-deltanet": Entry(
            "iclbench.layers.mixers.gated_deltanet:GatedDeltaNet",
            "the delta rule on a decaying state (Yang et al. 2025)",
        ),
        "kda": Entry("iclbench.layers.mixers.kda:KDA", "Kimi delta attention: decays per channel (Kimi Team 2025)"),
        "rwkv7": Entry("iclbench.layers.mixers.rwkv7:RWKV7", "RWKV-7: generalised delta rule (Peng et al. 2025)"),
        "mlstm": Entry("iclbench.layers.mixers.mlstm:MLSTM", "xLSTM's matrix memory (Beck et al. 2024)"),
        "lstm": Entry(
            "iclbench.layers.mixers.recurrent_cells:LSTM", "long short-term memory (Hochreiter and Schmidhuber 1997)"
        ),
        "gru": Entry("iclbench.layers.mixers.recurrent_cells:GRU", "gated recurrent unit (Cho et al. 2014)"),
        "hyena": Entry(
            "iclbench.layers.mixers.hyena:Hyena", "gates around a long convolution (Poli et al. 2023)", code=2
        ),
    },
    "iclbench.layers.mixers.mixer:Mixer",
)


def _of_mixer(name: str, cls: str) -> Entry:
    """The backbone of one mixer, known by the mixer's code."""
    mixer = MIXERS.shipped[name]
    return Entry(f"iclbench.backbones.mixers:{cls}", mixer.summary, code=mixer.code)


BACKBONES = Backbones(
    {
        "gpt2": Entry(
            "iclbench.backbones.gpt2:GPT2",
            "causal Transformer without positions (Radford et al. 2019; Grazzi et al. 2024)",
        ),
        "transformer": Entry(
            "iclbench.backbones.transformer:Transformer",
            "causal, sinusoidal positions (Chan et al. 2022)",
        ),
        "coqe": Entry(
            "iclbench.backbones.coqe:CoQE",
            "context and query encoded apart (CoQE); on numbers without positions",
        ),
        "mamba": Entry(
            "iclbench.backbones.mamba:Mamba",
            "selective state spaces (Gu and Dao 2023)",
        ),
        "s4d": Entry(
            "iclbench.backbones.s4:S4D",
            "diagonal state spaces (Gu et al. 2022)",
        ),
        "s4": Entry(
            "iclbench.backbones.s4:S4",
            "state spaces of HiPPO-LegS, normal plus low rank (Gu et al. 2022)",
        ),
        "attention": _of_mixer("attention", "Attention"),
        "linear-attention": _of_mixer("linear-attention", "LinearAttention"),
        "based": _of_mixer("based", "Based"),
        "retnet": _of_mixer("retnet", "RetNet"),
        "mamba2": _of_mixer("mamba2", "Mamba2"),
        "gla": _of_mixer("gla", "GLA"),
        "deltanet": _of_mixer("deltanet", "DeltaNet"),
        "gated-deltanet": _of_mixer("gated-deltanet", "GatedDeltaNet"),
        "kda": _of_mixer("kda", "KDA"),
        "rwkv7": _of_mixer("rwkv7", "RWKV7"),
        "mlstm": _of_mixer("mlstm", "MLSTM"),
        "lstm": _of_mixer("lstm", "LSTM"),
        "gru": _of_mixer("gru", "GRU"),
        "hyena": _of_mixer("hyena", "Hyena"),
        "hybrid": Entry(
            "iclbench.backbones.sequence_model:Hybrid",
            "a mixer for every layer, Mamba-2 and attention in turn",
        ),
        "mambaformer": Entry(
            "iclbench.backbones.sequence_model:MambaFormer",
            "a Mamba block first, then attention and Mamba in turn (Park et al. 2024)",
        ),
        "thp": Entry(
            "iclbench.backbones.thp:THP",
            "Transformer Hawkes process, events only (Zuo et al. 2020; Bae et al. 2023)",
        ),
        "cnp": Entry(
            "iclbench.backbones.cnp:CNP",
            "conditional neural process (Garnelo et al. 2018)",
        ),
        "two-path-cnp": Entry(
            "iclbench.backbones.two_path_cnp:TwoPathCNP",
            "CNP with two pooled encoders, that of the BNP and TNP releases (Nguyen and Grover 2022)",
        ),
        "np": Entry(
            "iclbench.backbones.np:NP",
            "neural process: a latent function (Garnelo et al. 2018)",
        ),
        "bnp": Entry(
            "iclbench.backbones.bnp:BNP",
            "bootstrapping neural process (Lee et al. 2020)",
        ),
        "canp": Entry(
            "iclbench.backbones.canp:CANP",
            "conditional attentive neural process (Kim et al. 2019; Lee et al. 2020)",
        ),
        "anp": Entry(
            "iclbench.backbones.anp:ANP",
            "attentive neural process: a latent function (Kim et al. 2019)",
        ),
        "banp": Entry(
            "iclbench.backbones.banp:BANP",
            "bootstrapping attentive neural process (Lee et al. 2020)",
        ),
        "tnp": Entry(
            "iclbench.backbones.tnp:TNP",
            "transformer neural process (Nguyen and Grover 2022)",
        ),
        "tnp-d": Entry(
            "iclbench.backbones.tnp_d:TNPD",
            "TNP of one post-norm Transformer, as released (Nguyen and Grover 2022)",
        ),
        "tnp-nd": Entry(
            "iclbench.backbones.tnp_nd:TNPND",
            "TNP-D with one Gaussian over all targets (Nguyen and Grover 2022)",
        ),
        "tnp-a": Entry(
            "iclbench.backbones.tnp_a:TNPA",
            "TNP-D from target to target, autoregressive (Nguyen and Grover 2022)",
        ),
        "pt-tnp": Entry(
            "iclbench.backbones.pt_tnp:PTTNP",
            "TNP through pseudo-tokens (Feng et al. 2023)",
        ),
        "eqtnp": Entry(
            "iclbench.backbones.eqtnp:EQTNP",
            "TNP with efficient queries, LBANP without latents (Feng et al. 2022)",
        ),
        "lbanp": Entry(
            "iclbench.backbones.lbanp:LBANP",
            "latent bottlenecked attentive NP (Feng et al. 2022)",
        ),
        "cmanp": Entry(
            "iclbench.backbones.cmanp:CMANP",
            "constant-memory attentive NP (Feng et al. 2023)",
        ),
        "cmanp-and": Entry(
            "iclbench.backbones.cmanp_and:CMANPAND",
            "CMANP with one Gaussian over all targets, scored by blocks (Feng et al. 2024)",
        ),
        "icicl-cnp": Entry(
            "iclbench.backbones.cnp:ICICLCNP",
            "CNP that also reads related datasets",
        ),
        "icicl-tnp": Entry(
            "iclbench.backbones.icicl_tnp:ICICLTNP",
            "pseudo-token TNP that also reads related datasets",
        ),
        "cmhp": Entry(
            "iclbench.backbones.cmhp:CMHP",
            "constant-memory Hawkes process, events only (Feng et al. 2023)",
        ),
    },
    VARIANTS,
)

ESTIMATORS = Registry(
    "estimator",
    {
        "zero": Entry("iclbench.estimators.constant:Zero", "always 0"),
        "mean": Entry("iclbench.estimators.constant:Mean", "mean of the outputs so far"),
        "least-squares": Entry("iclbench.estimators.least_squares:LeastSquares", "minimum-norm least squares"),
        "ridge": Entry("iclbench.estimators.ridge:Ridge", "ridge regression"),
        "kernel-ridge": Entry(
            "iclbench.estimators.ridge:KernelRidge", "kernel ridge, i.e. Gaussian process regression"
        ),
        "feature-ridge": Entry("iclbench.estimators.ridge:FeatureRidge", "ridge on the true features"),
        "spike-and-slab": Entry(
            "iclbench.estimators.spike_and_slab:SpikeAndSlab", "average over the supports of sparse weights"
        ),
        "lasso": Entry("iclbench.estimators.lasso:Lasso", "exact Lasso by homotopy"),
        "knn": Entry("iclbench.estimators.knn:NearestNeighbours", "mean of the k nearest"),
        "pixel-1nn": Entry("iclbench.estimators.classifiers:PixelNearestNeighbour", "label of the nearest image"),
        "nearest-class-mean": Entry("iclbench.estimators.classifiers:NearestClassMean", "label of the nearest mean"),
        "majority": Entry("iclbench.estimators.classifiers:Majority", "most frequent label"),
        "averaging": Entry("iclbench.estimators.averaging:Averaging", "w = mean of x·y"),
        "mlp": Entry("iclbench.estimators.mlp:TwoLayerNetwork", "two-layer network trained by Adam"),
        "decision-tree": Entry("iclbench.estimators.trees:GreedyTree", "greedy regression tree"),
        "xgboost": Entry("iclbench.estimators.trees:XGBoost", "gradient-boosted trees"),
        "gradient-descent": Entry(
            "iclbench.estimators.gradient_descent:GradientDescent", "gradient descent on w, GD++"
        ),
        "poisson": Entry("iclbench.estimators.poisson:Poisson", "constant rate of events, frequencies of marks"),
        "markov-marks": Entry(
            "iclbench.estimators.poisson:MarkovMarks", "constant rate of events, marks by the last one"
        ),
        "renewal": Entry("iclbench.estimators.renewal:Renewal", "log-normal gaps, frequencies of marks"),
        "hawkes-mle": Entry("iclbench.estimators.hawkes_mle:HawkesMLE", "exponential Hawkes by maximum likelihood"),
        "gp-kernel-oracle": Entry(
            "iclbench.families.gaussian_processes.oracles:OracleKernel", "posterior under the true kernel"
        ),
        "gp-periodic-mean": Entry(
            "iclbench.families.gaussian_processes.oracles:PeriodicMean",
            "posterior of RBF functions, the mean of periodic ones",
        ),
        "gp-bayes-oracle": Entry(
            "iclbench.families.gaussian_processes.oracles:OracleBayes", "posterior over kernels and functions"
        ),
        "climate-oracle": Entry("iclbench.families.climate.oracle:ClimateOracle", "posterior under the true climate"),
        "event-oracle": Entry("iclbench.families.events.oracle:EventOracle", "next event under the true point process"),
        "event-bayes-oracle": Entry(
            "iclbench.families.events.bayes:BayesEvents",
            "next event, averaged over what point processes are drawn from",
        ),
        "mean-image": Entry(
            "iclbench.families.images.mean_image:MeanImage", "mean of the images that are trained on, pixel by pixel"
        ),
    },
)

# The tests that families have of their own, in words (`iclbench.core.meaning.Meaning`); reports read them without the
# family. In the order in which they are shown.
TESTS = Registry(
    "test",
    {
        "icl": Entry("iclbench.families.images.bursty_tests:ICL"),
        "icl-paired": Entry("iclbench.families.images.bursty_tests:ICL_PAIRED"),
        "iwl": Entry("iclbench.families.images.bursty_tests:IWL"),
        "iwl-macro": Entry("iclbench.families.images.bursty_tests:IWL_MACRO"),
        "iwl-common": Entry("iclbench.families.images.bursty_tests:IWL_COMMON"),
        "iwl-rare": Entry("iclbench.families.images.bursty_tests:IWL_RARE"),
        "iwl-new-drawings": Entry("iclbench.families.images.bursty_tests:IWL_NEW_DRAWINGS"),
        "flip": Entry("iclbench.families.images.bursty_tests:FLIP"),
    },
)

READERS = Registry(
    "reader",
    {
        "generated": Entry("iclbench.language.tasks.readers.generated:Generated", "letters and lists of letters"),
        "mapping": Entry("iclbench.language.tasks.readers.mapping:Mapping", "pairs of words from a JSON file"),
        "classification": Entry(
            "iclbench.language.tasks.readers.classification:Classification",
            "labelled texts: SST, MR, TREC, AG News, JSONL",
        ),
        "mmlu": Entry("iclbench.language.tasks.readers.mmlu:MMLU", "MMLU's CSV files (Hendrycks et al. 2021)"),
        "bbh": Entry("iclbench.language.tasks.readers.bbh:BBH", "BIG-Bench Hard's JSON files (Suzgun et al. 2022)"),
    },
)
