"""Registries, which map names to lazily imported classes. Plug-ins add classes through entry points.

Example of the `pyproject.toml` of a plug-in:

    [project.entry-points."iclbench.backbones"]
    my-net = "my_package.net:MyNet"

    [project.entry-points."iclbench.variants"]
    my-net-wide = "my_package.net:WIDE"

    [project.entry-points."iclbench.tests"]
    my-test = "my_package.tests:MY_TEST"

`WIDE = Variant("my-net", {"width": 512}, "a one-line summary")` gives a name to a backbone with fixed settings.
`MY_TEST = Meaning("its title", "its question")` (`iclbench.core.meaning`) describes an evaluator of a family.
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
from iclbench.core.errors import UnknownNameError, UsageError, error_text, one_line, shorten
from iclbench.core.formats import canonical
from iclbench.core.signals import raise_if_ctrl_c

log = logging.getLogger("iclbench")


def canonical_name(name: str) -> str:
    """Return the canonical spelling of a registered name. Return a target `package.module:Class` unchanged."""
    return name if ":" in name else canonical(name)


def is_target(name: str) -> bool:
    """Return whether a name has the form `package.module:Class`."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", name) is not None


def import_object(target: str) -> Any:
    """Import the module of a target `module:name` and return the object."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def backbone_builder() -> Any:
    """Return the function that builds a backbone for a task's shape, with an image encoder if the inputs are images."""
    return import_object("iclbench.backbones.image_backbone:build_backbone")


def _import_plugin_object(target: str) -> Any:
    """Call `import_object` with a fixed global state of torch. If the module changes the default dtype, restore it."""
    with import_object("iclbench.core.guard:fixed_state")():
        return import_object(target)


@dataclass(frozen=True)
class Entry:
    """One registered class.

    Attributes:
        target: location of the class, `module:Class`.
        summary: one line about the class.
        package: name of the package that registers the class.
        group: group of the entry point; empty for a built-in class.
        code: version of a built-in class. Increase it in every commit that changes the outputs of the class for the
            same settings (`iclbench.config.codes`).
        prompts, normaliser: versions of a family's choice of frozen prompts and of its normaliser; increase them like
            `code`.
        without_inputs: for a family, whether its episodes are sequences of tokens or vectors without inputs. For a
            backbone, whether it reads such sequences.
        points: for a family, the word for the points of an episode.
    """

    target: str
    summary: str = ""
    package: str = "iclbench"
    group: str = ""
    code: int = 1
    prompts: int = 1
    normaliser: int = 1
    without_inputs: bool = False
    points: str = "examples"

    def load(self) -> Any:
        """Import and return the class. Raise `UsageError` with the message of the original error if the import
        fails."""
        is_builtin = trust.package_of(self.target) == "iclbench"
        try:
            cls = import_object(self.target) if is_builtin else _import_plugin_object(self.target)
        except ModuleNotFoundError as error:
            if error.name != trust.package_of(self.target):
                raise UsageError(
                    f"cannot load '{self.target}' (from {self.package}): {error_text(error)}", code="missing-package"
                ) from error
            raise UsageError(
                f"cannot load '{self.target}': module '{error.name}' is neither installed nor in the current folder "
                f"{Path.cwd()}",
                code="missing-package",
            ) from error
        except AttributeError as error:
            raise UsageError(
                f"cannot load '{self.target}' (from {self.package}): {error_text(error)}{self._advice()}",
                code="unknown-name",
            ) from error
        except SystemExit as error:
            raise UsageError(
                f"cannot load '{self.target}': importing it calls sys.exit({shorten(repr(error.code))})",
                code="plugin",
            ) from error
        except Exception as error:  # a plug-in may raise any exception on import
            raise_if_ctrl_c(error)
            raise UsageError(
                f"cannot load '{self.target}' (from {self.package}): {error_text(error)}", code="plugin"
            ) from error
        if isinstance(cls, type) and not is_builtin:
            plugins.check_settings(cls, self.target)
        return cls

    def _advice(self) -> str:
        """Return a hint that names a class of the module with a similar name; empty if the module has no such class."""
        module, _, name = self.target.partition(":")
        classes = [cls for cls, value in vars(sys.modules.get(module, object)).items() if isinstance(value, type)]
        matches = [cls for cls in classes if cls.lower() == name.lower()] or get_close_matches(name, classes, n=1)
        return f"; did you mean '{module}:{matches[0]}'?" if matches else ""

    def availability(self) -> str:
        """Return "yes", or the reason why the class cannot be imported. The module is located but not imported."""
        module = self.target.partition(":")[0]
        package, *parts = module.split(".")
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        except Exception as error:  # an import hook may raise any exception
            return one_line(error)
        folders = (spec.submodule_search_locations or []) if spec else []
        paths = [Path(folder, *parts) for folder in folders]
        files = [Path(f"{path}{suffix}") for path in paths for suffix in all_suffixes()]
        has_module = any(path.is_dir() for path in paths) or any(path.is_file() for path in files)
        return "yes" if (has_module if parts else spec) else f"no module '{module}'"


class Registry:
    """The classes of one kind (family, backbone, estimator, ...) by name.

    Names may contain hyphens or underscores. Methods that take a registered name also accept a target
    `package.module:Class`.

    Args:
        kind: kind of the classes, for messages and for the group of entry points.
        builtin: entries of the classes in iclbench, by name.
        base: location of their base class, `module:Class`.
    """

    def __init__(self, kind: str, builtin: dict[str, Entry], base: str = "builtins:object") -> None:
        self.kind = kind
        self.base = base
        self.group = f"iclbench.{'families' if kind == 'family' else kind + 's'}"
        self._builtin = builtin
        self._groups = [self.group]

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All entries, built-in and from plug-ins. Raises `UsageError` if two packages register different classes under
        the same name."""
        entries = dict(self._builtin)
        for group in self._groups:
            for point in entry_points(group=group):
                self._add(entries, canonical(point.name), Entry(point.value, package=_package(point), group=group))
        return entries

    def _add(self, entries: dict[str, Entry], name: str, entry: Entry) -> None:
        other = entries.get(name)
        if other is not None and other.target == entry.target:
            return  # the same class: keep the first entry; a built-in entry has a summary and versions
        if other is not None:
            raise UsageError(
                f"two packages register the {self.kind} '{name}': {other.target} ({other.package}) and "
                f"{entry.target} ({entry.package}); uninstall one of them",
                code="duplicate",
            )
        entries[name] = entry

    @property
    def builtin_entries(self) -> dict[str, Entry]:
        """The built-in entries, in their order in this module."""
        return {name: self.entries[name] for name in self._builtin}

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self.entries)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name or target. Raise `UnknownNameError` if the name is not registered."""
        if ":" in name:
            return Entry(name, package=trust.package_of(name))
        entry = self.entries.get(canonical(name))
        if entry is None:
            raise UnknownNameError(self.kind, name, self.entries)
        return entry

    def get(self, name: str) -> Any:
        """Import and return the class with this name or target.

        Raises:
            UsageError: the name is not registered, or the class cannot be imported.
            UntrustedError: the module of the target is not trusted (`iclbench.core.trust`).
        """
        if ":" in name:
            trust.require(name)
        return self.entry(name).load()

    def subclass(self, name: str) -> Any:
        """Import and return a class like `get`. Raise `UsageError` if it is not a subclass of `base`."""
        cls = self.get(name)
        if not (isinstance(cls, type) and issubclass(cls, import_object(self.base))):
            raise UsageError(
                f"{self.kind} '{name}': expected a subclass of {self.base.replace(':', '.')}", code="bad-value"
            )
        return cls

    def available(self) -> list[str]:
        """Return the names of all built-in classes whose modules are installed, and of all plug-in classes that can be
        imported. Log a warning for each other class."""
        names = []
        for name, entry in self.entries.items():
            try:
                if entry.package != "iclbench":
                    self.get(name)
                elif (reason := entry.availability()) != "yes":
                    raise UsageError(reason, code="missing-package")
            except Exception as error:
                log.warning("%s '%s' is not available: %s", self.kind, name, error_text(error))
            else:
                names.append(name)
        return names


class Estimators(Registry):
    """Estimators by name. A target may also name a class with scikit-learn's interface."""

    def get(self, name: str) -> Any:
        cls = super().get(name)
        return import_object("iclbench.estimators.scikit_learn:as_estimator")(cls, name) if ":" in name else cls


@dataclass(frozen=True)
class Variant:
    """A backbone with fixed settings, which is registered under its own name.

    Attributes:
        backbone: registered name of the backbone, or `package.module:Class`.
        frozen: settings with a fixed value. The value None means the backbone's default.
        summary: one line about the variant.
    """

    backbone: str
    frozen: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


class Backbones(Registry):
    """Backbones and their variants by name.

    A built-in variant has the entry of its backbone with a different summary. The entry of a plug-in's variant has a
    `Variant` as its target.
    """

    _VARIANTS = "iclbench.variants"

    def __init__(self, builtin: dict[str, Entry], variants: dict[str, Variant]) -> None:
        entries = {n: replace(builtin[v.backbone], summary=v.summary) for n, v in variants.items() if v.backbone != n}
        super().__init__("backbone", builtin | entries, "iclbench.backbones.base:Backbone")
        self._variants = variants
        self._groups.append(self._VARIANTS)

    def architectures(self) -> list[str]:
        """Return the names that are not variants of another backbone."""
        return [
            name
            for name, entry in sorted(self.entries.items())
            if entry.group != self._VARIANTS and self._variants.get(name, Variant(name)).backbone == name
        ]

    def variant(self, name: str) -> Variant:
        """Return the variant with this name or target. For a backbone that is not a variant, return a `Variant` without
        fixed settings.

        Raises:
            UnknownNameError: the name is not registered.
            UsageError: a plug-in's variant cannot be imported, or its backbone does not exist.
        """
        if ":" in name:
            return Variant(name)
        entry, name = self.entry(name), canonical(name)
        if entry.group != self._VARIANTS:
            return self._variants.get(name, Variant(name))
        variant = entry.load()
        if not isinstance(variant, Variant):
            raise UsageError(
                f"'{entry.target}' (from {entry.package}) is not a variant: it must be a "
                f"{Variant.__module__}.{Variant.__name__}",
                code="plugin",
            )
        if ":" in variant.backbone:
            return variant
        if canonical(variant.backbone) not in self.architectures():
            raise UsageError(
                f"the backbone '{variant.backbone}' of variant '{name}' (from {entry.package}) does not exist; name "
                f"one of {', '.join(self.architectures())}",
                code="plugin",
            )
        backbone = self.variant(variant.backbone)
        return replace(variant, backbone=backbone.backbone, frozen={**backbone.frozen, **variant.frozen})

    def names_in_cards(self, name: str) -> list[str]:
        """Return the names under which a card may list settings for a variant: the name of its backbone, then the
        name of the variant."""
        return list(dict.fromkeys([self.variant(name).backbone, name]))

    def contradiction(self, name: str, settings: Mapping[str, Any]) -> str | None:
        """Return an error message with advice if the settings conflict with the name, else None."""
        variant = self.variant(name)
        for key, frozen in variant.frozen.items():
            if key not in settings or settings[key] == frozen:
                continue
            identity = (variant.backbone, {**variant.frozen, key: settings[key]})
            other_names = [n for n, v in self._variants.items() if (v.backbone, v.frozen) == identity]
            meaning = f"has the default {key}" if frozen is None else f"has {key}={frozen}"
            advice = f"write {other_names[0]}" if other_names else f"remove {key}"
            return f"{key}={settings[key]} contradicts the name '{name}', which {meaning}; {advice}"
        return None

    def get(self, name: str) -> Any:
        return super().get(self.variant(name).backbone)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


FAMILIES = Registry(
    "family",
    {
        "linear": Entry("iclbench.families.linear:PooledLinear", "w·x with w ~ N(0, I)"),
        "sparse-linear": Entry("iclbench.families.linear:SparseLinear", "w·x with s random non-zero weights"),
        "skewed-linear": Entry("iclbench.families.linear:SkewedLinear", "w·x, input covariance with eigenvalues 1/i²"),
        "noisy-linear": Entry("iclbench.families.linear:NoisyLinear", "w·x + N(0, sigma²)"),
        "relu-network": Entry("iclbench.families.relu_network:ReluNetwork", "two-layer ReLU networks"),
        "decision-tree": Entry("iclbench.families.decision_tree:DecisionTree", "axis-aligned trees of depth 4"),
        "combination": Entry("iclbench.families.combination:Combination", "CoQE's five fixed features"),
        "quadratic": Entry("iclbench.families.quadratic:Quadratic", "sum of w_j x_j² / sqrt(3)"),
        "tabular": Entry("iclbench.families.tabular.tabular:Tabular", "episodes from real regression tables"),
        "events": Entry(
            "iclbench.families.events.sequences:Events", "event sequences from your own files", points="events"
        ),
        "gp-mixture": Entry(
            "iclbench.families.gaussian_processes.gp_mixture:GPMixture", "Gaussian processes with related datasets"
        ),
        "image-completion": Entry(
            "iclbench.families.images.image_completion:ImageCompletion", "images completed from some of their pixels"
        ),
        "point-process": Entry(
            "iclbench.families.events.point_process:PointProcess",
            "marked events: Poisson, renewal, Hawkes and more",
            points="events",
        ),
        "climate": Entry(
            "iclbench.families.climate.climate:Climate", "temperatures in space and time over central Europe, synthetic"
        ),
        "era5": Entry("iclbench.families.climate.era5:ERA5", "temperatures of ERA5 from your own netCDF files"),
        "bursty": Entry(
            "iclbench.families.images.bursty:Bursty", "image labels: in-context against in-weight learning"
        ),
        "bursty-vectors": Entry(
            "iclbench.families.bursty_vectors:BurstyVectors",
            "vector labels: in-context against in-weight learning (Reddy 2024)",
        ),
        "recall": Entry(
            "iclbench.families.streams.recall:Recall",
            "tokens: look up the value of a key in the context",
            without_inputs=True,
            points="elements",
        ),
        "recall-vectors": Entry(
            "iclbench.families.streams.recall_vectors:RecallVectors",
            "vectors: look up the value of a key in the context",
            without_inputs=True,
            points="elements",
        ),
        "markov": Entry(
            "iclbench.families.streams.markov:MarkovChains",
            "tokens of a random Markov chain per episode",
            without_inputs=True,
            points="elements",
        ),
        "linear-system": Entry(
            "iclbench.families.streams.linear_system:LinearSystems",
            "noisy rotations in the plane, one coordinate observed",
            without_inputs=True,
            points="elements",
        ),
        "tabular-prior": Entry(
            "iclbench.families.tabular_prior.tabular_prior:TabularPrior",
            "synthetic tables: causal models, Bayesian networks, trees",
        ),
        "real-tables": Entry(
            "iclbench.families.tabular.real_tables:RealTables",
            "splits of real tables with numbers or classes as targets",
        ),
        "state-tracking": Entry(
            "iclbench.families.streams.state_tracking:StateTracking",
            "running products of permutations, one per token",
            without_inputs=True,
            points="elements",
        ),
    },
    "iclbench.families.base:Family",
)

# Variants of backbones. The type of positional encoding is part of the name, since rankings depend on it. `gpt2` has no
# positional encoding, as in Grazzi et al. (2024, A.1.1). `coqe` has none for numbers and a sinusoidal one for class
# labels. Garg et al. and the released code of CoQE use a learned one.
VARIANTS = {
    "gpt2": Variant("gpt2", {"positions": "none"}),
    "gpt2-learned": Variant("gpt2", {"positions": "learned"}, "gpt2 with learned positions (Garg et al. 2022)"),
    "gpt2-sinusoidal": Variant(
        "gpt2", {"positions": "sinusoidal"}, "gpt2 with sinusoidal positions (waves of Chan et al. 2022)"
    ),
    "gpt2-rotary": Variant("gpt2", {"positions": "rotary"}, "gpt2 with rotary positions (Su et al. 2021)"),
    "coqe": Variant("coqe", {"positions": None}),
    "coqe-learned": Variant("coqe", {"positions": "learned"}, "coqe with learned positions, as in its released code"),
    "coqe-sinusoidal": Variant(
        "coqe", {"positions": "sinusoidal"}, "coqe with sinusoidal positions (waves of Chan et al. 2022)"
    ),
    "coqe-rotary": Variant("coqe", {"positions": "rotary"}, "coqe with rotary positions (Su et al. 2021)"),
}

# Token mixers for the layers of `hybrid` and of the backbones that use the same mixer in all layers.
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
            "linear attention with elu + 1 features, normalised (Katharopoulos et al. 2020)",
        ),
        "based": Entry(
            "iclbench.layers.mixers.based:Based", "linear attention with Taylor features of exp (Arora et al. 2024)"
        ),
        "retnet": Entry(
            "iclbench.layers.mixers.retnet:RetNet",
            "retention: fixed decays, rotary positions (Sun et al. 2023)",
            code=2,
        ),
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
        "gated-deltaproduct": Entry(
            "iclbench.layers.mixers.gated_deltaproduct:GatedDeltaProduct",
            "several steps of the gated delta rule per token (Siems et al. 2025)",
        ),
        "mesa": Entry(
            "iclbench.layers.mixers.mesa:Mesa", "ridge regression solved after every token (von Oswald et al. 2025)"
        ),
        "fox": Entry("iclbench.layers.mixers.fox:FoX", "softmax attention with forget gates (Lin et al. 2025)"),
        "path": Entry(
            "iclbench.layers.mixers.path:PaTH",
            "softmax attention with Householder matrices between query and key (Yang et al. 2025)",
        ),
        "mamba3": Entry(
            "iclbench.layers.mixers.mamba3:Mamba3",
            "state-space duality with inputs of two tokens and a rotating state (Lahoti et al. 2026)",
        ),
    },
    "iclbench.layers.mixers.mixer:Mixer",
)


def _mixer_backbone(mixer: Entry) -> Entry:
    """Return the entry of the backbone that uses this mixer in all layers. The backbone's class has the name of the
    mixer's class, and both have the same `code`."""
    cls = mixer.target.partition(":")[2]
    return Entry(f"iclbench.backbones.mixers:{cls}", mixer.summary, code=mixer.code, without_inputs=True)


BACKBONES = Backbones(
    {
        "gpt2": Entry(
            "iclbench.backbones.gpt2:GPT2",
            "causal Transformer without positions (Radford et al. 2019; Grazzi et al. 2024)",
            without_inputs=True,
        ),
        "transformer": Entry(
            "iclbench.backbones.transformer:Transformer",
            "causal Transformer with sinusoidal positions (Chan et al. 2022)",
            without_inputs=True,
        ),
        "coqe": Entry(
            "iclbench.backbones.coqe:CoQE",
            "context and query encoded separately (CoQE); positions only for labels",
        ),
        "mamba": Entry(
            "iclbench.backbones.mamba:Mamba",
            "selective state spaces (Gu and Dao 2023)",
            without_inputs=True,
        ),
        "s4d": Entry(
            "iclbench.backbones.s4:S4D",
            "diagonal state spaces (Gu et al. 2022)",
            without_inputs=True,
        ),
        "s4": Entry(
            "iclbench.backbones.s4:S4",
            "state spaces of HiPPO-LegS, normal plus low rank (Gu et al. 2022)",
            without_inputs=True,
        ),
        # `mamba` has its own module, with the settings of its paper.
        **{name: _mixer_backbone(mixer) for name, mixer in MIXERS.builtin_entries.items() if name != "mamba"},
        "hybrid": Entry(
            "iclbench.backbones.sequence_model:Hybrid",
            "a choice of mixer for each layer, alternating Mamba-2 and attention",
            without_inputs=True,
        ),
        "mambaformer": Entry(
            "iclbench.backbones.sequence_model:MambaFormer",
            "a Mamba block, then alternating attention and Mamba (Park et al. 2024)",
            without_inputs=True,
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
            "CNP with two pooled encoders, as in the BNP and TNP releases (Nguyen and Grover 2022)",
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
            "TNP-D, autoregressive over targets (Nguyen and Grover 2022)",
        ),
        "pt-tnp": Entry(
            "iclbench.backbones.pt_tnp:PTTNP",
            "TNP through pseudo-tokens (Feng et al. 2022)",
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
        "cells": Entry(
            "iclbench.backbones.cells:Cells",
            "attention over columns, then over rows of a table (Pfefferle et al. 2025)",
        ),
    },
    VARIANTS,
)

ESTIMATORS = Estimators(
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
        "pool-oracle": Entry("iclbench.estimators.pool_oracle:PoolOracle", "average over a pool of linear functions"),
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
            "iclbench.estimators.poisson:MarkovMarks", "constant rate of events, marks given the last mark"
        ),
        "renewal": Entry("iclbench.estimators.renewal:Renewal", "log-normal gaps, frequencies of marks"),
        "hawkes-mle": Entry("iclbench.estimators.hawkes_mle:HawkesMLE", "exponential Hawkes by maximum likelihood"),
        "uniform": Entry("iclbench.estimators.n_gram:Uniform", "equal probabilities of all tokens"),
        "n-gram": Entry("iclbench.estimators.n_gram:NGram", "smoothed n-gram frequencies of tokens"),
        "gp-kernel-oracle": Entry(
            "iclbench.families.gaussian_processes.oracles:OracleKernel", "posterior under the true kernel"
        ),
        "gp-periodic-mean": Entry(
            "iclbench.families.gaussian_processes.oracles:PeriodicMean",
            "posterior for RBF functions, true mean for periodic functions",
        ),
        "gp-bayes-oracle": Entry(
            "iclbench.families.gaussian_processes.oracles:OracleBayes", "posterior over kernels and functions"
        ),
        "table-gp-oracle": Entry(
            "iclbench.families.tabular_prior.oracles:OracleGP", "posterior of tables under the true Gaussian process"
        ),
        "table-gp-prior-oracle": Entry(
            "iclbench.families.tabular_prior.oracles:OracleGPPrior",
            "posterior of tables, averaged over the prior of Gaussian processes",
        ),
        "climate-oracle": Entry("iclbench.families.climate.oracle:ClimateOracle", "posterior under the true climate"),
        "recall-oracle": Entry(
            "iclbench.families.streams.recall_oracle:RecallOracle", "value after the last occurrence of the key"
        ),
        "recall-vector-oracle": Entry(
            "iclbench.families.streams.recall_oracle:RecallVectorOracle", "value of the nearest earlier key"
        ),
        "event-oracle": Entry("iclbench.families.events.oracle:EventOracle", "next event under the true point process"),
        "event-bayes-oracle": Entry(
            "iclbench.families.events.bayes:BayesEvents",
            "next event, averaged over the prior of point processes",
        ),
        "chain-oracle": Entry(
            "iclbench.families.streams.markov_oracles:ChainOracle", "next token under the true Markov chain"
        ),
        "chain-bayes-oracle": Entry(
            "iclbench.families.streams.markov_oracles:BayesChain",
            "next token, averaged over the prior of Markov chains",
        ),
        "last-value": Entry("iclbench.estimators.last_value:LastValue", "the last element of a stream"),
        "autoregression": Entry(
            "iclbench.estimators.autoregression:Autoregression", "ridge regression on the last elements of a stream"
        ),
        "kalman-oracle": Entry(
            "iclbench.families.streams.linear_system_oracles:OracleKalman", "Kalman filter of the true linear system"
        ),
        "bayes-kalman-oracle": Entry(
            "iclbench.families.streams.linear_system_oracles:OracleBayesKalman",
            "Kalman filters, averaged over the posterior of linear systems",
        ),
        "mean-image": Entry(
            "iclbench.families.images.mean_image:MeanImage", "mean of the training images, pixel by pixel"
        ),
        "gaussian-image": Entry(
            "iclbench.families.images.gaussian_image:GaussianImage",
            "pixels under the Gaussian of the training images, given the context",
        ),
        "class-mixture": Entry(
            "iclbench.families.images.class_mixture:ClassMixture",
            "pixels under a Gaussian for each class, averaged over the posterior of the class",
        ),
        "product-oracle": Entry(
            "iclbench.families.streams.state_tracking_predictors:ProductOracle", "product of the tokens"
        ),
        "product-token-count": Entry(
            "iclbench.families.streams.state_tracking_predictors:TokenCount",
            "distribution of the product given the number of tokens",
        ),
    },
)

# Descriptions of the families' tests (`iclbench.core.meaning.Meaning`), in the order in which reports show them. They
# are registered separately because reports do not import the families.
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


def needs_missing_inputs(backbone: str, family: str) -> bool:
    """Return whether the backbone needs inputs and the episodes of the family have none. The result is False if the
    backbone or the family is not built in. Classes are not loaded."""
    backbone_entry, family_entry = BACKBONES.builtin_entries.get(backbone), FAMILIES.builtin_entries.get(family)
    if backbone_entry is None or family_entry is None:
        return False
    return family_entry.without_inputs and not backbone_entry.without_inputs


def noun_of_points(family: str) -> str:
    """Return the word for the points of an episode: examples, elements of a stream, or events. It is "examples" for a
    family that is not built in."""
    entry = FAMILIES.builtin_entries.get(family)
    return "examples" if entry is None else entry.points
