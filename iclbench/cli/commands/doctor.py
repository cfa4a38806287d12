"""`iclbench doctor`: what this machine offers."""

from __future__ import annotations

from iclbench.cli.options import RESULTS, DataDir, Json, Results


def doctor(results: Results = RESULTS, data_dir: DataDir = None, json: Json = False) -> None:
    """Report Python, libraries, devices, folders, and which plug-ins load."""
