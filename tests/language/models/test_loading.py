"""Checkpoints in folders and in the hub's cache: what is read, what is refused, and that nobody goes to the network."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, BertConfig, BertForMaskedLM, T5Config

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.language.models import loading
from iclbench.language.models.loading import quiet
from iclbench.language.models.model import load
from tests.language.tiny_models import enlarge, fast_tokenizer, tiny

# Any attempt to reach the network ends the process; libraries that would swallow an exception cannot.
NO_NETWORK = """
import os, socket, sys, time
def attempt(*_, **__):
    print("ATTEMPT", flush=True)
    os._exit(9)
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = attempt
from iclbench.core.errors import IclbenchError
from iclbench.language.models.model import load
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda kind: tiny(kind, tmp_path_factory.mktemp("loading") / f"tiny-{kind}"))


@pytest.fixture
def folder(shared, tmp_path: Path) -> Path:
    """A Llama to damage."""
    return Path(shutil.copytree(shared("llama"), tmp_path / "my-llama"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user sets it; undone afterwards, whatever the loader did."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def refused(error: type[Exception], name: object, **options: object) -> str:
    """The one line."""
    with pytest.raises(error) as raised:
        load(str(name), **options)
    message = str(raised.value)
    assert "\n" not in message
    return message


def cached(folder: Path, hub: Path) -> str:
    """Put the folder into a cache of the hub as someone/cached, and say its commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / "models--someone--cached"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return commit


def without_network(program: str, cache_folder: Path) -> list[str]:
    """What the program prints; nothing is set that would forbid the network."""
    clean = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK + program],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean | {"HF_HOME": str(cache_folder), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_folder_and_cache_are_read_and_an_id_refused_in_no_time_without_any_attempt_to_reach_the_network(
    shared, tmp_path: Path
) -> None:
    commit = cached(shared("llama"), tmp_path / "hub")
    program = f"""
print(load({str(shared("gpt2"))!r}).name)
cached = load("someone/cached", offline=True)
print(cached.name, cached.identity == load("someone/cached", offline=True, revision={commit!r}).identity)
start = time.perf_counter()
try:
    load("nobody/no-such-model", offline=True)
except IclbenchError as error:
    print(error)
print(time.perf_counter() - start)
"""
    folder, from_cache, error, seconds = without_network(program, tmp_path)
    assert folder == "tiny-gpt2"
    assert from_cache == "cached True"
    assert error == (
        "'nobody/no-such-model' is no folder here, and no model of the hub can be had: it is not wholly in the "
        "local cache, and offline it is not fetched; give a folder, or go online"
    )
    assert float(seconds) < 1


def test_the_variable_for_offline_counts_as_the_option() -> None:
    assert "not wholly in the local cache, and offline" in refused(UsageError, "nobody/no-such-model")


def test_attempts_to_reach_the_hub_are_no_lines_of_their_own() -> None:
    reports = logging.getLogger("huggingface_hub.utils._http")
    assert reports.isEnabledFor(logging.WARNING)
    with quiet():
        assert not reports.isEnabledFor(logging.WARNING) and reports.isEnabledFor(logging.ERROR)
    assert reports.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "~/nowhere-at-all", "a/b/c", "models/"])
def test_a_folder_that_is_not_there(name: str) -> None:
    assert refused(UsageError, name).startswith(f"there is no folder '{name}'")


def test_a_model_of_the_cache_that_lacks_its_weights_is_not_there(
    shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = cached(shared("llama"), tmp_path)
    (tmp_path / "models--someone--cached" / "snapshots" / commit / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "not wholly in the local cache" in refused(UsageError, "someone/cached")


def test_what_is_no_id_either() -> None:
    assert "no folder here" in refused(UsageError, "what is this?", offline=True)


@pytest.mark.parametrize(
    ("file", "what"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")],
)
def test_a_folder_that_lacks_something(file: str, what: str, folder: Path) -> None:
    (folder / file).unlink()
    assert f"has no {what}" in refused(DataError, folder)


def test_a_file_in_the_place_of_a_folder(folder: Path) -> None:
    assert "is a file" in refused(DataError, folder / "config.json")


@pytest.mark.parametrize(
    ("file", "damage", "what"),
    [
        ("config.json", b"{", "config.json"),
        ("config.json", b'{"hidden_size": 3}', "model type"),
        ("config.json", b'{"model_type": "no-such-net"}', "'no-such-net', which transformers .* does not know"),
        ("config.json", b'{"model_type": ["llama"]}', "model_type must be a word, got \\['llama'\\]"),
        ("config.json", b'{"model_type": {"a": 1}}', "model_type must be a word"),
        ("config.json", b'{"model_type": 3}', "model_type must be a word, got 3"),
        ("config.json", b'{"model_type": "own", "auto_map": ["own.Own"]}', "auto_map must be a table of classes"),
        ("model.safetensors", b"\x08", "its weights cannot be read"),
        ("tokenizer.json", b"[]", "its tokenizer cannot be read"),
    ],
)
def test_a_damaged_file(file: str, damage: bytes, what: str, folder: Path) -> None:
    (folder / file).write_bytes(damage)
    message = refused(DataError, folder)
    assert re.search(what, message), message


def test_an_adapter_is_refused_and_never_left_out_without_a_word(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, beside whole weights, and in the hub's cache: with peft transformers applies it, without it does not."""
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in (alone, folder):
        (path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "someone/base"}')
        message = refused(UsageError, path)
        assert "holds an adapter (adapter_config.json), which is not applied here; merge it into its model" in message
    cached(folder, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "'someone/cached' holds an adapter" in refused(UsageError, "someone/cached", offline=True)


def test_weights_cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "its weights cannot be read" in refused(DataError, folder)


def test_weights_that_are_missing_are_not_drawn_at_random(folder: Path) -> None:
    AutoModel.from_pretrained(folder).save_pretrained(folder)  # without a head
    assert "lacks 1 of the weights of a LlamaForCausalLM: lm_head.weight" in refused(DataError, folder)


def test_weights_of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 50}))
    refused(DataError, folder)


def test_tied_weights_are_not_missing(shared) -> None:
    assert load(str(shared("gpt2"))).remembers


def test_masked_models_and_those_with_an_encoder_are_refused(tmp_path: Path) -> None:
    small = {
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    fast_tokenizer("bpe").save_pretrained(tmp_path / "bert")
    bert = BertForMaskedLM(BertConfig(**small))
    enlarge(bert)
    bert.save_pretrained(tmp_path / "bert")
    assert "is no causal language model: it is a BertForMaskedLM" in refused(UsageError, tmp_path / "bert")
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"architectures": ["BertLMHeadModel"]}))
    assert "sees the tokens behind the one that it predicts" in refused(DataError, tmp_path / "bert")

    shutil.copytree(tmp_path / "bert", tmp_path / "t5")
    T5Config().save_pretrained(tmp_path / "t5")
    assert "t5 is an encoder and a decoder" in refused(UsageError, tmp_path / "t5")


def test_code_of_a_checkpoint_is_not_run_unless_asked(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    (folder / "own.py").write_text(
        f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own-net'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    own = {"model_type": "own-net", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own))
    message = refused(UsageError, folder)
    assert "wants to run code of its own (own.OwnConfig, own.OwnModel); read it and give --trust-remote-code" in message
    assert not trace.exists()
    assert load(str(folder), trust_remote_code=True).remembers
    assert trace.exists()


def test_code_of_a_tokenizer_is_not_run_unless_asked(folder: Path) -> None:
    own = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}, "tokenizer_class": "OwnTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    assert "--trust-remote-code" in refused(UsageError, folder)


def test_precision_is_float32_unless_asked_also_of_a_bfloat16_checkpoint(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert AutoConfig.from_pretrained(folder).dtype == torch.bfloat16
    found = {dtype: load(str(folder), dtype=dtype) for dtype in ("float32", "auto", "float16")}
    assert [model.dtype for model in found.values()] == [torch.float32, torch.bfloat16, torch.float16]
    # Precisions are contestants of their own: none takes the place of another in the tables.
    plain = found["float32"].name
    assert [model.name for model in found.values()] == [plain, f"{plain}-bfloat16", f"{plain}-float16"]
    assert len({model.identity for model in found.values()}) == 3
    with pytest.raises(UnknownNameError, match="unknown dtype 'bf16'"):
        load(str(folder), dtype="bf16")


def test_numbers_that_are_not_finite_are_refused(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data.fill_(1e30)
    model.save_pretrained(folder)
    assert "not finite in float16; give --dtype float32" in refused(DataError, folder, dtype="float16")


def test_a_folder_has_no_revisions(folder: Path) -> None:
    assert "leave out --revision main" in refused(UsageError, folder, revision="main")


def test_the_name_is_the_last_part_or_the_one_that_is_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(f"{folder}/").name == "my-llama"
    assert load(str(folder), contestant_name="another").name == "another"
    monkeypatch.chdir(folder)
    assert load(".").name == "my-llama"
    assert "leave out slashes" in refused(UsageError, folder, contestant_name="a/b")


def test_the_identity_is_that_of_what_defines_the_model_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    original = load(str(folder)).identity
    (folder / "README.md").write_text("about")
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert load(str(tmp_path / "elsewhere")).identity == original
    changed = json.loads((folder / "tokenizer.json").read_text())
    changed["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    assert load(str(folder)).identity != original
    tiny("llama", tmp_path / "elsewhere", seed=1)
    assert load(str(tmp_path / "elsewhere")).identity != original


def test_a_generic_tokenizer_is_read_as_its_file_has_it(tmp_path: Path) -> None:
    """For Qwen2 transformers would split texts by Qwen's own rules, after which no token of a space is left."""
    text = "a b\n\nc->d"
    model = load(str(tiny("qwen2", tmp_path / "qwen2", "chars")))
    assert list(model.tokens(text).ids) == fast_tokenizer("chars")(text)["input_ids"]


def test_loading_is_silent(shared, capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("mamba", "rwkv"):
        load(str(shared(kind)))
    captured = capfd.readouterr()
    assert captured.out == captured.err == "" or "shards" in captured.err


def test_other_ends_of_texts_are_another_model_and_other_settings_of_generating_are_not(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    found = []
    for said in (None, {"temperature": 0.5}, {"eos_token_id": 3}, {"eos_token_id": [3, 4]}):
        if said is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(said))
        found.append(loading.identity(loading.find(str(tmp_path)), "float32"))
    assert found[0] == found[1] and len(set(found)) == 3
