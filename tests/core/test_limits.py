"""Limits on files, tables, lines and models: memory stays below them, and the error says how to raise them."""

import gzip
import io
import json
import os
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from torch import nn

from iclbench import tables
from iclbench.backbones.image_backbone import build_backbone
from iclbench.cli.main import main
from iclbench.config.cards import load_task, read_toml
from iclbench.config.resolution import backbone_class, resolve_run
from iclbench.core import limits
from iclbench.core.bounds import build_within_limit
from iclbench.core.errors import DataError, IclbenchError
from iclbench.core.seeds import global_stream
from iclbench.families.images.array_cache import cached_array
from iclbench.families.images.idx_file import read_idx
from iclbench.families.tabular.table_file import read_table
from iclbench.language.tasks.readers.labelled import json_lines
from iclbench.registry import BACKBONES
from iclbench.store.runs import create
from tests.refusals import refused

MEGA = 1 << 20
# The option and the environment variable that set the limit. Every error about a limit names them.
LIMIT_SETTINGS = ("--max-bytes", limits.VARIABLE)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "1M")


def peak(function: Callable[[], object]) -> int:
    """Return the peak memory of the function in bytes. The function may raise `DataError`."""
    tracemalloc.start()
    try:
        function()
    except DataError:
        pass
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak_bytes


def check_too_large(function: Callable[[], object]) -> None:
    """Check that the function uses little memory and raises an error that says how to raise the limit."""
    assert peak(function) < 4 * MEGA
    with refused("too-large", *LIMIT_SETTINGS):
        function()


def write_idx(folder: Path, images: int, data: bytes) -> None:
    with gzip.open(folder / "x.gz", "wb", compresslevel=1) as file:
        file.write(struct.pack(">BBBBIII", 0, 0, 8, 3, images, 28, 28) + data)


def test_an_idx_file_is_decompressed_only_up_to_the_size_in_its_header(tmp_path: Path) -> None:
    write_idx(tmp_path, 10, bytes(64 * MEGA))

    def read() -> None:
        read_idx(tmp_path, "x", 3, "home")

    assert peak(read) < MEGA
    with pytest.raises(DataError) as error:
        read()
    assert "10 x 28 x 28" in str(error.value)


@pytest.mark.usefixtures("small_limit")
def test_an_idx_file_larger_than_the_limit_is_read_with_a_higher_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, 2000, bytes(2000 * 28 * 28))
    check_too_large(lambda: read_idx(tmp_path, "x", 3, "home"))
    monkeypatch.setenv(limits.VARIABLE, "2M")
    assert read_idx(tmp_path, "x", 3, "home").shape == (2000, 28, 28)


@pytest.mark.usefixtures("small_limit")
def test_a_compressed_table_is_decompressed_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("a,b\n" + "1,2\n3,4\n" * 10_000)
    check_too_large(lambda: read_table(path))
    monkeypatch.setenv(limits.VARIABLE, "4M")
    assert read_table(path).rows == 20_000


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("bomb", ["1,2\n", "\n", "\r", "12345678901234567890,12345678901234567890\r\n"])
def test_a_compressed_table_beyond_the_limit_is_refused_before_it_is_parsed(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wt", compresslevel=1, newline="") as file:
        file.write("a,b\n" + bomb * (4 * MEGA // len(bomb)))
    monkeypatch.setattr("csv.reader", lambda *_, **__: pytest.fail("parsed"))
    assert peak(lambda: read_table(path)) < MEGA / 2
    with refused("too-large", path, "1.00 MiB", *LIMIT_SETTINGS):
        read_table(path)


@pytest.mark.usefixtures("small_limit")
def test_a_table_with_a_line_longer_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "line.csv"
    path.write_text("a" * MEGA)
    check_too_large(lambda: read_table(path))


@pytest.mark.usefixtures("small_limit")
def test_a_parquet_table_with_too_many_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": np.zeros(MEGA), "b": np.zeros(MEGA)}), path)
    assert path.stat().st_size < MEGA / 4
    check_too_large(lambda: read_table(path))


def test_a_parquet_table_with_text_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({"a": ["x" * MEGA] * 10, "b": np.arange(10.0)}), path, use_dictionary=True)
    allocated_bytes = pa.total_allocated_bytes()
    with pytest.raises(DataError) as error:
        read_table(path)
    assert str(path) in str(error.value) and " a;" in str(error.value)
    assert peak(lambda: read_table(path)) < MEGA and pa.total_allocated_bytes() - allocated_bytes < MEGA


@pytest.mark.usefixtures("small_limit")
def test_result_tables_with_too_many_rows_are_refused(tmp_path: Path) -> None:
    rows = tables.frame(
        "errors", [{"run": "r", "prompt_set": "p", "metric": "m", "episode": i, "value": 0.0} for i in range(20_000)]
    )
    tables.write("errors", rows, tmp_path / "x.errors.parquet", {})
    with pytest.raises(tables.TableError) as error:
        tables.read("errors", tmp_path / "x.errors.parquet")
    assert all(name in str(error.value) for name in LIMIT_SETTINGS)


def test_a_cached_array_whose_size_differs_from_its_header_is_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected_array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(cached_array("x", tmp_path, lambda: expected_array), expected_array)
    path = tmp_path / "cache" / "iclbench" / "x.npz"
    assert np.array_equal(cached_array("x", tmp_path, lambda: pytest.fail("computed twice")), expected_array)
    for shape, size in (((1 << 40,), 0), ((2, 3), 64 * MEGA), ((1 << 34,), 64)):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("array.npy", header.getvalue() + bytes(size))
        assert peak(lambda: cached_array("x", tmp_path, lambda: expected_array)) < 2 * MEGA
        assert np.array_equal(cached_array("x", tmp_path, lambda: expected_array), expected_array)


def test_a_line_of_a_stream_is_read_up_to_the_limit() -> None:
    stream = io.StringIO("1,2\n" + "1" * (8 * MEGA) + "\n3,4\n")
    lines = limits.lines(stream, "stdin")
    assert next(lines) == "1,2\n"
    with refused("too-large", "stdin, line 2", "1.00 MiB", *LIMIT_SETTINGS):
        next(lines)
    assert stream.tell() < 2 * MEGA


def test_a_line_of_json_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    path.write_text(json.dumps({"text": "a" * (2 * MEGA), "label": "b"}) + "\n")
    with refused("too-large", f"{path}, line 1", "1.00 MiB", *LIMIT_SETTINGS):
        list(json_lines(path))


def test_an_endless_card_is_refused() -> None:
    with refused("too-large", "/dev/zero", "1.00 MiB", *LIMIT_SETTINGS):
        read_toml(Path("/dev/zero"))


@pytest.mark.parametrize("name", BACKBONES.names())
def test_a_billion_layers_or_a_width_of_a_billion_is_refused_before_any_allocation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(limits.VARIABLE, "32M")
    fields = backbone_class(name).Settings.model_fields
    task = "point-process" if backbone_class(name).reads_only_events() else "linear"
    for key in {"layers", "width"} & fields.keys():
        one_head = ["backbone.heads=1"] if "heads" in fields else []
        with refused("too-large", f"'{name}'", "layers", "width", *LIMIT_SETTINGS):
            config = resolve_run(task, name, "smoke", 0, [f"backbone.{key}=1000000000", *one_head])
            config.build(config.task.build())


def test_checking_the_size_does_not_change_the_weights() -> None:
    config = resolve_run("linear", "gpt2", "smoke", 3)
    checked, cls = config.build(config.task.build()), backbone_class("gpt2")
    with global_stream(3, "weights"):
        unchecked = build_backbone(cls, cls.Settings(**config.backbone.settings), config.shape(config.task.build()))
    for name, weight in unchecked.state_dict().items():
        assert torch.equal(checked.state_dict()[name], weight)


@pytest.mark.usefixtures("small_limit")
def test_the_memory_of_a_plug_in_class_is_counted_while_it_is_built() -> None:
    layers: list[nn.Module] = []

    def build() -> nn.Module:
        layers.extend(nn.Linear(100, 100) for _ in range(1000))
        return nn.ModuleList(layers)

    with refused("too-large", "'theirs'", *LIMIT_SETTINGS):
        build_within_limit(build, "backbone 'theirs'", is_ours=False)
    assert len(layers) < MEGA / (4 * 100 * 100) + 2


@pytest.mark.parametrize("key", ["train.batch", "task.episodes"])
def test_too_many_episodes_are_refused(key: str, tmp_path: Path) -> None:
    config = resolve_run("linear", "gpt2", "smoke", 0, [f"{key}=1000000000"])
    with refused("too-large", "linear", f"{key}=1,000,000,000", *LIMIT_SETTINGS):
        create(tmp_path, config)
    assert not (tmp_path / "runs").exists()


def test_the_limit_can_be_written_with_or_without_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [limits.parse(text) for text in ("1", "2k", "3 MB", "1.5GiB")] == [1, 2048, 3 * MEGA, 3 << 29]
    for text in ("", "-1", "0", "many", "1_0", "٣", "1e9", "9" * 30):
        with refused("bad-value", f"'{text}'", *LIMIT_SETTINGS):
            limits.parse(text)
    monkeypatch.setitem(os.environ, limits.VARIABLE, "2M")
    assert (limits.max_bytes(), limits.max_text(), limits.max_line()) == (2 * MEGA, MEGA // 4, 2048)


LONG_WORD, MANY_WORDS = "a" * 5000, "several words " * 500


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", LONG_WORD, "gpt2"],
        ["train", "linear", MANY_WORDS],
        ["train", f"./{LONG_WORD}.toml", "gpt2"],
        [LONG_WORD],
        ["train", "linear", "gpt2", "-o", LONG_WORD],
        ["train", "linear", "gpt2", "-o", f"{MANY_WORDS}=3"],
        ["train", "linear", "gpt2", "-o", f"train.{LONG_WORD}=3"],
        ["train", "linear", "gpt2", "-o", f"train.lr={MANY_WORDS}"],
        ["train", "linear", "gpt2", "--name", MANY_WORDS],
        ["train", "linear", "gpt2", "--seed", MANY_WORDS],
        ["train", "linear", "gpt2", "--trust", f"../{LONG_WORD}"],
        ["train", "linear", "gpt2", "--max-bytes", LONG_WORD],
        ["eval", LONG_WORD],
        ["show", MANY_WORDS],
        ["list", LONG_WORD],
        ["check", f"{LONG_WORD}:{LONG_WORD}"],
        ["lm", "eval", "-m", LONG_WORD, "-t", LONG_WORD],
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_an_error_quotes_at_most_200_characters_of_an_argument(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "")
    assert main(arguments) in (1, 2)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert max(map(len, re.findall("a{2,}", line)), default=0) <= 200
    assert max((len(match[0]) for match in re.finditer("(several words ?)+", line)), default=0) <= 200


def test_an_error_quotes_at_most_200_characters_of_a_card(tmp_path: Path) -> None:
    for card in (
        {LONG_WORD: 1},
        {"family": LONG_WORD},
        {"family": MANY_WORDS},
        {"family": 3, "summary": [MANY_WORDS]},
        {"presets": {LONG_WORD: {}}},
    ):
        (tmp_path / "card.toml").write_text(tomli_w.dumps({"family": "linear", "summary": "s", "presets": {}} | card))
        with pytest.raises(IclbenchError) as error:
            load_task(str(tmp_path / "card.toml"))
        assert not re.search("a{201}|(several words ?){15}", str(error.value))
