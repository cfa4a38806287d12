"""Records: indexed, moved, measured, saved and loaded, without executing anything."""

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


def same(one, two):
    a, b = one.tensors(), two.tensors()
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_indexing_picks_episodes_everywhere_and_keeps_plain_values(nested):
    for index in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True, False])):
        part = nested[index]
        assert torch.equal(part.layers[1].keys, nested.layers[1].keys[1:3])
        assert torch.equal(part.extra["count"], torch.tensor([1, 2]))
        assert (part.layers[1].steps, part.missing) == (1, None)


def test_size_is_that_of_the_tensors(nested):
    assert nested.nbytes == 2 * 4 * 2 * 3 * 4 + 4 * 8
    assert set(nested.tensors()) == {"layers.0.keys", "layers.1.keys", "extra.count"}


def test_casting_touches_floating_point_only(nested):
    cast = nested.to(dtype=torch.float64)
    assert cast.layers[0].keys.dtype == torch.float64
    assert cast.extra["count"].dtype == torch.int64


def test_joining_undoes_splitting(nested):
    assert same(cat([nested[:1], nested[1:2], nested[2:]]), nested)


def test_saving_and_loading_gives_the_same_record(nested, tmp_path):
    nested.save(tmp_path / "state.safetensors")
    loaded = Nested.load(tmp_path / "state.safetensors")
    assert same(loaded, nested)
    assert [layer.steps for layer in loaded.layers] == [0, 1]
    assert loaded.missing is None


def test_views_and_shared_memory_can_be_saved(tmp_path):
    base = torch.randn(2, 3)
    record = Nested((Layer(base.T.expand(4, 3, 2)), Layer(base.expand(4, 2, 3))))
    record.save(tmp_path / "r")
    assert same(Nested.load(tmp_path / "r"), record)


def test_episodes_survive_the_trip(tmp_path):
    points = Points.full(torch.randn(3, 5, 2), torch.randn(3, 5, 1))
    episodes = Episodes(points, points.mask, truth={"weights": torch.randn(3, 2)})
    episodes.save(tmp_path / "e")
    assert same(Episodes.load(tmp_path / "e"), episodes)


def test_another_record_in_the_file_is_an_error(nested, tmp_path):
    nested.save(tmp_path / "r")
    with pytest.raises(DataError, match="holds a Nested, not a Layer"):
        Layer.load(tmp_path / "r")


def test_truncated_foreign_and_missing_files_are_errors(nested, tmp_path):
    nested.save(tmp_path / "r")
    (tmp_path / "cut").write_bytes((tmp_path / "r").read_bytes()[:-10])
    save_file({"a": torch.ones(1)}, str(tmp_path / "foreign"))
    save_file(
        {"a": torch.ones(1)}, str(tmp_path / "evil"), {"record": json.dumps({"record": "os.system", "fields": {}})}
    )
    (tmp_path / "text").write_text("not a record")
    for name in ("cut", "foreign", "evil", "text", "nowhere"):
        with pytest.raises(DataError, match="does not hold a saved Nested"):
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
def test_any_description_is_a_record_or_an_error(tmp_path, description):
    save_file({"a": torch.ones(1)}, str(tmp_path / "any"), {"record": json.dumps(description)})
    with pytest.raises(DataError):
        Nested.load(tmp_path / "any")


def test_what_was_said_about_a_record_is_read_without_the_record(nested, tmp_path):
    nested.save(tmp_path / "r", {"model": "a"})
    assert read_about(tmp_path / "r") == {"model": "a"}
    assert same(Nested.load(tmp_path / "r"), nested)
    nested.save(tmp_path / "silent")
    assert read_about(tmp_path / "silent") == {}
    (tmp_path / "text").write_text("not a record")
    with pytest.raises(DataError, match="does not hold a saved record"):
        read_about(tmp_path / "text")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "state")
    for read in (Layer.load, read_about):
        with pytest.raises(DataError, match="pipe"):
            read(tmp_path / "state")
