"""Runs that were not trained at a learning rate chosen for them, among others that were."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from iclbench.config.cards import read_toml
from iclbench.config.rates import Rates
from iclbench.core.errors import UsageError


def untuned(results: Path | None, preset: str, task: str, runs: Iterable[tuple[str, str, str]]) -> list[str]:
    """Names of those runs for whose contestant no table of rates has anything, or that were trained otherwise, before
    or beside what the table says; none where nobody is tuned. Of runs that lie elsewhere, as packed ones do, the tables
    are believed. A variant that goes by the rate of its backbone is untuned.

    Args:
        results: the results folder, if there is one.
        preset, task: what they were trained on.
        runs: name, contestant and backbone of each.
    """
    rates = Rates.of(preset, task, results=results)
    if not rates.chosen:
        return []
    return [run for run, contestant, backbone in runs if not _is_tuned(rates, results, run, contestant, backbone)]


def _is_tuned(rates: Rates, results: Path | None, run: str, contestant: str, backbone: str) -> bool:
    chosen = rates.own_choice(contestant, backbone)
    if chosen is None:
        return False
    path = None if results is None else results / "runs" / run / "config.toml"
    if path is None or not path.is_file():
        return True
    try:
        train = read_toml(path).get("train", {})
    except UsageError:  # what cannot be read is told where it is read for its own sake
        return True
    return all(train.get(key) == value for key, value in chosen.items())
