"""Records: indexing, casting, size, and files whose loading executes no code."""

import json
import os
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataError
from iclbench.core.records import TensorRecord, cat, read_about
from tests.refusals import refused


@dataclass(frozen=True)
class Layer(TensorRecord):
    keys: Tensor
    steps: int = 0


@dataclass(frozen=True)
class Nested(TensorRecord):
    layers: tuple[Layer, ...]
    extra: dict[str, Tensor] = field(default_factory=dict)
    missing: Tensor | None = None


@pytest.fixture
def nested():
    layers = tuple(Layer(torch.randn(4, 2, 3), i) for i in range(2))
    return Nested(layers, {"count": torch.arange(4)})


def are_equal(first, second):
    a, b = first.tensors(), second.tensors()
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_indexing_selects_episodes_of_all_tensors_and_does_not_change_plain_values(nested):
    for index in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True, False])):
        selection = nested[index]
        assert torch.equal(selection.layers[1].keys, nested.layers[1].keys[1:3])
        assert torch.equal(selection.extra["count"], torch.tensor([1, 2]))
        assert (selection.layers[1].steps, selection.missing) == (1, None)


def test_the_size_of_a_record_is_the_total_size_of_its_tensors(nested):
    assert nested.nbytes == 2 * 4 * 2 * 3 * 4 + 4 * 8
    assert set(nested.tensors()) == {"layers.0.keys", "layers.1.keys", "extra.count"}


def test_only_floating_point_tensors_are_cast(nested):
    cast = nested.to(dtype=torch.float64)
    assert cast.layers[0].keys.dtype == torch.float64
    assert cast.extra["count"].dtype == torch.int64


def test_concatenation_is_the_inverse_of_splitting(nested):
    assert are_equal(cat([nested[:1], nested[1:2], nested[2:]]), nested)


def test_saving_and_loading_gives_the_same_record(nested, tmp_path):
    nested.save(tmp_path / "state.safetensors")
    loaded = Nested.load(tmp_path / "state.safetensors")
    assert are_equal(loaded, nested)
    assert [layer.steps for layer in loaded.layers] == [0, 1]
    assert loaded.missing is None


def test_views_and_shared_memory_can_be_saved(tmp_path):
    base = torch.randn(2, 3)
    record = Nested((Layer(base.T.expand(4, 3, 2)), Layer(base.expand(4, 2, 3))))
    record.save(tmp_path / "r")
    assert are_equal(Nested.load(tmp_path / "r"), record)


def test_episodes_can_be_saved_and_loaded(tmp_path):
    points = Points.full(torch.randn(3, 5, 2), torch.randn(3, 5, 1))
    episodes = Episodes(points, points.mask, truth={"weights": torch.randn(3, 2)})
    episodes.save(tmp_path / "e")
    assert are_equal(Episodes.load(tmp_path / "e"), episodes)


def test_a_record_of_another_class_is_refused(nested, tmp_path):
    nested.save(tmp_path / "r")
    with refused("bad-data", tmp_path / "r", "Nested", "Layer"):
        Layer.load(tmp_path / "r")


def test_truncated_unrelated_and_missing_files_are_refused(nested, tmp_path):
    nested.save(tmp_path / "r")
    (tmp_path / "cut").write_bytes((tmp_path / "r").read_bytes()[:-10])
    save_file({"a": torch.ones(1)}, str(tmp_path / "foreign"))
    save_file(
        {"a": torch.ones(1)}, str(tmp_path / "evil"), {"record": json.dumps({"record": "os.system", "fields": {}})}
    )
    (tmp_path / "text").write_text("not a record")
    for name in ("cut", "foreign", "evil", "text", "nowhere"):
        code = "missing-file" if name == "nowhere" else "unreadable-file"
        with refused(code, tmp_path / name, "Nested"):
            Nested.load(tmp_path / name)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["record", "fields", "tensor", "tuple", "dict", "value", "a"]), x)
        ),
        max_leaves=6,
    )
)
def test_a_file_whose_header_does_not_describe_a_record_is_refused(tmp_path, description):
    save_file({"a": torch.ones(1)}, str(tmp_path / "any"), {"record": json.dumps(description)})
    with pytest.raises(DataError):
        Nested.load(tmp_path / "any")


def test_metadata_of_a_record_are_read_without_its_tensors(nested, tmp_path):
    nested.save(tmp_path / "r", {"model": "a"})
    assert read_about(tmp_path / "r") == {"model": "a"}
    assert are_equal(Nested.load(tmp_path / "r"), nested)
    nested.save(tmp_path / "plain")
    assert read_about(tmp_path / "plain") == {}
    (tmp_path / "text").write_text("not a record")
    with refused("unreadable-file", tmp_path / "text"):
        read_about(tmp_path / "text")


def test_reading_a_named_pipe_raises_an_error_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "state")
    for read in (Layer.load, read_about):
        with refused("unreadable-file", tmp_path / "state"):
            read(tmp_path / "state")


def test_saving_overwrites_only_files_that_are_records(nested, tmp_path):
    nested.save(tmp_path / "r")
    nested[:1].save(tmp_path / "r")
    assert Nested.load(tmp_path / "r").extra["count"].tolist() == [0]
    (tmp_path / "text").write_text("not a record")
    with refused("exists", tmp_path / "text"):
        nested.save(tmp_path / "text")
