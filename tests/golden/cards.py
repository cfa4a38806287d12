"""Write initial cards, to be edited, for families and estimators without a card.

The card of a function family is the card of `linear` without oracles. A baseline card has the default settings.
"""

import re
from pathlib import Path

from iclbench.config.cards import card_names, load_baseline, load_task
from iclbench.families.base import FunctionFamily
from iclbench.registry import ESTIMATORS, FAMILIES, canonical

ROOT = Path(__file__).parents[2]


def write_missing() -> list[str]:
    """Write a card for every function family and every estimator without a card, and return the paths."""
    families_with_cards = {canonical(load_task(name)[1].family) for name in card_names("tasks")}
    estimators_with_cards = {canonical(load_baseline(name)[1].estimator) for name in card_names("baselines")}
    families = [
        name
        for name in FAMILIES.builtin_entries
        if name not in families_with_cards and issubclass(FAMILIES.get(name), FunctionFamily)
    ]
    cards = {f"tasks/{name}.toml": task(name) for name in families}
    cards |= {
        f"baselines/{name}.toml": baseline(name)
        for name in ESTIMATORS.builtin_entries
        if name not in estimators_with_cards
    }
    for path, text in cards.items():
        (ROOT / path).write_text(text)
    card_names.cache_clear()
    return list(cards)


def task(family: str) -> str:
    """Return the card of `linear`, changed to another family."""
    text = (ROOT / "tasks" / "linear.toml").read_text()
    text = re.sub(r'^(source|oracles) = [^\n]*\n|^notes = """.*?"""\n', "", text, flags=re.M | re.S)
    head = f'family = "{family}"\nsummary = "{FAMILIES.entry(family).summary}"\n'
    return head + text.partition("\n")[2].partition("\n")[2]


def baseline(estimator: str) -> str:
    """Return a baseline card without settings."""
    return f'estimator = "{estimator}"\nsummary = "{ESTIMATORS.entry(estimator).summary}"\n'
