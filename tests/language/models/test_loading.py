"""Loading checkpoints from folders and the cache of the hub: errors, trusted code, and no network access."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, BertConfig, BertForMaskedLM, T5Config

from iclbench.language.models import loading
from iclbench.language.models.loading import quiet_logs
from iclbench.language.models.model import load
from tests.language.tiny_models import fast_tokenizer, save_tiny_model, scale_weights
from tests.refusals import refused

# Network access ends the process, because libraries might catch an exception.
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
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(
        lambda architecture: save_tiny_model(architecture, tmp_path_factory.mktemp("loading") / f"tiny-{architecture}")
    )


@pytest.fixture
def folder(tiny_model_folder, tmp_path: Path) -> Path:
    """A copy of a Llama model that a test may damage."""
    return Path(shutil.copytree(tiny_model_folder("llama"), tmp_path / "my-llama"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set HF_HUB_OFFLINE, and restore it after the test."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def put_into_cache(folder: Path, hub: Path) -> str:
    """Copy a model into a cache of the hub as `someone/cached`, and return its commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / "models--someone--cached"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return commit


def run_without_network(program: str, cache_folder: Path) -> list[str]:
    """Run a program without environment variables that forbid network access, and return the lines of its output."""
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    process = subprocess.run(
        [sys.executable, "-c", NO_NETWORK + program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment | {"HF_HOME": str(cache_folder), "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == ""
    return process.stdout.splitlines()


@pytest.mark.slow
def test_models_are_loaded_or_refused_without_network_access(tiny_model_folder, tmp_path: Path) -> None:
    commit = put_into_cache(tiny_model_folder("llama"), tmp_path / "hub")
    program = f"""
print(load({str(tiny_model_folder("gpt2"))!r}).name)
cached = load("someone/cached", offline=True)
print(cached.name, cached.identity == load("someone/cached", offline=True, revision={commit!r}).identity)
start = time.perf_counter()
try:
    load("someone/no-such-model", offline=True)
except IclbenchError as error:
    print(error.code)
print(time.perf_counter() - start)
"""
    folder, from_cache, code, seconds = run_without_network(program, tmp_path)
    assert folder == "tiny-gpt2"
    assert from_cache == "cached True"
    assert code == "missing-file"
    assert float(seconds) < 1


def test_the_environment_variable_hf_hub_offline_sets_offline_mode() -> None:
    with refused("missing-file", "someone/no-such-model", "--offline"):
        load("someone/no-such-model")


def test_failed_requests_to_the_hub_are_not_logged() -> None:
    http_log = logging.getLogger("huggingface_hub.utils._http")
    assert http_log.isEnabledFor(logging.WARNING)
    with quiet_logs():
        assert not http_log.isEnabledFor(logging.WARNING) and http_log.isEnabledFor(logging.ERROR)
    assert http_log.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "~/nowhere-at-all", "a/b/c", "models/"])
def test_a_missing_folder_is_refused(name: str) -> None:
    with refused("missing-file", f"'{name}'"):
        load(name)


def test_a_cached_model_without_weights_is_refused(
    tiny_model_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = put_into_cache(tiny_model_folder("llama"), tmp_path)
    (tmp_path / "models--someone--cached" / "snapshots" / commit / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with refused("missing-file", "someone/cached"):
        load("someone/cached")


def test_an_invalid_model_id_is_refused() -> None:
    with refused("missing-file", "what is this?"):
        load("what is this?", offline=True)


@pytest.mark.parametrize(
    ("file", "name"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")],
)
def test_a_folder_without_a_required_file_is_refused(file: str, name: str, folder: Path) -> None:
    (folder / file).unlink()
    with refused("missing-file", folder, name, "save_pretrained"):
        load(str(folder))


def test_a_file_instead_of_a_folder_is_refused(folder: Path) -> None:
    with refused("bad-value", folder / "config.json"):
        load(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("file", "content", "code", "names"),
    [
        ("config.json", b"{", "unreadable-file", ("config.json",)),
        ("config.json", b'{"hidden_size": 3}', "bad-syntax", ("model_type",)),
        ("config.json", b'{"model_type": "no-such-net"}', "not-supported", ("no-such-net", "transformers")),
        ("config.json", b'{"model_type": ["llama"]}', "bad-syntax", ("model_type", "['llama']")),
        ("config.json", b'{"model_type": {"a": 1}}', "bad-syntax", ("model_type",)),
        ("config.json", b'{"model_type": 3}', "bad-syntax", ("model_type", 3)),
        ("config.json", b'{"model_type": "own", "auto_map": ["own.Own"]}', "bad-syntax", ("auto_map",)),
        ("model.safetensors", b"\x08", "unreadable-file", ("weights",)),
        ("tokenizer.json", b"[]", "unreadable-file", ("tokenizer",)),
    ],
)
def test_a_damaged_file_is_refused(
    file: str, content: bytes, code: str, names: tuple[object, ...], folder: Path
) -> None:
    (folder / file).write_bytes(content)
    with refused(code, folder, *names):
        load(str(folder))


def test_adapters_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without peft, transformers would silently ignore an adapter.

    The adapter is alone in a folder, next to complete weights, or in the cache of the hub.
    """
    adapter_folder = tmp_path / "adapter"
    adapter_folder.mkdir()
    for path in (adapter_folder, folder):
        (path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "someone/base"}')
        with refused("not-supported", path, "adapter_config.json", "merge_and_unload"):
            load(str(path))
    put_into_cache(folder, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with refused("not-supported", "someone/cached", "adapter_config.json"):
        load("someone/cached", offline=True)


def test_truncated_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with refused("unreadable-file", folder, "weights"):
        load(str(folder))


def test_missing_weights_are_refused_and_not_initialised_at_random(folder: Path) -> None:
    AutoModel.from_pretrained(folder).save_pretrained(folder)  # without a head
    with refused("unreadable-file", folder, "LlamaForCausalLM", "lm_head.weight"):
        load(str(folder))


def test_weights_of_the_wrong_size_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 50}))
    with refused("unreadable-file", folder):
        load(str(folder))


def test_tied_weights_are_not_missing(tiny_model_folder) -> None:
    assert load(str(tiny_model_folder("gpt2"))).has_memory


def test_models_that_are_not_causal_are_refused(tmp_path: Path) -> None:
    small = {
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    fast_tokenizer("bpe").save_pretrained(tmp_path / "bert")
    bert = BertForMaskedLM(BertConfig(**small))
    scale_weights(bert)
    bert.save_pretrained(tmp_path / "bert")
    with refused("not-applicable", tmp_path / "bert", "BertForMaskedLM"):
        load(str(tmp_path / "bert"))
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"architectures": ["BertLMHeadModel"]}))
    with refused("not-applicable", "'bert'"):
        load(str(tmp_path / "bert"))

    shutil.copytree(tmp_path / "bert", tmp_path / "t5")
    T5Config().save_pretrained(tmp_path / "t5")
    with refused("not-applicable", tmp_path / "t5"):
        load(str(tmp_path / "t5"))


def test_code_of_a_checkpoint_runs_only_if_trusted(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    (folder / "own.py").write_text(
        f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own-net'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    custom_code = {
        "model_type": "own-net",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | custom_code))
    with refused("untrusted", folder, "own.OwnConfig", "own.OwnModel", "--trust-remote-code"):
        load(str(folder))
    assert not trace.exists()
    assert load(str(folder), trust_remote_code=True).has_memory
    assert trace.exists()


def test_code_of_a_tokenizer_runs_only_if_trusted(folder: Path) -> None:
    custom_code = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}, "tokenizer_class": "OwnTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(custom_code))
    with refused("untrusted", folder, "--trust-remote-code"):
        load(str(folder))


def test_the_default_precision_of_a_bfloat16_checkpoint_is_float32(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert AutoConfig.from_pretrained(folder).dtype == torch.bfloat16
    models = {dtype: load(str(folder), dtype=dtype) for dtype in ("float32", "auto", "float16")}
    assert [model.dtype for model in models.values()] == [torch.float32, torch.bfloat16, torch.float16]
    # Each precision is a separate contestant in the tables.
    name = models["float32"].name
    assert [model.name for model in models.values()] == [name, f"{name}-bfloat16", f"{name}-float16"]
    assert len({model.identity for model in models.values()}) == 3
    with refused("unknown-name", "'bf16'", "bfloat16"):
        load(str(folder), dtype="bf16")


def test_nonfinite_logits_are_refused(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data.fill_(1e30)
    model.save_pretrained(folder)
    with refused("not-finite", "float16", "--dtype float32"):
        load(str(folder), dtype="float16")


def test_a_revision_of_a_folder_is_refused(folder: Path) -> None:
    with refused("conflict", folder, "--revision"):
        load(str(folder), revision="main")


def test_a_model_is_named_after_the_last_part_of_its_path_or_as_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(f"{folder}/").name == "my-llama"
    assert load(str(folder), contestant_name="another").name == "another"
    monkeypatch.chdir(folder)
    assert load(".").name == "my-llama"
    with refused("bad-value", "a/b"):
        load(str(folder), contestant_name="a/b")


def test_the_identity_depends_only_on_the_files_of_the_model(folder: Path, tmp_path: Path) -> None:
    original = load(str(folder)).identity
    (folder / "README.md").write_text("about")
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert load(str(tmp_path / "elsewhere")).identity == original
    changed = json.loads((folder / "tokenizer.json").read_text())
    changed["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    assert load(str(folder)).identity != original
    save_tiny_model("llama", tmp_path / "elsewhere", seed=1)
    assert load(str(tmp_path / "elsewhere")).identity != original


def test_a_generic_tokenizer_is_read_from_its_file_whatever_the_architecture(tmp_path: Path) -> None:
    """For Qwen2, transformers would replace the pre-tokeniser of the file, so single spaces would lose their tokens."""
    text = "a b\n\nc->d"
    model = load(str(save_tiny_model("qwen2", tmp_path / "qwen2", "chars")))
    assert list(model.tokens(text).ids) == fast_tokenizer("chars")(text)["input_ids"]


def test_loading_is_silent(tiny_model_folder, capfd: pytest.CaptureFixture[str]) -> None:
    for architecture in ("mamba", "rwkv"):
        load(str(tiny_model_folder(architecture)))
    captured = capfd.readouterr()
    assert captured.out == captured.err == "" or "shards" in captured.err


def test_the_identity_depends_on_end_tokens_but_not_on_other_generation_settings(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    identities = []
    for generation_config in (None, {"temperature": 0.5}, {"eos_token_id": 3}, {"eos_token_id": [3, 4]}):
        if generation_config is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation_config))
        identities.append(loading.weights_id(loading.find(str(tmp_path)), "float32"))
    assert identities[0] == identities[1] and len(set(identities)) == 3
