"""The version is defined in one place, and the commit is that of the running code, or None if it is unknown."""

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
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    process = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return process.stdout.strip()


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable bytecode files, which would make a checkout dirty."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # for child processes


def copy_module(root: Path, project: str = "iclbench") -> ModuleType:
    """Copy the module `version` to another checkout and load it."""
    path = root / "iclbench" / "core" / "version.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(Path(version.__file__).read_bytes())
    (root / "pyproject.toml").write_text(PROJECT.format(project))
    return load(path)


def load(path: Path) -> ModuleType:
    """Load the module of a file, with empty caches."""
    spec = spec_from_file_location("copied_version", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commit_all(root: Path, message: str = "one") -> str:
    """Commit all files to a new repository and return the commit."""
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


def test_pyproject_changelog_and_citation_have_the_same_version_and_date() -> None:
    expected = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert iclbench.__version__ == expected
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(version|date-released): (\S+)$", citation, re.MULTILINE))
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert fields["version"] == expected and sections[0] == f"{expected} ({fields['date-released']})"
    paths = [ROOT / "README.md", ROOT / "hatch_build.py", *ROOT.glob("docs/*.md"), *ROOT.glob("iclbench/**/*.py")]
    assert [path for path in paths if expected in path.read_text(encoding="utf-8")] == []


def test_the_commit_belongs_to_the_checkout_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copy_module(tmp_path / "first")
    commit = commit_all(tmp_path / "first")
    assert (module.version(), module.commit()) == ("7.8.9", commit)
    other_module = copy_module(tmp_path / "second")
    other_commit = commit_all(tmp_path / "second", "another")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "first" / ".git"))  # git sets this variable in hooks
    assert other_module.commit() == other_commit != commit


@pytest.mark.parametrize(
    ("name", "is_dirty"),
    [("iclbench/core/version.py", True), ("iclbench/new.py", True), ("grids/x.toml", True), ("results/x", False)],
)
def test_only_changes_to_the_code_make_the_commit_dirty(name: str, is_dirty: bool, tmp_path: Path) -> None:
    module = copy_module(tmp_path)
    commit = commit_all(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert module.commit() == commit + "-dirty" * is_dirty


def test_a_worktree_has_its_own_commit(tmp_path: Path) -> None:
    copy_module(tmp_path / "main")
    commit_all(tmp_path / "main")
    git(tmp_path / "main", "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    commit = git(tmp_path / "tree", "rev-parse", "HEAD")
    assert load(tmp_path / "tree" / "iclbench" / "core" / "version.py").commit() == commit


def test_the_repository_of_another_project_is_not_used(tmp_path: Path) -> None:
    """The commit is unknown if a release is unpacked in another project, or if the package is copied into the root of
    another project.
    """
    vendored = copy_module(tmp_path / "vendor")
    (tmp_path / "pyproject.toml").write_text(PROJECT.format("theirs"))
    commit_all(tmp_path)
    assert vendored.commit() is None
    copy = copy_module(tmp_path / "copy", "theirs")
    commit_all(tmp_path / "copy")
    assert copy.commit() is None and copy.checkout() is None
    (tmp_path / "vendor" / ".git").mkdir()  # an empty folder, which is not a repository
    assert load(tmp_path / "vendor" / "iclbench" / "core" / "version.py").commit() is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copy_module(tmp_path)
    commit_all(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.commit() is None


def test_git_is_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = copy_module(tmp_path)
    commit_all(tmp_path)
    calls = []
    run = subprocess.run
    monkeypatch.setattr(module.subprocess, "run", lambda *args, **options: calls.append(0) or run(*args, **options))
    assert len({module.commit() for _ in range(3)}) == 1 and len(calls) == 1


def test_help_and_version_do_not_call_git(tmp_path: Path) -> None:
    fake_git, call_marker = tmp_path / "git", tmp_path / "called"
    fake_git.write_text(f"#!/bin/sh\ntouch {call_marker}\n")
    fake_git.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for option in ("--help", "--version"):
        command = [sys.executable, "-m", "iclbench", option]
        process = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    assert process.stdout == f"iclbench {iclbench.__version__}\n" and not call_marker.exists()


def test_an_installed_wheel_contains_the_commit_of_its_source(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    source, project = tmp_path / "source", tmp_path / "project"
    copy_module(source)
    (source / "iclbench" / "__init__.py").touch()
    (source / "hatch_build.py").write_bytes((ROOT / "hatch_build.py").read_bytes())
    hook = "[tool.hatch.build.hooks.custom]\n"
    with (source / "pyproject.toml").open("a") as file:
        file.write('[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n' + hook)
    assert hook in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    commit = commit_all(source)
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    # Build a wheel from a source distribution, which has no repository.
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", archive], cwd=tmp_path, check=True)
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    (direct,) = tmp_path.glob("*.whl")
    second = tmp_path / "second"
    subprocess.run([*build[:-1], second, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    # Install the wheels in the checkout of another project.
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT.format("theirs"))
    commit_all(project)
    for n, wheel in enumerate((direct, *second.glob("*.whl"))):
        site = project / f"site-packages-{n}"
        zipfile.ZipFile(wheel).extractall(site)
        code = "from iclbench.core.version import commit, version; print(version(), commit())"
        environment = os.environ | {"PYTHONPATH": str(site)}
        process = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=project, check=True, capture_output=True, text=True
        )
        assert process.stdout.split() == ["7.8.9", commit]
    assert n == 1


def test_packed_result_tables_contain_no_commit() -> None:
    packed = ROOT / "results" / "reference" / "linear-small.values.parquet"
    values = tables.read("values", packed)
    assert len(values) and values["commit"].isna().all()


def test_rows_that_differ_only_in_version_and_commit_are_not_rewritten(tmp_path: Path) -> None:
    """After an upgrade, commands that add no rows must work on read-only results."""
    path = tmp_path / "values.parquet"
    shared = {name: "a" for name, (dtype, optional, _) in tables.VALUES.items() if dtype == "string" and not optional}
    row = shared | {"kind": "baseline", "status": "ok", "value": 1.0}
    tables.write("values", [row | {"commit": "old"}], path, {})
    original = path.read_bytes()
    tables.write("values", [row | {"commit": "new", "version": "b"}], path, {})
    assert path.read_bytes() == original
    tables.write("values", [row | {"commit": "new", "value": 2.0}], path, {})
    assert tables.read("values", path)["commit"].tolist() == ["new"]
