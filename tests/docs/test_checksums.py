"""Checksums in the documentation equal those of the files, for data sets that are in the data folder."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from docs.checksums import CHECKSUMS, checksum, compute, main, paths

DATA = Path(os.environ.get("ICLBENCH_DATA", "missing"))


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="needs real data: ICLBENCH_DATA is not set")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "Omniglot")) for name in CHECKSUMS]
)
def test_the_checksum_of_a_data_set_is_that_of_its_files(name: str) -> None:
    if not paths(name, DATA):
        pytest.skip(f"{DATA} does not have {name}")
    assert compute(name, DATA) == checksum(name)


def test_a_checksum_depends_on_the_content_of_all_files_and_not_on_their_compression(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "b-ubyte.gz").write_bytes(gzip.compress(b"second"))
    (folder / "a-ubyte.gz").write_bytes(gzip.compress(b"first"))
    expected = hashlib.sha256(b"firstsecond").hexdigest()[:12]
    assert compute("MNIST", tmp_path) == expected
    for name, content in (("a-ubyte", b"first"), ("b-ubyte", b"second")):
        (folder / name).write_bytes(content)
    assert compute("MNIST", tmp_path) == expected
    (folder / "b-ubyte").write_bytes(b"third")
    assert compute("MNIST", tmp_path) != expected


def test_a_file_with_another_checksum_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(tmp_path)) == 0
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "servo.csv").write_text("1,2\n")
    capsys.readouterr()
    assert main(str(tmp_path)) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "servo" in line]
    assert compute("servo", tmp_path) in line and checksum("servo") in line
