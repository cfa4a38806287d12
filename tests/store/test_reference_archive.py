"""`iclbench fetch-reference` unpacks only the archive whose checksum is in the package, and no other file."""

from __future__ import annotations

import hashlib
import io
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from iclbench.cli.main import main
from iclbench.core.version import version
from iclbench.store import archives, reference_archive
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
FILES = {"linear-grid.values.parquet": b"values", "linear-grid.weights.safetensors": bytes(range(256)) * 4}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive, whose checksum is in the manifest."""
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)
    (source / "README.md").write_text("is not in the archive")
    monkeypatch.setattr(reference_archive, "MANIFEST", tmp_path / "manifest.toml")
    return reference_archive.publish(source, tmp_path / "dist")


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """A server that sends the bytes in `server.body`, after a header that announces `server.length` bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/reference.zip" else 404)
            self.send_header("Content-Length", str(server.length))
            self.end_headers()
            self.wfile.write(server.body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def url(server: HTTPServer, name: str = "reference.zip") -> str:
    return f"http://127.0.0.1:{server.server_port}/{name}"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_describes_the_reference_results() -> None:
    """If this fails, run `make reference-archive`."""
    archive = reference_archive.archive_bytes(ROOT / "results" / "reference")
    manifest = tomllib.loads(reference_archive.MANIFEST.read_text(encoding="utf-8"))
    assert manifest == {"bytes": len(archive), "sha256": hashlib.sha256(archive).hexdigest()}


def test_an_archive_is_unpacked_from_a_file_or_url(archive: Path, server: HTTPServer, tmp_path: Path) -> None:
    server.body, server.length = archive.read_bytes(), archive.stat().st_size
    assert archive.name == f"iclbench-reference-{version()}.zip"
    for name, source in {"file": str(archive), "file-url": archive.as_uri(), "http": url(server)}.items():
        results = tmp_path / name
        assert main(["fetch-reference", source, "--results", str(results)]) == 0
        assert content(results / "reference") == FILES and [*results.iterdir()] == [results / "reference"]


def test_a_second_fetch_changes_nothing(archive: Path, tmp_path: Path) -> None:
    folder = reference_archive.fetch(str(archive), tmp_path)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert reference_archive.fetch(str(tmp_path / "absent.zip"), tmp_path) == folder
    (folder / "README.md").touch()
    assert reference_archive.fetch(str(archive), tmp_path) == folder
    assert times.items() <= {path: path.stat().st_mtime_ns for path in folder.iterdir()}.items()


def test_a_folder_with_other_content_is_not_overwritten(archive: Path, tmp_path: Path) -> None:
    folder = reference_archive.fetch(str(archive), tmp_path)
    (folder / "linear-grid.values.parquet").write_bytes(b"Values")
    before = content(folder)
    with refused("exists", folder):
        reference_archive.fetch(str(archive), tmp_path)
    assert content(folder) == before


def with_changed_byte(archive: bytes) -> bytes:
    middle = len(archive) // 2
    return archive[:middle] + bytes([archive[middle] ^ 1]) + archive[middle + 1 :]


def with_other_files(*names: str, link: bool = False) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o120777 if link else 0o100644) << 16
            file.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


TAMPERED = {
    "changed": with_changed_byte,
    "cut": lambda archive: archive[:-1],
    "longer": lambda archive: archive + b"\0",
    "huge": lambda archive: archive + bytes(10_000_000),
    "other version": lambda archive: with_other_files("reference/linear-grid.values.parquet"),
    "path outside": lambda archive: with_other_files("../outside.parquet"),
    "absolute path": lambda archive: with_other_files("/tmp/iclbench-outside.parquet"),
    "link": lambda archive: with_other_files("reference/linear-grid.values.parquet", link=True),
    "empty": lambda archive: b"",
    "not a zip file": lambda archive: b"<html>404</html>",
}


@pytest.mark.parametrize("change", TAMPERED)
def test_another_file_is_refused_and_leaves_nothing(
    change: str, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.write_bytes(TAMPERED[change](archive.read_bytes()))
    with refused("unreadable-file", archive, version()):
        reference_archive.fetch(str(archive), tmp_path / "results")
    assert main(["fetch-reference", str(archive), "--results", str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "results").exists() and not (tmp_path / "outside.parquet").exists()


def test_incomplete_and_endless_downloads_are_refused(archive: Path, server: HTTPServer, tmp_path: Path) -> None:
    complete = archive.read_bytes()
    for body, length in [(complete[:100], len(complete)), (complete + bytes(1_000_000), 10**12)]:
        server.body, server.length = body, length
        with refused("unreadable-file", url(server)):
            reference_archive.fetch(url(server), tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_sources_that_cannot_be_read_are_refused(archive: Path, server: HTTPServer, tmp_path: Path) -> None:
    server.body, server.length = b"", 0
    sources = [str(tmp_path / "absent.zip"), str(tmp_path), url(server, "absent"), "http://127.0.0.1:1/x", "s3://x/y"]
    for source in [*sources, "http://[/x", (tmp_path / "absent.zip").as_uri()]:
        with refused("unreadable-file", source):
            reference_archive.fetch(source, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_results_folder_that_cannot_be_written_is_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("unreadable-file", tmp_path / "file"):
        reference_archive.fetch(str(archive), tmp_path / "file" / "results")


def test_without_the_archive_one_line_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "results_folders", lambda results: [results])  # as in an installed package
    with refused("missing-file", "iclbench fetch-reference"):
        archives.find(tmp_path, "reference/linear-mamba-grid-s0")
    with refused("unknown-name", "iclbench fetch-reference"):
        archives.find(tmp_path, "linear-mamba-grid-s0")
