"""The version has one place, and the commit is that of the code that runs, or none."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import iclbench
from iclbench import tables
from iclbench.core import version

ROOT = Path(iclbench.__file__).parents[1]
PROJECT = '[project]\nname = "{}"\nversion = "7.8.9"\n'


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled files in a checkout would be changes of it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # in processes too


def copied(root: Path, project: str = "iclbench") -> ModuleType:
    """This module, in a checkout of its own."""
    path = root / "iclbench" / "core" / "version.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(Path(version.__file__).read_bytes())
    (root / "pyproject.toml").write_text(PROJECT.format(project))
    return read(path)


def read(path: Path) -> ModuleType:
    """The module of a file, which has asked git for nothing yet."""
    spec = spec_from_file_location("copied_version", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(root: Path, message: str = "one") -> str:
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


def test_the_version_stands_in_pyproject_alone() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert iclbench.__version__ == own
    names = ["CITATION.cff", "README.md", "CHANGELOG.md", "hatch_build.py"]
    texts = [*(ROOT / name for name in names), *ROOT.glob("docs/*.md"), *ROOT.glob("iclbench/**/*.py")]
    assert [path for path in texts if own in path.read_text(encoding="utf-8")] == []
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_the_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copied(tmp_path / "ours")
    own = committed(tmp_path / "ours")
    assert (module.version(), module.commit()) == ("7.8.9", own)
    other = copied(tmp_path / "other")
    theirs = committed(tmp_path / "other", "another")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "ours" / ".git"))  # as in a hook of git
    assert other.commit() == theirs != own


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [("iclbench/core/version.py", True), ("iclbench/new.py", True), ("grids/x.toml", True), ("results/x", False)],
)
def test_changes_of_the_code_make_it_dirty(changed: str, dirty: bool, tmp_path: Path) -> None:
    module = copied(tmp_path)
    own = committed(tmp_path)
    (tmp_path / changed).parent.mkdir(exist_ok=True)
    with (tmp_path / changed).open("a") as file:
        file.write("\n")
    assert module.commit() == own + "-dirty" * dirty


def test_a_worktree_has_its_own_commit(tmp_path: Path) -> None:
    copied(tmp_path / "main")
    committed(tmp_path / "main")
    git(tmp_path / "main", "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    own = git(tmp_path / "tree", "rev-parse", "HEAD")
    assert read(tmp_path / "tree" / "iclbench" / "core" / "version.py").commit() == own


def test_the_repository_of_another_project_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unpacked release or a virtual environment within it, and a package copied into its root."""
    within = copied(tmp_path / "vendor")
    (tmp_path / "pyproject.toml").write_text(PROJECT.format("theirs"))
    committed(tmp_path)
    assert within.commit() is None
    copy = copied(tmp_path / "copy", "theirs")
    committed(tmp_path / "copy")
    assert copy.commit() is None and copy.checkout() is None
    (tmp_path / "vendor" / ".git").mkdir()  # not a repository
    assert read(tmp_path / "vendor" / "iclbench" / "core" / "version.py").commit() is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copied(tmp_path)
    committed(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.commit() is None


def test_git_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copied(tmp_path)
    committed(tmp_path)
    calls = []
    run = subprocess.run
    monkeypatch.setattr(module.subprocess, "run", lambda *given, **options: calls.append(0) or run(*given, **options))
    assert len({module.commit() for _ in range(3)}) == 1 and len(calls) == 1


def test_help_and_version_do_not_ask_git(tmp_path: Path) -> None:
    fake, asked = tmp_path / "git", tmp_path / "asked"
    fake.write_text(f"#!/bin/sh\ntouch {asked}\n")
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for option in ("--help", "--version"):
        command = [sys.executable, "-m", "iclbench", option]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == f"iclbench {iclbench.__version__}\n" and not asked.exists()


def test_a_wheel_knows_its_commit_wherever_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    source, project = tmp_path / "source", tmp_path / "project"
    copied(source)
    (source / "iclbench" / "__init__.py").touch()
    (source / "hatch_build.py").write_bytes((ROOT / "hatch_build.py").read_bytes())
    hook = "[tool.hatch.build.hooks.custom]\n"
    with (source / "pyproject.toml").open("a") as file:
        file.write('[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n' + hook)
    assert hook in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    own = committed(source)
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    # The wheel of a source distribution, which has no repository.
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", archive], cwd=tmp_path, check=True)
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    (direct,) = tmp_path.glob("*.whl")
    second = tmp_path / "second"
    subprocess.run([*build[:-1], second, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    # Installed in an environment within the checkout of another project.
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT.format("theirs"))
    committed(project)
    for n, wheel in enumerate((direct, *second.glob("*.whl"))):
        site = project / f"site-packages-{n}"
        zipfile.ZipFile(wheel).extractall(site)
        code = "from iclbench.core.version import commit, version; print(version(), commit())"
        environment = os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=project, check=True, capture_output=True, text=True
        )
        assert done.stdout.split() == ["7.8.9", own]
    assert n == 1


def test_packed_values_of_before_have_no_commit_and_stay_as_they_are(tmp_path: Path) -> None:
    packed = ROOT / "results" / "reference" / "linear-small.values.parquet"
    values = tables.read("values", packed)
    assert len(values) and values["commit"].isna().all()


def test_rows_that_differ_in_the_code_alone_stay_as_they_are(tmp_path: Path) -> None:
    """Commands with nothing to add work on results that may only be read, after an update too."""
    path = tmp_path / "values.parquet"
    shared = {name: "a" for name, (dtype, optional, _) in tables.VALUES.items() if dtype == "string" and not optional}
    row = shared | {"kind": "baseline", "status": "ok", "value": 1.0}
    tables.write("values", [row | {"commit": "old"}], path, {})
    before = path.read_bytes()
    tables.write("values", [row | {"commit": "new", "version": "b"}], path, {})
    assert path.read_bytes() == before
    tables.write("values", [row | {"commit": "new", "value": 2.0}], path, {})
    assert tables.read("values", path)["commit"].tolist() == ["new"]
