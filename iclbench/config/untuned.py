"""Runs that were not trained at a learning rate chosen for them, among others that were."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from iclbench.config.cards import read_toml
from iclbench.config.rates import Rates
from iclbench.core.errors import UsageError


@dataclass(frozen=True)
class Trained:
    """What is known of a run from its rows.

    Attributes:
        run: its name.
        contestant, backbone: as in the tables.
        card: hash of the task's card; None: not said, and so the shipped one.
    """

    run: str
    contestant: str
    backbone: str
    card: str | None = None


def untuned(results: Path | None, preset: str, task: str, runs: Iterable[Trained]) -> list[str]:
    """Names of those runs for whose contestant no table of rates has anything, or that were trained otherwise, before
    or beside what the table says; none where nobody is tuned. Of runs that lie elsewhere, as packed ones do, the tables
    are believed. A variant that goes by the rate of its backbone is untuned.

    Args:
        results: the results folder, if there is one.
        preset, task: what they were trained on.
        runs: those that are asked about.
    """
    of_card = cache(lambda card: Rates.of(preset, task, card, results))
    return [each.run for each in runs if (rates := of_card(each.card)).chosen and not _is_tuned(rates, results, each)]


def trained_at(results: Path | None, run: str) -> dict[str, Any] | None:
    """Settings of training of a run that lies in the results folder; None: it does not, or cannot be read, which is
    told where it is read for its own sake."""
    path = None if results is None else results / "runs" / run / "config.toml"
    if path is None or not path.is_file():
        return None
    with suppress(UsageError):
        return dict(read_toml(path).get("train", {}))
    return None


def _is_tuned(rates: Rates, results: Path | None, trained: Trained) -> bool:
    chosen = rates.own_choice(trained.contestant, trained.backbone)
    if chosen is None:
        return False
    train = trained_at(results, trained.run)
    return train is None or all(train.get(key) == value for key, value in chosen.items())
