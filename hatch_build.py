"""Build hook that writes the commit of the sources into a package, as `iclbench/_commit.txt`."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the commit to wheels and source distributions. An editable install calls git at run time."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = spec_from_file_location("iclbench_version", Path(self.root, "iclbench", "core", "version.py"))
        assert spec is not None and spec.loader is not None
        version_module = module_from_spec(spec)
        spec.loader.exec_module(version_module)
        # A source distribution already contains the file.
        has_commit_file = Path(self.root, "iclbench", version_module.COMMIT_FILE).is_file()
        if version == "editable" or has_commit_file or (commit := version_module.commit()) is None:
            return
        self._folder = TemporaryDirectory()
        path = Path(self._folder.name, version_module.COMMIT_FILE)
        path.write_text(f"{commit}\n", encoding="utf-8")
        build_data["force_include"][str(path)] = f"iclbench/{version_module.COMMIT_FILE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
