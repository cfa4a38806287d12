"""`iclbench doctor`: optional libraries and the results folder."""

import re
import tomllib
from pathlib import Path

from iclbench.cli import doctor

FOR_DEVELOPERS = {"docs", "dev", "mutation"}


def test_every_optional_library_is_named_with_its_feature() -> None:
    package = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = package["project"]["optional-dependencies"]
    requirements = {
        requirement
        for extra, extra_requirements in extras.items()
        if extra not in FOR_DEVELOPERS
        for requirement in extra_requirements
    }
    assert set(doctor._OPTIONAL) == {re.split(r"[<>=; ]", requirement)[0] for requirement in requirements}
    assert doctor._version("submitit").endswith("(optional: sweep --engine slurm)")
    assert all(len(f"{name:19}{doctor._version(name)}") <= 80 for name in doctor._OPTIONAL)


def test_a_file_cannot_be_the_results_folder(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.touch()
    assert doctor._writable(tmp_path / "new" / "results") == "writable"
    for path in (file, file / "subfolder"):
        assert "--results" in doctor._writable(path)
