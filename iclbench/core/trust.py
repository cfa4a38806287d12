"""Whose code may be imported: that of iclbench, of installed plug-ins, and of modules that the user trusts.

A card, or the configuration of a run, can name any class as `package.module:Class`, and importing it runs its code. So
one that came from elsewhere is asked for first: `--trust MODULE`, the environment variable `ICLBENCH_TRUST` (several
modules, separated by commas or colons), or a question on a terminal. What is typed as an argument (`iclbench train
linear my_net:MyNet`) is the user's own word, and so is a module that his program has imported already.

What is trusted stands in the environment, so that every process that is started from here inherits it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from iclbench.core.errors import UsageError

log = logging.getLogger("iclbench")

VARIABLE = "ICLBENCH_TRUST"
GROUPS = tuple(f"iclbench.{of}" for of in ("backbones", "variants", "mixers", "families", "estimators", "readers"))

# Puts the question whether a target may be loaded; None: nobody is there to be asked.
ask: Callable[[str], bool] | None = None
_refused: set[str] = set()


class UntrustedError(UsageError):
    """Something names a class whose module nobody has trusted; the message says how to."""

    code = "untrusted"
    exit_code = 1


def package_of(target: str) -> str:
    """The top-level package of `package.module:Class`: importing any part of it runs all on the way.

    >>> package_of("my_package.net:MyNet")
    'my_package'
    """
    return target.partition(":")[0].partition(".")[0]


def trust(*names: str) -> None:
    """Trust modules and what is below them, in this process and those it starts.

    Args:
        names: of modules; several in one word are separated by commas or colons.

    Raises:
        UsageError: one is no name of a module.
    """
    found = dict.fromkeys(_words([os.environ.get(VARIABLE, ""), *names]))
    for name in found:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise UsageError(f"'{name[:80]}' cannot be trusted: write the name of a module, like --trust my_package")
    if found:
        os.environ[VARIABLE] = ",".join(found)
    for package in {package_of(name) for name in found}:
        if not _installed(package) and (path := _here(package)):
            sys.path.append(str(Path.cwd()))
            log.info("'%s' is taken from the current folder: %s", package, path)


def typed(name: str) -> None:
    """Trust the package of a target that the user typed; a registered name needs nothing.

    Raises:
        UsageError: it names a file, or a class in another spelling; the line says how it is written.
    """
    place, _, cls = name.partition(":")
    file = Path(place)
    if file.suffix == ".py" or len(file.parts) > 1:
        module = (
            file.stem if file.is_absolute() else ".".join(part for part in file.with_suffix("").parts if part != "..")
        )
        raise UsageError(f"'{name}' names a file; write the module: {module}:{cls or 'CLASS'}")
    module, _, last = name.rpartition(".")
    if ":" not in name and module and _exists(package_of(name)):
        raise UsageError(f"'{name}' is no name of a class; write {module}:{last}")
    if ":" in name:
        trust(package_of(name))


def is_ours(target: str) -> bool:
    """Whether a target is in iclbench or in a package with installed plug-ins."""
    return package_of(target) == "iclbench" or package_of(target) in _plugins()


def is_trusted(target: str) -> bool:
    """Whether a target may be loaded without a question."""
    module = target.partition(":")[0]
    trusted = _words([os.environ.get(VARIABLE, "")])
    return (
        is_ours(target)
        or module in sys.modules
        or any(module == name or module.startswith(f"{name}.") for name in trusted)
        or not _exists(package_of(target))  # nothing to be run: loading it says so
    )


def require(target: str) -> None:
    """Raise `UntrustedError` unless a target may be loaded; where somebody can be asked, the answer counts."""
    if is_trusted(target):
        return
    package = package_of(target)
    if ask is not None and package not in _refused:
        if ask(target):
            trust(package)
            return
        _refused.add(package)
    raise UntrustedError(
        f"'{target}' is code from outside iclbench and its installed plug-ins, and loading it would run it; read it, "
        f"then give --trust {package} (or set {VARIABLE}={package})"
    )


def _exists(package: str) -> bool:
    return _installed(package) or _here(package) is not None


def _here(package: str) -> Path | None:
    """The module or package in the current folder, where `python` looks and an installed command does not."""
    try:
        found = [path for path in (Path.cwd() / package, Path.cwd() / f"{package}.py") if path.exists()]
    except OSError:  # the current folder is gone
        return None
    return next((path for path in found if path.is_dir() or path.suffix), None)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _words(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in re.split(r"[,:\s]+", text) if word]


@cache
def _plugins() -> frozenset[str]:
    """Packages that register something: whoever installed them let their code in."""
    return frozenset(package_of(point.value) for group in GROUPS for point in entry_points(group=group))
