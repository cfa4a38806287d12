"""`iclbench doctor`: what is optional, and what needs it."""

import re
import tomllib
from pathlib import Path

from iclbench.cli import doctor

FOR_DEVELOPERS = {"docs", "dev", "mutation"}


def test_every_extra_is_named_with_what_needs_it() -> None:
    package = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = package["project"]["optional-dependencies"]
    needed = {needs for extra, those in extras.items() if extra not in FOR_DEVELOPERS for needs in those}
    assert set(doctor._OPTIONAL) == {re.split(r"[<>=; ]", needs)[0] for needs in needed}
    assert doctor._version("submitit").endswith("(optional: sweep --engine slurm)")
    assert all(len(f"{name:19}{doctor._version(name)}") <= 80 for name in doctor._OPTIONAL)


def test_a_file_is_no_folder_for_results(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.touch()
    assert doctor._writable(tmp_path / "new" / "results") == "writable"
    for below in (file, file / "deeper"):
        assert "--results" in doctor._writable(below)
