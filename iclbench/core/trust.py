"""Decide which code may be imported: iclbench and its dependencies, installed plug-ins, and modules that the user
trusts.

A card or the configuration of a run can name any class as `package.module:Class`, and importing a module runs its code.
Modules from outside iclbench and its plug-ins are imported only if the user trusts them: with `--trust MODULE`, with
the environment variable `ICLBENCH_TRUST` (modules separated by commas or colons), or by answering "yes" on a terminal.
Classes that the user types as an argument (`iclbench train linear my_net:MyNet`) are trusted. Modules that the program
has already imported are also trusted.

Trusted modules are stored in the environment variable, so that child processes inherit them.
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
_REGISTRIES = ("backbones", "variants", "mixers", "families", "estimators", "readers")
# Packages that iclbench itself imports.
_DEPENDENCIES = ("sklearn", "xgboost")
GROUPS = tuple(f"iclbench.{registry}" for registry in _REGISTRIES)

# Function that asks the user whether a target may be loaded; None without a terminal.
ask_user: Callable[[str], bool] | None = None
_refused_packages: set[str] = set()


class UntrustedError(UsageError):
    """A card or run names a class from a module that the user does not trust. The message explains how to trust it."""

    code = "untrusted"
    exit_code = 1


def package_of(target: str) -> str:
    """Return the top-level package of `package.module:Class`. Importing a module also runs the code of the packages
    above it.

    >>> package_of("my_package.net:MyNet")
    'my_package'
    """
    return target.partition(":")[0].partition(".")[0]


def trust(*names: str) -> None:
    """Trust modules and their submodules, in this process and its child processes.

    Args:
        names: names of modules. A string may contain several names, separated by commas or colons.

    Raises:
        UsageError: a name is not the name of a module.
    """
    modules = dict.fromkeys(_words([os.environ.get(VARIABLE, ""), *names]))
    for name in modules:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise UsageError(
                f"'{name[:80]}' is not the name of a module; write it like --trust my_package", code="bad-syntax"
            )
    if modules:
        os.environ[VARIABLE] = ",".join(modules)
    for package in {package_of(name) for name in modules}:
        if not _is_importable(package) and (path := _in_current_folder(package)):
            sys.path.append(str(Path.cwd()))
            log.info("'%s' is taken from the current folder: %s", package, path)


def trust_typed(name: str) -> None:
    """Trust the package of a class that the user typed. Registered names need no trust.

    Raises:
        UsageError: the name is a file, or a class in a wrong form. The message contains the correct form.
    """
    place, _, cls = name.partition(":")
    file = Path(place)
    if file.suffix == ".py" or len(file.parts) > 1:
        module = (
            file.stem if file.is_absolute() else ".".join(part for part in file.with_suffix("").parts if part != "..")
        )
        raise UsageError(f"'{name}' names a file; write the module: {module}:{cls or 'CLASS'}", code="bad-syntax")
    module, _, class_name = name.rpartition(".")
    if ":" not in name and module and _package_exists(package_of(name)):
        raise UsageError(f"'{name}' is not a class; write {module}:{class_name}", code="bad-syntax")
    if ":" in name:
        trust(package_of(name))


def is_registered_code(target: str) -> bool:
    """Return whether a class is part of iclbench or of a package with installed plug-ins."""
    return package_of(target) == "iclbench" or package_of(target) in _plugins()


def is_trusted(target: str) -> bool:
    """Return whether a class may be loaded without asking the user."""
    module = target.partition(":")[0]
    trusted_modules = _words([os.environ.get(VARIABLE, "")])
    return (
        is_registered_code(target)
        or package_of(target) in _DEPENDENCIES
        or module in sys.modules
        or any(module == name or module.startswith(f"{name}.") for name in trusted_modules)
        or not _package_exists(package_of(target))  # loading it raises an error without running code
    )


def require(target: str) -> None:
    """Raise `UntrustedError` if a class may not be loaded. On a terminal, ask the user first."""
    if is_trusted(target):
        return
    package = package_of(target)
    if ask_user is not None and package not in _refused_packages:
        if ask_user(target):
            trust(package)
            return
        _refused_packages.add(package)
    raise UntrustedError(
        f"'{target}' is code from outside iclbench and its installed plug-ins, and loading it would run it; read it, "
        f"then pass --trust {package} (or set {VARIABLE}={package})"
    )


def _package_exists(package: str) -> bool:
    return _is_importable(package) or _in_current_folder(package) is not None


def _in_current_folder(package: str) -> Path | None:
    """Return the module or package with this name in the current folder, or None. Unlike `python`, an installed command
    does not search the current folder."""
    try:
        paths = [path for path in (Path.cwd() / package, Path.cwd() / f"{package}.py") if path.exists()]
    except OSError:  # the current folder was deleted
        return None
    return next((path for path in paths if path.is_dir() or path.suffix), None)


def _is_importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _words(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in re.split(r"[,:\s]+", text) if word]


@cache
def _plugins() -> frozenset[str]:
    """Return the installed packages that register plug-ins. They are trusted because the user installed them."""
    return frozenset(package_of(point.value) for group in GROUPS for point in entry_points(group=group))
