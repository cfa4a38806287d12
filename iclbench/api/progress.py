"""Progress displays: a bar on a terminal, an updated line in a notebook, and nothing if the output is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from iclbench.core.progress import PrintableConsole, Update, step_bar


@contextmanager
def progress_bar(label: str, total: int, visible: bool = True) -> Iterator[Update]:
    """Show the number of finished steps.

    Args:
        label: text before the bar.
        total: number of steps.
        visible: whether the bar is shown.
    """
    if visible and "ipykernel" in sys.modules:
        yield _in_notebook(label, total)
    elif visible and (terminal := PrintableConsole(stderr=True)).is_terminal:
        with step_bar(terminal, label, total) as update:
            yield update
    else:
        yield lambda step, text: None


def _in_notebook(label: str, total: int) -> Update:
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    def display_data(step: int, text: str) -> dict[str, str]:
        return {"text/plain": f"{label}: {step}/{total} {text}".rstrip()}

    handle = display(display_data(0, ""), raw=True, display_id=True)
    if handle is None:  # the front end cannot update displays
        return lambda step, text: None

    def update(step: int, text: str) -> None:
        handle.update(display_data(step, text), raw=True)

    return update
