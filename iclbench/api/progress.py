"""A progress bar on a terminal, a line that is written over in a notebook, nothing where output is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from iclbench.core.progress import PrintableConsole, Update, step_bar


@contextmanager
def progress_bar(label: str, total: int, shown: bool = True) -> Iterator[Update]:
    """Show how far some steps have come.

    Args:
        label: what stands before it.
        total: number of steps.
        shown: whether anything is shown at all.
    """
    if shown and "ipykernel" in sys.modules:
        yield _in_notebook(label, total)
    elif shown and (terminal := PrintableConsole(stderr=True)).is_terminal:
        with step_bar(terminal, label, total) as update:
            yield update
    else:
        yield lambda step, said: None


def _in_notebook(label: str, total: int) -> Update:
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    def line(step: int, said: str) -> dict[str, str]:
        return {"text/plain": f"{label}: {step}/{total} {said}".rstrip()}

    handle = display(line(0, ""), raw=True, display_id=True)
    if handle is None:  # of a front end without displays that can be written over
        return lambda step, said: None

    def update(step: int, said: str) -> None:
        handle.update(line(step, said), raw=True)

    return update
