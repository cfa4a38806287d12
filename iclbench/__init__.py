"""iclbench: every in-context-learning architecture on every task family, on the same frozen prompts.

The names of `iclbench.api` are names of this package, imported when they are first asked for:

>>> import iclbench as icl
>>> task = icl.task("linear", preset="smoke", dim=2)
>>> model = icl.GPT2(task, layers=1, width=16)
>>> task.sample(3, seed=0).context.x.shape
torch.Size([3, 11, 2])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from iclbench.api import plot as plot
    from iclbench.api.estimators import ContextSizeWarning as ContextSizeWarning
    from iclbench.api.estimators import InContextClassifier as InContextClassifier
    from iclbench.api.estimators import InContextRegressor as InContextRegressor
    from iclbench.api.models import ANP as ANP
    from iclbench.api.models import BANP as BANP
    from iclbench.api.models import BNP as BNP
    from iclbench.api.models import CANP as CANP
    from iclbench.api.models import CMANP as CMANP
    from iclbench.api.models import CMANPAND as CMANPAND
    from iclbench.api.models import CMHP as CMHP
    from iclbench.api.models import CNP as CNP
    from iclbench.api.models import EQTNP as EQTNP
    from iclbench.api.models import GLA as GLA
    from iclbench.api.models import GPT2 as GPT2
    from iclbench.api.models import GRU as GRU
    from iclbench.api.models import ICICLCNP as ICICLCNP
    from iclbench.api.models import ICICLTNP as ICICLTNP
    from iclbench.api.models import KDA as KDA
    from iclbench.api.models import LBANP as LBANP
    from iclbench.api.models import LSTM as LSTM
    from iclbench.api.models import MLSTM as MLSTM
    from iclbench.api.models import NP as NP
    from iclbench.api.models import PTTNP as PTTNP
    from iclbench.api.models import RWKV7 as RWKV7
    from iclbench.api.models import S4 as S4
    from iclbench.api.models import S4D as S4D
    from iclbench.api.models import THP as THP
    from iclbench.api.models import TNP as TNP
    from iclbench.api.models import TNPA as TNPA
    from iclbench.api.models import TNPD as TNPD
    from iclbench.api.models import TNPND as TNPND
    from iclbench.api.models import Attention as Attention
    from iclbench.api.models import Based as Based
    from iclbench.api.models import CoQE as CoQE
    from iclbench.api.models import DeltaNet as DeltaNet
    from iclbench.api.models import GatedDeltaNet as GatedDeltaNet
    from iclbench.api.models import Hybrid as Hybrid
    from iclbench.api.models import Hyena as Hyena
    from iclbench.api.models import LinearAttention as LinearAttention
    from iclbench.api.models import Mamba as Mamba
    from iclbench.api.models import Mamba2 as Mamba2
    from iclbench.api.models import MambaFormer as MambaFormer
    from iclbench.api.models import RetNet as RetNet
    from iclbench.api.models import Transformer as Transformer
    from iclbench.api.models import TwoPathCNP as TwoPathCNP
    from iclbench.api.models import backbone as backbone
    from iclbench.api.next_event import next_event as next_event
    from iclbench.api.predict import Trained as Trained
    from iclbench.api.predict import load as load
    from iclbench.api.predict import predict as predict
    from iclbench.api.predict import sample_y as sample_y
    from iclbench.api.results import ResultsFolder as ResultsFolder
    from iclbench.api.results import open_results as open_results
    from iclbench.api.results import write_report as write_report
    from iclbench.api.score import evaluate as evaluate
    from iclbench.api.tasks import Task as Task
    from iclbench.api.tasks import task as task
    from iclbench.api.train import fit as fit
    from iclbench.api.train import train as train

# Public names by module. None is also the name of a module of this package: importing that would replace it.
_PUBLIC = {
    "tasks": ("Task", "task"),
    "models": (
        *("backbone", "ANP", "Attention", "BANP", "Based", "BNP", "CANP", "CMANP", "CMANPAND", "CMHP", "CNP", "CoQE"),
        *("DeltaNet", "EQTNP", "GatedDeltaNet", "GLA", "GPT2", "GRU", "Hybrid", "Hyena", "ICICLCNP", "ICICLTNP"),
        *("KDA", "LBANP", "LinearAttention", "LSTM", "Mamba", "Mamba2", "MambaFormer", "MLSTM", "NP", "PTTNP"),
        *("RetNet", "RWKV7", "S4", "S4D", "THP", "TNP", "TNPA", "TNPD", "TNPND", "Transformer", "TwoPathCNP"),
    ),
    "train": ("fit", "train"),
    "score": ("evaluate",),
    "predict": ("Trained", "load", "predict", "sample_y"),
    "next_event": ("next_event",),
    "results": ("ResultsFolder", "open_results", "write_report"),
    "estimators": ("ContextSizeWarning", "InContextClassifier", "InContextRegressor"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", "plot", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("iclbench.api.plot")
    if name == "__version__":
        return import_module("iclbench.core.version").version()
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'iclbench' has no attribute '{name}'")
    found = getattr(import_module(f"iclbench.api.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
