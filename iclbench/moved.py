"""Modules of version 0.1.0 under their old names, for one version: plug-ins and saved states name them.

An import by an old name gives the module of the new name itself, not a copy, and warns with the new name. Where an old
module is a package today, the package hands on the names of the old module (`handed_on`).
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # whose import takes longer than all else here

    class Loader: ...

    class MetaPathFinder: ...


MOVED = {
    "iclbench.backbones.activations": "iclbench.layers.activations",
    "iclbench.backbones.attention": "iclbench.layers.attention",
    "iclbench.backbones.bounds": "iclbench.core.bounds",
    "iclbench.backbones.causal_transformer": "iclbench.layers.causal_transformer",
    "iclbench.backbones.channels_first": "iclbench.layers.channels_first",
    "iclbench.backbones.class_vectors": "iclbench.layers.coqe.class_vectors",
    "iclbench.backbones.cmab": "iclbench.layers.cmab",
    "iclbench.backbones.contours": "iclbench.layers.vision.contours",
    "iclbench.backbones.convolution": "iclbench.layers.long_convolution",
    "iclbench.backbones.coqe_settings": "iclbench.backbones.coqe",
    "iclbench.backbones.depthwise": "iclbench.layers.depthwise_convolution",
    "iclbench.backbones.feature_read_in": "iclbench.layers.feature_read_in",
    "iclbench.backbones.image_encoder": "iclbench.layers.vision.image_encoder",
    "iclbench.backbones.key_value_cache": "iclbench.layers.key_value_cache",
    "iclbench.backbones.label_embedding": "iclbench.layers.label_embedding",
    "iclbench.backbones.latent_layers": "iclbench.layers.latent_layers",
    "iclbench.backbones.logit_noise": "iclbench.layers.coqe.logit_noise",
    "iclbench.backbones.perceptron": "iclbench.layers.perceptron",
    "iclbench.backbones.positions": "iclbench.layers.positions",
    "iclbench.backbones.prompt": "iclbench.layers.prompt",
    "iclbench.backbones.resnet": "iclbench.layers.vision.resnet",
    "iclbench.backbones.running_softmax": "iclbench.layers.running_softmax",
    "iclbench.backbones.s4_kernels": "iclbench.layers.state_space.kernels",
    "iclbench.backbones.s4_systems": "iclbench.layers.state_space.systems",
    "iclbench.backbones.sample_encoder": "iclbench.layers.sample_encoder",
    "iclbench.backbones.scan": "iclbench.layers.scan.scan",
    "iclbench.backbones.scan_mamba_ssm": "iclbench.layers.scan.scan_mamba_ssm",
    "iclbench.backbones.scan_torch": "iclbench.layers.scan.scan_torch",
    "iclbench.backbones.scan_triton": "iclbench.layers.scan.scan_triton",
    "iclbench.backbones.scan_triton_kernels": "iclbench.layers.scan.scan_triton_kernels",
    "iclbench.backbones.task_encoder": "iclbench.layers.coqe.task_encoder",
    "iclbench.backbones.task_space": "iclbench.layers.coqe.task_space",
    "iclbench.backbones.task_vectors": "iclbench.layers.coqe.task_vectors",
    "iclbench.cards": "iclbench.config.cards",
    "iclbench.cleaning": "iclbench.sweep.cleaning",
    "iclbench.cli.lm_demo": "iclbench.cli.lm.demo",
    "iclbench.cli.lm_eval": "iclbench.cli.lm.eval",
    "iclbench.cli.lm_overview": "iclbench.cli.lm.overview",
    "iclbench.cli.lm_tables": "iclbench.cli.lm.tables",
    "iclbench.cli.lm_tasks": "iclbench.cli.lm.tasks",
    "iclbench.devices": "iclbench.core.devices",
    "iclbench.digests": "iclbench.core.digests",
    "iclbench.drawing": "iclbench.report.drawing",
    "iclbench.episodes": "iclbench.core.episodes",
    "iclbench.errors": "iclbench.core.errors",
    "iclbench.evaluation.flop_formulas": "iclbench.evaluation.costs.flop_formulas",
    "iclbench.evaluation.flops": "iclbench.evaluation.costs.flops",
    "iclbench.evaluation.live_bytes": "iclbench.evaluation.costs.live_bytes",
    "iclbench.evaluation.measure": "iclbench.core.measure",
    "iclbench.families.array_cache": "iclbench.families.images.array_cache",
    "iclbench.families.bursty": "iclbench.families.images.bursty",
    "iclbench.families.bursty_draws": "iclbench.families.images.bursty_draws",
    "iclbench.families.bursty_parameters": "iclbench.families.images.bursty_parameters",
    "iclbench.families.celeba": "iclbench.families.images.celeba",
    "iclbench.families.character_sets": "iclbench.families.images.character_sets",
    "iclbench.families.glyphs": "iclbench.families.images.glyphs",
    "iclbench.families.glyphs.counters": "iclbench.families.images.glyphs.counters",
    "iclbench.families.glyphs.drawing": "iclbench.families.images.glyphs.drawing",
    "iclbench.families.glyphs.programs": "iclbench.families.images.glyphs.programs",
    "iclbench.families.glyphs.raster": "iclbench.families.images.glyphs.raster",
    "iclbench.families.glyphs.strokes": "iclbench.families.images.glyphs.strokes",
    "iclbench.families.gp_ceilings": "iclbench.families.gaussian_processes.ceilings",
    "iclbench.families.gp_evidence": "iclbench.families.gaussian_processes.evidence",
    "iclbench.families.gp_kernels": "iclbench.families.gaussian_processes.kernels",
    "iclbench.families.gp_mixture": "iclbench.families.gaussian_processes.gp_mixture",
    "iclbench.families.gp_oracles": "iclbench.families.gaussian_processes.oracles",
    "iclbench.families.gp_posterior": "iclbench.families.gaussian_processes.posterior",
    "iclbench.families.idx_file": "iclbench.families.images.idx_file",
    "iclbench.families.image_completion": "iclbench.families.images.image_completion",
    "iclbench.families.image_sets": "iclbench.families.images.image_sets",
    "iclbench.families.omniglot": "iclbench.families.images.omniglot",
    "iclbench.families.table_file": "iclbench.families.tabular.table_file",
    "iclbench.family_contracts": "iclbench.contracts.families",
    "iclbench.files": "iclbench.core.files",
    "iclbench.formats": "iclbench.core.formats",
    "iclbench.grids": "iclbench.sweep.grids",
    "iclbench.inventory": "iclbench.config.inventory",
    "iclbench.language.answers": "iclbench.language.answering.answers",
    "iclbench.language.architectures": "iclbench.language.models.architectures",
    "iclbench.language.asking": "iclbench.language.answering.asking",
    "iclbench.language.batches": "iclbench.language.models.batches",
    "iclbench.language.caches": "iclbench.language.models.caches",
    "iclbench.language.cards": "iclbench.language.tasks.cards",
    "iclbench.language.checks": "iclbench.language.models.checks",
    "iclbench.language.deep_thinking": "iclbench.deep_thinking.passes",
    "iclbench.language.development": "iclbench.language.answering.development",
    "iclbench.language.fitting": "iclbench.language.prompting.fitting",
    "iclbench.language.generation": "iclbench.language.answering.generation",
    "iclbench.language.grids": "iclbench.sweep.language_grids",
    "iclbench.language.loading": "iclbench.language.models.loading",
    "iclbench.language.majority": "iclbench.language.answering.majority",
    "iclbench.language.memory": "iclbench.deep_thinking.memory",
    "iclbench.language.methods": "iclbench.deep_thinking.methods",
    "iclbench.language.own": "iclbench.language.tasks.own",
    "iclbench.language.pools": "iclbench.language.tasks.pools",
    "iclbench.language.prompts": "iclbench.language.prompting.prompts",
    "iclbench.language.published": "iclbench.language.tasks.published",
    "iclbench.language.ranges": "iclbench.language.tasks.ranges",
    "iclbench.language.readers": "iclbench.language.tasks.readers",
    "iclbench.language.readers.bbh": "iclbench.language.tasks.readers.bbh",
    "iclbench.language.readers.classification": "iclbench.language.tasks.readers.classification",
    "iclbench.language.readers.files": "iclbench.language.tasks.readers.files",
    "iclbench.language.readers.generated": "iclbench.language.tasks.readers.generated",
    "iclbench.language.readers.labelled": "iclbench.language.tasks.readers.labelled",
    "iclbench.language.readers.mapping": "iclbench.language.tasks.readers.mapping",
    "iclbench.language.readers.mmlu": "iclbench.language.tasks.readers.mmlu",
    "iclbench.language.scoring": "iclbench.language.answering.scoring",
    "iclbench.language.sitting": "iclbench.language.answering.session",
    "iclbench.language.text": "iclbench.language.prompting.text",
    "iclbench.language.thinking_backbones": "iclbench.deep_thinking.backbones",
    "iclbench.language.thinking_settings": "iclbench.deep_thinking.settings",
    "iclbench.language.tokenised": "iclbench.language.prompting.tokenised",
    "iclbench.language.tokenizing": "iclbench.language.models.tokenizing",
    "iclbench.limits": "iclbench.core.limits",
    "iclbench.memory": "iclbench.core.memory",
    "iclbench.numerals": "iclbench.families.tabular.numerals",
    "iclbench.plugins": "iclbench.config.plugins",
    "iclbench.png": "iclbench.core.png",
    "iclbench.predictions": "iclbench.core.predictions",
    "iclbench.predictor": "iclbench.core.predictor",
    "iclbench.prefixes": "iclbench.core.prefixes",
    "iclbench.records": "iclbench.core.records",
    "iclbench.registry": "iclbench.config.registry",
    "iclbench.report.metrics": "iclbench.core.metrics",
    "iclbench.runs": "iclbench.config.runs",
    "iclbench.seeds": "iclbench.core.seeds",
    "iclbench.signals": "iclbench.core.signals",
    "iclbench.sizes": "iclbench.config.sizes",
    "iclbench.sources": "iclbench.config.sources",
    "iclbench.training.loop": "iclbench.training.run",
    "iclbench.training.monitor": "iclbench.evaluation.monitor",
    "iclbench.trust": "iclbench.config.trust",
    "iclbench.versions": "iclbench.config.codes",
}


def current(name: str) -> str:
    """The name that `module` or `module.Class` or `module:Class` has today, where its module has moved."""
    module, mark, rest = name.partition(":")
    if module in MOVED:
        return MOVED[module] + mark + rest
    outer, dot, last = module.rpartition(".")
    return MOVED[outer] + dot + last + mark + rest if outer in MOVED else name


def handed_on(package: str, module: str) -> Callable[[str], object]:
    """The `__getattr__` of a package that was a module: its names are those of one of its modules."""

    def get(name: str) -> object:
        # `from package import submodule` asks here before it looks for the submodule.
        if name.startswith("__") or find_spec(f"{package}.{name}"):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        found = importlib.import_module(module)
        if not hasattr(found, name):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        _warn(package, module)
        return getattr(found, name)

    return get


def renamed(module: str, **names: str) -> Callable[[str], object]:
    """The `__getattr__` of a module in which names of version 0.1.0 have others, or from which they have gone.

    Args:
        module: its name.
        names: the old ones, and what each is today: a name in the module, or `module:name`.
    """

    def get(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        where, _, new = names[name].rpartition(":")
        _warn(f"{module}.{name}", f"{where or module}.{new}")
        return getattr(importlib.import_module(where or module), new)

    return get


class _Aliases(MetaPathFinder, Loader):
    """Finds old names, before a folder of compiled files that an old checkout left behind is taken for the module."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__  # the import system puts `spec` in its place
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        old, module.__spec__ = module.__spec__.name, module.__spec__.loader_state
        _warn(old, MOVED[old])


def _warn(old: str, new: str) -> None:
    warnings.warn(f"'{old}' is '{new}' now; the old name goes with the next version", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())
